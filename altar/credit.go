// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"sync/atomic"
)

// A creditGate makes one sender of chunks wait for credit (ALT-D37). The zero value has no bound.
type creditGate struct {
	credit  atomic.Int64
	changed chan struct{} // capacity 1; nil: no bound
}

// limit sets the first credit, before the gate is used.
func (g *creditGate) limit(credit int64) {
	g.changed = make(chan struct{}, 1)
	g.credit.Store(credit)
}

// raise sets a higher credit. It ignores a lower one.
func (g *creditGate) raise(credit int64) {
	for old := g.credit.Load(); credit > old; old = g.credit.Load() {
		if g.credit.CompareAndSwap(old, credit) {
			signal(g.changed)
			return
		}
	}
}

// wait waits until a chunk may be sent, or ctx ends.
func (g *creditGate) wait(ctx context.Context, id int64) error {
	for g.changed != nil && id >= g.credit.Load() {
		select {
		case <-g.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
