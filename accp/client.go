// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
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
)

// A TokenSource supplies the access token of a request or of a WebSocket handshake. It must be safe
// for concurrent use. An empty token sends no header.
type TokenSource interface {
	Token(ctx context.Context) (string, error)
}

// A TokenSourceFunc is a function that serves as a [TokenSource].
type TokenSourceFunc func(ctx context.Context) (string, error)

// Token calls f.
func (f TokenSourceFunc) Token(ctx context.Context) (string, error) { return f(ctx) }

// A RetryPolicy specifies how a message is repeated: after delays that double, with a random part.
type RetryPolicy struct {
	MaxAttempts   int           // posts of a frame, and frames; zero means 3 (ACCP-D29); a negative value disables retries
	Base          time.Duration // first delay; zero means 500 ms; a negative value disables delays
	Max           time.Duration // longest delay; zero means 8 s; a negative value removes the bound
	MaxRetryAfter time.Duration // longest delay that a server requests; zero means 60 s; a negative value 0 s
}

// A CallFunc sends a message and yields the messages that answer it.
type CallFunc func(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[*Message, error]

// An Interceptor wraps the calls of a [Client].
type Interceptor func(next CallFunc) CallFunc

// CallOptions adjusts one call. Nil means the zero value.
type CallOptions struct {
	// Idempotent permits to run the message again if it may have run. Messages with intent qry,
	// sync, comp, ack and cancel always are idempotent (ACCP-D29).
	Idempotent bool

	// Timeout replaces that of the client unless zero.
	Timeout time.Duration

	// Schema is the schema of the message of [CallAs].
	Schema string
}

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	Timing ClientTiming

	// SessionID is the id of the session. Empty means a random one.
	SessionID string

	// Session has the options of the session.
	Session SessionOptions

	// Handler handles the messages that the peer sends over a WebSocket connection outside of
	// calls, except heartbeats, ack, sync:registry and qry:state. Nil answers as [Server.Handle] does without
	// handlers.
	Handler Handler

	// MaxConcurrent is the maximum number of concurrent exchanges over HTTP. HTTP does not preserve
	// the order of frames that a session requires, so each exchange uses its own session:
	// SessionID, SessionID_2, SessionID_3 and so on. Zero and negative values mean 1. Calls over a
	// WebSocket connection share one session.
	MaxConcurrent int

	// HTTPClient sends the requests. Nil means a client with the proxy of the environment.
	// Redirects are never followed.
	HTTPClient *http.Client

	// AllowInsecure permits http and ws to other hosts than this host.
	AllowInsecure bool

	// Header is sent with every request.
	Header http.Header

	// TokenSource, if set, supplies the bearer token.
	TokenSource TokenSource

	// OnReconnect, if set, is called after a lost WebSocket connection was opened again.
	OnReconnect func(ctx context.Context)

	// MaxOutput is the maximum number of bytes of a frame that the peer accepts. A longer frame
	// is [ErrTooLarge] and not sent. Zero means 65,536; a negative value removes the bound.
	MaxOutput int

	// Retry is the policy for messages that were not processed, and for idempotent ones that may
	// have been. Nil means the defaults.
	Retry *RetryPolicy

	// Interceptors wrap every call. The first interceptor is outermost.
	Interceptors []Interceptor

	// Logger receives events that no error reports, such as retries. Nil means [slog.Default].
	Logger *slog.Logger

	skipGreeting bool // of package accptest
}

