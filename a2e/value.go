// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"sync"
	"unsafe"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A decoder is what the values of one message share while it is read.
type decoder struct {
	strict bool
	plain  bool // no string has an escape
}

// decoders are all that there are. They do not change.
var decoders = [2][2]decoder{{{}, {plain: true}}, {{strict: true}, {strict: true, plain: true}}}

// decoderOf returns the decoder of a mode and a shape.
func decoderOf(strict, plain bool) *decoder {
	d := &decoders[0]
	if strict {
		d = &decoders[1]
	}
	if plain {
		return &d[1]
	}
	return &d[0]
}

// text is textOf without the look for escapes where there are none.
func (d *decoder) text(v strictjson.Value) (string, bool) {
	if d.plain && len(v) > 2 && v[0] == '"' {
		return unsafe.String(&v[1], len(v)-2), true
	}
	return textOf(v)
}

// An encoder is what the values of one message share while it is written.
type encoder struct {
	dst   []byte
	ascii bool
}

// encoders are used again: coders are called through pointers, so that each
// encoder would be an allocation.
var encoders = sync.Pool{New: func() any { return new(encoder) }}

// key begins a member, whose prefix is a comma, its name and a colon. The object is
// empty so far if its bracket is the last byte: no value ends in one.
func (e *encoder) key(prefix []byte) {
	if e.dst[len(e.dst)-1] == '{' {
		prefix = prefix[1:]
	}
	e.dst = append(e.dst, prefix...)
}

// members appends unknown members. Those that the model or the envelope names
// would stand twice and are left out.
func (e *encoder) members(m Members, p *plan) {
	for w := m.text.Members(); w.Next(); {
		if p != nil && p.find(w.Name, 0) >= 0 {
			continue
		}
		e.key(append(appendCompact([]byte{','}, w.Key, e.ascii), ':'))
		e.dst = appendCompact(e.dst, w.Value, e.ascii)
	}
}

// text appends a string, or reports that it is not valid UTF-8.
func (e *encoder) text(s string) *fault {
	dst, ok := appendString(e.dst, s, e.ascii)
	e.dst = dst
	if !ok {
		return badValue()
	}
	return nil
}

// raw appends JSON text that the caller made.
func (e *encoder) raw(raw []byte) *fault {
	v, shape, _, err := strictjson.Survey(raw, strictjson.Options{MaxDepth: 10000}, nil)
	switch {
	case err != nil:
		return badValue()
	case shape.Compact && shape.Plain && !e.ascii:
		e.dst = append(e.dst, v...)
	default:
		e.dst = appendCompact(e.dst, v, e.ascii)
	}
	return nil
}

// A valueCoder reads and writes values of one Go type.
type valueCoder struct {
	decode func(d *decoder, v strictjson.Value, dst reflect.Value) *fault
	encode func(e *encoder, src reflect.Value) *fault
}

func coderOf(t reflect.Type, f *field, building map[reflect.Type]*plan) valueCoder {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		if f.object {
			return valueCoder{decodeRawObject, encodeRawObject}
		}
		f.any = true
		return valueCoder{decodeRaw, encodeRaw}
	case reflect.TypeFor[Message]():
		return valueCoder{decodeNested, encodeNested}
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[members]()) {
		return objectCoder(t, building)
	}
	switch t.Kind() {
	case reflect.String:
		return valueCoder{decodeString, encodeString}
	case reflect.Int64, reflect.Int:
		return valueCoder{decodeInt, encodeInt}
	case reflect.Float64:
		return valueCoder{decodeFloat, encodeFloat}
	case reflect.Bool:
		return valueCoder{decodeBool, encodeBool}
	case reflect.Pointer:
		return pointerCoder(t, coderOf(t.Elem(), &field{}, building))
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			elem := &field{object: f.object}
			f.object = false // it speaks of the elements
			return listCoder(t, coderOf(t.Elem(), elem, building), f.nullable || f.null)
		}
	case reflect.Struct:
		if isModel(t) {
			p := compile(t, building)
			return valueCoder{
				func(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
					p.defaults(dst)
					return p.decode(d, v, nil, dst.Addr().UnsafePointer(), nil)
				},
				func(e *encoder, src reflect.Value) *fault {
					e.dst = append(e.dst, '{')
					if ft := p.encode(e, addressable(src).UnsafePointer()); ft != nil {
						return ft
					}
					e.dst = append(e.dst, '}')
					return nil
				},
			}
		}
	}
	return valueCoder{decodeOther, encodeOther}
}

// isModel reports whether t is a struct with members that this package reads.
func isModel(t reflect.Type) bool {
	for _, sf := range reflect.VisibleFields(t) {
		if sf.Tag.Get("a2e") != "" {
			return true
		}
	}
	return false
}

