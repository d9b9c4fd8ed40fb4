// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import "sync"

// maxHostTurns bounds the attempts at one host at a time. It is half of those that a process makes, so that one slow host
// does not delay the notifications to the others. Several may.
const maxHostTurns = 32

// hostTurns are the attempts at each host. The zero value has none.
type hostTurns struct {
	mu    sync.Mutex
	hosts map[string]*hostQueue // those with attempts; guarded by mu
}

// A hostQueue has the streams that wait for an attempt at a host.
type hostQueue struct {
	running int
	waiting []string // in order; some have entered since
	isIn    map[string]bool
}

// enter reports whether a stream may make an attempt. Otherwise it waits, and a later call of finish returns it.
func (h *hostTurns) enter(host, stream string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.hosts[host]
	if q == nil {
		if h.hosts == nil {
			h.hosts = map[string]*hostQueue{}
		}
		q = &hostQueue{isIn: map[string]bool{}}
		h.hosts[host] = q
	}
	if q.running < maxHostTurns {
		q.running++
		delete(q.isIn, stream)
		return true
	}
	if !q.isIn[stream] {
		q.isIn[stream] = true
		q.waiting = append(q.waiting, stream)
	}
	return false
}

// finish ends an attempt. It returns the stream that waits longest, or "".
func (h *hostTurns) finish(host string) (next string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.hosts[host]
	q.running--
	for len(q.waiting) > 0 && next == "" {
		if q.isIn[q.waiting[0]] {
			next = q.waiting[0]
			delete(q.isIn, next)
		}
		q.waiting = q.waiting[1:]
	}
	if q.running == 0 && len(q.waiting) == 0 {
		delete(h.hosts, host)
	}
	return next
}
