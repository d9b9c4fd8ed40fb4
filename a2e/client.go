// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/sendq"
)

// Default deadlines of a [Client] (A2E-071). A context may shorten them.
const (
	handshakeTimeout = 30 * time.Second
	pingTimeout      = 5 * time.Second
	callTimeout      = 300 * time.Second
	callGrace        = 5 * time.Second // on top of the time limit that a request names
	cancelTimeout    = 5 * time.Second // of the answer to a cancellation
)

// A TokenSource supplies the token of a handshake. It must be safe for concurrent use.
type TokenSource interface {
	Token(ctx context.Context) (string, error)
}

// A TokenSourceFunc is a function that serves as a [TokenSource].
type TokenSourceFunc func(ctx context.Context) (string, error)

// Token calls f.
func (f TokenSourceFunc) Token(ctx context.Context) (string, error) { return f(ctx) }

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	Limits ClientLimits
	Timing ClientTiming

	// AgentID names the agent. Empty means a random name.
	AgentID string

	// Capabilities are the requested capabilities and feature flags. Plugins of other capabilities
	// cannot be called, so nil permits no plugin.
	Capabilities []string

	// Token is the shared secret. TokenSource, if set, replaces it at each handshake.
	Token       string
	TokenSource TokenSource

	// Retry repeats the idempotent calls whose options have no Retry. Nil repeats none.
	Retry *RetryPolicy

	// Types are the models of the namespaces in use. Messages of others arrive
	// as generic ones.
	Types []Type

	// Extensions are the extensions of the protocol that the client asks for, of cancel, limits,
	// batch, window and resume. Nil means all that the connection permits, and window only with the
	// capability proc (A2E-D54).
	Extensions []string

	// Interceptors wrap each call, the first one outermost.
	Interceptors []Interceptor

	Dialect

	// SkipNonJSON ignores lines that do not begin with a brace, for hosts that print on their
	// standard output (A2E-D43).
	SkipNonJSON bool

	// StripPrefix is removed from the lines that begin with it, if SkipNonJSON is set.
	StripPrefix string

	// Record gets the messages of the session without their secrets, for package record. Close waits
	// for it, at most 1 s. Nil records nothing.
	Record io.Writer

	// OnDrop, if set, is called with the number of messages that were dropped because the functions of
	// OnPush are slow: at most 1,024 messages of 8 MiB wait for them.
	OnDrop func(ctx context.Context, n int)

	// Logger receives events that no error reports. Nil means slog.Default().
	Logger *slog.Logger
}

// ClientLimits is a group of [ClientOptions].
type ClientLimits struct {
	// MaxMessage and MaxDepth bound the messages of the host, and MaxOutput those of the client; see
	// [Codec]. Zero means 16 MiB, 256 levels and 64 MiB; a negative MaxMessage or MaxOutput removes
	// its bound.
	MaxMessage, MaxDepth, MaxOutput int

	// QueueLimit bounds the queued events of a call. A call above it fails with [ErrSlowReader], unless its caller
	// takes some within 100 ms.
	// Zero means 1024; a negative value removes the bound.
	QueueLimit int
}

// ClientTiming is a group of [ClientOptions].
type ClientTiming struct {
	// CloseTimeout bounds how long Close waits for the host to end the connection. Zero means
	// 500 ms; a negative value does not wait.
	CloseTimeout time.Duration

	// WriteTimeout is the maximum duration of one write to a host that does not read; then the
	// connection is closed. Zero means 30 s, and no bound over HTTP besides those of [DialHTTP]; a negative
	// value disables it.
	WriteTimeout time.Duration
}

// ErrSlowReader reports a call whose caller did not read its events in time. No event is dropped
// silently: the call fails instead.
var ErrSlowReader = errors.New("a2e: slow reader")

// errSlowPeer reports a host that takes no refusals of its requests.
var errSlowPeer = errors.New("a2e: host does not read")

type clientState int

const (
	clientIdle clientState = iota
	clientHandshaking
	clientReady
	clientClosed
)

