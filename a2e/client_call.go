// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
)

// CallOptions adjusts one call. Nil is the zero value.
type CallOptions struct {
	// Timeout bounds the call on this side, the wait for a slot included. Zero
	// means the time limit that the request names and 5 seconds, or 300
	// seconds if it names none.
	Timeout time.Duration

	// OnEvent is called for each event of the call, in order of arrival, by
	// the goroutine that makes the call. Nil passes over them.
	OnEvent func(Event)

	// Retry repeats a call that failed with an error that is retryable. It
	// has an effect on idempotent calls only (A2E-D30).
	Retry *RetryPolicy

	// Idempotent says that the call may be made twice.
	Idempotent bool
}

// A RetryPolicy says how often and how fast a call is repeated (A2E-066).
type RetryPolicy struct {
	// MaxAttempts is how often the call is made at most. Zero means 3.
	MaxAttempts int

	// Base is the first delay, doubled each time up to Max. Zero means 1
	// second, and 30 seconds.
	Base, Max time.Duration
}

// A pending call waits for its slot, its events and its answer.
type pending struct {
	msg  stamped
	line *[]byte // until it is sent
	want string  // canonical type of the answer, "" if any will do

	before, after *pending // of the callTable
	free          bool     // it takes no slot: handshake and ping

	// guarded by the client's mu until ended is set
	events []Event // not taken yet
	seen   []Event // taken; as many as may wait, for the error that may come
	seq    Sequence
	answer *Message
	err    error
	ended  bool
	done   chan struct{} // closed at the end; nil if nobody asked for it

	wake chan struct{} // holds one token: there are events, or the end has come
}

// signal wakes who waits for the call.
func (p *pending) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// whenDone returns a channel that is closed when the call has ended. It is called
// with the client's mu held, for a call that has not.
func (p *pending) whenDone() <-chan struct{} {
	if p.done == nil {
		p.done = make(chan struct{})
	}
	return p.done
}

// Call sends a request and returns its answer. An error of the host is an
// [*Error] with Remote set, an answer that violates the protocol is
// [ErrInvalidResponse], one of another type [ErrUnexpectedResponse], the end of the
// connection [ErrClosed]. If ctx ends, so does the call, and its later answer is
// dropped; a host that knows how is told to stop working on it.
func (c *Client) Call(ctx context.Context, msgType string, body any, opts *CallOptions) (*Message, error) {
	var o CallOptions
	if opts != nil {
		o = *opts
	}
	if o.Retry == nil || !o.Idempotent {
		return c.roundTrip(ctx, msgType, body, &o)
	}
	attempts, wait := o.Retry.MaxAttempts, backoff.Backoff{Base: o.Retry.Base, Max: o.Retry.Max}
	if attempts <= 0 {
		attempts = 3
	}
	if wait.Base <= 0 {
		wait.Base = time.Second
	}
	if wait.Max <= 0 {
		wait.Max = 30 * time.Second
	}
	for i := 0; ; i++ {
		answer, err := c.roundTrip(ctx, msgType, body, &o)
		var e *Error
		if err == nil || i+1 >= attempts || !errors.As(err, &e) || !e.Retryable || !e.Remote ||
			e.Code == ErrUnauthorized || e.Code == ErrVersionMismatch {
			return answer, err
		}
		c.log.Info("a2e: call is repeated", "type", msgType, "err", err)
		if e.Code == ErrTimeout {
			body = raiseTimeout(body)
		}
		if waitErr := wait.Wait(ctx, i+1); waitErr != nil {
			return nil, err
		}
	}
}

// raiseTimeout returns a request with twice the time limit that it names, as one
// that ran out of time will do so again. The request itself stays as it is.
func raiseTimeout(body any) any {
	if v := memberOf(&Message{Body: body}, "timeout"); !v.IsValid() || !v.CanInt() || v.Int() <= 0 || v.Int() >= 1<<30 {
		return body
	}
	own := reflect.New(reflect.TypeOf(body).Elem())
	own.Elem().Set(reflect.ValueOf(body).Elem())
	v := memberOf(&Message{Body: own.Interface()}, "timeout")
	v.SetInt(2 * v.Int())
	return own.Interface()
}