func decodeRaw(_ *decoder, v strictjson.Value, dst reflect.Value) *fault {
	*dst.Addr().Interface().(*json.RawMessage) = json.RawMessage(v)
	return nil
}

func encodeRaw(e *encoder, src reflect.Value) *fault {
	if src.IsNil() {
		e.dst = append(e.dst, "null"...)
		return nil
	}
	return e.raw(src.Bytes())
}

func decodeRawObject(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
	if !v.IsObject() {
		return mistyped()
	}
	return decodeRaw(d, v, dst)
}

func encodeRawObject(e *encoder, src reflect.Value) *fault {
	if src.IsNil() {
		e.dst = append(e.dst, "{}"...)
		return nil
	}
	return e.object(src.Bytes())
}

// object appends JSON text that must be an object.
func (e *encoder) object(raw []byte) *fault {
	mark := len(e.dst)
	if ft := e.raw(raw); ft != nil {
		return ft
	}
	if e.dst[mark] != '{' {
		return mistyped()
	}
	return nil
}

func decodeString(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
	s, ok := d.text(v)
	if !ok {
		return mistyped()
	}
	dst.SetString(s)
	return nil
}

// textOf is v.Text without the copy where it can be: every message owns the
// text it was read from, and nothing changes it afterwards, which the doc
// comment of [Message] asks of everyone.
func textOf(v strictjson.Value) (string, bool) {
	if len(v) > 2 && v[0] == '"' && bytes.IndexByte(v, '\\') < 0 {
		return unsafe.String(&v[1], len(v)-2), true
	}
	return v.Text()
}

// numberText is the text of a number without a copy; see textOf.
func numberText(v strictjson.Value) string {
	return unsafe.String(&v[0], len(v))
}

func encodeString(e *encoder, src reflect.Value) *fault { return e.text(src.String()) }

// decodeInt follows A2E-D11: any way of writing an integral number.
func decodeInt(_ *decoder, v strictjson.Value, dst reflect.Value) *fault {
	if v.Kind() != '0' {
		return mistyped()
	}
	n, ok := v.Int()
	switch {
	case ok && !dst.OverflowInt(n):
		dst.SetInt(n)
		return nil
	case !ok && !integral(v):
		return mistyped()
	}
	return badValue()
}

// IsIntegral reports whether a JSON number has no fraction, however it is
// written and however large it is: 3, 3.0 and 3e1 have none.
func IsIntegral(n json.Number) bool {
	return isNumeric(n) && integral(strictjson.Value(n))
}

func isNumeric(n json.Number) bool {
	v, err := strictjson.Check([]byte(n), strictjson.Options{})
	return err == nil && v.Kind() == '0' && len(v) == len(n)
}

// integral reports whether a number has no fraction, however large it is.
func integral(v strictjson.Value) bool {
	digits, exp := 0, 0 // digits after the point that are not trailing zeros, and the exponent
	point, zeros, seen := false, 0, false
	trailing := 0 // zeros at the end of the whole part
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c == '.':
			point = true
		case c == 'e' || c == 'E':
			n, err := strconv.Atoi(string(v[i+1:]))
			if err != nil { // out of range: the sign decides
				n = math.MaxInt32
				if v[i+1] == '-' {
					n = math.MinInt32
				}
			}
			exp = max(min(n, math.MaxInt32), math.MinInt32)
			i = len(v)
		case c >= '0' && c <= '9' && point:
			zeros++
			if c != '0' {
				digits += zeros
				zeros, seen = 0, true
			}
		case c == '0':
			trailing++
		case c >= '1' && c <= '9':
			trailing, seen = 0, true
		}
	}
	if !seen {
		return true // zero
	}
	if digits > 0 {
		return exp >= digits
	}
	return exp >= -trailing
}

func encodeInt(e *encoder, src reflect.Value) *fault {
	e.dst = strconv.AppendInt(e.dst, src.Int(), 10)
	return nil
}

func decodeFloat(_ *decoder, v strictjson.Value, dst reflect.Value) *fault {
	if v.Kind() != '0' {
		return mistyped()
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		return badValue()
	}
	dst.SetFloat(x)
	return nil
}

func encodeFloat(e *encoder, src reflect.Value) *fault {
	x := src.Float()
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return badValue()
	}
	e.dst = appendFloat(e.dst, x)
	return nil
}

// appendFloat appends the shortest decimal form that reads back to x, as
// ECMAScript prints numbers (A2E-D11).
func appendFloat(dst []byte, x float64) []byte {
	if x == 0 {
		return append(dst, '0') // minus zero too
	}
	if abs := math.Abs(x); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(dst, x, 'f', -1, 64)
	}
	mark := len(dst)
	dst = strconv.AppendFloat(dst, x, 'e', -1, 64)
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') && n-mark >= 4 { // e-07 is written e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

