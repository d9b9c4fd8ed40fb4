// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"strings"
	"sync"
)

// Chains have the contexts of the running work of a session.
type chains struct {
	mu      sync.Mutex
	running map[string]map[*running]struct{} // by chain; guarded by mu
}

type running struct{ cancel context.CancelFunc }

// start returns a context that ends when its chain is stopped, and the function for the end of its work.
func (c *chains) start(ctx context.Context, chain string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{cancel}
	chain = strings.Clone(chain)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[string]map[*running]struct{}{}
	}
	if c.running[chain] == nil {
		c.running[chain] = map[*running]struct{}{}
	}
	c.running[chain][r] = struct{}{}
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running[chain], r)
		if len(c.running[chain]) == 0 {
			delete(c.running, chain)
		}
	}
}

// isRunning reports whether a chain has work.
func (c *chains) isRunning(chain string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running[chain]) > 0
}

// stop ends the contexts of a chain.
func (c *chains) stop(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopLocked(chain)
}

// stopIf ends the contexts of the chains for which the function is true.
func (c *chains) stopIf(isEnded func(chain string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for chain := range c.running {
		if isEnded(chain) {
			c.stopLocked(chain)
		}
	}
}

// stopLocked is stop with c.mu held.
func (c *chains) stopLocked(chain string) {
	for r := range c.running[chain] {
		r.cancel()
	}
	delete(c.running, chain)
}