// A Client is an agent's side of a session. All its methods may be called from
// several goroutines.
type Client struct {
	opts   ClientOptions
	log    *slog.Logger
	rw     io.ReadWriteCloser
	call   CallFunc // with the interceptors
	conn   conn
	pushes pushes

	start      sync.Once
	out        *lineQueue
	recorder   *recorder
	ctx        context.Context // ends with the connection
	cancel     context.CancelFunc
	readerDone chan struct{} // closed when the reader has ended
	causeReady chan struct{} // closed when cause is set
	life       *life.Life    // handlers of host requests
	workers    chan struct{}
	wakeups    sync.Pool       // of calls, chan struct{}
	drained    context.Context // ends when Shutdown has no call to wait for
	idle       context.CancelFunc

	dropped   atomic.Uint64          // see conn
	firstLine atomic.Pointer[string] // of a host that sends no message; empty after a message

	mu         sync.Mutex // guards everything below
	state      clientState
	cause      error // of the closed state
	sessionID  string
	caps       map[string]Capability
	lacking    map[string]bool // namespaces that the host does not serve
	parallel   int
	slots      map[string]struct{}      // ids of the sent calls that the host has not answered
	late       map[string]chan *Message // of the calls whose answers are needed after a local end, by their ids
	waiting    []*pending               // for a slot, in order
	unnamed    []*pending               // sent calls whose answer may lack the id, in order
	active     int                      // calls that have not returned
	isDraining bool                     // calls are refused
	handlers   map[string]func(ctx context.Context, m *Message) (any, error)
	peer       PeerInfo
}

// A PeerInfo describes the host as seen by the client.
type PeerInfo struct {
	// VersionMember is set if the host writes version in place of a2e, as the public Python SDK
	// does.
	VersionMember bool

	// Features are the extensions that the host announced.
	Features []string
}