// CallAs is [Client.Call] with the model of the answer.
func CallAs[Resp any](ctx context.Context, c *Client, msgType string, body any, opts *CallOptions) (*Resp, error) {
	m, err := c.Call(ctx, msgType, body, opts)
	if err != nil {
		return nil, err
	}
	resp, ok := m.Body.(*Resp)
	if !ok {
		return nil, fmt.Errorf("%w: %s holds %T; is its type among the client's?", ErrUnexpectedResponse, m.Type, m.Body)
	}
	return resp, nil
}

// A Stream is a call whose events are taken one by one.
type Stream struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelFunc
	p      *pending
	err    error
}

// Stream begins a call whose events are taken from [Stream.Events] and whose
// answer comes from [Stream.Answer]. Whether a host sends events depends on the
// member streaming of the request.
func (c *Client) Stream(ctx context.Context, msgType string, body any, opts *CallOptions) *Stream {
	s := &Stream{c: c, err: context.Cause(ctx)}
	if s.err != nil {
		return s
	}
	timeout := time.Duration(0)
	if opts != nil {
		timeout = opts.Timeout
	}
	s.p, s.err = c.newPending(msgType, body)
	if s.err == nil {
		s.ctx, s.cancel = context.WithTimeout(ctx, deadlineOf(&s.p.msg.Message, timeout))
		if s.err = c.begun(s.p); s.err != nil {
			s.cancel()
		}
	}
	return s
}

// Events yields the events in order of arrival until the answer comes. It may
// be ranged over once. Leaving the loop early cancels the call. An error, that
// of the call, comes once and last.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if s.err != nil {
			yield(Event{}, s.err)
			return
		}
		for {
			events, ended := s.c.takeEvents(s.p)
			for _, ev := range events {
				if !yield(ev, nil) {
					s.cancel()
					s.c.abandon(s.p, context.Canceled)
					return
				}
			}
			if ended {
				if _, err := s.Answer(); err != nil {
					yield(Event{}, err)
				}
				return
			}
			select {
			case <-s.p.wake:
			case <-s.ctx.Done():
				s.c.abandon(s.p, context.Cause(s.ctx))
			}
		}
	}
}

// Answer waits for the answer. Events that were not taken are passed over.
func (s *Stream) Answer() (*Message, error) {
	if s.err != nil {
		return nil, s.err
	}
	defer s.cancel()
	for {
		if _, ended := s.c.takeEvents(s.p); ended {
			return s.p.answer, s.p.err
		}
		select {
		case <-s.p.wake:
		case <-s.ctx.Done():
			s.c.abandon(s.p, context.Cause(s.ctx))
		}
	}
}

// deadlineOf returns how long a call may take on this side.
func deadlineOf(m *Message, timeout time.Duration) time.Duration {
	if timeout > 0 {
		return timeout
	}
	if limit := timeLimit(m); limit > 0 && limit < 1<<62 {
		return limit + callGrace
	}
	return callTimeout
}

func (c *Client) newPending(msgType string, body any) (*pending, error) {
	p := &pending{wake: c.wake()}
	p.msg.stamp(msgType, body)
	if g, ok := body.(Members); ok {
		p.msg.Body, p.msg.Extra = nil, g
	}
	if t := c.codec.Types.Lookup(msgType); t != nil && t.Name == msgType {
		p.want = CanonicalType(t.Response)
	} else {
		p.want = CanonicalType(responseType(msgType))
	}
	switch msgType {
	case TypeHandshakeRequest, TypePing:
		p.free = true
	}
	var err error
	p.line, err = c.codec.line(&p.msg.Message)
	return p, err
}

func (c *Client) roundTrip(ctx context.Context, msgType string, body any, o *CallOptions) (*Message, error) {
	if ctx.Err() != nil { // nothing is sent of what nobody waits for
		return nil, context.Cause(ctx)
	}
	p, err := c.newPending(msgType, body)
	if err != nil {
		return nil, err
	}
	timer := c.timer(deadlineOf(&p.msg.Message, o.Timeout))
	defer c.freeTimer(timer)
	defer c.freeWake(p)
	if err := c.begun(p); err != nil {
		return nil, err
	}
	for {
		select {
		case <-p.wake:
			events, ended := c.takeEvents(p)
			for _, ev := range events {
				if o.OnEvent != nil {
					o.OnEvent(ev)
				}
			}
			if ended {
				return p.answer, p.err
			}
		case <-timer.C:
			c.abandon(p, context.DeadlineExceeded)
		case <-ctx.Done():
			c.abandon(p, context.Cause(ctx))
		}
	}
}