func decodeBool(_ *decoder, v strictjson.Value, dst reflect.Value) *fault {
	b, ok := v.Bool()
	if !ok {
		return mistyped()
	}
	dst.SetBool(b)
	return nil
}

func encodeBool(e *encoder, src reflect.Value) *fault {
	e.dst = strconv.AppendBool(e.dst, src.Bool())
	return nil
}

func pointerCoder(t reflect.Type, elem valueCoder) valueCoder {
	return valueCoder{
		func(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
			p := reflect.New(t.Elem())
			if ft := elem.decode(d, v, p.Elem()); ft != nil {
				return ft
			}
			dst.Set(p)
			return nil
		},
		func(e *encoder, src reflect.Value) *fault {
			if src.IsNil() {
				return &fault{reason: ReasonRequired}
			}
			return elem.encode(e, src.Elem())
		},
	}
}

func listCoder(t reflect.Type, elem valueCoder, nullable bool) valueCoder {
	return valueCoder{
		func(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
			if !v.IsArray() {
				return mistyped()
			}
			n := 0
			for w := v.Elements(); w.Next(); {
				n++
			}
			if n == 0 && !nullable {
				return nil // it has no elements already
			}
			list := reflect.MakeSlice(t, n, n)
			i := 0
			for w := v.Elements(); w.Next(); i++ {
				if ft := elem.decode(d, w.Value, list.Index(i)); ft != nil {
					return ft.in("[" + strconv.Itoa(i) + "]")
				}
			}
			dst.Set(list)
			return nil
		},
		func(e *encoder, src reflect.Value) *fault {
			e.dst = append(e.dst, '[')
			for i := range src.Len() {
				if i > 0 {
					e.dst = append(e.dst, ',')
				}
				if ft := elem.encode(e, src.Index(i)); ft != nil {
					return ft.in("[" + strconv.Itoa(i) + "]")
				}
			}
			e.dst = append(e.dst, ']')
			return nil
		},
	}
}

// members is how objectCoder gets at the type parameter of an [OrderedObject].
type members interface {
	elemType() reflect.Type
	add(name string, value reflect.Value)
	each(func(name string, value reflect.Value) *fault) *fault
}

func (o *OrderedObject[T]) elemType() reflect.Type { return reflect.TypeFor[T]() }

func (o *OrderedObject[T]) add(name string, value reflect.Value) {
	*o = append(*o, Member[T]{Name: name, Value: *value.Addr().Interface().(*T)})
}

func (o *OrderedObject[T]) each(f func(string, reflect.Value) *fault) *fault {
	for i := range *o {
		if ft := f((*o)[i].Name, reflect.ValueOf(&(*o)[i].Value).Elem()); ft != nil {
			return ft
		}
	}
	return nil
}

func objectCoder(t reflect.Type, building map[reflect.Type]*plan) valueCoder {
	elemType := reflect.New(t).Interface().(members).elemType()
	elem := coderOf(elemType, &field{}, building)
	return valueCoder{
		func(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
			if !v.IsObject() {
				return mistyped()
			}
			dst.Set(reflect.MakeSlice(t, 0, 0))
			o := dst.Addr().Interface().(members)
			for m := v.Members(); m.Next(); {
				name := string(m.Name)
				x := reflect.New(elemType).Elem()
				if ft := elem.decode(d, m.Value, x); ft != nil {
					return ft.in(name)
				}
				o.add(name, x)
			}
			return nil
		},
		func(e *encoder, src reflect.Value) *fault {
			e.dst = append(e.dst, '{')
			o, ok := addressable(src).Interface().(members)
			if !ok {
				return mistyped()
			}
			ft := o.each(func(name string, x reflect.Value) *fault {
				if e.dst[len(e.dst)-1] != '{' {
					e.dst = append(e.dst, ',')
				}
				if ft := e.text(name); ft != nil {
					return ft
				}
				e.dst = append(e.dst, ':')
				if ft := elem.encode(e, x); ft != nil {
					return ft.in(name)
				}
				return nil
			})
			e.dst = append(e.dst, '}')
			return ft
		},
	}
}

func addressable(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v.Addr()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p
}

// decodeOther leaves a Go type that this package does not know to the rules of
// encoding/json.
func decodeOther(_ *decoder, v strictjson.Value, dst reflect.Value) *fault {
	if err := strictjson.Decode(v, dst.Addr().Interface()); err != nil {
		return mistyped()
	}
	return nil
}

func encodeOther(e *encoder, src reflect.Value) *fault {
	raw, err := strictjson.Encode(src.Interface())
	if err != nil {
		return badValue()
	}
	return e.raw(raw)
}

var _ members = (*OrderedObject[string])(nil)