// NewClient returns a client over rw, which the client owns from then on, also after an error. It
// does no I/O before [Client.Connect].
func NewClient(rw io.ReadWriteCloser, opts *ClientOptions) (*Client, error) {
	if rw == nil {
		return nil, errors.New("a2e: new client: no connection")
	}
	o := opts.withDefaults()
	if n, ok := rw.(interface{ noise() (bool, string) }); ok && !o.SkipNonJSON {
		o.SkipNonJSON, o.StripPrefix = n.noise()
	}
	c := &Client{rw: rw, opts: o, log: o.Logger, life: life.New(life.Options{Grace: handlerGrace, Logger: o.Logger, Closed: ErrClosed}),
		readerDone: make(chan struct{}), causeReady: make(chan struct{}), slots: map[string]struct{}{}, late: map[string]chan *Message{},
		caps: map[string]Capability{}, lacking: map[string]bool{},
		workers: make(chan struct{}, 16), handlers: map[string]func(context.Context, *Message) (any, error){}}
	types := &Registry{}
	if err := types.Add(o.Types...); err != nil {
		_ = rw.Close()
		return nil, fmt.Errorf("a2e: new client: %w", err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	codec := &Codec{Types: types, Dialect: o.Dialect, MaxMessage: o.Limits.MaxMessage, MaxOutput: o.Limits.MaxOutput, MaxDepth: o.Limits.MaxDepth}
	c.conn = conn{codec: codec.readingFrom(rw), log: o.Logger, ctx: c.ctx, dropped: &c.dropped,
		replies:  calls.New[*pending](calls.Options{MaxPending: -1, HoldTimeout: cancelTimeout, OnSlot: c.freeSlot}),
		overflow: func() { c.out.queue.Cut(errSlowPeer) }}
	c.pushes = pushes{log: o.Logger, onDrop: o.OnDrop}
	c.drained, c.idle = context.WithCancel(context.Background())
	c.call = c.repeat
	err := guard.Call("interceptor", func() error {
		for _, i := range slices.Backward(o.Interceptors) {
			if i == nil {
				return errors.New("nil Interceptor")
			}
			if c.call = i(c.call); c.call == nil {
				return errors.New("a2e: interceptor returned nil")
			}
		}
		return nil
	})
	if err != nil {
		_ = rw.Close()
		return nil, fmt.Errorf("a2e: new client: %w", err)
	}
	return c, nil
}

func (o *ClientOptions) withDefaults() ClientOptions {
	var d ClientOptions
	if o != nil {
		d = *o
	}
	d.AgentID = cmp.Or(d.AgentID, "agent-"+NewID()[:8])
	d.Capabilities = slices.Clone(d.Capabilities)
	d.Limits.QueueLimit = option.Count(d.Limits.QueueLimit, 1024)
	d.Timing.CloseTimeout = max(cmp.Or(d.Timing.CloseTimeout, 500*time.Millisecond), 0)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	if d.Retry != nil {
		d.Retry = new(*d.Retry)
	}
	return d
}

// Connect performs the handshake. It fails with a [*HandshakeError] if the host refuses. A client
// whose first handshake fails is closed. A second Connect requests the same capabilities again; if
// it fails, the session continues unchanged.
func (c *Client) Connect(ctx context.Context) (*HandshakeResponse, error) {
	token := c.opts.Token
	if c.opts.TokenSource != nil {
		err := guard.Call("token source", func() (err error) {
			token, err = c.opts.TokenSource.Token(ctx)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("a2e: handshake: %w", err)
		}
	}
	answer, err := c.handshake(ctx, &HandshakeRequest{AgentID: c.opts.AgentID, AgentCaps: c.opts.Capabilities, AuthToken: token})
	if err != nil {
		return nil, err
	}
	return answer.Body.(*HandshakeResponse), nil
}

// handshake is Connect with a request. It returns the message with the response.
func (c *Client) handshake(ctx context.Context, r *HandshakeRequest) (*Message, error) {
	c.mu.Lock()
	switch c.state {
	case clientClosed:
		defer c.mu.Unlock()
		return nil, c.cause
	case clientIdle:
		c.state = clientHandshaking
	}
	c.mu.Unlock()
	c.start.Do(c.begin)
	own := *r
	own.AgentCaps = slices.Clone(r.AgentCaps)
	for _, name := range c.extensions() {
		if !slices.Contains(own.AgentCaps, name) {
			own.AgentCaps = append(own.AgentCaps, name)
		}
	}
	answer, err := c.roundTrip(ctx, typeHandshakeRequest, &own, &CallOptions{Timeout: handshakeTimeout})
	if _, isEnd := errors.AsType[*sessionError](err); err != nil && !isEnd {
		err = fmt.Errorf("a2e: handshake: %w", err)
	}
	if err != nil {
		return nil, c.failHandshake(err)
	}
	resp, ok := answer.Body.(*HandshakeResponse)
	switch {
	case !ok:
		return nil, c.failHandshake(ErrUnexpectedResponse)
	case !*resp.OK:
		return nil, c.failHandshake(&HandshakeError{Reason: resp.Reason})
	}
	c.accept(answer, resp)
	return answer, nil
}

// A carrier is a connection that carries whole messages (A2E-D41).
type carrier interface {
	// extensions returns those of the connection.
	extensions() []string

	// agree sets the result of a handshake.
	agree(extensions []string, host bounds)

	// onRefusal sets the function for messages that the host refuses.
	onRefusal(f func(id string, err *Error))
}

// extensions returns the extensions to ask for, in the order of A2E-D54.
func (c *Client) extensions() (names []string) {
	own := []string{featureCancel, featureLimits}
	if slices.Contains(c.opts.Capabilities, "proc") {
		own = append(own, featureWindow)
	}
	if x, ok := c.rw.(carrier); ok {
		own = append(own, x.extensions()...)
	}
	if c.opts.Extensions != nil {
		own = c.opts.Extensions
	}
	for _, name := range extensions {
		if slices.Contains(own, name) {
			names = append(names, name)
		}
	}
	return names
}

// failHandshake closes the client after a failed handshake. A session with an earlier successful
// handshake continues unchanged (A2E-D24).
func (c *Client) failHandshake(err error) error {
	c.mu.Lock()
	first := c.state != clientReady
	c.mu.Unlock()
	if first {
		c.shut(err, false)
	}
	return err
}

func (c *Client) accept(answer *Message, resp *HandshakeResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == clientClosed {
		return
	}
	c.state = clientReady
	c.sessionID = resp.SessionID
	c.parallel = max(1, int(min(*resp.MaxParallel, 1<<20)))
	c.caps = map[string]Capability{}
	for _, cap := range resp.AcceptedCaps {
		if *cap.Enabled {
			c.caps[cap.Capability] = cap
		}
	}
	c.peer = PeerInfo{VersionMember: answer.Extra.Get("version") != nil}
	if v := answer.Extra.object().Get("features"); v.IsArray() {
		c.peer.Features = []string{}
		for e := v.Elements(); e.Next(); {
			if s, ok := e.Value.Text(); ok {
				c.peer.Features = append(c.peer.Features, s)
			}
		}
	}
	reads := bounds{}
	if slices.Contains(c.peer.Features, featureLimits) {
		reads = announced(answer)
	}
	c.conn.setReads(reads)
	if x, ok := c.rw.(carrier); ok {
		x.agree(c.peer.Features, reads)
	}
	c.admitLocked()
}

func (c *Client) begin() {
	if x, ok := c.rw.(carrier); ok {
		x.onRefusal(func(id string, err *Error) { c.conn.failCall(id, err) })
	}
	rw := c.rw
	if c.recorder = newRecorder(c.opts.Record, "agent", c.opts.Logger); c.recorder != nil {
		rw = &recordedConn{ReadWriteCloser: rw, recorder: c.recorder}
	}
	timeout := c.opts.Timing.WriteTimeout
	if _, isHTTP := c.rw.(*httpConn); isHTTP && timeout == 0 { // it tries a message several times
		timeout = -1
	}
	c.out = newLineQueue(rw, timeout, c.cut)
	c.conn.out = c.out
	go c.read()
}

// SessionID returns the id that the host gave the session.
func (c *Client) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessionID
}

// HasCapability reports whether a capability was accepted and is enabled.
func (c *Client) HasCapability(capability string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.caps[capability]
	return ok
}

// Capability returns the host's description of an accepted capability.
func (c *Client) Capability(name string) (Capability, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cap, ok := c.caps[name]
	return cap, ok
}

// Supports reports whether a namespace, the first segment of a type, may be served: it is false
// after the host has answered that it does not know the namespace. Every host of the older Skill
// Call Protocol serves the base types and skill (A2E-D50).
func (c *Client) Supports(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.lacking[namespace]
}

// PeerInfo returns a description of the host.
func (c *Client) PeerInfo() PeerInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer
}

// Registry returns the client's types, which may be extended at any time.
func (c *Client) Registry() *Registry {
	if c == nil {
		return nil // which accepts no types
	}
	return c.conn.codec.Types
}

// Stats returns the counters of the client.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{Dropped: c.dropped.Load(), InFlight: len(c.slots) + len(c.waiting)}
}

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.ctx.Done() }

