// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// JSON is a JSON value as text, valid and without white space. Only a reader and [NewJSON]
// set it, so that it is written unchecked. The zero value is absent and is written as
// null. A value that was read may share the memory of the text it was read from.
type JSON struct{ text strictjson.Value }

// NewJSON checks a text of at most 128 levels and returns it.
func NewJSON(text []byte) (JSON, error) {
	v, shape, _, err := strictjson.Survey(text, strictjson.Options{MaxDepth: maxDepth}, nil)
	if err != nil {
		return JSON{}, err
	}
	return newJSON(bytes.Clone(v), shape), nil
}

// SurveyedJSON returns a value that [strictjson.Survey] checked.
func SurveyedJSON(v strictjson.Value, shape strictjson.Shape) JSON { return newJSON(v, shape) }

func newJSON(v strictjson.Value, shape strictjson.Shape) JSON {
	if !shape.Compact {
		v = strictjson.AppendCompact(nil, v)
	}
	return JSON{v}
}

// Value returns the text, which must not be changed.
func (j JSON) Value() strictjson.Value { return j.text }

// MarshalJSON is for encoding/json.
func (j JSON) MarshalJSON() ([]byte, error) { return j.append(nil), nil }

// UnmarshalJSON is for encoding/json.
func (j *JSON) UnmarshalJSON(text []byte) error {
	checked, err := NewJSON(text)
	*j = checked
	return err
}

func (j JSON) append(b []byte) []byte {
	if j.text == nil {
		return append(b, "null"...)
	}
	return append(b, j.text...)
}

// Members are the members of an object that its type does not name, in the order of the
// text. Only a reader and [NewMembers] set them. The zero value has none.
type Members struct{ text strictjson.Value }

// NewMembers returns the members of an object.
func NewMembers(object JSON) Members {
	if m := object.text.Members(); !m.Next() {
		return Members{}
	}
	return Members(object)
}

// isMembers reports whether t is [Members], or a type that is defined as it.
func isMembers(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[JSON]() && t.ConvertibleTo(reflect.TypeFor[Members]())
}

// membersAt returns a field for unknown members, or a copy of it.
func membersAt(v reflect.Value) *Members {
	return (*Members)(addressable(v).UnsafePointer()) // the type is Members, or defined as it
}

// Value returns the members as an object, or nil. It must not be changed.
func (m Members) Value() strictjson.Value { return m.text }

// add appends the member at c to the text of an object that lacks its last bracket.
func addMember(text []byte, c *strictjson.Cursor) []byte {
	if text == nil {
		text = []byte{'{'}
	} else {
		text = append(text, ',')
	}
	text = append(strictjson.AppendString(text, c.Key()), ':')
	v, shape, _ := c.Raw()
	if shape.Compact {
		return append(text, v...)
	}
	return strictjson.AppendCompact(text, v)
}

// append appends those members that p does not name to an object that is open in b.
func (m Members) append(b []byte, p *plan) []byte {
	for w := m.text.Members(); w.Next(); {
		if p.find(w.Name) >= 0 {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(b, w.Key...), ':')
		b = append(b, w.Value...)
	}
	return b
}

// methodMapping is for types that read or write themselves. Without the methods of one
// direction, rest does it.
type methodMapping struct {
	readsSelf, readsJSON, readsText bool // ReadJSON, UnmarshalJSON, UnmarshalText
	writesSelf, writesOther         bool // AppendJSON, the methods of encoding/json
	rest                            mapping
}

// methods returns the mapping of a type with methods, or that of its kind.
func (b *builder) methods(t reflect.Type) mapping {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface || isLossless(t) {
		return b.byKind(t) // the methods are those of the element, or use this package
	}
	p := reflect.PointerTo(t)
	m := &methodMapping{
		readsSelf:  p.Implements(reflect.TypeFor[selfReader]()),
		readsJSON:  p.Implements(reflect.TypeFor[json.Unmarshaler]()),
		readsText:  p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()),
		writesSelf: p.Implements(reflect.TypeFor[selfAppender]()),
		writesOther: p.Implements(reflect.TypeFor[json.Marshaler]()) ||
			p.Implements(reflect.TypeFor[encoding.TextMarshaler]()),
	}
	reads, writes := m.readsSelf || m.readsJSON || m.readsText, m.writesSelf || m.writesOther
	if !reads || !writes {
		m.rest = b.byKind(t)
	}
	if !reads && !writes {
		return m.rest
	}
	return m
}

func (m *methodMapping) want() string {
	if m.rest != nil {
		return m.rest.want()
	}
	return ""
}

func (m *methodMapping) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	self := dst.Addr().Interface()
	switch {
	case m.readsSelf:
		return self.(selfReader).ReadJSON(c)
	case m.readsJSON:
		v, _, ok := c.Raw()
		if !ok {
			return wrongType(c, "any value")
		}
		f := callMethod("UnmarshalJSON", func() error { return self.(json.Unmarshaler).UnmarshalJSON(v) })
		if f != nil {
			f.Got = kindNames[v.Kind()]
		}
		return f
	case m.readsText:
		text, ok := c.TextBytes()
		if !ok {
			return wrongType(c, "string")
		}
		f := callMethod("UnmarshalText", func() error { return self.(encoding.TextUnmarshaler).UnmarshalText(text) })
		if f != nil {
			f.Got = begin(text)
		}
		return f
	}
	return m.rest.read(c, dst)
}

func (m *methodMapping) append(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	switch {
	case m.writesSelf:
		return addressable(src).Interface().(selfAppender).AppendJSON(b)
	case m.writesOther:
		text, err := guard.Encode(addressable(src).Interface())
		if err != nil {
			return b, methodFault(err)
		}
		return appendChecked(b, text)
	}
	return m.rest.append(b, src, depth)
}
