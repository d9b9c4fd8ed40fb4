// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package lazy has contexts that make their channel and their timer when they are used first. Short work does not use them.
package lazy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Context is a context that makes its cancelable part, and the timer of its deadline,
// at the first call of Done, or of Value after its end.
type Context struct {
	parent   context.Context
	deadline time.Time // of the timeout; zero means none
	timeout  error     // cause of the end at the deadline

	end atomic.Pointer[error] // cause, &timeout at the deadline; nil before the end

	once   sync.Once   // makes the fields below
	isMade atomic.Bool // they can be read
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer        // of a deadline that is not inherited
	stop   context.CancelFunc // of one that is
}

// Canceled is the cause for End of a context that ends without one.
var Canceled = context.Canceled

// New returns a Context without a deadline.
func New(parent context.Context) *Context { return &Context{parent: parent} }

// WithTimeout is [context.WithTimeout] with a Context.
func WithTimeout(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	c := &Context{}
	c.Begin(parent, timeout, context.DeadlineExceeded)
	return c, c.finish
}

// Begin is the first call of a zero Context. A positive timeout ends the context with a cause. If that is [context.DeadlineExceeded], it is also the
// error of derived contexts; otherwise, which costs less, their error is [context.Canceled].
func (c *Context) Begin(parent context.Context, timeout time.Duration, cause error) {
	c.parent = parent
	if timeout > 0 {
		c.deadline, c.timeout = time.Now().Add(timeout), cause
	}
}

func (c *Context) finish() { c.End(&Canceled) }

// Parent returns the context that Begin was called with.
func (c *Context) Parent() context.Context { return c.parent }

// cancelable returns the context with the channel of Done and the cause.
func (c *Context) cancelable() context.Context {
	c.once.Do(func() {
		parent := c.parent
		if c.end.Load() != nil { // an end of the parent came later
			parent = context.WithoutCancel(parent)
		}
		c.ctx, c.cancel = context.WithCancelCause(parent)
		c.cancelEnded() // before a deadline that may have passed since
		switch {
		case c.deadline.IsZero():
		case c.isInherited():
			c.ctx, c.stop = context.WithDeadline(c.ctx, c.deadline)
		default:
			c.timer = time.AfterFunc(time.Until(c.deadline), c.expire)
		}
		c.isMade.Store(true)
		c.cancelEnded()
	})
	return c.ctx
}

func (c *Context) expire() {
	if c.parent.Err() == nil && c.end.CompareAndSwap(nil, &c.timeout) {
		c.cancel(c.timeout)
	}
}

// cancelEnded cancels the context if it has ended, unless it has another one with that deadline.
func (c *Context) cancelEnded() {
	if cause := c.end.Load(); cause != nil && !(cause == &c.timeout && c.isInherited()) {
		c.cancel(*cause)
	}
}

// isInherited reports whether derived contexts have the error of the deadline.
func (c *Context) isInherited() bool { return c.timeout == context.DeadlineExceeded }

// isLate reports whether the context has ended at its deadline, which no timer watches yet.
func (c *Context) isLate() bool {
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) && c.parent.Err() == nil {
		c.end.CompareAndSwap(nil, &c.timeout)
	}
	return c.end.Load() == &c.timeout
}

// Cancel ends the context with a cause, unless it has ended. The handler continues, and
// its result counts.
func (c *Context) Cancel(cause error) { c.End(&cause) }

// End ends the context. If it has ended, the cause stays the first one.
func (c *Context) End(cause *error) {
	if c.parent.Err() == nil && !c.isLate() {
		c.end.CompareAndSwap(nil, cause)
	}
	if !c.isMade.Load() {
		return
	}
	c.cancel(*cause)
	switch {
	case c.timer != nil:
		c.timer.Stop()
	case c.stop != nil:
		c.stop()
	}
}

// Deadline returns the deadline of the parent or of the timeout, whichever is first.
func (c *Context) Deadline() (time.Time, bool) {
	d, ok := c.parent.Deadline()
	if c.deadline.IsZero() || ok && d.Before(c.deadline) {
		return d, ok
	}
	return c.deadline, true
}

// Done returns a channel that is closed at the end of the context.
func (c *Context) Done() <-chan struct{} { return c.cancelable().Done() }

// Err returns nil before the end of the context.
func (c *Context) Err() error {
	switch {
	case c.isMade.Load():
		err := c.ctx.Err()
		if err != nil && c.end.Load() == &c.timeout {
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
func (c *Context) Value(key any) any {
	if c.isMade.Load() || c.Err() != nil {
		return c.cancelable().Value(key)
	}
	return c.parent.Value(key)
}