// Ping sends a ping and returns the time until the answer.
func (c *Client) Ping(ctx context.Context) (time.Duration, *Pong, error) {
	start := time.Now()
	m, err := c.Call(ctx, typePing, &pingBody{}, &CallOptions{Timeout: pingTimeout})
	if err != nil {
		return 0, nil, err
	}
	pong, ok := m.Body.(*Pong)
	if !ok {
		return 0, nil, ErrUnexpectedResponse
	}
	return time.Since(start), pong, nil
}

// OnPush calls fn for messages of a type that belong to no waiting call: events of processes,
// pushes, late events; for the type "error", errors that name no request. Several functions may be
// registered for one type. All functions are called one after the other, and the client reads
// on; see OnDrop of [ClientOptions]. The returned function removes fn.
func (c *Client) OnPush(msgType string, fn func(m *Message)) (remove func()) {
	return c.pushes.add(msgType, &pusher{fn: fn})
}

// OnMessage calls fn for messages that no other function handles. It is otherwise like OnPush.
func (c *Client) OnMessage(fn func(m *Message)) (remove func()) {
	return c.pushes.add("", &pusher{fn: fn})
}

// Handle answers requests of the host for a type with fn (A2E-D39), which returns the body of the
// answer. Each call runs in its own goroutine, at most 16 at a time; the context ends with the
// connection. A nil fn removes the handler.
func (c *Client) Handle(msgType string, fn func(ctx context.Context, m *Message) (any, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fn == nil {
		delete(c.handlers, canonicalType(msgType))
		return
	}
	c.handlers[canonicalType(msgType)] = fn
}

// Close ends the session: it sends a shutdown message, fails the waiting calls with [ErrClosed],
// waits up to Timing.CloseTimeout for a host with extensions to end the connection, and closes the connection. This takes
// at most 400 ms more; a connection that needs longer, such as a [Command] that ignores the end of
// its input, continues to close in the background. Close may be called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	ready := c.state == clientReady
	c.mu.Unlock()
	c.shut(nil, ready)
	return c.life.Close()
}

