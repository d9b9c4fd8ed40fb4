// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// A mark represents an id of any length in 16 bytes, so that the memory for the ids of a peer is
// bounded: the digits of a message id, or the start of a hash.
type mark [16]byte

func markOf(id string) (m mark) {
	if len(id) == 12 && isHex(id) && !hasUpper(id) {
		for i := range 6 {
			m[i] = digitOf(id[2*i])<<4 | digitOf(id[2*i+1])
		}
		m[15] = 2 // no mark is zero
		return m
	}
	sum := sha256.Sum256([]byte(id))
	copy(m[:], sum[:])
	m[15] |= 1 // distinct from marks of message ids
	return m
}

// text returns m in hex.
func (m mark) text() string { return hex.EncodeToString(m[:]) }

// parseMark returns the mark of a text, or the zero mark, which no id has.
func parseMark(s string) (m mark) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(m) {
		return mark(b)
	}
	return m
}

func digitOf(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}

// A window is the set of the last max marks.
type window struct {
	max   int
	count int64 // marks added in total
	ring  []mark
	set   map[mark]struct{}
}

func (w *window) has(m mark) bool {
	_, ok := w.set[m]
	return ok
}

func (w *window) add(m mark) {
	if w.has(m) {
		return
	}
	if w.set == nil {
		w.set = map[mark]struct{}{}
	}
	if at := int(w.count % int64(w.max)); at < len(w.ring) {
		delete(w.set, w.ring[at])
		w.ring[at] = m
	} else {
		w.ring = append(w.ring, m)
	}
	w.set[m] = struct{}{}
	w.count++
}

// from returns the marks from number n on that the window still contains.
func (w *window) from(n int64) []mark {
	n = max(n, w.count-int64(len(w.ring)))
	out := make([]mark, 0, w.count-n)
	for ; n < w.count; n++ {
		out = append(out, w.ring[n%int64(w.max)])
	}
	return out
}

// A fifo is a map that drops its oldest entries.
type fifo[V any] struct {
	max  int
	m    map[string]V
	ring []string
	at   int
}

func (f *fifo[V]) get(key string) (V, bool) {
	v, ok := f.m[key]
	return v, ok
}

func (f *fifo[V]) add(key string, v V) {
	if f.m == nil {
		f.m = map[string]V{}
	}
	if _, ok := f.m[key]; !ok {
		key = strings.Clone(key) // releases the memory of the frame
		if len(f.ring) < f.max {
			f.ring = append(f.ring, key)
		} else {
			delete(f.m, f.ring[f.at])
			f.ring[f.at] = key
			f.at = (f.at + 1) % f.max
		}
	}
	f.m[key] = v
}

// keys returns the keys, oldest first.
func (f *fifo[V]) keys() []string {
	return append(append([]string(nil), f.ring[f.at:]...), f.ring[:f.at]...)
}
