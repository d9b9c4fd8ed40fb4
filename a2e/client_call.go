// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/hook"
	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/sendq"
)

// CallOptions adjusts one call. Nil is the zero value.
type CallOptions struct {
	// Timeout bounds the call on this side, the wait for a slot included. Zero means the time limit
	// of the request plus 5 s, or 300 s if it names none.
	Timeout time.Duration

	// OnEvent is called for each event of the call, in order of arrival, by the goroutine that
	// makes the call. Nil ignores them.
	OnEvent func(Event)

	// Retry repeats a call that failed with a retryable error. It applies to idempotent calls only
	// (A2E-D30). Nil means that of the client.
	Retry *RetryPolicy

	// Idempotent permits a second execution of the call.
	Idempotent bool
}

// A RetryPolicy bounds the attempts of a call and the delays between them (A2E-066).
type RetryPolicy struct {
	// MaxAttempts is the maximum number of attempts. Zero means 3; a negative value disables
	// retries.
	MaxAttempts int

	// Base is the first delay, doubled after each attempt. Zero means 1 s; a negative value disables
	// delays.
	Base time.Duration

	// Max is the longest delay, also where the host asks for a longer one. Zero means 30 s; a negative value removes
	// the bound.
	Max time.Duration
}

// A pending call waits for its slot, its events and its answer.
type pending struct {
	msg    Message
	want   string // canonical type of the answer, "" if any is accepted
	isFree bool   // a handshake or ping, which Shutdown does not wait for
	isOut  bool   // it needs no slot
	answer *Message
	wakeup chan struct{} // holds one token: events are queued, or the call has a slot

	isAnswered atomic.Bool

	// guarded by the client's mu
	line     *[]byte       // until it is sent
	isActive bool          // counted by the client
	late     chan *Message // gets the answer after a local end of the call; nil if the caller does not need it
	hasSlot  bool
	position uint64        // in the queue, of the sent line
	events   []Event       // not delivered yet
	seen     []Event       // delivered, up to QueueLimit and maxEventBytes, for Error.Events
	size     int           // bytes of events
	seenSize int           // bytes of all delivered events
	space    chan struct{} // closed when events are taken; nil unless the reader waits
	isSlow   bool          // an event was dropped
	seq      sequence
}

// signal wakes the waiting caller.
func (p *pending) signal() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// Call sends a request and returns its answer. An error of the host is an [*Error] with Remote set,
// an answer that violates the protocol is [ErrInvalidResponse], an answer of another type
// [ErrUnexpectedResponse], the end of the connection [ErrClosed]. If ctx ends, the call ends and
// its later answer is dropped; a host with the cancel extension receives a cancellation.
func (c *Client) Call(ctx context.Context, msgType string, body any, opts *CallOptions) (*Message, error) {
	return c.call(ctx, msgType, bodyOf(body), opts)
}

// A CallFunc makes a call; see [Client.Call].
type CallFunc func(ctx context.Context, msgType string, body any, opts *CallOptions) (*Message, error)

// An Interceptor wraps the calls of a client: for tracing, logs, policy.
type Interceptor func(next CallFunc) CallFunc

// repeat makes a call, and again if the options permit it.
func (c *Client) repeat(ctx context.Context, msgType string, body any, opts *CallOptions) (*Message, error) {
	var o CallOptions
	if opts != nil {
		o = *opts
	}
	o.Retry = cmp.Or(o.Retry, c.opts.Retry)
	if o.Retry == nil || !o.Idempotent {
		return c.roundTrip(ctx, msgType, body, &o)
	}
	attempts := option.Or(o.Retry.MaxAttempts, 3, 1)
	delay, limit := max(cmp.Or(o.Retry.Base, time.Second), 0), option.Duration(o.Retry.Max, 30*time.Second)
	for i := 0; ; i++ {
		answer, err := c.roundTrip(ctx, msgType, body, &o)
		var e *Error
		if err == nil || i+1 >= attempts || !errors.As(err, &e) || !e.Retryable || !e.Remote ||
			e.Code == ErrUnauthorized || e.Code == ErrVersionMismatch {
			return answer, err
		}
		c.log.InfoContext(ctx, "a2e: call repeated", "type", msgType, "err", err)
		if e.Code == ErrTimeout {
			body = raiseTimeout(body)
		}
		pause := delay
		if delay > 0 {
			pause = max(delay, retryAfter(e))
		}
		if cause := c.pause(ctx, min(pause, limit)); cause != nil {
			return nil, fmt.Errorf("%w: %w", cause, err)
		}
		delay = min(delay, limit/2) * 2
	}
}

