// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// buffers are slices of one type into which elements are read before their number is
// known, so that the result is allocated once.
type buffers struct {
	typ  reflect.Type
	pool sync.Pool // of *buffer
}

// A buffer is an addressable slice whose elements are zero.
type buffer struct{ v reflect.Value }

// maxBuffer bounds the elements of a buffer that is kept.
const maxBuffer = 1024

func newBuffers(t reflect.Type) *buffers { return &buffers{typ: t} }

func (s *buffers) get() *buffer {
	if b, ok := s.pool.Get().(*buffer); ok {
		return b
	}
	b := &buffer{reflect.New(s.typ).Elem()}
	b.v.Set(reflect.MakeSlice(s.typ, 8, 8))
	return b
}

// put takes back a buffer of which n elements are in use.
func (s *buffers) put(b *buffer, n int) {
	size := b.v.Len()
	if size > maxBuffer {
		return
	}
	b.v.SetLen(n)
	b.v.Clear()
	b.v.SetLen(size)
	s.pool.Put(b)
}

// at returns element i, which is at most the first one behind the end.
func (b *buffer) at(i int) reflect.Value {
	if i == b.v.Len() {
		b.v.Grow(i)
		b.v.SetLen(b.v.Cap())
	}
	return b.v.Index(i)
}

// readParts reads the elements of an array, or the members of an object if keys is not
// nil, into buffers, and returns their number or the first fault.
func readParts(c *strictjson.Cursor, elem mapping, keys, values *buffer) (n int, f *Fault) {
	for keys == nil && c.Element() || keys != nil && c.Name() {
		if f != nil {
			continue // the rest is only checked
		}
		if keys != nil {
			keys.at(n).SetString(string(c.Key()))
		}
		f = elem.read(c, values.at(n))
		switch {
		case f == nil:
		case keys != nil:
			f.In(keys.at(n).String())
		default:
			f.At(n)
		}
		n++
	}
	return n, f
}

type sliceMapping struct {
	elem   mapping
	values *buffers
	empty  reflect.Value // of length 0, not nil
}

func (m *sliceMapping) want() string { return "array" }

func (m *sliceMapping) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	if !c.Array() {
		return wrongType(c, "array")
	}
	values := m.values.get()
	n, f := readParts(c, m.elem, nil, values)
	if f == nil && n == 0 {
		dst.Set(m.empty)
	} else if f == nil {
		if dst.Cap() < n {
			dst.SetZero()
			dst.Grow(n)
		}
		dst.SetLen(n)
		reflect.Copy(dst, values.v)
	}
	m.values.put(values, n)
	return f
}

func (m *sliceMapping) append(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	b = append(b, '[')
	for i := range src.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		var f *Fault
		if b, f = deeper(m.elem, b, src.Index(i), depth); f != nil {
			return b, f.At(i)
		}
	}
	return append(b, ']'), nil
}

type mapMapping struct {
	elem         mapping
	typ          reflect.Type
	keys, values *buffers
}

func (m *mapMapping) want() string { return "object" }

func (m *mapMapping) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	if !c.Object() {
		return wrongType(c, "object")
	}
	keys, values := m.keys.get(), m.values.get()
	n, f := readParts(c, m.elem, keys, values)
	if f == nil {
		out := reflect.MakeMapWithSize(m.typ, n)
		for i := range n {
			out.SetMapIndex(keys.v.Index(i), values.v.Index(i))
		}
		dst.Set(out)
	}
	m.keys.put(keys, n)
	m.values.put(values, n)
	return f
}

func (m *mapMapping) append(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	if m.typ == reflect.TypeFor[map[string]string]() && src.CanAddr() {
		return appendStrings(b, *src.Addr().Interface().(*map[string]string))
	}
	keys := src.MapKeys()
	slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		var f *Fault
		if b, f = appendString(b, k.String()); f == nil {
			b, f = deeper(m.elem, append(b, ':'), src.MapIndex(k), depth)
		}
		if f != nil {
			return b, f.In(strings.ToValidUTF8(k.String(), "\ufffd"))
		}
	}
	return append(b, '}'), nil
}

// appendStrings is the method append for the most frequent type.
func appendStrings(b []byte, src map[string]string) ([]byte, *Fault) {
	var few [8]string
	keys := slices.AppendSeq(few[:0], maps.Keys(src))
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		var f *Fault
		if b, f = appendString(b, k); f == nil {
			b, f = appendString(append(b, ':'), src[k])
		}
		if f != nil {
			return b, f.In(strings.ToValidUTF8(k, "\ufffd"))
		}
	}
	return append(b, '}'), nil
}
