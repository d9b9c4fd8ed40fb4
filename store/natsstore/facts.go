// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import "sync"

// factsMost bounds each of the two halves of facts.
const factsMost = 8192

// facts caches the constant facts about sequence numbers that this process has seen, so that an
// Update or Ack needs no read first. A full cache drops its older half.
type facts[T any] struct {
	mu       sync.Mutex
	now, old map[uint64]T // guarded by mu
}

func (f *facts[T]) put(seq uint64, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil || len(f.now) >= factsMost {
		f.now, f.old = map[uint64]T{}, f.now
	}
	f.now[seq] = v
}

func (f *facts[T]) get(seq uint64) (T, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v, ok := f.now[seq]; ok {
		return v, true
	}
	v, ok := f.old[seq]
	return v, ok
}
