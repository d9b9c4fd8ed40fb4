// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

// A table is a map that gives memory back: a Go map stays as large as it ever
// was, so one that lost most of its elements is copied. The zero value is ready.
type table[V any] struct {
	m    map[string]V
	peak int // the most elements since the last copy
}

const smallTable = 1024 // up to this many elements a table is never copied

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