// pause waits for d, or until the client is closed. It returns the cause of an earlier end of ctx.
func (c *Client) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.causeReady: // the next attempt fails
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// retryAfter returns the time after which the host asks for a repetition, or 0 (A2E-D56).
func retryAfter(e *Error) time.Duration {
	m, _ := ParseMembers(e.Details)
	n, _ := m.object().Get("retry_after").Int()
	return min(time.Duration(max(n, 0)), math.MaxInt32) * time.Second
}

// raiseTimeout returns a copy of a request with twice its time limit, because a request that timed
// out would time out again. The request itself is not changed.
func raiseTimeout(body any) any {
	seconds := int64(timeLimit(body) / time.Second)
	if v := memberOf(body, "timeout"); !v.CanInt() || seconds <= 0 || seconds >= 1<<30 {
		return body
	}
	return withTimeout(body, 2*seconds)
}

func withTimeout(body any, seconds int64) any {
	own := reflect.New(reflect.TypeOf(body).Elem())
	own.Elem().Set(reflect.ValueOf(body).Elem())
	memberOf(own.Interface(), "timeout").SetInt(seconds)
	return own.Interface()
}

// limitTo returns a request whose time limit is unset with that of its caller, if it is shorter than
// the default, in whole seconds (A2E-D28).
func limitTo(ctx context.Context, msgType string, body any, timeout time.Duration) any {
	switch msgType {
	case "tool/call/req", "skill/call/req", "chain/req":
	default:
		return body
	}
	left := cmp.Or(max(timeout, 0), math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	if left == math.MaxInt64 || left >= timeLimit(body) {
		return body
	}
	if v := memberOf(body, "timeout"); !v.CanInt() || v.Int() != 0 {
		return body
	}
	return withTimeout(body, max(int64((left+time.Second-1)/time.Second), 1))
}

// CallAs is [Client.Call] with the model of the answer.
func CallAs[Resp any](ctx context.Context, c *Client, msgType string, body any, opts *CallOptions) (*Resp, error) {
	if c == nil {
		return nil, errors.New("a2e: call: no client")
	}
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

// Stream makes a call and yields its events in order of arrival, then its answer as the last event.
// It may be ranged over once; the call starts with the loop. Leaving the loop early cancels the
// call. The error of the call is yielded once and last. The member streaming of the request
// determines whether the host sends events.
func (c *Client) Stream(ctx context.Context, msgType string, body any, opts *CallOptions) iter.Seq2[Event, error] {
	return guard.Once(func(yield func(Event, error) bool) {
		var o CallOptions
		if opts != nil {
			o = *opts
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		onEvent, isEnded := o.OnEvent, false
		o.OnEvent = func(ev Event) {
			if isEnded {
				return
			}
			if onEvent != nil {
				onEvent(ev)
			}
			if !yield(ev, nil) {
				isEnded = true
				cancel()
			}
		}
		answer, err := c.Call(ctx, msgType, body, &o)
		switch {
		case isEnded:
		case err != nil:
			yield(Event{}, err)
		default:
			yield(Event{Message: answer, Order: OrderOK}, nil)
		}
	}, errStreamUsed)
}

// errStreamUsed reports a stream that is ranged over a second time.
var errStreamUsed = errors.New("a2e: a stream can be ranged over once only")

// deadlineOf returns the time limit of a call on this side.
func deadlineOf(m *Message, timeout time.Duration) time.Duration {
	if timeout > 0 {
		return timeout
	}
	if limit := timeLimit(m.Body); limit > 0 && limit < 1<<62 {
		return limit + callGrace
	}
	return callTimeout
}

func (c *Client) newPending(msgType string, body any) (*pending, error) {
	p := &pending{}
	p.msg.stamp(msgType, body)
	if g, ok := body.(Members); ok {
		p.msg.Body, p.msg.Extra = nil, g
	}
	if t := c.conn.codec.Types.Lookup(msgType); t != nil && t.Name == msgType {
		p.want = canonicalType(t.Response)
	} else {
		p.want = canonicalType(responseType(msgType))
	}
	p.isFree = msgType == typeHandshakeRequest || msgType == typePing
	p.isOut = p.isFree || laneOfType(canonicalType(msgType)) != session.LaneOrdinary
	if r, ok := body.(*HandshakeRequest); ok && slices.Contains(r.AgentCaps, featureLimits) {
		_ = p.msg.Extra.Set("limits", c.conn.codec.announce())
	}
	var err error
	p.line, err = c.conn.boundedLine(&p.msg, ErrInvalidMessage)
	return p, err
}

func (c *Client) roundTrip(ctx context.Context, msgType string, body any, o *CallOptions) (*Message, error) {
	if ctx.Err() != nil { // the host might act on a call without a caller
		return nil, context.Cause(ctx)
	}
	if err := c.conn.codec.checkRequestType(msgType); err != nil {
		return nil, err
	}
	p, err := c.newPending(msgType, limitTo(ctx, msgType, body, o.Timeout))
	if err != nil {
		return nil, err
	}
	p.wakeup = c.newWakeup()
	defer c.freeWakeup(p)
	isReturning := false
	defer func() {
		if !isReturning { // OnEvent has panicked, or ended the goroutine
			c.endCall(ctx, p, context.Canceled)
		}
	}()
	defer c.expectLate(ctx, p)()
	deadline := time.Now().Add(deadlineOf(&p.msg, o.Timeout))
	call, err := c.conn.replies.Add(p.msg.ID, deadline, p)
	if err == nil {
		err = c.startCall(p)
	}
	for isEnded := false; err == nil && !isEnded; {
		if line := c.unsent(p); line != nil {
			err = c.sendLate(ctx, deadline, p, line)
			continue
		}
		_, isEnded, err = call.WaitEvent(ctx, p.wakeup)
		events, isSlow := c.takeEvents(p)
		for _, ev := range events {
			if o.OnEvent != nil {
				o.OnEvent(ev)
			}
		}
		if isSlow && err != nil {
			err = ErrSlowReader
		}
	}
	isReturning = true
	c.endCall(ctx, p, err)
	if err != nil {
		c.awaitLate(ctx, p)
		return nil, err
	}
	return p.answer, nil
}

// expectLate keeps the answer of a call for awaitLate, if its caller needs that, until the returned function is called.
func (c *Client) expectLate(ctx context.Context, p *pending) (end func()) {
	if hook.Late(ctx) == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.late = make(chan *Message, 1)
	c.late[p.msg.ID] = p.late
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.late, p.msg.ID)
	}
}

// awaitLate waits for the answer of a call that has ended on this side, if its caller needs that.
func (c *Client) awaitLate(ctx context.Context, p *pending) {
	if p.late == nil {
		return
	}
	timer := time.NewTimer(cancelTimeout)
	defer timer.Stop()
	select {
	case m := <-p.late:
		if canonicalType(m.Type) == p.want {
			*hook.Late(ctx) = m.Body
		}
	case <-timer.C:
	case <-c.Done():
	}
}

// unsent returns the line of a call that has a slot and found no space in the queue, or nil.
func (c *Client) unsent(p *pending) *[]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.hasSlot {
		return nil
	}
	return p.line
}

