// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// beat sends a ping, or closes a silent connection (ALT-D36). It is called after each interval.
func (c *Client) beat(l *clientLink) {
	if (time.Since(l.opened)-time.Duration(l.lastReceived.Load()))/3 >= c.opts.Heartbeat {
		c.mu.Lock()
		l.cause = errSilent
		c.mu.Unlock()
		l.close()
		return
	}
	l.post(&Ping{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links[l] {
		l.heartbeat.Reset(c.opts.Heartbeat)
	}
}

// read handles received messages until the connection ends.
func (c *Client) read(l *clientLink) {
	c.lost(l, guard.Call("connection", func() error {
		for {
			m, err := l.conn.Receive()
			bad, ok := asBadFrame(err)
			switch {
			case !ok:
				return err
			case bad != nil:
				c.broken(l, bad)
			default:
				l.lastReceived.Store(int64(time.Since(l.opened)))
				c.receive(l, m)
			}
		}
	}))
}

// receive handles one message.
func (c *Client) receive(l *clientLink, m Message) {
	if !l.isProved {
		l.isProved = true
		close(l.received)
		c.mu.Lock()
		c.wasConnected = true
		c.mu.Unlock()
	}
	if l.reason = connectionError(l.reason, m); l.reason == nil {
		c.take(l, m)
	}
}

// connectionError returns the error that a message reports about the connection, or nil. A Pong that
// the peer sends after it changes nothing.
func connectionError(before error, m Message) error {
	switch m := m.(type) {
	case *Pong:
		return before
	case *ErrorMessage:
		if m.RequestID == "" {
			return remote(m.Err)
		}
	}
	return nil
}

// because returns the error of a connection that ended for a reason, which may be nil.
func because(reason, err error) error {
	if reason == nil {
		return err
	}
	return fmt.Errorf("%w: %w", reason, err)
}

// errDrained reports that a Host shut down after it had answered each request that it took (ALT-D45).
var errDrained = errors.New("altar: the Host has shut down")

// isElsewhere reports whether another Host may take a request that has failed without a result.
func isElsewhere(err error) bool {
	return errors.Is(err, ReasonDraining) || errors.Is(err, errDrained)
}

// lost is the end of a connection. Calls in flight wait for another one, unless that would end
// alike (ALT-D46).
func (c *Client) lost(l *clientLink, err error) {
	defer close(l.done)
	err = because(l.reason, err)
	if w, ok := l.conn.(*wireConn); ok && w.isDrained() {
		err = fmt.Errorf("%w: %w", errDrained, err)
	}
	l.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
	delete(c.links, l)
	if l.heartbeat != nil {
		l.heartbeat.Stop()
	}
	err = because(l.cause, err)
	l.err = err
	l.requests.FailAll(fmt.Errorf("%w: %w", ErrDisconnected, err))
	if c.closed {
		return
	}
	own := c.unlinkLocked(l)
	if !l.isRetired || len(own) > 0 {
		c.opts.Logger.WarnContext(context.Background(), "altar: connection lost", "err", err, "calls", len(own))
	}
	if isTooLarge(err) {
		own, err = largest(own), errTooLargeAtHost(err)
	} else if !isFinal(err) && !c.isRefusedLocked(err) {
		own = nil
	}
	for _, p := range own {
		c.failLocked(p, err)
	}
	if c.isWaitingLocked() {
		c.retryLocked()
	}
}

// unlinkLocked makes the running calls of a lost connection wait for another one, and returns them. c.mu must be held.
func (c *Client) unlinkLocked(l *clientLink) (list []*pendingCall) {
	for _, p := range c.calls {
		if p.link == l && !p.isEnded() {
			p.link = nil
			list = append(list, p)
		}
	}
	return list
}

const codeTooLarge = 1009 // of WebSocket

// isTooLarge reports whether a Host ended the connection because of one message. Other calls may be sent
// again.
func isTooLarge(err error) bool {
	e, ok := errors.AsType[*wsconn.CloseError](err)
	return ok && e.Code == codeTooLarge
}

func errTooLargeAtHost(cause error) error {
	e := formFault(reasonMessageTooLarge, "", "the Host refused the message as too large")
	e.Cause = errors.Join(ErrTooLarge, cause)
	return e
}

// isRefusedLocked reports whether the error is an HTTP status that another attempt would bring, too.
// A proxy answers 400, 404 and 405 while its service is restarted. c.mu must be held.
func (c *Client) isRefusedLocked(err error) bool {
	e, ok := errors.AsType[*httpx.Error](err)
	if !ok || e.Status == 0 || e.RetryClass() != retry.Permanent {
		return false
	}
	return !c.wasConnected || e.Status != http.StatusBadRequest && e.Status != http.StatusNotFound && e.Status != http.StatusMethodNotAllowed
}

// largest returns the call with the most parameters.
func largest(list []*pendingCall) []*pendingCall {
	if len(list) == 0 {
		return nil
	}
	return []*pendingCall{slices.MaxFunc(list, func(a, b *pendingCall) int { return cmp.Compare(len(a.call.Parameters), len(b.call.Parameters)) })}
}

// isFinal reports whether another connection would end alike (ALT-D46).
func isFinal(err error) bool {
	if _, ok := errors.AsType[*unrenewedError](err); ok {
		return false
	}
	var e *Error
	if errors.As(err, &e) {
		switch e.Reason() {
		case ReasonUnauthenticated, reasonNotARuntime, reasonRuntimeIDTaken, reasonReservedRuntimeID, reasonUnsupportedVersion,
			reasonInvalidVersion, ReasonReplaced:
			return true
		}
		return false
	}
	closed, ok := errors.AsType[*wsconn.CloseError](err)
	return ok && closed.RetryClass() == retry.Permanent
}

// reconnectPause is how long a connection without a received message is in doubt.
const reconnectPause = 5 * time.Second

// retryLocked starts a reconnect unless one is in progress. c.mu must be held.
func (c *Client) retryLocked() {
	if !c.retries {
		c.retries = true
		c.goLocked("reconnect", c.reconnect)
	}
}

// reconnect makes a connection for the calls that wait for one. A Host that accepts and drops
// connections is dialed at a decreasing rate and only until ReconnectTimeout.
func (c *Client) reconnect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.ReconnectTimeout)
	defer cancel()
	err := c.opts.Retry.loop(ctx, c.opts.Logger, "altar: connection", func(ctx context.Context, _ func()) error {
		l, err := c.connect(ctx)
		if err == nil {
			err = l.proved(ctx)
		}
		if c.isIdle() {
			return nil
		}
		return err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retries = false
	switch {
	case c.closed || !c.isWaitingLocked():
	case err == nil: // it was lost again
		c.retryLocked()
	default:
		err = fmt.Errorf("%w: %w", ErrDisconnected, err)
		for _, p := range c.calls {
			if p.link == nil {
				c.failLocked(p, err)
			}
		}
	}
}

// proved waits until the connection has a received message, lasted for reconnectPause, or is lost.
func (l *clientLink) proved(ctx context.Context) error {
	t := time.NewTimer(reconnectPause)
	defer t.Stop()
	select {
	case <-l.received:
	case <-t.C:
	case <-ctx.Done():
	case <-l.done:
		if !isTooLarge(l.err) {
			return l.err
		}
	}
	return nil
}

func (c *Client) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.isWaitingLocked() || c.closed
}

// isWaitingLocked reports whether a call waits for a connection. c.mu must be held.
func (c *Client) isWaitingLocked() bool {
	for _, p := range c.calls {
		if p.link == nil {
			return true
		}
	}
	return false
}

// abandoned reports whether an unfinished call has no waiting caller.
func (c *Client) abandoned(p *pendingCall) bool {
	c.mu.Lock()
	waited := c.calls[p.call.InvocationID] == p
	c.mu.Unlock()
	return !waited && !p.isEnded()
}

// failLocked ends a call with an error. c.mu must be held.
func (c *Client) failLocked(p *pendingCall, err error) {
	delete(c.calls, p.call.InvocationID)
	p.abort(err)
}

// isDraining reports whether a message refuses a request because its Host shuts down. The result of a Runtime has
// metadata then.
func isDraining(m Message) bool {
	var e *Error
	switch m := m.(type) {
	case *ToolResult:
		if m.RuntimeMetadata == nil {
			e = m.Error
		}
	case *ErrorMessage:
		e = m.Err
	}
	return e != nil && e.Code == ErrInternal && e.Reason() == ReasonDraining
}

// retire makes later requests dial again, because the Host of l shuts down. Running requests continue there (ALT-D45).
func (c *Client) retire(l *clientLink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.isRetired = true
	if c.link == l {
		c.link = nil
	}
}

// redial repeats f, which failed since a Host shuts down, over new connections, until another Host takes it or
// ReconnectTimeout has passed (ALT-D45). f also reports whether another Host may take it.
func (c *Client) redial(ctx context.Context, refusal error, f func() (isRefused bool, err error)) error {
	var err error
	isLate, failed := c.persist(ctx, "altar: request", func(bounded context.Context) error {
		if _, failed := c.connect(bounded); failed != nil {
			return failed
		}
		var isRefused bool
		if isRefused, err = f(); isRefused {
			return err
		}
		if errors.Is(err, ErrDisconnected) { // it may have reached another Host
			err = errors.Join(err, refusal)
		}
		return nil
	})
	switch {
	case isLate:
		return refusal
	case failed != nil:
		return failed
	}
	return err
}

// endRetiredLocked ends a retired connection if nothing runs there. c.mu must be held.
func (c *Client) endRetiredLocked(l *clientLink) {
	if !l.isRetired || l.isEnding || !c.links[l] {
		return
	}
	for _, p := range c.calls {
		if p.link == l {
			return
		}
	}
	if n, _ := l.requests.Stats(); n == 0 {
		l.isEnding = true
		c.goLocked("end of a connection", func(context.Context) { l.flush() })
	}
}