// wake returns a channel for one token, one that was used before if there is one.
func (c *Client) wake() chan struct{} {
	if w, ok := c.wakes.Get().(chan struct{}); ok {
		return w
	}
	return make(chan struct{}, 1)
}

// freeWake gives the channel of a call back that has ended, or was never begun:
// nobody signals it any more.
func (c *Client) freeWake(p *pending) {
	select {
	case <-p.wake:
	default:
	}
	c.wakes.Put(p.wake)
}

// timer returns a timer, one that was used before if there is one.
func (c *Client) timer(d time.Duration) *time.Timer {
	if t, ok := c.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (c *Client) freeTimer(t *time.Timer) {
	t.Stop()
	c.timers.Put(t)
}

// Send sends a message without waiting for an answer: an event, or a request whose
// answer is of no interest and will be counted as dropped. It waits while the
// host does not read.
func (c *Client) Send(ctx context.Context, msgType string, body any) error {
	p, err := c.newPending(msgType, body)
	if err != nil {
		return err
	}
	defer freeLine(p.line)
	if err := c.ready(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.out.wait(ctx); err != nil {
		return err
	}
	if err := c.ready(); err != nil { // it may have ended meanwhile
		return err
	}
	c.out.put(*p.line)
	return nil
}

// ready returns why nothing can be sent, or nil.
func (c *Client) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case clientReady:
		return nil
	case clientClosed:
		return ErrClosed
	}
	return ErrNotConnected
}

// begun sends a call or lets it wait for a slot.
func (c *Client) begun(p *pending) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == clientClosed:
		return ErrClosed
	case c.state != clientReady && p.msg.Type != TypeHandshakeRequest:
		return ErrNotConnected
	}
	if p.free {
		c.sendCall(p)
		return nil
	}
	if len(c.waiting) == 0 && c.inFlight < c.parallel {
		c.inFlight++
		c.sendCall(p)
		return nil
	}
	c.waiting = append(c.waiting, p)
	c.admit()
	return nil
}

// admit sends the oldest waiting calls while there are slots (A2E-D27).
func (c *Client) admit() {
	for len(c.waiting) > 0 && c.inFlight < c.parallel && c.state == clientReady {
		p := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.inFlight++
		c.sendCall(p)
	}
}

func (c *Client) sendCall(p *pending) {
	c.calls.add(p)
	c.out.put(*p.line)
	freeLine(p.line)
	p.line = nil
}

// takeEvents returns the events that arrived since it was called last, and
// whether the call has ended.
func (c *Client) takeEvents(p *pending) (events []Event, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events = p.events
	p.events = nil
	if room := c.opts.QueueLimit - len(p.seen); room > 0 {
		p.seen = append(p.seen, events[:min(room, len(events))]...)
	}
	return events, p.ended
}

// abandon ends a call on this side (A2E-D38).
func (c *Client) abandon(p *pending, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.ended {
		return
	}
	if c.calls.get(p.msg.ID) != nil && slices.Contains(c.peer.Features, FeatureCancel) && c.state == clientReady {
		if line, err := c.codec.Append(nil, NewMessage(typeCancel, &Cancel{ReqID: p.msg.ID})); err == nil {
			c.out.put(line)
		}
	}
	c.finish(p, nil, err)
}

// finish ends a call with an answer or an error. It is called with mu held.
func (c *Client) finish(p *pending, answer *Message, err error) {
	if p.ended {
		return
	}
	p.ended, p.answer, p.err = true, answer, err
	if err != nil {
		c.noteFault(p, err)
	}
	if c.calls.remove(p) {
		if !p.free {
			c.inFlight--
		}
	} else if i := slices.Index(c.waiting, p); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	freeLine(p.line) // of one that was never sent
	p.line = nil
	if p.done != nil {
		close(p.done)
	}
	p.signal()
	c.admit()
}

// noteFault completes the error that a call ends with.
func (c *Client) noteFault(p *pending, err error) {
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	e.Events = append(slices.Clone(p.seen), p.events...)
	if e.Remote && errors.Is(e, ErrUnsupported) {
		namespace, _, _ := strings.Cut(p.msg.Type, "/")
		c.lacking[namespace] = true
	}
}