// ClientTiming is a group of [ClientOptions]. A negative value removes the bound.
type ClientTiming struct {
	// Timeout bounds the wait for the next message of an answer in each attempt, and the wait for a
	// free session. Zero means 30 s.
	Timeout time.Duration

	// Heartbeat is the interval of pings on a WebSocket connection. Zero means 30 s; a negative
	// value disables them.
	Heartbeat time.Duration

	// WriteTimeout is how long the peer of a WebSocket connection may take no bytes before the
	// connection ends. Zero means 10 s.
	WriteTimeout time.Duration
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.SessionID = cmp.Or(o.SessionID, NewID())
	o.MaxConcurrent = max(o.MaxConcurrent, 1)
	o.Timing.Timeout = option.Duration(o.Timing.Timeout, 30*time.Second)
	o.Timing.Heartbeat = option.Duration(o.Timing.Heartbeat, 30*time.Second)
	o.Timing.WriteTimeout = option.Duration(o.Timing.WriteTimeout, 10*time.Second)
	o.Session.maxOutput = maxOutput(o.MaxOutput)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Session.Logger = cmp.Or(o.Session.Logger, o.Logger)
	var p RetryPolicy
	if o.Retry != nil {
		p = *o.Retry
	}
	p.MaxAttempts = cmp.Or(p.MaxAttempts, 3)
	p.Base = cmp.Or(p.Base, 500*time.Millisecond)
	p.Max = option.Duration(p.Max, 8*time.Second)
	p.MaxRetryAfter = max(0, cmp.Or(p.MaxRetryAfter, time.Minute))
	o.Retry = &p
	o.Header = o.Header.Clone()
	return o
}

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
	// use returns the session of a call. The caller calls release after the call.
	use(a *attempt) (s *Session, release func(), err error)

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
	if err != nil {
		return nil, fmt.Errorf("accp: new client: %w", err)
	}
	c := &Client{opts: o, url: u, self: self, life: life.New(life.Options{Logger: o.Logger}), done: make(chan struct{})}
	n := 1
	if u.Scheme == "http" || u.Scheme == "https" {
		n = o.MaxConcurrent
		c.transport = &postTransport{c, httpx.NewClient(c.httpOptions())}
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
	c.call = c.replies
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
	o.Secrets = func(ctx context.Context, _ string, h http.Header) error {
		if c.opts.TokenSource == nil {
			return nil
		}
		return guard.Call("token source", func() error {
			token, err := c.opts.TokenSource.Token(ctx)
			if token != "" {
				h.Set("Authorization", "Bearer "+token)
			}
			return err
		})
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

// Close ends the running calls with [ErrClosed] and closes the connection. It waits for handlers for
// at most one second. It is idempotent.
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

// EndSession ends the sessions of the client (see [Session.End]) when their exchanges have
// finished.
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
// its outcome. Every error is a [*CallError], which reports whether the message may have run (ACCP-D29).
//
// Over HTTP, the loop must not wait for another exchange of the same client, unless the client has
// several sessions (see [ClientOptions]). Over WebSocket, a cancel is sent without waiting for an
// answer. It ends the calls of its chain.
func (c *Client) Replies(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		if m == nil {
			yield(nil, errNoMessage())
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
		if p, ok := errors.AsType[*guard.PanicError](err); ok {
			c.opts.Logger.ErrorContext(ctx, "accp: panic recovered", "err", p, "stack", string(p.Stack))
			yield(nil, &Error{Code: ErrInternal, Message: "interceptor panicked", Cause: p})
		}
	}
}

// Call sends a message and returns the last answer, or nil if nothing answers it, as for ack and
// pong.
func (c *Client) Call(ctx context.Context, m *Message, opts *CallOptions) (*Message, error) {
	return lastOf(c.Replies(ctx, m, opts))
}

// CallAs sends a req with the params of in, a struct (see [Marshal]), and returns the params of the
// last answer as a struct (see [Unmarshal]).
func CallAs[Out any](ctx context.Context, c *Client, op string, in any, opts *CallOptions) (out Out, err error) {
	var o CallOptions
	if opts != nil {
		o = *opts
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

// replies is the innermost CallFunc.
func (c *Client) replies(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[*Message, error] {
	o := CallOptions{}
	if opts != nil {
		o = *opts
	}
	return func(yield func(*Message, error) bool) {
		a := c.newAttempt(ctx, m, option.Duration(o.Timeout, c.opts.Timing.Timeout))
		a.isFree = a.isFree || o.Idempotent
		a.yield = yield
		if m.Meta != nil && m.Meta.TTL.N > 0 {
			var cancel context.CancelFunc
			a.ctx, cancel = context.WithTimeout(ctx, time.Duration(min(m.Meta.TTL.N, maxSeconds))*time.Second)
			defer cancel()
		}
		s, release, err := c.transport.use(a)
		if err == nil {
			defer release()
			err = c.transport.prepare(a, s)
		}
		if err == nil {
			err = c.exchange(a, s)
		}
		if a.chain != "" && errors.Is(err, ErrTimeout) && ctx.Err() == nil {
			c.transport.abort(m.Op, a.chain)
		}
		if err != nil && !a.isStopped {
			yield(nil, c.final(ctx, a, err))
		}
	}
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
	}
}

// An attempt is one call and its progress.
type attempt struct {
	progress
	ctx       context.Context
	m         *Message
	send      func(s *Session, m *Message) (*SendResult, error)
	call      *call  // over WebSocket, while its frames are queued for the first time
	chain     string // of the first frame
	timeout   time.Duration
	yield     func(*Message, error) bool
	chunks    map[string]bool // indices of the yielded chunks
	isYielded bool            // a yielded message cannot be withdrawn
	isStopped bool            // the loop has ended
}

func (c *Client) newAttempt(ctx context.Context, m *Message, timeout time.Duration) *attempt {
	a := &attempt{ctx: ctx, m: m, timeout: timeout, yield: func(*Message, error) bool { return true }}
	a.send = func(s *Session, m *Message) (*SendResult, error) { return s.Send(a.ctx, m) }
	a.maximum = max(1, c.opts.Retry.MaxAttempts)
	switch m.Intent {
	case IntentQry, IntentSync, IntentComp, IntentAck, IntentCancel:
		a.isFree = true
	}
	return a
}

// deliver yields an answer, but no chunk twice. It returns false at the end of the loop.
func (a *attempt) deliver(m *Message) (bool, error) {
	if e := ErrorFromMessage(m); e != nil {
		return false, e
	}
	if m.Intent == IntentStream {
		v, _ := m.Params.Get("chunk_index")
		index, _ := v.Number()
		if a.chunks[index] {
			return true, nil
		}
		if a.chunks == nil {
			a.chunks = map[string]bool{}
		}
		a.chunks[index] = true
	} else {
		a.isYielded = true
	}
	a.isStopped = !a.yield(m, nil)
	return !a.isStopped, nil
}

// exchange sends the message of an attempt in a session until it is answered or fails permanently.
func (c *Client) exchange(a *attempt, s *Session) error {
	for {
		sent, err := c.transport.send(a, s, a.next())
		switch {
		case errors.Is(err, errUnsent) && a.waits+1 < a.maximum:
			if err = c.pause(a, 0, err); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case sent.Dropped:
			return ErrCancelled
		case len(sent.Frames) == 0:
			return nil
		}
		a.chain = cmp.Or(a.chain, sent.Message.Chain())
		a.nextFrame()
		isRepeated := false
		if isRepeated, err = c.deliverFrames(a, s, sent); !isRepeated {
			return err
		}
	}
}

// next returns the message of the next frame: the first time as it is, later in its chain.
func (a *attempt) next() *Message {
	if a.chain == "" {
		return a.m
	}
	m := inChain(a.m, a.chain)
	if a.mayHaveRun {
		m = m.clone()
		m.Meta.Ext = m.Meta.Ext.Set("try", Int(int64(a.frames+1)))
	}
	return m
}

// deliverFrames posts the frames of a message, again as long as ACCP-D29 permits it. It reports whether a new
// frame is to be sent.
func (c *Client) deliverFrames(a *attempt, s *Session, sent *SendResult) (isRepeated bool, err error) {
	for first := 0; first < len(sent.Frames); {
		a.posts++
		done, err := c.transport.transmit(a, s, sent, first)
		if err == nil {
			return false, nil
		}
		if done > first {
			first, a.posts = done, 1
		}
		f, after, code, isInvited := a.failure(err)
		if code == ErrDuplicate && a.isLost && first < len(sent.Frames)-1 {
			first, a.posts = first+1, 0 // the receipt of a part
			continue
		}
		switch a.progress.next(f, code, isInvited) {
		case moveEnd:
			return false, a.lost(code, err)
		case moveNewFrame:
			return true, nil
		case moveRepair:
			a.repaired = true
			if isRepaired, rerr := c.repair(a, s, code); rerr != nil || !isRepaired {
				return false, cmp.Or(rerr, err)
			}
			return true, nil
		case moveLater:
			return true, c.pause(a, after, err)
		}
		if err := c.pause(a, after, err); err != nil {
			return false, err
		}
	}
	return false, nil
}

// failure classifies the error of a post. The code, and whether the peer invites a repetition, are those of an
// error frame.
func (a *attempt) failure(err error) (f failure, after time.Duration, code Code, isInvited bool) {
	f, after = classify(a.ctx, err)
	if f == failFinal && a.ctx.Err() != nil && mayHaveArrived(err) {
		a.mayHaveRun = true
	}
	if a.isYielded {
		a.mayHaveRun, f = a.mayHaveRun || f == failLost, failFinal
	}
	e, _ := errors.AsType[*Error](err)
	if f == failCode {
		code, isInvited = e.Code, e.isInvitation
	} else if f == failFinal && e != nil {
		a.mayHaveRun = true // the answer was malformed
	}
	return f, after, code, isInvited
}

// lost returns the error of a call that ends with err, which names the lost answer of a duplicate.
func (a *attempt) lost(code Code, err error) error {
	if code == ErrDuplicate && a.isLost && !a.isSync {
		return &Error{Code: ErrTimeout, Message: "the request arrived, and its answer was lost", Cause: err}
	}
	return err
}

// pause waits for the backoff after an error.
func (c *Client) pause(a *attempt, after time.Duration, err error) error {
	d := a.delay(c.opts.Retry, after)
	c.opts.Logger.WarnContext(a.ctx, "accp: message repeated", "operation", string(a.m.Intent)+":"+a.m.Op, "delay", d, "err", err)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.ctx.Done():
		return err
	case <-c.done:
		return ErrClosed
	}
}

// repair gives the peer a schema or a checkpoint that it lacks. It reports whether this side has it.
func (c *Client) repair(a *attempt, s *Session, code Code) (bool, error) {
	if code == ErrRefNotFound {
		return s.announceAgain(a.m.Params), nil
	}
	if _, err := s.codec.resolve(a.m.Params); err != nil {
		return false, nil
	}
	_, err := c.transport.greet(a, s)
	return true, err
}

// final returns the error of a call. The end of ctx is a timeout.
func (c *Client) final(ctx context.Context, a *attempt, err error) error {
	if e, ok := errors.AsType[*CallError](err); ok {
		return e
	}
	out := &CallError{Intent: a.m.Intent, Op: a.m.Op, Peer: c.peer(), MayHaveRun: a.mayHaveRun, Cause: err}
	var h *httpx.Error
	switch {
	case c.life.Ready() != nil:
		out.Cause = ErrClosed
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()) && !errors.Is(err, ErrCancelled):
		out.Cause = &Error{Code: ErrTimeout, Message: "the context of the call has ended", Cause: errors.Join(context.Cause(ctx), err)}
	case errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable):
	case errors.Is(err, errUnsent):
		out.Cause = fmt.Errorf("%w: %w", ErrUnreachable, err)
	case !errors.As(err, &h):
	case errors.Is(err, httpx.ErrConnect), h.Status == http.StatusTooManyRequests, h.Status == http.StatusServiceUnavailable:
		out.Cause = fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.Is(err, httpx.ErrTimeout):
		out.Cause = &Error{Code: ErrTimeout, Message: "no answer in time", Cause: err}
	case isFinalStatus(h.Status):
		out.Status = h.Status
	default:
		out.Cause = &Error{Code: ErrTimeout, Message: "the answer was cut off", Cause: errors.Join(ErrTruncated, err)}
	}
	return out
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

// lastOf returns the last message, or nil if there is none.
func lastOf(seq iter.Seq2[*Message, error]) (*Message, error) {
	var m *Message
	for x, err := range seq {
		if err != nil {
			return nil, err
		}
		m = x
	}
	return m, nil
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
			chunks, err := streams.Add(m)
			if err != nil {
				yield(Value{}, err)
				return
			}
			for _, v := range chunks.Data {
				if !yield(v, nil) {
					return
				}
			}
			done = done || chunks.Done
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
		audit:  func(context.Context, *AuditRecord) {},
		find: func(m *Message) (Handler, bool) {
			switch {
			case o.Handler == nil, m.Intent == intentPing, m.Intent == intentPong, m.Intent == IntentAck, isStateQuery(m):
				return HandlerFunc(byDefault), false
			}
			return o.Handler, true
		},
		acquire: func(ctx context.Context, _ *caller, _ string) (func(), error) {
			place, err := scope.Acquire(ctx)
			return place.Release, overBudget(err)
		},
		reserve: func(_ *caller, n int64) (func(), error) {
			hold, err := scope.Reserve(budget.Memory, n)
			return hold.Release, overBudget(err)
		}}
}
