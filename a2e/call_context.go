// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"sync"
	"time"
)

// A callContext is the context of a call. Most handlers never look at it, so what
// it takes to end it is made when one does.
type callContext struct {
	parent context.Context

	mu     sync.Mutex
	inner  context.Context // nil until somebody looks
	cancel context.CancelCauseFunc
	cause  error // why it ended; nil before
}

// real returns the context behind it.
func (c *callContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithCancelCause(c.parent)
		if c.cause != nil {
			c.cancel(c.cause)
		}
	}
	return c.inner
}

// end ends it, once.
func (c *callContext) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	if c.cancel != nil {
		c.cancel(cause)
	}
}

func (c *callContext) Deadline() (time.Time, bool) { return c.parent.Deadline() }
func (c *callContext) Done() <-chan struct{}       { return c.real().Done() }
func (c *callContext) Err() error                  { return c.real().Err() }
func (c *callContext) Value(key any) any           { return c.real().Value(key) }
