// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import "container/list"

// maxMemo bounds a memo.
const maxMemo = 100_000

// A memo is a map of at most maxMemo entries. Beyond, it drops the oldest one.
type memo[K comparable, V any] struct {
	entries map[K]*list.Element
	order   list.List // of memoEntry, the oldest first
}

type memoEntry[K comparable, V any] struct {
	key   K
	value V
}

func (m *memo[K, V]) get(k K) (v V, ok bool) {
	e, ok := m.entries[k]
	if ok {
		v = e.Value.(memoEntry[K, V]).value
	}
	return v, ok
}

// put stores a value, which keeps the age of an earlier one.
func (m *memo[K, V]) put(k K, v V) {
	if e, ok := m.entries[k]; ok {
		e.Value = memoEntry[K, V]{k, v}
		return
	}
	if m.entries == nil {
		m.entries = make(map[K]*list.Element)
	}
	if len(m.entries) >= maxMemo {
		m.remove(m.order.Front().Value.(memoEntry[K, V]).key)
	}
	m.entries[k] = m.order.PushBack(memoEntry[K, V]{k, v})
}

func (m *memo[K, V]) remove(k K) {
	if e, ok := m.entries[k]; ok {
		m.order.Remove(e)
		delete(m.entries, k)
	}
}
