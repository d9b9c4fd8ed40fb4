// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"
)

// A pullTime is what is remembered of an envelope from its first pull on.
type pullTime struct{ arrived, pulled time.Time }

// pullTimes remembers unsettled envelopes.
type pullTimes struct {
	mu   sync.Mutex
	memo memo[replayKey, pullTime] // guarded by mu
}

// recall sets the times of the first pull.
func (p *pullTimes) recall(a *arrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !a.isRepeated() || len(p.memo.entries) == 0 {
		return
	}
	if t, ok := p.memo.get(pullKey(a.env)); ok {
		a.arrived, a.pulled, a.isRemembered = t.arrived, t.pulled, true
	}
}

// remember keeps the times of the first pull until the outcome of the envelope is final.
func (p *pullTimes) remember(a *arrival, isFinal bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !a.isRepeated() || a.env == nil || isFinal && len(p.memo.entries) == 0 {
		return
	}
	k := pullKey(a.env)
	t, ok := p.memo.get(k)
	switch {
	case isFinal:
		p.memo.remove(k)
	case !ok || a.pulled.Before(t.pulled):
		p.memo.put(k, pullTime{a.arrived, a.pulled})
	}
}

// pullKey identifies an envelope with its signature.
func pullKey(env *Envelope) replayKey {
	sum := sha256.Sum256(env.appendTo(nil))
	return replayKey(sum[:16])
}

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
