// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"sync"
)

const (
	extension = "window" // of the protocol (A2E-D54)
	minWindow = 64 << 10
	maxGrant  = 1 << 40
)

// A window holds the output of a process back until the agent grants more (A2E-D62). A nil window
// holds nothing back.
type window struct {
	mu   sync.Mutex
	left int64         // granted bytes that are not sent; below zero after a piece that was larger
	more chan struct{} // closed by the next grant
}

func newWindow(n int64) *window {
	return &window{left: min(max(n, minWindow), maxGrant), more: make(chan struct{})}
}

// take waits until n bytes may be sent, and reports false if ctx ends before.
func (w *window) take(ctx context.Context, n int) bool {
	for w != nil {
		w.mu.Lock()
		left, more := w.left, w.more
		if left > 0 {
			w.left -= int64(n)
		}
		w.mu.Unlock()
		if left > 0 {
			break
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

func (w *window) grant(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = min(w.left+min(n, maxGrant), maxGrant)
	close(w.more)
	w.more = make(chan struct{})
}
