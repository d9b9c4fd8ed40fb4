// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"sync"

	"github.com/fivewire/fivewire/internal/lazy"
)

// Chains have the running work of a session.
type chains struct {
	mu      sync.Mutex
	running map[string]*running // the list of each chain; guarded by mu
}

// A running is an element of the list of a chain.
type running struct {
	work  ender
	all   *chains
	chain string
	next  *running
}

// An ender is work of a chain, such as its context.
type ender interface{ End(cause *error) }

// workCancelled is the cause of the end of work whose chain was cancelled.
var workCancelled = error(ErrCancelled)

// start adds the work of r, which ends when its chain is stopped. The work calls r.end at its end.
func (c *chains) start(r *running, work ender, chain string) {
	r.work, r.all, r.chain = work, c, chain
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[string]*running{}
	}
	r.next = c.running[chain]
	c.running[chain] = r
}

// end ends the work and removes it.
func (r *running) end() {
	r.work.End(&lazy.Canceled)
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.all.removeLocked(r.chain, r)
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

// stop cancels the work of a chain.
func (c *chains) stop(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopLocked(chain)
}

// stopIf cancels the work of the chains for which the function is true.
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
		r.work.End(&workCancelled)
	}
	delete(c.running, chain)
}
