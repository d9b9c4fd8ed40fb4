// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jsonmap maps Go structs to JSON and back, by reflection that is compiled once
// per type, over the cursor of strictjson.
//
// Struct fields have the tags of encoding/json:
//
//   - A member is required unless its field is a pointer or has omitempty or omitzero. Null
//     is the same as an absent member, except for [JSON], [json.RawMessage] and any, which
//     hold it.
//   - The zero value of an optional field is not written and means the default of its
//     protocol; a real zero needs a pointer. The tag jsonmap has options, separated by
//     commas: with always an optional member is written even if it is zero. With default=30
//     the zero value is written as 30, and an absent member is read as 30; an empty string that
//     was read for a string is kept with the unknown members and written again. With not a boolean
//     is the opposite of its member, for members that are true if they are absent. With
//     object raw JSON, or each element of a list of it, is an object; nil is written as {}.
//     With unset null is the same as an absent member for raw JSON, too.
//   - An exported field without a json tag is an error of the type, because its data would
//     be lost. Embedded structs without a tag contribute their fields.
//   - A field of type [Members], or of a type that is defined as it, keeps unknown members
//     and writes them behind the others. Without one, unknown members are dropped.
//   - A field of type map[string]json.RawMessage, or of a type that is defined as it, with the
//     tags json:"-" and jsonmap:"extra" makes its struct lossless: it keeps unknown members,
//     members whose values do not fit their fields, and values that would be omitted, and
//     required members may be absent. Such a struct is mapped by its fields even if it has
//     the methods of encoding/json, which can use this package. In it, raw JSON with the
//     tags json:"-" and jsonmap:"other=name" holds the values of a member that the field
//     of the member, which is before it, does not hold.
//   - Integers are exact, in whatever way they are written: 7, 7.0, 70e-1. Bytes are
//     base64. Nil slices and maps that are not omitted are written as empty ones.
//   - A type may read and write itself: with ReadJSON(*strictjson.Cursor) *Fault and
//     AppendJSON([]byte) ([]byte, *Fault), with the methods of encoding/json, or, as an
//     enumeration does, with UnmarshalText and MarshalText.
//   - A struct may read a member that has a second form, with ReadMember(name string,
//     value json.RawMessage) (isRead bool). It is called for a value whose type does not fit the
//     field. It must copy what it keeps. A member that it read counts as absent.
//   - A struct may check its members with CheckMember(name string), which returns a *Fault, or an
//     error for a value that is not allowed. It is called for
//     each member that the text has, that is about to be written, or that has the option
//     always or default, in the order of the type, when all members are read. The path of the fault is relative to the member.
//
// Reading makes at most one allocation for each string, slice, map and pointer.
package jsonmap

import (
	"reflect"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Bounds of the nesting of written values, so that a cycle is an error, and of raw JSON in them,
// which is bounded where it is read.
const (
	maxDepth    = 128
	maxRawDepth = 10000
)

// Read reads the value at c into dst, a non-nil pointer, and returns the first fault in the
// order of the type, or nil. The value is read to its end in any case. If c refuses its
// text, the fault is [Malformed] and c.Err has the reason. Members that the text does not
// have keep what dst holds, and slices with enough capacity are used again. After a fault dst is
// not to be used.
func Read(c *strictjson.Cursor, dst any) *Fault {
	f := readAny(c, dst)
	if c.Failed() {
		return &Fault{Reason: Malformed}
	}
	return f
}

// An Other reads members for [ReadRest]: ReadOther reads the value of the current member of c, or
// returns false.
type Other interface {
	ReadOther(c *strictjson.Cursor) bool
}

// ReadRest is [Read] for an object with members that dst, a pointer to a struct, does not name:
// those that other does not read are stored in rest.
func ReadRest(c *strictjson.Cursor, dst any, rest *Members, other Other) *Fault {
	v := reflect.ValueOf(dst).Elem()
	m, _ := mappingOf(v.Type())
	p, ok := m.(*plan)
	if !ok || !c.Object() {
		return Read(c, dst)
	}
	f := p.readRest(c, v, rest, other)
	if c.Failed() {
		return &Fault{Reason: Malformed}
	}
	return f
}

func readAny(c *strictjson.Cursor, dst any) *Fault {
	if r, ok := dst.(selfReader); ok {
		return r.ReadJSON(c)
	}
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		c.Skip()
		return &Fault{Reason: BadType, Want: "a pointer"}
	}
	v = v.Elem()
	m, err := mappingOf(v.Type())
	if err != nil {
		c.Skip()
		return &Fault{Reason: BadType, Want: err.Error()}
	}
	return m.read(c, v)
}

// Append appends src as JSON without white space: the members of structs in the order of
// the type, then unknown ones, the members of maps in the order of their names. An error is
// a [*Fault] or an error of [Check]; b is then returned unchanged.
func Append(b []byte, src any) ([]byte, error) {
	v := reflect.ValueOf(src)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return append(b, "null"...), nil
	}
	m, err := mappingOf(v.Type())
	if err != nil {
		return b, err
	}
	out, f := m.append(b, v, 0)
	if f != nil {
		return b, f
	}
	return out, nil
}

// AppendRest is [Append] for a pointer to a struct that [ReadRest] read with rest. It does not append rest.
func AppendRest(b []byte, src any, rest Members) ([]byte, error) {
	v := reflect.ValueOf(src).Elem()
	m, _ := mappingOf(v.Type())
	p, ok := m.(*plan)
	if !ok || p.kept != nil || p.extra != nil {
		return Append(b, src)
	}
	out, f := p.appendFields(b, v, 0, rest)
	if f != nil {
		return b, f
	}
	return append(out, '}'), nil
}

// Check reports whether values of a type can be read and written. It is for the time at
// which a type is registered: [Read] and [Append] fail for the types that Check refuses.
func Check(t reflect.Type) error {
	_, err := mappingOf(t)
	return err
}

// Field returns the field of a struct, or of the struct that a pointer leads to, for the member of
// that name, or the zero Value. It finds nothing in types that [Check] refuses.
func Field(v reflect.Value, name string) reflect.Value {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	m, _ := mappingOf(v.Type())
	if p, ok := m.(*plan); ok {
		if i := p.find([]byte(name)); i >= 0 {
			return in(v, p.fields[i].index)
		}
	}
	return reflect.Value{}
}