// sendLate sends a call when the queue has space.
func (c *Client) sendLate(ctx context.Context, deadline time.Time, p *pending, line *[]byte) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := c.send(ctx, *line)
	if err == nil {
		c.mu.Lock()
		c.sentLocked(p)
		c.mu.Unlock()
	}
	return err
}

// newWakeup returns a new or reused channel for one token.
func (c *Client) newWakeup() chan struct{} {
	if w, ok := c.wakeups.Get().(chan struct{}); ok {
		return w
	}
	return make(chan struct{}, 1)
}

// freeWakeup releases the channel of a call that has ended or was not started, so that no goroutine
// signals it.
func (c *Client) freeWakeup(p *pending) {
	select {
	case <-p.wakeup:
	default:
	}
	c.wakeups.Put(p.wakeup)
}

// Send sends a message without waiting for an answer: an event, or a request whose answer is
// counted as dropped. It blocks while the host does not read.
func (c *Client) Send(ctx context.Context, msgType string, body any) error {
	p, err := c.newPending(msgType, bodyOf(body))
	if err != nil {
		return err
	}
	defer freeLine(p.line)
	if err := c.ready(); err != nil {
		return err
	}
	err = error(sendq.ErrFull)
	if msgType == typeWindow { // the host may wait for it
		err = c.out.putControl(*p.line, true)
	}
	if errors.Is(err, sendq.ErrFull) {
		err = c.send(ctx, *p.line)
	}
	return err
}

// ready returns the reason why nothing can be sent, or nil.
func (c *Client) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case clientReady:
		return nil
	case clientClosed:
		return c.cause
	}
	return ErrNotConnected
}

