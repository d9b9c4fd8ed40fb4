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
	running map[string]*running // the list of each chain; guarded by mu
}

// A running is an element of the list of a chain.
type running struct {
	cancel context.CancelFunc
	next   *running
}

// start returns a context that ends when its chain is stopped, and the function for the end of its work.
func (c *chains) start(ctx context.Context, chain string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{cancel: cancel}
	chain = strings.Clone(chain)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[string]*running{}
	}
	r.next = c.running[chain]
	c.running[chain] = r
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.removeLocked(chain, r)
	}
}

// removeLocked removes an element, if it is in the list of its chain. c.mu must be held.
func (c *chains) removeLocked(chain string, r *running) {
	head := c.running[chain]
	if head == r {
		head = r.next
	}
	for x := head; x != nil; x = x.next {
		if x.next == r {
			x.next = r.next
		}
	}
	if head == nil {
		delete(c.running, chain)
		return
	}
	c.running[chain] = head
}

// isRunning reports whether a chain has work.
func (c *chains) isRunning(chain string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[chain] != nil
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
	for r := c.running[chain]; r != nil; r = r.next {
		r.cancel()
	}
	delete(c.running, chain)
}
