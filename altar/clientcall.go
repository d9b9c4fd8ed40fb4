// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// CallOptions adjusts one call. The zero value and nil are right mostly.
type CallOptions struct {
	// InvocationID identifies the call. Calling again with the same id and
	// content yields the same outcome for some minutes and never runs the tool
	// twice (ALT-D22). Empty means a new UUID.
	InvocationID string

	// Timeout shortens the allotted time, in whole milliseconds (ALT-D25).
	Timeout time.Duration

	// CorrelationID and Metadata go to the Runtime unchanged (ALT-D30).
	CorrelationID string
	Metadata      map[string]string
}

// A Result is the outcome of a call that succeeded. Its JSON must not be changed:
// in one process the Host has the same memory, see [Host.Dial].
type Result struct {
	Payload         json.RawMessage
	RuntimeMetadata json.RawMessage // a JSON object, or nil
}

// Decode stores the payload in what dst points to. Integers stay exact.
func (r *Result) Decode(dst any) error { return decodePayload(r.Payload, dst) }

func decodePayload(payload json.RawMessage, dst any) error {
	v, err := strictjson.Check(payload, strictjson.Options{})
	if err == nil {
		err = strictjson.Decode(v, dst)
	}
	if err != nil {
		return fmt.Errorf("altar: payload: %w", err)
	}
	return nil
}

// A pendingCall is a call in flight of a client.
type pendingCall struct {
	c      *Client
	call   ToolCall
	credit int64 // of call
	seq    uint64
	link   *clientLink   // that it was sent over; nil while it waits for one; guarded by the lock of the client
	notify chan struct{} // has capacity 1
	timer  *time.Timer   // nil without a timeout

	mu     sync.Mutex
	stream callStream
	err    error // a local error that ended the call

	result Result
}

func (p *pendingCall) add(m Message) bool {
	p.mu.Lock()
	ok := p.err == nil && p.stream.Add(m, time.Now)
	chunk, isChunk := m.(*StreamChunk)
	slow := ok && isChunk && chunk.ChunkID >= p.stream.credit && p.stream.waiting > p.c.opts.MaxQueue
	if slow {
		p.err = ErrSlowReader
	}
	p.mu.Unlock()
	signal(p.notify)
	return ok
}

func (p *pendingCall) broken(bad *badFrame) {
	p.mu.Lock()
	p.stream.Broken(bad)
	p.mu.Unlock()
	signal(p.notify)
}

// isEnded reports whether the end of the call was received. Its reader may not have taken all payloads.
func (p *pendingCall) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	done, _ := p.stream.End()
	return done
}

// abort ends a call with an error.
func (p *pendingCall) abort(err error) {
	p.mu.Lock()
	if done, _ := p.stream.End(); !done && p.err == nil {
		p.err = err
	}
	p.mu.Unlock()
	signal(p.notify)
}

// message returns the call as it is sent, again after a lost connection.
func (p *pendingCall) message() *ToolCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.call
	if !m.CollectChunks {
		m.ResumeFrom = p.stream.Expected()
		credit := p.stream.credit
		m.Credit = &credit
	}
	return &m
}