// startCall sends a call or queues it until a slot is free.
func (c *Client) startCall(p *pending) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == clientClosed:
		return c.cause
	case c.isDraining && !p.isFree:
		return ErrClosed
	case c.state != clientReady && p.msg.Type != typeHandshakeRequest:
		return ErrNotConnected
	case p.isFree:
		c.sendLocked(p)
		return nil
	}
	c.active++
	p.isActive = true
	if p.isOut || len(c.waiting) == 0 && len(c.slots) < c.parallel {
		c.sendLocked(p)
		return nil
	}
	c.waiting = append(c.waiting, p)
	c.admitLocked()
	return nil
}

// admitLocked sends the oldest waiting calls while slots are free (A2E-D27). c.mu must be held.
func (c *Client) admitLocked() {
	for len(c.waiting) > 0 && len(c.slots) < c.parallel && c.state == clientReady {
		p := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.sendLocked(p)
	}
}

// sendLocked sends a call, for which a slot is free. If the queue has no space, the caller of
// the call waits for it. c.mu must be held.
func (c *Client) sendLocked(p *pending) {
	p.hasSlot = true
	if !p.isOut {
		c.slots[p.msg.ID] = struct{}{}
	}
	if c.out.put(*p.line, 0) == nil {
		c.sentLocked(p)
		return
	}
	p.signal()
}

// sentLocked records that the line of a call is queued. c.mu must be held.
func (c *Client) sentLocked(p *pending) {
	p.position = c.out.queue.Position()
	if mayLackID(p.want) {
		c.unnamed = append(c.unnamed, p)
	}
	freeLine(p.line)
	p.line = nil
}

// freeSlot is called when the host has answered a call, or another one need not wait for it.
func (c *Client) freeSlot(id string, isHeld bool) {
	if isHeld {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.slots, id)
	c.admitLocked()
}

// takeEvents returns the events received since its last call, and whether one was dropped.
func (c *Client) takeEvents(p *pending) (events []Event, isSlow bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events = p.events
	p.events = nil
	if p.space != nil {
		close(p.space)
		p.space = nil
	}
	if space := c.opts.Limits.QueueLimit - len(p.seen); space > 0 && p.seenSize < maxEventBytes {
		p.seen = append(p.seen, events[:min(space, len(events))]...)
	}
	p.seenSize += p.size
	p.size = 0
	return events, p.isSlow
}

// endCall ends a call. If it failed on this side after its request was sent, a host with the cancel
// extension receives a cancellation, and the slot is free after the answer to it (A2E-D38).
func (c *Client) endCall(ctx context.Context, p *pending, err error) {
	if c.releaseCall(ctx, p, err) {
		c.conn.replies.Cancel(p.msg.ID) // unless it has ended
		if line, err := c.conn.codec.line(NewMessage(typeCancel, &cancelBody{ReqID: p.msg.ID})); err == nil {
			_ = c.out.queue.PutControl(*line, p.position)
			freeLine(line)
		}
	} else if err != nil {
		c.conn.replies.Fail(p.msg.ID, err)
	}
}

// releaseCall releases what a call holds, completes its error, and reports whether the host must
// end the call.
func (c *Client) releaseCall(ctx context.Context, p *pending, err error) (mustCancel bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isSent := p.line == nil
	list := &c.unnamed
	if !isSent {
		list = &c.waiting
	}
	if i := slices.Index(*list, p); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	freeLine(p.line)
	p.line = nil
	if p.isActive {
		c.active--
	}
	if c.isDraining && c.active == 0 {
		c.idle()
	}
	if err == nil {
		return false
	}
	if !isSent || p.isAnswered.Load() {
		p.late = nil
	}
	var e, cause *Error
	if errors.As(err, &e) && !(errors.As(context.Cause(ctx), &cause) && cause == e) { // not the error of another call
		e.Events = append(slices.Clone(p.seen), p.events...)
		c.noteRefusalLocked(p.msg.Type, e)
	}
	return isSent && !p.isAnswered.Load() && c.state == clientReady && slices.Contains(c.peer.Features, featureCancel)
}

// noteRefusalLocked records that the host lacks a namespace, and names the option of a missing capability.
// c.mu must be held.
func (c *Client) noteRefusalLocked(msgType string, e *Error) {
	switch {
	case !e.Remote:
	case errors.Is(e, ErrUnsupported):
		namespace, _, _ := strings.Cut(msgType, "/")
		c.lacking[namespace] = true
	case e.Code == ErrCapabilityMissing && !slices.Contains(c.opts.Capabilities, e.Capability):
		e.Message += " (ClientOptions.Capabilities lacks it)"
	}
}
