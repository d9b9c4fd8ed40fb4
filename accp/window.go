// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"crypto/sha256"
	"strings"
)

// A mark stands for an id of any length in 16 bytes, so that what is remembered of
// a peer does not grow with what it sends: the digits of a message id, else the
// beginning of a hash.
type mark [16]byte

func markOf(id string) (m mark) {
	if len(id) == 12 && isHex(id) && !hasUpper(id) {
		for i := range 6 {
			m[i] = digitOf(id[2*i])<<4 | digitOf(id[2*i+1])
		}
		m[15] = 2 // so that no mark is zero
		return m
	}
	sum := sha256.Sum256([]byte(id))
	copy(m[:], sum[:])
	m[15] |= 1 // never that of a message id
	return m
}

func digitOf(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}

// A window is the set of the last so many marks.
type window struct {
	max   int
	count int64 // marks that were ever added
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

// from returns the marks from the n-th that was ever added on, as far as they are
// remembered.
func (w *window) from(n int64) []mark {
	n = max(n, w.count-int64(len(w.ring)))
	out := make([]mark, 0, w.count-n)
	for ; n < w.count; n++ {
		out = append(out, w.ring[n%int64(w.max)])
	}
	return out
}

// reset makes w the window whose last marks are these, the newest of which was the
// count-th.
func (w *window) reset(marks []mark, count int64) {
	if len(marks) > w.max {
		marks = marks[len(marks)-w.max:]
	}
	w.ring, w.set = nil, make(map[mark]struct{}, len(marks))
	// Each mark stands where its count puts it; what is missing before the first
	// one is zero, which stands for no id.
	first := count - int64(len(marks))
	w.ring = make([]mark, min(int64(w.max), count))
	for i, m := range marks {
		w.ring[(first+int64(i))%int64(w.max)] = m
		w.set[m] = struct{}{}
	}
	w.count = count
}

// fifo is a map that forgets its oldest entries.
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
		key = strings.Clone(key) // the text of a frame must not live on for it
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

// keys returns the keys, the oldest first.
func (f *fifo[V]) keys() []string {
	return append(append([]string(nil), f.ring[f.at:]...), f.ring[:f.at]...)
}
