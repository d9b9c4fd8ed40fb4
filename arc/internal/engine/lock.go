// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import "sync"

// An objectLock serializes the operations on a task or a chat, operations of the store included. In contrast to a
// mutex its waiters block durably for testing/synctest, so that a slow store is tested in virtual time.
type objectLock struct {
	mu     sync.Mutex // guards all below
	isHeld bool
	free   *sync.Cond // nil until a caller waits
}

// Lock waits for the lock and takes it.
func (l *objectLock) Lock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.isHeld {
		if l.free == nil {
			l.free = sync.NewCond(&l.mu)
		}
		l.free.Wait()
	}
	l.isHeld = true
}

// Unlock releases the lock. It panics if the lock is not held.
func (l *objectLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isHeld {
		panic("arc: unlock of a free lock")
	}
	l.isHeld = false
	if l.free != nil {
		l.free.Signal()
	}
}
