// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/retry"
)

// A Client sends frames to one endpoint as one agent. It is safe for concurrent use. The caller must
// call [Client.Close].
//
// Over HTTP, exchanges wait for each other unless MaxConcurrent is set. Over WebSocket, calls run
// concurrently on one connection, which the first call opens. A lost connection is opened again, with the
// delays of Retry, until Close or until the server refuses it permanently. Calls wait for it and send
// their frames again; the server answers a running or finished request by its outcome (ACCP-D75).
type Client struct {
	opts      ClientOptions
	url       *url.URL
	call      CallFunc
	self      string
	life      *life.Life
	done      chan struct{} // closed by Close
	transport transport
	all       []*Session
	free      chan *Session // sessions without a running exchange
	unsure    atomic.Bool   // the peer may lack the shared state
	closing   sync.Once
}

// A transport carries the frames of a [Client].
type transport interface {
	// use returns the session of a call. If it is taken, the caller gives it back after the call.
	use(a *attempt) (s *Session, isTaken bool, err error)

	// prepare makes a session ready for its first message.
	prepare(a *attempt, s *Session) error

	// greet exchanges the registries in a session and reports whether both sides have the same schemas.
	greet(a *attempt, s *Session) (isSynced bool, err error)

	// send numbers a message.
	send(a *attempt, s *Session, m *Message) (*SendResult, error)

	// transmit sends the frames of a message from the first on, and delivers the answers. It returns the
	// number of the frame that failed.
	transmit(a *attempt, s *Session, sent *SendResult, first int) (int, error)

	// abort ends the chain of a call that got no answer in time.
	abort(op, chain string)

	// close closes the connections. The calls have ended when the channel is closed.
	close(callsDone <-chan struct{})
}

const maxClientSessions = 1 << 16

