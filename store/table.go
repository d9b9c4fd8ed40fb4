// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import "slices"

// A table is a map that gives memory back: a Go map stays as large as it ever
// was, so one that lost most of its elements is copied. The zero value is ready.
type table[V any] struct {
	m    map[string]V
	peak int // the most elements since the last copy
}

// Up to this many elements nothing is copied to save memory.
const smallTable = 1024

func (t *table[V]) get(k string) (V, bool) {
	v, ok := t.m[k]
	return v, ok
}

func (t *table[V]) put(k string, v V) {
	if t.m == nil {
		t.m = map[string]V{}
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

func (t *table[V]) remove(k string) {
	delete(t.m, k)
	if t.peak <= smallTable || len(t.m) > t.peak/8 {
		return
	}
	m := make(map[string]V, len(t.m))
	for k, v := range t.m {
		m[k] = v
	}
	t.m, t.peak = m, len(m)
}

// fitted returns s with room for one more element and with not too much room.
// When full it doubles: append alone adds a quarter to what is long, and so
// copies it several times as often.
func fitted[E any](s []E) []E {
	switch n := cap(s); {
	case len(s) == n:
		return slices.Grow(s, n+1)
	case n > smallTable && len(s) < n/4:
		return append(make([]E, 0, n/2), s...)
	}
	return s
}