// Shutdown refuses new calls, waits for the calls in flight and then closes. If ctx ends first, the
// rest fails with [ErrClosed].
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.isDraining = true
	if c.active == 0 {
		c.idle()
	}
	c.mu.Unlock()
	select {
	case <-c.drained.Done():
		return c.Close()
	case <-ctx.Done():
		return errors.Join(ctx.Err(), c.Close())
	}
}

// shut ends the client after a failed handshake or, with a nil error, by its program; with or
// without a shutdown message to the host.
func (c *Client) shut(err error, polite bool) {
	var refused *HandshakeError
	cause := &CloseError{Kind: "local"}
	if errors.As(err, &refused) {
		cause = &CloseError{Kind: "refused", Text: clip(refused.Reason, 200)}
	}
	polite = !c.failCalls(&sessionError{cause, nil}) && polite
	c.start.Do(func() { // not started: nothing runs
		close(c.readerDone)
		_ = c.rw.Close()
	})
	if c.out != nil {
		c.end(polite)
	}
	c.cancel()
}

// failCalls closes the client, fails all calls, and reports whether the client was closed before. The first cause is
// that of all calls.
func (c *Client) failCalls(err error) (wasClosed bool) {
	c.mu.Lock()
	wasClosed = c.state == clientClosed
	if !wasClosed {
		c.state, c.cause = clientClosed, err
		close(c.causeReady)
	}
	err = c.cause
	c.mu.Unlock()
	c.conn.replies.FailAll(err)
	return wasClosed
}

// send writes a line. If the connection has ended, the error is the cause of all calls (A2E-D60).
func (c *Client) send(ctx context.Context, line []byte) error {
	err := c.out.send(ctx, line)
	if errors.Is(err, ErrClosed) && waitFor(c.causeReady, 2*lastRead) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.cause
	}
	return err
}

// cut ends the calls after a failed write. If the connection has ended, the reader finds the cause
// behind the last lines of the host.
func (c *Client) cut(err error) {
	c.mu.Lock()
	isOpen := c.state != clientClosed
	c.mu.Unlock()
	if isOpen && !errors.Is(err, sendq.ErrSlowReader) {
		waitFor(c.ctx.Done(), lastRead)
	}
	c.failCalls(c.endError(err))
}

const lastRead = time.Second // for lines behind a failed write

// Times of Close, besides Timing.CloseTimeout.
const (
	flushTimeout = 200 * time.Millisecond // for the last lines
	closeGrace   = 200 * time.Millisecond // for the end of the connection
)

// end closes the connection, after a shutdown message if polite.
func (c *Client) end(polite bool) {
	wait := time.Duration(0)
	if line, err := c.conn.codec.line(NewMessage(typeShutdown, &shutdownBody{Timeout: LimitZero})); err == nil && polite { // in 0 s
		_ = c.out.putControl(*line, false)
		if c.announcesFeatures() { // hosts without extensions do not close
			wait = c.opts.Timing.CloseTimeout
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout+wait+closeGrace)
	defer cancel()
	flush, stop := context.WithTimeout(ctx, flushTimeout)
	err := c.out.queue.Close(flush)
	stop()
	if err == nil && wait > 0 {
		if half, ok := c.rw.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		waitFor(c.readerDone, wait)
	}
	c.out.close()
	select {
	case <-c.out.closed:
	case <-ctx.Done():
	}
	select {
	case <-c.readerDone:
	case <-ctx.Done():
	}
	c.pushes.wait(ctx)
	c.recorder.flush(handlerGrace)
}

// announcesFeatures reports whether the host knows extensions.
func (c *Client) announcesFeatures() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer.Features != nil
}

// waitFor reports whether done is closed in time.
func waitFor(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
