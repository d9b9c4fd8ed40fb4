// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"cmp"
	"encoding/base64"
	"math"
	"reflect"
	"strconv"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A leaf maps values of one JSON type.
type leaf struct {
	name string // see want
	get  getter
	put  func(b []byte, src reflect.Value) ([]byte, *Fault)
}

// A getter reads a value, or returns false for a value of another type.
type getter func(c *strictjson.Cursor, dst reflect.Value) (f *Fault, ok bool)

var (
	stringLeaf = &leaf{"string", readString, putString}
	boolLeaf   = &leaf{"boolean", readBool, putBool}
	notLeaf    = &leaf{"boolean", readNot, putNot}
	intLeaf    = &leaf{"integer", ofNumber(setInt), putInt}
	floatLeaf  = &leaf{"number", ofNumber(setFloat), putFloat}
	numberLeaf = &leaf{"number", readNumber, putNumber}
	bytesLeaf  = &leaf{"base64", readBytes, putBytes}
	jsonLeaf   = &leaf{"any value", readJSON, putJSON}
	rawLeaf    = &leaf{"any value", readRaw, putRaw}
	objectLeaf = &leaf{"object", readObject, putObject}
)

func (l *leaf) want() string { return l.name }

func (l *leaf) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	f, ok := l.get(c, dst)
	if !ok {
		return wrongType(c, l.name)
	}
	return f
}

func (l *leaf) append(b []byte, src reflect.Value, _ int) ([]byte, *Fault) { return l.put(b, src) }

func readString(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	s, ok := c.Text()
	if ok {
		dst.SetString(s)
	}
	return nil, ok
}

func putString(b []byte, src reflect.Value) ([]byte, *Fault) { return appendString(b, src.String()) }

func appendString(b []byte, s string) ([]byte, *Fault) {
	out, isUTF8 := strictjson.AppendText(b, s)
	if !isUTF8 {
		return b, &Fault{Reason: Invalid, Want: "UTF-8"}
	}
	return out, nil
}

func readBool(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	v, ok := c.Bool()
	if ok {
		dst.SetBool(v)
	}
	return nil, ok
}

func putBool(b []byte, src reflect.Value) ([]byte, *Fault) {
	return strconv.AppendBool(b, src.Bool()), nil
}

func readNot(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	v, ok := c.Bool()
	dst.SetBool(!v && ok)
	return nil, ok
}

func putNot(b []byte, src reflect.Value) ([]byte, *Fault) {
	return strconv.AppendBool(b, !src.Bool()), nil
}

// ofNumber makes a leaf's get of a function that stores a number.
func ofNumber(set func(v strictjson.Value, dst reflect.Value) *Fault) getter {
	return func(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
		v, ok := c.Number()
		if !ok {
			return nil, false
		}
		return set(v, dst), true
	}
}

func setInt(v strictjson.Value, dst reflect.Value) *Fault {
	if dst.CanInt() {
		if n, ok := v.Int(); ok && !dst.OverflowInt(n) {
			dst.SetInt(n)
			return nil
		}
	} else if n, ok := v.Uint(); ok && !dst.OverflowUint(n) {
		dst.SetUint(n)
		return nil
	}
	if v.IsIntegral() {
		return &Fault{Reason: OutOfRange, Want: dst.Kind().String(), Got: "number"}
	}
	return &Fault{Reason: NotInteger, Want: "integer", Got: "number"}
}

func putInt(b []byte, src reflect.Value) ([]byte, *Fault) {
	if src.CanInt() {
		return strconv.AppendInt(b, src.Int(), 10), nil
	}
	return strconv.AppendUint(b, src.Uint(), 10), nil
}

func setFloat(v strictjson.Value, dst reflect.Value) *Fault {
	x, err := strconv.ParseFloat(string(v), dst.Type().Bits())
	if err != nil {
		return &Fault{Reason: OutOfRange, Want: dst.Kind().String(), Got: "number"}
	}
	dst.SetFloat(x)
	return nil
}

func putFloat(b []byte, src reflect.Value) ([]byte, *Fault) {
	x := src.Float()
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return b, &Fault{Reason: Invalid, Want: "a finite number"}
	}
	return strictjson.AppendFloat(b, x, src.Type().Bits()), nil
}