// NewClient returns a client of an endpoint: an http or https URL that usually ends in
// [FramesPath], or a ws or wss URL that usually ends in [WebSocketPath]. The client sends as agent
// self. NewClient performs no I/O.
func NewClient(endpoint, self string, opts *ClientOptions) (*Client, error) {
	var o ClientOptions
	if opts != nil {
		o = *opts
	}
	o = o.withDefaults()
	u, err := (&netguard.Guard{AllowLoopback: true, AllowPrivate: true}).URL(endpoint, o.AllowInsecure)
	if err == nil && o.MaxConcurrent > maxClientSessions {
		err = fmt.Errorf("MaxConcurrent is %d, want at most %d", o.MaxConcurrent, maxClientSessions)
	}
	if err != nil {
		return nil, fmt.Errorf("accp: new client: %w", err)
	}
	c := &Client{opts: o, url: u, self: self, life: life.New(life.Options{Logger: o.Logger}), done: make(chan struct{})}
	n := 1
	if u.Scheme == "http" || u.Scheme == "https" {
		n = o.MaxConcurrent
		c.transport = newPostTransport(c)
	} else {
		c.transport = newConnTransport(c)
	}
	c.free = make(chan *Session, n)
	for i := range n {
		id := o.SessionID
		if i > 0 {
			id += "_" + strconv.Itoa(i+1)
		}
		s, err := NewSession(self, id, &o.Session)
		if err != nil {
			return nil, err
		}
		c.all = append(c.all, s)
		c.free <- s
	}
	c.call = func(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) { c.stream(ctx, m, opts, yield) }
	}
	err = guard.Call("interceptor", func() error {
		for i := len(o.Interceptors) - 1; i >= 0; i-- {
			c.call = o.Interceptors[i](c.call)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("accp: new client: %w", err)
	}
	return c, nil
}

func (c *Client) httpOptions() *httpx.ClientOptions {
	o := &httpx.ClientOptions{HTTPClient: c.opts.HTTPClient, AllowInsecure: c.opts.AllowInsecure, MaxResponse: -1}
	if c.opts.TokenSource == nil {
		return o
	}
	o.Secrets = func(ctx context.Context, _ string, h http.Header) error {
		err := guard.Call("token source", func() error {
			token, err := c.opts.TokenSource.Token(ctx)
			if token != "" {
				h.Set("Authorization", "Bearer "+token)
			}
			return err
		})
		_ = c.recovered(ctx, err)
		return retry.Mark(err, retry.Unsent, 0) // the next attempt may get a token
	}
	return o
}

func (c *Client) header() http.Header {
	h := maps.Clone(c.opts.Header)
	if h == nil {
		h = http.Header{}
	}
	return h
}

// Session returns the session of the client, or the first one of several.
func (c *Client) Session() *Session { return c.all[0] }

// Close ends the running calls with [ErrClosed] and closes the connection. It waits for handlers and a
// [TokenSource] for at most one second. It is idempotent.
func (c *Client) Close() error {
	c.closing.Do(func() { close(c.done) })
	callsDone := make(chan struct{})
	var closing sync.WaitGroup
	closing.Go(func() { c.transport.close(callsDone) })
	err := c.life.Close() // ends a handshake
	close(callsDone)
	closing.Wait()
	for _, s := range c.all {
		s.refiner.stop()
	}
	return err
}

// EndSession ends the sessions of the client (see [Session.End]) when their exchanges over HTTP have
// finished. Over WebSocket it cancels the running calls.
func (c *Client) EndSession(ctx context.Context, opts *EndSessionOptions) error {
	var errs []error
	for range c.all {
		s, err := c.take(ctx, c.opts.Timing.Timeout)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		defer func() { c.free <- s }() // after the loop, so that each session ends once
		errs = append(errs, s.End(ctx, opts))
	}
	return errors.Join(errs...)
}

// SyncRegistry exchanges the registries in every session of the client and reports whether both
// sides then have the same schemas. Clients do so before their first message, and again when the peer
// lacks a schema (ACCP-D74).
func (c *Client) SyncRegistry(ctx context.Context) (isSynced bool, err error) {
	isSynced = true
	a := c.newAttempt(ctx, &Message{Intent: IntentSync, Op: opRegistry}, c.opts.Timing.Timeout)
	for range c.all {
		s, err := c.take(ctx, c.opts.Timing.Timeout)
		isSame := false
		if err == nil {
			defer func() { c.free <- s }() // after the loop, so that each session is synchronized once
			isSame, err = c.transport.greet(a, s)
		}
		if err != nil {
			return false, c.final(ctx, a, err)
		}
		isSynced = isSynced && isSame
	}
	return isSynced, nil
}

// Replies sends a message and yields the messages that answer it. Over WebSocket these are any
// number of ack, wait, esc and stream messages, then the last one, which is done, end, a final
// chunk, or the ack of an intent without result. The last item is an error if an error frame, no
// answer in time ([ErrTimeout]), a failure of the transport, or the end of the chain
// ([ErrCancelled]) ends the answer. The sequence can be ranged over once. Leaving the loop, and the
// end of ctx, end the request and cancel the chain at the peer.
//
// A frame without an answer is sent again as it is, and never after its time to live, so it runs once. A
// message that may have run is repeated as a new frame only if it is idempotent, or if the server knows
// its outcome. Every error is a [*CallError], which reports whether the message may have run (ACCP-D29), except that of a
// nil message, a second loop, or an interceptor.
//
// Over HTTP, the loop must not wait for another exchange of the same client, unless the client has
// several sessions (see [ClientOptions]). Over WebSocket, cancel, ack and pong are sent without waiting for
// an answer. A cancel ends the calls of its chain.
func (c *Client) Replies(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[*Message, error] {
	return guard.Once(func(yield func(*Message, error) bool) { c.replies(ctx, m, opts, yield) }, errStreamUsed)
}

// errStreamUsed reports answers that are ranged over a second time.
var errStreamUsed = errors.New("accp: a stream can be ranged over once only")

// replies yields the messages that answer m.
func (c *Client) replies(ctx context.Context, m *Message, opts *CallOptions, yield func(*Message, error) bool) {
	if m == nil {
		yield(nil, errNoMessage())
		return
	}
	if len(c.opts.Interceptors) == 0 {
		c.stream(ctx, m, opts, yield)
		return
	}
	var loop any // a panic of the loop is not that of an interceptor
	err := guard.Call("interceptor", func() error {
		for r, err := range c.call(ctx, m, opts) {
			more := false
			func() {
				defer func() { loop = recover() }()
				more = yield(r, err)
			}()
			if !more || err != nil {
				return nil
			}
		}
		return nil
	})
	if loop != nil {
		panic(loop)
	}
	if err = c.recovered(ctx, err); err != nil {
		yield(nil, err)
	}
}

// recovered logs a panic of user code and returns its error. Another err is returned as it is, and one that is marked as unsent,
// which was logged before.
func (c *Client) recovered(ctx context.Context, err error) error {
	if p, ok := errors.AsType[*guard.PanicError](err); ok && retry.ClassOf(err) != retry.Unsent {
		c.opts.Logger.ErrorContext(ctx, "accp: panic recovered", "err", p, "stack", string(p.Stack))
		return &Error{Code: ErrInternal, Message: p.What + " panicked", Cause: p}
	}
	return err
}

// Call sends a message and returns the last answer, or nil if nothing answers it, as for ack and
// pong.
func (c *Client) Call(ctx context.Context, m *Message, opts *CallOptions) (*Message, error) {
	if m != nil && len(c.opts.Interceptors) == 0 {
		return c.send(ctx, m, opts, nil)
	}
	var last *Message
	var err error
	c.replies(ctx, m, opts, func(r *Message, rerr error) bool {
		last, err = r, rerr
		return true
	})
	if err != nil {
		return nil, err
	}
	return last, nil
}

// CallAs sends a req with the params of in, a struct (see [Marshal]), and returns the params of the
// last answer as a struct (see [Unmarshal]). If Out is no struct, nothing is sent.
func CallAs[Out any](ctx context.Context, c *Client, op string, in any, opts *CallOptions) (out Out, err error) {
	var o CallOptions
	if opts != nil {
		o = *opts
	}
	if err := checkStruct(reflect.TypeFor[Out]()); err != nil {
		return out, fmt.Errorf("accp: call %s: %w", op, err)
	}
	m, err := NewMessage(IntentReq, op, o.Schema, in)
	if err != nil {
		return out, err
	}
	r, err := c.Call(ctx, m, opts)
	if err == nil && r != nil {
		err = Unmarshal(r.Params, &out)
	}
	return out, err
}

// Stream sends a message and yields the data of the answering chunks in order. A stream that ends
// before its final chunk is [ErrTruncated].
func (c *Client) Stream(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[Value, error] {
	return streamOf(c.Replies(ctx, m, opts))
}

// stream sends m and yields the messages that answer it, without interceptors.
func (c *Client) stream(ctx context.Context, m *Message, opts *CallOptions, yield func(*Message, error) bool) {
	if _, err := c.send(ctx, m, opts, yield); err != nil {
		yield(nil, err)
	}
}

// send sends m and yields the messages that answer it, unless yield is nil. It returns the last one. After the end of the loop
// there is no error.
func (c *Client) send(ctx context.Context, m *Message, opts *CallOptions, yield func(*Message, error) bool) (*Message, error) {
	o := CallOptions{}
	if opts != nil {
		o = *opts
	}
	a := c.newAttempt(ctx, m, option.Duration(o.Timeout, c.opts.Timing.Timeout))
	a.isFree = a.isFree || o.Idempotent
	a.yield = yield
	if err := ctx.Err(); err != nil {
		return nil, c.final(ctx, a, err)
	}
	if m.Meta != nil && m.Meta.TTL.N > 0 {
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithTimeout(ctx, time.Duration(min(m.Meta.TTL.N, maxSeconds))*time.Second)
		defer cancel()
	}
	s, isTaken, err := c.transport.use(a)
	if err == nil {
		if isTaken {
			defer func() { c.free <- s }()
		}
		err = c.transport.prepare(a, s)
	}
	if err == nil {
		err = c.exchange(a, s)
	}
	if a.chain != "" && errors.Is(err, ErrTimeout) && ctx.Err() == nil {
		c.transport.abort(m.Op, a.chain)
	}
	if err != nil && !a.isStopped {
		return nil, c.final(ctx, a, err)
	}
	return a.last, nil
}

// take waits for a session without a running exchange.
func (c *Client) take(ctx context.Context, timeout time.Duration) (*Session, error) {
	select {
	case s := <-c.free:
		return s, nil
	default:
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case s := <-c.free:
		return s, nil
	case <-timer.C:
		return nil, fail(ErrTimeout, "another exchange is running")
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "another exchange is running", Cause: context.Cause(ctx)}
	case <-c.done:
		return nil, ErrClosed
	}
}

// peer returns the URL of the endpoint without its query.
func (c *Client) peer() string { return c.url.Scheme + "://" + c.url.Host + c.url.Path }

const maxSeconds = 1 << 32 // of a time to live; more means no expiry

// inChain returns m in the chain of the first attempt (ACCP-D29).
func inChain(m *Message, chain string) *Message {
	if m.Meta != nil && m.Meta.CID != "" {
		return m
	}
	out := m.clone()
	if out.Meta == nil {
		out.Meta = &Meta{}
	}
	out.Meta.CID = chain
	return out
}

// streamOf yields the chunks among messages in order. An end that arrives before a chunk of its
// stream is [ErrTruncated]; an end without any chunk is an empty stream.
func streamOf(seq iter.Seq2[*Message, error]) iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		var streams StreamAssembler
		done := false
		for m, err := range seq {
			if err != nil {
				yield(Value{}, err)
				return
			}
			if m.Intent != IntentStream && m.Intent != IntentEnd || m.Intent == IntentEnd && done {
				continue
			}
			data, isDone, err := streams.Add(m)
			if err != nil {
				yield(Value{}, err)
				return
			}
			for _, v := range data {
				if !yield(v, nil) {
					return
				}
			}
			done = done || isDone
		}
		if !done {
			yield(Value{}, ErrTruncated)
		}
	}
}

// responder answers the messages of the peer of a WebSocket connection.
func (c *Client) responder() *responder {
	o := &c.opts
	scope := budget.New(budget.Limits{Logger: o.Logger}, nil).Scope("peer", o.SessionID)
	return &responder{self: c.self, session: o.Session, log: o.Logger, life: c.life,
		timing: Timing{Heartbeat: o.Timing.Heartbeat, WriteTimeout: o.Timing.WriteTimeout},
		permit: func(context.Context, []byte) error { return nil },
		find: func(m *Message) (Handler, bool) {
			switch {
			case o.Handler == nil, m.Intent == intentPing, m.Intent == intentPong, m.Intent == IntentAck, isStateQuery(m):
				return HandlerFunc(byDefault), false
			}
			return o.Handler, true
		},
		acquire: func(ctx context.Context, _ *caller, _ string) (budget.Hold, error) {
			place, err := scope.Acquire(ctx)
			return place, overBudget(err)
		},
		reserve: func(_ *caller, n int64) (budget.Hold, error) {
			hold, err := scope.Reserve(budget.Memory, n)
			return hold, overBudget(err)
		}}
}
