// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// This file implements the JSON form of messages and values, which preserves all types: integers
// are numbers, decimals are {"$dec":"1.5"}, references are {"$ref":"ctx.key"}. Keys of maps never
// start with a dollar sign, so the forms are unambiguous.

// MarshalJSON returns the JSON form of v.
func (v Value) MarshalJSON() ([]byte, error) { return v.appendJSON(nil), nil }

func (v *Value) appendJSON(dst []byte) []byte {
	switch v.kind {
	case KindNull:
		return append(dst, "null"...)
	case KindBool, KindInt:
		return append(dst, v.text...)
	case KindDecimal:
		dst = append(dst, `{"$dec":"`...)
		dst = append(dst, v.text...)
		return append(dst, `"}`...)
	case KindRef:
		dst = append(dst, `{"$ref":`...)
		dst = strictjson.AppendString(dst, v.text)
		return append(dst, '}')
	case KindArray:
		dst = append(dst, '[')
		for i := range v.list {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = v.list[i].Value.appendJSON(dst)
		}
		return append(dst, ']')
	case KindMap:
		return appendObject(dst, v.list)
	}
	return strictjson.AppendString(dst, strings.ToValidUTF8(v.text, "\uFFFD"))
}

func appendObject(dst []byte, list Params) []byte {
	dst = append(dst, '{')
	dst = appendMembers(dst, list)
	return append(dst, '}')
}

func appendMembers(dst []byte, list Params) []byte {
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(dst, strings.ToValidUTF8(list[i].Key, "\uFFFD"))
		dst = append(dst, ':')
		dst = list[i].Value.appendJSON(dst)
	}
	return dst
}

// MarshalJSON returns p as an object.
func (p Params) MarshalJSON() ([]byte, error) { return appendObject(nil, p), nil }

// UnmarshalJSON reads the JSON form.
func (v *Value) UnmarshalJSON(data []byte) error {
	j, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return fmt.Errorf("accp: value: %w", err)
	}
	*v, err = valueFromAST(j)
	return err
}

// UnmarshalJSON reads an object.
func (p *Params) UnmarshalJSON(data []byte) error {
	var v Value
	if err := v.UnmarshalJSON(data); err != nil {
		return err
	}
	if v.kind != KindMap {
		return fail(ErrInvalidType, "not an object")
	}
	*p = v.list
	return nil
}

// MarshalJSON returns the JSON form of m.
func (m *Message) MarshalJSON() ([]byte, error) {
	text := func(dst []byte, name, s string) []byte {
		dst = append(dst, name...)
		return strictjson.AppendString(dst, strings.ToValidUTF8(s, "\uFFFD"))
	}
	dst := text(nil, `{"from":`, m.From)
	dst = text(dst, `,"intent":`, string(m.Intent))
	dst = text(dst, `,"op":`, m.Op)
	dst = append(dst, `,"payload":`...)
	dst = appendObject(dst, m.Params)
	if m.Meta != nil {
		dst = append(dst, `,"meta":`...)
		dst = appendObject(dst, m.Meta.params())
	}
	return append(dst, '}'), nil
}

// params returns the metadata as params.
func (m *Meta) params() Params {
	var out Params
	str := func(key, s string) {
		if s != "" {
			out = append(out, Param{key, String(s)})
		}
	}
	num := func(key string, n OptionalInt) {
		if n.Set {
			out = append(out, Param{key, Int(n.N)})
		}
	}
	str("mid", m.MID)
	num("seq", m.Seq)
	num("ts", m.TS)
	str("cid", m.CID)
	str("aid", m.AID)
	str("sid", m.SID)
	num("ttl", m.TTL)
	return append(out, m.Ext...)
}

var errMessageForm = errors.New("accp: message: not an object with from, intent and op")

// UnmarshalJSON reads the JSON form. The payload may be absent.
func (m *Message) UnmarshalJSON(data []byte) error {
	j, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return fmt.Errorf("accp: message: %w", err)
	}
	if !j.IsObject() {
		return errMessageForm
	}
	out := Message{}
	for f := j.Members(); f.Next(); {
		ok := true
		switch string(f.Name) {
		case "from":
			out.From, ok = f.Value.Text()
		case "op":
			out.Op, ok = f.Value.Text()
		case "intent":
			var s string
			s, ok = f.Value.Text()
			out.Intent = Intent(s)
		case "payload":
			if ok = f.Value.IsObject(); ok {
				v, err := valueFromAST(f.Value)
				if err != nil {
					return err
				}
				out.Params = v.list
			}
		case "meta":
			if ok = f.Value.IsObject(); ok {
				if out.Meta, err = metaFromAST(f.Value); err != nil {
					return err
				}
			}
		}
		if !ok {
			return fmt.Errorf("accp: message: member %s has the wrong type", f.Name)
		}
	}
	*m = out
	return nil
}

