// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"iter"
	"slices"
	"strconv"
)

// A Kind is the type of a [Value]. Encoding and decoding preserve it.
type Kind uint8

// The kinds of values.
const (
	KindNull Kind = iota
	KindBool
	KindInt
	KindDecimal
	KindString
	KindRef
	KindArray
	KindMap
)

// String returns the name of the kind.
func (k Kind) String() string {
	return [...]string{"null", "boolean", "integer", "decimal", "string", "reference", "array", "map"}[k&7]
}

// A Value is one typed value of a frame. It is immutable, so values may be
// shared between messages and goroutines. The zero value is null,
// which removes a key in a delta.
type Value struct {
	kind Kind
	text string  // string: its text; numbers and booleans: as written; reference: without $
	list []Param // of an array, with empty keys, or a map
}

// A Param is a key with its value, in a payload, a map or the metadata.
type Param struct {
	Key   string
	Value Value
}

// String returns a string value.
func String(s string) Value { return Value{kind: KindString, text: s} }

// Bool returns a boolean.
func Bool(b bool) Value { return Value{kind: KindBool, text: strconv.FormatBool(b)} }

// Int returns an integer.
func Int(n int64) Value { return Value{kind: KindInt, text: strconv.FormatInt(n, 10)} }

// Decimal returns a decimal from its text: an optional minus sign and digits, with or without a
// point. It keeps all places; encoding rounds to six (ACCP-D08). Any other text is
// [ErrInvalidType].
func Decimal(s string) (Value, error) {
	if numberForm(s) == KindString {
		return Value{}, fail(ErrInvalidType, "not a decimal number")
	}
	return Value{kind: KindDecimal, text: trimDecimal(s)}, nil
}

// floatValue returns the decimal with the shortest text for f. NaN and the infinities are
// [ErrInvalidType] (ACCP-D09). For money, use [Decimal].
func floatValue(f float64) (Value, error) {
	s, err := floatText(f)
	if err != nil {
		return Value{}, err
	}
	return Value{kind: KindDecimal, text: trimDecimal(s)}, nil
}

// Ref returns a reference. The key has no dollar sign, such as "warm.cp1". Encoding a malformed key
// is [ErrInvalidType] (ACCP-D11).
func Ref(key string) Value { return Value{kind: KindRef, text: key} }

// Array returns an array of the values.
func Array(values ...Value) Value {
	list := make([]Param, len(values))
	for i, v := range values {
		list[i].Value = v
	}
	return Value{kind: KindArray, list: list}
}

// Map returns a map of the entries. Encoding rejects a duplicate key.
func Map(entries ...Param) Value {
	return Value{kind: KindMap, list: slices.Clone(entries)}
}

// Kind returns the type of v.
func (v Value) Kind() Kind { return v.kind }

// Text returns the text of a string and whether v is one.
func (v Value) Text() (string, bool) { return v.text, v.kind == KindString }

// Ref returns the key of a reference without its dollar sign, and whether v is one.
func (v Value) Ref() (string, bool) {
	if v.kind != KindRef {
		return "", false
	}
	return v.text, true
}

// Bool returns a boolean and whether v is one.
func (v Value) Bool() (value, ok bool) { return v.text == "true", v.kind == KindBool }

// Int returns an integer and whether v is one that fits into 64 bits.
func (v Value) Int() (int64, bool) {
	if v.kind != KindInt {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

// Number returns the exact text of an integer or a decimal and whether v is one.
func (v Value) Number() (string, bool) {
	if v.kind != KindInt && v.kind != KindDecimal {
		return "", false
	}
	return v.text, true
}

// String returns the canonical text of v, as [Codec.AppendValue] writes it, for logs and tests. A value that no frame can
// carry is shown by its kind.
func (v Value) String() string {
	c := Codec{FrameLimits: FrameLimits{MaxFrame: 1 << 30, MaxDepth: 100, MaxValues: 1 << 30, MaxNumber: 1 << 30}}
	text, err := c.AppendValue(nil, v)
	if err != nil {
		return "(" + v.kind.String() + ")"
	}
	return string(text)
}

// Elements yields the elements of an array in order, and nothing for any other value.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.kind != KindArray {
			return
		}
		for i := range v.list {
			if !yield(i, v.list[i].Value) {
				return
			}
		}
	}
}

// Entries returns the entries of a map, nil for any other value. They must not be
// changed.
func (v Value) Entries() Params {
	if v.kind != KindMap {
		return nil
	}
	return v.list
}

// Equal reports whether v and w have the same type and value. The order of the
// entries of maps does not matter; 1 and 1.0 differ.
func (v Value) Equal(w Value) bool { return v.equal(&w) }

func (v *Value) equal(w *Value) bool {
	if v.kind != w.kind || v.text != w.text || len(v.list) != len(w.list) {
		return false
	}
	switch v.kind {
	case KindArray:
		for i := range v.list {
			if !v.list[i].Value.equal(&w.list[i].Value) {
				return false
			}
		}
	case KindMap:
		return Params(v.list).Equal(w.list)
	}
	return true
}

// Params are the params of a payload or the entries of a map, in the order of the frame. Keys are
// unique.
type Params []Param

// Get returns the value of key and reports whether it exists.
func (p Params) Get(key string) (Value, bool) {
	for i := range p {
		if p[i].Key == key {
			return p[i].Value, true
		}
	}
	return Value{}, false
}

// Text returns the string under key, or "" if it is absent or not a string.
func (p Params) Text(key string) string {
	v, _ := p.Get(key)
	if v.kind != KindString {
		return ""
	}
	return v.text
}

// Set returns p with key set to v, in its position or at the end. Like append, it may change p.
func (p Params) Set(key string, v Value) Params {
	for i := range p {
		if p[i].Key == key {
			p[i].Value = v
			return p
		}
	}
	return append(p, Param{Key: key, Value: v})
}

// Equal reports whether p and q have the same keys with equal values, in any order.
func (p Params) Equal(q Params) bool {
	if len(p) != len(q) {
		return false
	}
	same := true // the usual case: the same order
	for i := range p {
		if p[i].Key != q[i].Key {
			same = false
			break
		}
	}
	if !same {
		p, q = p.sorted(), q.sorted()
	}
	for i := range p {
		if p[i].Key != q[i].Key || !p[i].Value.equal(&q[i].Value) {
			return false
		}
	}
	return true
}

// sorted returns p in ascending order of the keys, or p itself if it is sorted.
func (p Params) sorted() Params {
	if slices.IsSortedFunc(p, byKey) {
		return p
	}
	q := slices.Clone(p)
	slices.SortStableFunc(q, byKey)
	return q
}

func byKey(a, b Param) int {
	switch {
	case a.Key < b.Key:
		return -1
	case a.Key > b.Key:
		return 1
	}
	return 0
}
