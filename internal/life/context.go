// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A lazyContext is a context that makes its cancelable part, and the timer of its deadline,
// at the first call of Done, or of Value after its end. Short work calls neither.
type lazyContext struct {
	parent   context.Context
	deadline time.Time // of the timeout; zero means none
	timeout  error     // cause of the end at the deadline

	end       atomic.Pointer[error] // cause; nil before the end
	isExpired atomic.Bool           // ended at the deadline

	once   sync.Once   // makes the fields below
	isMade atomic.Bool // they can be read
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// cancelable returns the context with the channel of Done and the cause.
func (c *lazyContext) cancelable() context.Context {
	c.once.Do(func() {
		c.ctx, c.cancel = context.WithCancelCause(c.parent)
		if !c.deadline.IsZero() {
			c.timer = time.AfterFunc(time.Until(c.deadline), c.expire)
		}
		c.isMade.Store(true)
		if cause := c.end.Load(); cause != nil {
			c.cancel(*cause)
		}
	})
	return c.ctx
}

func (c *lazyContext) expire() {
	if c.parent.Err() == nil && c.end.CompareAndSwap(nil, &c.timeout) {
		c.isExpired.Store(true)
		c.cancel(c.timeout)
	}
}

// isLate reports whether the context has ended at its deadline, which no timer watches yet.
func (c *lazyContext) isLate() bool {
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) && c.parent.Err() == nil && c.end.CompareAndSwap(nil, &c.timeout) {
		c.isExpired.Store(true)
	}
	return c.isExpired.Load()
}

// Cancel ends the context with a cause, unless it has ended. The handler continues, and
// its result counts.
func (c *lazyContext) Cancel(cause error) { c.finish(&cause) }

// finish ends the context. If it has ended, the cause stays the first one.
func (c *lazyContext) finish(cause *error) {
	if c.parent.Err() == nil && !c.isLate() {
		c.end.CompareAndSwap(nil, cause)
	}
	if c.isMade.Load() {
		c.cancel(*cause)
		if c.timer != nil {
			c.timer.Stop()
		}
	}
}

// Deadline returns the deadline of the parent or of the timeout, whichever is first.
func (c *lazyContext) Deadline() (time.Time, bool) {
	d, ok := c.parent.Deadline()
	if c.deadline.IsZero() || ok && d.Before(c.deadline) {
		return d, ok
	}
	return c.deadline, true
}

// Done returns a channel that is closed at the end of the context.
func (c *lazyContext) Done() <-chan struct{} { return c.cancelable().Done() }

// Err returns nil before the end of the context.
func (c *lazyContext) Err() error {
	switch {
	case c.isMade.Load():
		err := c.ctx.Err()
		if err != nil && c.isExpired.Load() {
			return context.DeadlineExceeded
		}
		return err
	case c.isLate():
		return context.DeadlineExceeded
	case c.end.Load() != nil:
		return context.Canceled
	}
	return c.parent.Err()
}

// Value returns a value of the parent; after the end it leads [context.Cause] to the cause.
func (c *lazyContext) Value(key any) any {
	if c.isMade.Load() || c.Err() != nil {
		return c.cancelable().Value(key)
	}
	return c.parent.Value(key)
}