func readNumber(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	v, ok := c.Number()
	if ok {
		dst.SetString(c.String(v))
	}
	return nil, ok
}

func putNumber(b []byte, src reflect.Value) ([]byte, *Fault) {
	text := cmp.Or(src.String(), "0")
	if strictjson.Value(text).Kind() != '0' {
		return b, &Fault{Reason: Invalid, Want: "number"}
	}
	return appendChecked(b, []byte(text))
}

func readBytes(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	text, ok := c.TextBytes()
	if !ok {
		return nil, false
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(out, text)
	if err != nil {
		return &Fault{Reason: Invalid, Want: "base64", Got: begin(text)}, true
	}
	dst.SetBytes(out[:n])
	return nil, true
}

func putBytes(b []byte, src reflect.Value) ([]byte, *Fault) {
	b = base64.StdEncoding.AppendEncode(append(b, '"'), src.Bytes())
	return append(b, '"'), nil
}

func readJSON(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	v, shape, ok := c.Raw()
	*dst.Addr().Interface().(*JSON) = newJSON(v, shape)
	return nil, ok
}

func putJSON(b []byte, src reflect.Value) ([]byte, *Fault) {
	return addressable(src).Interface().(*JSON).append(b), nil
}

func readRaw(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	v, _, ok := c.Raw()
	dst.SetBytes(v)
	return nil, ok
}

// putRaw checks text, which any caller may have set.
func putRaw(b []byte, src reflect.Value) ([]byte, *Fault) { return appendChecked(b, src.Bytes()) }

func readObject(c *strictjson.Cursor, dst reflect.Value) (*Fault, bool) {
	if c.Kind() != '{' {
		return nil, false
	}
	return readRaw(c, dst)
}

func putObject(b []byte, src reflect.Value) ([]byte, *Fault) {
	if src.Len() == 0 {
		return append(b, "{}"...), nil
	}
	start := len(b)
	b, f := putRaw(b, src)
	if f == nil && b[start] != '{' {
		return b, &Fault{Reason: WrongType, Want: "object", Got: kindNames[strictjson.Value(b[start:]).Kind()]}
	}
	return b, f
}

func appendChecked(b, text []byte) ([]byte, *Fault) {
	if len(text) == 0 {
		return append(b, "null"...), nil
	}
	v, shape, _, err := strictjson.Survey(text, strictjson.Options{MaxDepth: maxRawDepth, LoneSurrogates: true}, nil)
	if err != nil {
		return b, &Fault{Reason: Invalid, Want: "JSON", Got: err.Error()}
	}
	return newJSON(v, shape).append(b), nil
}

// anyMapping reads values like [strictjson.Value.Any]. It writes values of any type.
type anyMapping struct{}

func (anyMapping) want() string { return "any value" }

func (anyMapping) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	v, _, ok := c.Raw()
	if !ok {
		return wrongType(c, "any value")
	}
	dst.SetZero()
	if x := v.Any(); x != nil {
		dst.Set(reflect.ValueOf(x))
	}
	return nil
}

func (anyMapping) append(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	if src.IsNil() {
		return append(b, "null"...), nil
	}
	src = src.Elem()
	m, err := mappingOf(src.Type())
	if err != nil {
		return b, &Fault{Reason: BadType, Want: err.Error()}
	}
	return deeper(m, b, src, depth)
}

// deeper appends a part of a value, unless it is nested too deep.
func deeper(m mapping, b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	if m == stringLeaf {
		return appendString(b, src.String())
	}
	if depth >= maxDepth {
		return b, &Fault{Reason: Invalid, Want: "fewer levels"}
	}
	return m.append(b, src, depth+1)
}

type pointerMapping struct {
	elem mapping
	typ  reflect.Type
}

func (m *pointerMapping) want() string { return m.elem.want() }

func (m *pointerMapping) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	if c.Null() {
		dst.SetZero()
		return nil
	}
	p := reflect.New(m.typ)
	dst.Set(p)
	return m.elem.read(c, p.Elem())
}

func (m *pointerMapping) append(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	if src.IsNil() {
		return append(b, "null"...), nil
	}
	return deeper(m.elem, b, src.Elem(), depth)
}