// next waits for the next payload. It returns false at the end.
func (p *pendingCall) next(ctx context.Context) (payload json.RawMessage, ok bool, err error) {
	for {
		p.mu.Lock()
		wait := p.stream.Gap()
		payload, ok = p.stream.Next()
		credit, isRaised := int64(0), false
		if ok && !p.call.CollectChunks {
			credit, isRaised = p.stream.Grant()
		}
		done, failed := p.stream.End()
		err = p.err
		p.mu.Unlock()
		if isRaised {
			p.grant(ctx, credit)
		}
		switch {
		case ok:
			return payload, true, nil
		case done:
			var e *Error
			if errors.As(failed, &e) {
				return nil, false, remote(e)
			}
			return nil, false, failed
		case err != nil:
			return nil, false, err
		}
		var gap <-chan time.Time
		if wait > 0 {
			gap = time.After(wait)
		}
		select {
		case <-p.notify:
		case <-gap:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// grant sends a credit to the Host. After a lost connection the repeat of the call has it.
func (p *pendingCall) grant(ctx context.Context, credit int64) {
	p.c.mu.Lock()
	l := p.link
	p.c.mu.Unlock()
	if l != nil {
		_ = l.send(ctx, &StreamCredit{InvocationID: p.call.InvocationID, SessionID: p.call.SessionID, Credit: credit})
	}
}

// newCall makes a call that is not sent yet.
func (s *Session) newCall(tool string, params any, o *CallOptions, collect bool) (*pendingCall, error) {
	var opts CallOptions
	if o != nil {
		opts = *o
	}
	if opts.InvocationID == "" {
		opts.InvocationID = randid.UUID4()
	}
	c := s.c
	notify, ok := c.notify.Get().(chan struct{})
	if !ok {
		notify = make(chan struct{}, 1)
	}
	p := &pendingCall{c: c, notify: notify, stream: callStream{id: opts.InvocationID, credit: firstClientCredit}}
	call := &p.call
	*call = ToolCall{InvocationID: opts.InvocationID, SessionID: s.id, ToolName: tool, Metadata: maps.Clone(opts.Metadata), CollectChunks: collect,
		header: header{RequestID: opts.InvocationID, CorrelationID: opts.CorrelationID}}
	if !collect {
		p.credit = firstClientCredit
		call.Credit = &p.credit
	}
	if opts.Timeout > 0 {
		call.TimeoutMS = max(1, opts.Timeout.Milliseconds())
	}
	if params == nil {
		call.Parameters = json.RawMessage("{}")
	} else {
		text, err := encodeJSON(nil, params)
		if err != nil {
			return nil, fmt.Errorf("altar: parameters: %w", err)
		}
		call.Parameters = text
	}
	// The Host never responds to a call that cannot be encoded or lacks its id.
	if !sound(call) {
		switch _, bad, err := vet(call); {
		case err != nil:
			return nil, err
		case bad != nil:
			return nil, bad.Err
		}
	}
	return p, nil
}

// start sends a call.
func (s *Session) start(ctx context.Context, tool string, params any, o *CallOptions, collect bool) (*pendingCall, error) {
	p, err := s.newCall(tool, params, o, collect)
	if err != nil {
		return nil, err
	}
	c, call := s.c, &p.call
	if _, err := c.connected(ctx); err != nil {
		return nil, err
	}
	l, err := c.enter(p)
	if err != nil {
		return nil, err
	}
	if o != nil && o.Timeout > 0 { // the Host may be silent (ALT-D46)
		p.timer = time.AfterFunc(min(o.Timeout, option.Off)+deadlineSlack, func() { p.abort(errDeadline()) })
	}
	if l == nil {
		return p, nil // the reconnect sends it
	}
	if err := l.send(ctx, call); asError(err) != nil { // else it waits for another connection, or for ctx
		p.remove()
		return nil, err
	}
	return p, nil
}

// begin sends a call and waits for its first payload or its end. One that a Host refuses because it shuts down is sent
// to another one (ALT-D45). After an error the call is finished.
func (s *Session) begin(ctx context.Context, tool string, params any, o *CallOptions, collect bool) (
	p *pendingCall, payload json.RawMessage, ok bool, err error) {
	began := time.Now()
	p, payload, ok, err = s.try(ctx, tool, params, o, collect)
	if p == nil || !p.isRefused(err) {
		return p, payload, ok, err
	}
	var opts CallOptions
	if o != nil {
		opts = *o
	}
	opts.InvocationID = p.call.InvocationID
	err = s.c.redial(ctx, err, func() (isRefused bool, err error) {
		if o != nil && o.Timeout > 0 {
			if opts.Timeout = o.Timeout - time.Since(began); opts.Timeout <= 0 {
				return false, errDeadline()
			}
		}
		p, payload, ok, err = s.try(ctx, tool, params, &opts, collect)
		if p == nil {
			return isElsewhere(err), err
		}
		return p.isRefused(err), err
	})
	return p, payload, ok, err
}

// isRefused reports whether an error of the call is the refusal of a Host that shuts down.
func (p *pendingCall) isRefused(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.stream.result; r != nil {
		return isDraining(r)
	}
	return p.err != nil && isElsewhere(err)
}

// try is begin with one connection.
func (s *Session) try(ctx context.Context, tool string, params any, o *CallOptions, collect bool) (
	p *pendingCall, payload json.RawMessage, ok bool, err error) {
	if p, err = s.start(ctx, tool, params, o, collect); err != nil {
		return nil, nil, false, err
	}
	if payload, ok, err = p.next(ctx); err != nil {
		p.finish()
	}
	return p, payload, ok, err
}

// enter adds a call to those in flight, and returns the connection to send it on: nil if the call waits for one.
func (c *Client) enter(p *pendingCall) (*clientLink, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.calls[p.call.InvocationID] != nil:
		return nil, fmt.Errorf("altar: call: invocation id %q is in flight", p.call.InvocationID)
	}
	c.seq++
	p.seq = c.seq
	c.calls[p.call.InvocationID] = p
	p.link = c.link
	if p.link == nil { // lost in between
		c.retryLocked()
	}
	return p.link, nil
}

// deadlineSlack is how long the Host's error of a call that takes too long is waited for.
const deadlineSlack = 5 * time.Second

func errDeadline() *Error {
	return Errorf(ErrExecutionTimeout, ReasonDeadline, "the call did not finish in time")
}

// finish removes a call, and cancels it at the Host if it has not ended.
func (p *pendingCall) finish() {
	c := p.c
	l, isRetired := p.remove()
	c.notify.Put(p.notify) // a late signal only wakes another call needlessly
	if !p.isEnded() && l != nil && !l.tryPost(p.cancellation()) {
		_ = c.life.Go("cancel", func(context.Context) { l.post(p.cancellation()) })
	}
	if isRetired {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endRetiredLocked(l)
	}
}

// remove removes a call from those in flight, and returns the connection that it was sent over, or nil.
func (p *pendingCall) remove() (l *clientLink, isRetired bool) {
	c := p.c
	c.mu.Lock()
	if c.calls[p.call.InvocationID] == p {
		delete(c.calls, p.call.InvocationID)
	}
	l = p.link
	isRetired = l != nil && l.isRetired
	c.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	return l, isRetired
}

func (p *pendingCall) cancellation() *CancelCall {
	return &CancelCall{InvocationID: p.call.InvocationID, SessionID: p.call.SessionID}
}

// Call runs a tool and waits for its result (ALT-114). Params is a struct or a
// map, or nil for none. A tool that streams yields the list of its payloads.
// When ctx ends, the call is cancelled and Call returns at once. An [*Error]
// comes from the Host or the tool; any other error is of this side.
func (s *Session) Call(ctx context.Context, tool string, params any, opts *CallOptions) (r *Result, err error) {
	if len(s.c.opts.Interceptors) == 0 {
		return callTool(ctx, s, tool, params, opts)
	}
	err = guard.Call("interceptor", func() error {
		r, err = s.c.call(ctx, s, tool, params, opts)
		return err
	})
	return r, err
}

func callTool(ctx context.Context, s *Session, tool string, params any, opts *CallOptions) (*Result, error) {
	p, payload, ok, err := s.begin(ctx, tool, params, opts, true)
	if err != nil {
		return nil, err
	}
	defer p.finish()
	if !ok {
		payload = json.RawMessage("null") // a stream without payloads
	}
	r := &p.result
	r.Payload = payload
	p.mu.Lock()
	if p.stream.result != nil {
		r.RuntimeMetadata = p.stream.result.RuntimeMetadata
	}
	p.mu.Unlock()
	return r, nil
}

// Stream runs a tool and yields its payloads in order (ALT-118); a tool that does not stream yields
// its one result. The sequence can be ranged over once. An error comes once and last; leaving the
// loop cancels the call. The payloads must not be changed, see [Result]. After a lost connection
// the client reconnects, and the stream continues at the next payload.
func (s *Session) Stream(ctx context.Context, tool string, params any, opts *CallOptions) iter.Seq2[json.RawMessage, error] {
	return guard.Once(func(yield func(json.RawMessage, error) bool) {
		p, payload, ok, err := s.begin(ctx, tool, params, opts, false)
		if err != nil {
			yield(nil, err)
			return
		}
		defer p.finish()
		for ok && err == nil && yield(payload, nil) {
			payload, ok, err = p.next(ctx)
		}
		if err != nil {
			yield(nil, err)
		}
	}, errStreamUsed)
}

// errStreamUsed reports a stream that is ranged over a second time.
var errStreamUsed = errors.New("altar: a stream can be ranged over once only")

// CallAs runs a tool and decodes its result. See [Session.Call].
func CallAs[Out any](ctx context.Context, s *Session, tool string, params any, opts *CallOptions) (Out, error) {
	var out Out
	r, err := s.Call(ctx, tool, params, opts)
	if err == nil {
		err = r.Decode(&out)
	}
	return out, err
}

// StreamAs runs a tool and decodes each payload. See [Session.Stream].
func StreamAs[Out any](ctx context.Context, s *Session, tool string, params any, opts *CallOptions) iter.Seq2[Out, error] {
	payloads := s.Stream(ctx, tool, params, opts)
	return func(yield func(Out, error) bool) {
		for payload, err := range payloads {
			var out Out
			if err == nil {
				err = decodePayload(payload, &out)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}
