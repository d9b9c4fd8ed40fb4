// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

var keptType = reflect.TypeFor[map[string]json.RawMessage]()

// isKept reports whether a field makes its struct lossless.
func isKept(sf reflect.StructField) bool {
	return sf.Tag.Get("jsonmap") == "extra" && sf.Type.Kind() == reflect.Map && sf.Type.ConvertibleTo(keptType)
}

func isLossless(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		if isKept(t.Field(i)) {
			return true
		}
	}
	return false
}

const otherTag = "other="

// setOther sets the field for values of other types of the member before it.
func (p *plan) setOther(b *builder, root reflect.Type, sf reflect.StructField, at []int) {
	name := strings.TrimPrefix(sf.Tag.Get("jsonmap"), otherTag)
	i := p.find([]byte(name))
	if i < 0 || sf.Type != reflect.TypeFor[json.RawMessage]() {
		b.fail("%v.%s: want json.RawMessage behind the field of member %q", root, sf.Name, name)
		return
	}
	p.fields[i].other = at
}

func keptIn(v reflect.Value) map[string]json.RawMessage {
	if v.Len() == 0 {
		return nil
	}
	return v.Convert(keptType).Interface().(map[string]json.RawMessage)
}

// keep keeps a copy of a value.
func (p *plan) keep(dst reflect.Value, name string, text strictjson.Value) {
	m := in(dst, p.kept)
	if m.IsNil() {
		m.Set(reflect.MakeMap(m.Type()))
	}
	m.SetMapIndex(reflect.ValueOf(name), reflect.ValueOf(bytes.Clone(json.RawMessage(text))))
}

func (p *plan) keepUnknown(c *strictjson.Cursor, dst reflect.Value) {
	name := string(c.Key())
	if v, _, ok := c.Raw(); ok {
		p.keep(dst, name, v)
	}
}

// readKept reads a member of a lossless struct.
func (p *plan) readKept(c *strictjson.Cursor, dst reflect.Value, f *field) {
	start, v := c.Offset(), in(dst, f.index)
	bad := f.mapping.read(c, v)
	if c.Failed() {
		return
	}
	switch {
	case bad == nil && f.mapping == rawLeaf, bad == nil && f.mapping == objectLeaf:
		v.SetBytes(bytes.Clone(v.Bytes()))
	case bad == nil && !f.isOmitted(v):
	case bad != nil && f.other != nil:
		v.SetZero()
		in(dst, f.other).SetBytes(bytes.Clone(c.Since(start)))
	default:
		v.SetZero()
		p.keep(dst, f.name, c.Since(start))
	}
}

// appendOther appends a member whose value the field itself does not hold.
func (f *field) appendOther(b []byte, v reflect.Value) ([]byte, *Fault) {
	raw := *f
	raw.mapping, raw.defaultText = rawLeaf, nil
	return raw.append(b, v, 0)
}

// appendKept appends a lossless struct.
func (p *plan) appendKept(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	var f *Fault
	var written [maxFields / 64]uint64
	kept := keptIn(in(src, p.kept))
	b = append(b, '{')
	for i := range p.fields {
		field := &p.fields[i]
		v := in(src, field.index)
		isOther := field.other != nil && in(src, field.other).Len() > 0
		_, isKept := kept[field.name]
		switch {
		case isOther:
			b, f = field.appendOther(b, in(src, field.other))
		case field.isOmitted(v), isKept && v.IsZero():
			continue
		default:
			b, f = field.append(b, v, depth)
		}
		if f != nil {
			return b, f
		}
		written[i/64] |= 1 << (i % 64)
	}
	var few [8]string
	names := few[:0]
	for name := range kept {
		if i := p.find([]byte(name)); i < 0 || written[i/64]&(1<<(i%64)) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(strictjson.AppendString(b, name), ':')
		if b, f = appendChecked(b, kept[name]); f != nil {
			return b, f.In(strings.ToValidUTF8(name, "\ufffd"))
		}
	}
	return append(b, '}'), nil
}
