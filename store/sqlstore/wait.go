// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import "sync"

// waiters are the calls of Wait that found nothing yet.
type waiters struct {
	mu sync.Mutex
	m  map[string]*wait // by stream; guarded by mu
	// some is signalled when there are waiters and there were none.
	some chan struct{}
}

// A wait is shared by all waiters of one stream.
type wait struct {
	ch chan struct{} // closed to make them read again
	n  int
}

func newWaiters() *waiters {
	return &waiters{m: map[string]*wait{}, some: make(chan struct{}, 1)}
}

// join returns the channel that the next change of stream closes. The caller reads the stream after
// joining, before it waits.
func (ws *waiters) join(stream string) *wait {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.m[stream]
	if w == nil {
		w = &wait{ch: make(chan struct{})}
		ws.m[stream] = w
		if len(ws.m) == 1 {
			select {
			case ws.some <- struct{}{}:
			default:
			}
		}
	}
	w.n++
	return w
}

// release ends one wait, unless a notification has ended it.
func (ws *waiters) release(stream string, w *wait) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.n--; w.n == 0 && ws.m[stream] == w {
		delete(ws.m, stream)
	}
}

// notify makes all waiters of stream read again.
func (ws *waiters) notify(stream string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.m[stream]; w != nil {
		delete(ws.m, stream)
		close(w.ch)
	}
}

// wakeAll makes all waiters read again.
func (ws *waiters) wakeAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.m {
		close(w.ch)
	}
	clear(ws.m)
}

func (ws *waiters) empty() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.m) == 0
}