func metaFromAST(j strictjson.Value) (*Meta, error) {
	m := &Meta{}
	for f := j.Members(); f.Next(); {
		name := string(f.Name)
		str := func(to *string) error {
			s, ok := f.Value.Text()
			if !ok || s == "" {
				return fail(ErrInvalidType, "metadata field %s must be a string that is not empty", name)
			}
			*to = s
			return nil
		}
		num := func(to *OptionalInt) error {
			n, ok := f.Value.Int()
			if !ok || n < 0 || numberForm(f.Value) != KindInt {
				return fail(ErrInvalidType, "metadata field %s must be an integer from 0 to 2^63-1", name)
			}
			*to = NewOptionalInt(n)
			return nil
		}
		var err error
		switch name {
		case "mid":
			err = str(&m.MID)
		case "seq":
			err = num(&m.Seq)
		case "ts":
			err = num(&m.TS)
		case "cid":
			err = str(&m.CID)
		case "aid":
			err = str(&m.AID)
		case "sid":
			err = str(&m.SID)
		case "ttl":
			err = num(&m.TTL)
		default:
			var v Value
			v, err = valueFromAST(f.Value)
			m.Ext = append(m.Ext, Param{name, v})
		}
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

func valueFromAST(j strictjson.Value) (Value, error) {
	switch j.Kind() {
	case 'n':
		return Value{}, nil
	case 't', 'f':
		b, _ := j.Bool()
		return Bool(b), nil
	case '"':
		s, _ := j.Text()
		return String(s), nil
	case '0':
		if numberForm(j) != KindInt {
			return Value{}, fail(ErrInvalidType, "a number with a fraction or an exponent; decimals are {\"$dec\":\"1.5\"}")
		}
		if string(j) == "-0" {
			return Int(0), nil
		}
		return Value{kind: KindInt, text: string(j)}, nil
	case '[':
		v := Value{kind: KindArray}
		for e := j.Elements(); e.Next(); {
			x, err := valueFromAST(e.Value)
			if err != nil {
				return Value{}, err
			}
			v.list = append(v.list, Param{Value: x})
		}
		return v, nil
	}
	return mapFromAST(j)
}

// mapFromAST returns the value of an object, which is a decimal or a reference for {"$dec":...} and
// {"$ref":...}.
func mapFromAST(j strictjson.Value) (Value, error) {
	v := Value{kind: KindMap}
	for f := j.Members(); f.Next(); {
		key := string(f.Name)
		if key == "$dec" || key == "$ref" {
			s, ok := f.Value.Text()
			if !ok || len(v.list) > 0 || f.Next() {
				return Value{}, fail(ErrInvalidType, "%s must stand alone with a string", key)
			}
			if key == "$ref" {
				return Ref(s), nil
			}
			return Decimal(s)
		}
		x, err := valueFromAST(f.Value)
		if err != nil {
			return Value{}, err
		}
		v.list = append(v.list, Param{key, x})
	}
	return v, nil
}

// FromJSON returns the value of plain JSON. A number without fraction and exponent becomes an
// integer, any other a decimal that keeps all its places until it is encoded. A number that needs
// more than 1,000 digits without an exponent is [ErrInvalidType]. A duplicate name, invalid UTF-8,
// and more than 64 levels are errors of another type than [*Error].
func FromJSON(data []byte) (Value, error) {
	j, err := strictjson.Check(data, strictjson.Options{MaxDepth: 64})
	if err != nil {
		return Value{}, fmt.Errorf("accp: %w", err)
	}
	return valueFromJSON(j)
}

func valueFromJSON(j strictjson.Value) (Value, error) {
	switch j.Kind() {
	case '0':
		return numberFromJSON(string(j))
	case '[':
		v := Value{kind: KindArray}
		for e := j.Elements(); e.Next(); {
			x, err := valueFromJSON(e.Value)
			if err != nil {
				return Value{}, err
			}
			v.list = append(v.list, Param{Value: x})
		}
		return v, nil
	case '{':
		v := Value{kind: KindMap}
		for f := j.Members(); f.Next(); {
			x, err := valueFromJSON(f.Value)
			if err != nil {
				return Value{}, err
			}
			v.list = append(v.list, Param{string(f.Name), x})
		}
		return v, nil
	}
	return valueFromAST(j)
}

// numberFromJSON converts a JSON number to a value without exponent.
func numberFromJSON(s string) (Value, error) {
	if k := numberForm(s); k == KindInt {
		if s == "-0" {
			s = "0"
		}
		return Value{kind: KindInt, text: s}, nil
	} else if k == KindDecimal {
		return Value{kind: KindDecimal, text: trimDecimal(s)}, nil
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	exp := 0
	for i, c := range strings.TrimLeft(strings.TrimLeft(exponent, "+-"), "0") {
		if i > 3 {
			return Value{}, fail(ErrInvalidType, "number too large or too small")
		}
		exp = exp*10 + int(c-'0')
	}
	if exp > 1000 {
		return Value{}, fail(ErrInvalidType, "number too large or too small")
	}
	if exponent[0] == '-' {
		exp = -exp
	}
	neg, whole, frac, _ := splitDecimal(mantissa)
	digits := whole + frac
	point := len(whole) + exp
	switch {
	case point <= 0:
		digits = strings.Repeat("0", 1-point) + digits
		point = 1
	case point > len(digits):
		digits += strings.Repeat("0", point-len(digits))
	}
	return Value{kind: KindDecimal, text: joinDecimal(neg, digits[:point], digits[point:])}, nil
}

// AppendJSON appends v as plain JSON, keys in ascending order and decimals as numbers. An unresolved reference is
// [ErrRefNotFound] (ACCP-D57).
func (v Value) AppendJSON(dst []byte) ([]byte, error) {
	switch v.kind {
	case KindDecimal:
		return append(dst, v.text...), nil
	case KindRef:
		return dst, fail(ErrRefNotFound, "unresolved reference $%.80s", v.text)
	case KindArray:
		dst = append(dst, '[')
	case KindMap:
		dst = append(dst, '{')
	default:
		return v.appendJSON(dst), nil
	}
	var err error
	list := v.list
	if v.kind == KindMap {
		list = Params(list).sorted()
	}
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if v.kind == KindMap {
			dst = strictjson.AppendString(dst, list[i].Key)
			dst = append(dst, ':')
		}
		if dst, err = list[i].Value.AppendJSON(dst); err != nil {
			return dst, err
		}
	}
	if v.kind == KindMap {
		return append(dst, '}'), nil
	}
	return append(dst, ']'), nil
}
