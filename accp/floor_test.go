// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import "errors"

// The simplest codec that still does the whole job: the floor that the benchmarks
// compare with.

var errFloor = errors.New("bad frame")

const (
	floorString byte = iota
	floorInt
	floorDec
	floorBool
	floorNull
	floorRef
	floorArray
	floorMap
)

type floorPair struct {
	Key, Val []byte // Val is the escaped text; it aliases the input
	Kind     byte
}

// floorFrame is a parsed frame that aliases its input; Params and Meta are used
// again.
type floorFrame struct {
	Agent, Intent, Op []byte
	Params, Meta      []floorPair
}

const (
	floorDelim = 1 << iota // : | { } [ ] , \ and everything except VCHAR
	floorIdent             // ALPHA DIGIT _ -
)

var floorClass = func() (t [256]byte) {
	for i := range t {
		c := byte(i)
		if c <= ' ' || c >= 0x7f {
			t[i] = floorDelim
		}
		if c == '_' || c == '-' || c == '.' || c-'0' < 10 || c|0x20 >= 'a' && c|0x20 <= 'z' {
			t[i] |= floorIdent
		}
	}
	for _, c := range `:|{}[],\` {
		t[c] |= floorDelim
	}
	return
}()

func floorWord(s []byte, i int) int {
	for i < len(s) && floorClass[s[i]]&floorIdent != 0 {
		i++
	}
	return i
}

// floorParse is the floor of a strict decoder: one pass, typed values, nesting limit, no allocation when f is used again.
func floorParse(s []byte, f *floorFrame) error {
	f.Params, f.Meta = f.Params[:0], f.Meta[:0]
	if len(s) == 0 || s[0] != '@' {
		return errFloor
	}
	i := floorWord(s, 1)
	if i == 1 || i >= len(s) || s[i] != '>' {
		return errFloor
	}
	f.Agent = s[1:i]
	st := i + 1
	if i = floorWord(s, st); i == st || i >= len(s) || s[i] != ':' {
		return errFloor
	}
	f.Intent = s[st:i]
	st = i + 1
	if i = floorWord(s, st); i == st || i >= len(s) || s[i] != '{' {
		return errFloor
	}
	f.Op = s[st:i]
	if i++; i < len(s) && s[i] == '}' {
		i++
	} else if f.Params, i = floorPairs(s, i, '|', '}', f.Params); i < 0 {
		return errFloor
	}
	if i < len(s) && s[i] == '[' {
		if f.Meta, i = floorPairs(s, i+1, ',', ']', f.Meta); i < 0 {
			return errFloor
		}
	}
	if i != len(s) {
		return errFloor
	}
	return nil
}

func floorPairs(s []byte, i int, sep, end byte, kvs []floorPair) ([]floorPair, int) {
	for {
		st := i
		if i = floorWord(s, i); i == st || i >= len(s) || s[i] != ':' {
			return kvs, -1
		}
		kv := floorPair{Key: s[st:i]}
		st = i + 1
		if i, kv.Kind = floorValue(s, st, 0); i < 0 || i >= len(s) {
			return kvs, -1
		}
		kv.Val = s[st:i]
		kvs = append(kvs, kv)
		if s[i] == end {
			return kvs, i + 1
		}
		if s[i] != sep {
			return kvs, -1
		}
		i++
	}
}

func floorValue(s []byte, i, depth int) (int, byte) {
	if i >= len(s) || depth > 5 {
		return -1, 0
	}
	switch s[i] {
	case '[':
		if i++; i < len(s) && s[i] == ']' {
			return i + 1, floorArray
		}
		for {
			if i, _ = floorValue(s, i, depth+1); i < 0 || i >= len(s) {
				return -1, 0
			}
			if s[i] == ']' {
				return i + 1, floorArray
			}
			if s[i] != ',' {
				return -1, 0
			}
			i++
		}
	case '{':
		if i++; i < len(s) && s[i] == '}' {
			return i + 1, floorMap
		}
		for {
			st := i
			if i = floorWord(s, i); i == st || i >= len(s) || s[i] != ':' {
				return -1, 0
			}
			if i, _ = floorValue(s, i+1, depth+1); i < 0 || i >= len(s) {
				return -1, 0
			}
			if s[i] == '}' {
				return i + 1, floorMap
			}
			if s[i] != ',' {
				return -1, 0
			}
			i++
		}
	}
	st, dots, digits := i, 0, 0
	for i < len(s) {
		c := s[i]
		if floorClass[c]&floorDelim == 0 {
			if c == '.' {
				dots++
			} else if c-'0' < 10 {
				digits++
			}
			i++
			continue
		}
		if c != '\\' {
			break
		}
		if i+1 >= len(s) || floorClass[s[i+1]]&floorDelim == 0 || s[i+1] <= ' ' || s[i+1] >= 0x7f {
			return -1, 0
		}
		i += 2
	}
	v := s[st:i]
	if len(v) == 0 {
		return -1, 0
	}
	switch {
	case v[0] == '$':
		return i, floorRef
	case string(v) == "~":
		return i, floorNull
	case string(v) == "true" || string(v) == "false":
		return i, floorBool
	}
	n := len(v)
	if v[0] == '-' {
		n--
	}
	if digits == n && n > 0 {
		return i, floorInt
	}
	if digits == n-1 && dots == 1 && v[len(v)-1] != '.' && digits > 1 {
		return i, floorDec
	}
	return i, floorString
}

// Append writes the frame again.
func (f *floorFrame) Append(b []byte) []byte {
	b = append(append(b, '@'), f.Agent...)
	b = append(append(b, '>'), f.Intent...)
	b = append(append(b, ':'), f.Op...)
	b = append(b, '{')
	for i, kv := range f.Params {
		if i > 0 {
			b = append(b, '|')
		}
		b = append(append(b, kv.Key...), ':')
		b = append(b, kv.Val...)
	}
	b = append(b, '}')
	if len(f.Meta) > 0 {
		b = append(b, '[')
		for i, kv := range f.Meta {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, kv.Key...), ':')
			b = append(b, kv.Val...)
		}
		b = append(b, ']')
	}
	return b
}
