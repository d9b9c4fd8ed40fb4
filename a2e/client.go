// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Default deadlines of a [Client] (A2E-071). A context may shorten them.
const (
	handshakeTimeout = 30 * time.Second
	pingTimeout      = 5 * time.Second
	callTimeout      = 300 * time.Second
	callGrace        = 5 * time.Second // on top of the time limit that a request names
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// AgentID names the agent. Empty means a random name.
	AgentID string

	// Capabilities are those to ask for, and feature flags. What is not asked for
	// cannot be called, so without any no plugin can.
	Capabilities []string

	// Token is the shared secret.
	Token string

	// Types are the models of the namespaces in use. Messages of others arrive
	// as generic ones.
	Types []Type

	// Limits on what the host sends; see [Codec].
	MaxMessage, MaxDepth int

	// Strict refuses what the default mode concedes; see [Codec.Strict].
	Strict bool

	// EscapeNonASCII, EmitVersion and ReadNonFinite are those of [Codec].
	EscapeNonASCII, WriteVersion, AllowNonFinite bool

	// SkipNonJSON passes over lines that do not begin with a bracket, for
	// hosts that print on their standard output (A2E-D43).
	SkipNonJSON bool

	// StripPrefix is taken off the lines that have it, with SkipNoise.
	StripPrefix string

	// QueueLimit bounds the events of a call that nobody has taken yet. A call
	// above it fails with [ErrSlowReader]. Zero means 1024.
	QueueLimit int

	// CloseTimeout bounds how long Close waits for the host to end the
	// connection. Zero means 10 seconds.
	CloseTimeout time.Duration

	// WriteTimeout closes the connection if the host takes nothing for so long.
	// Zero means 30 seconds, negative never.
	WriteTimeout time.Duration

	// Logger receives what no error reports. Nil is silent.
	Logger *slog.Logger
}

// ErrSlowReader reports a call whose events were not taken fast enough. Nothing
// was dropped silently: the call failed instead.
var ErrSlowReader = errors.New("a2e: events of the call are not taken fast enough")

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
	opts  ClientOptions
	codec *Codec
	log   *slog.Logger
	rw    io.ReadWriteCloser

	start   sync.Once
	out     *outbox
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc
	ended   chan struct{}  // closed when the reader has ended
	work    sync.WaitGroup // handlers of host requests
	workers chan struct{}
	timers  sync.Pool // of calls, *time.Timer
	wakes   sync.Pool // of calls, chan struct{}

	dropped atomic.Uint64

	mu        sync.Mutex // guards everything below
	state     clientState
	sessionID string
	caps      map[string]Capability
	lacking   map[string]bool // namespaces that the host does not serve
	parallel  int
	inFlight  int
	waiting   []*pending // for a slot, in order
	calls     callTable  // sent
	pushers   map[string][]*pusher
	anyPush   []*pusher
	handlers  map[string]func(ctx context.Context, m *Message) (any, error)
	peer      PeerInfo
	welcome   *Message
}

// A PeerInfo is what the client noticed about its host.
type PeerInfo struct {
	// VersionMember says that the host writes version in place of a2e, as the
	// public Python SDK does.
	VersionMember bool

	// Features are the extensions that the host announced.
	Features []string
}

type pusher struct{ fn func(m *Message) }

// NewClient returns a client that speaks over rw and owns it from now on. It
// does no I/O before [Client.Connect].
func NewClient(rw io.ReadWriteCloser, opts *ClientOptions) *Client {
	c := &Client{rw: rw, ended: make(chan struct{}), calls: newCallTable(), caps: map[string]Capability{},
		lacking: map[string]bool{}, pushers: map[string][]*pusher{}, workers: make(chan struct{}, 16),
		handlers: map[string]func(context.Context, *Message) (any, error){}}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.AgentID == "" {
		c.opts.AgentID = "agent-" + NewID()[:8]
	}
	if c.opts.QueueLimit <= 0 {
		c.opts.QueueLimit = 1024
	}
	if c.opts.CloseTimeout == 0 {
		c.opts.CloseTimeout = 10 * time.Second
	}
	if n, ok := rw.(interface{ noise() (bool, string) }); ok && !c.opts.SkipNonJSON {
		c.opts.SkipNonJSON, c.opts.StripPrefix = n.noise()
	}
	c.log = c.opts.Logger
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.codec = &Codec{Types: NewRegistry(c.opts.Types...), Strict: c.opts.Strict, MaxMessage: c.opts.MaxMessage,
		MaxDepth: c.opts.MaxDepth, EscapeNonASCII: c.opts.EscapeNonASCII, WriteVersion: c.opts.WriteVersion, AllowNonFinite: c.opts.AllowNonFinite}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Connect shakes hands with the host. It fails with a [*HandshakeError] if the
// host refuses. A client whose first handshake fails, in whatever way, is closed
// then. A second Connect asks for the same capabilities again; if it fails, the
// session goes on as it was.
func (c *Client) Connect(ctx context.Context) (*HandshakeResponse, error) {
	return c.Handshake(ctx, &HandshakeRequest{AgentID: c.opts.AgentID, AgentCaps: c.opts.Capabilities, AuthToken: c.opts.Token})
}

// Handshake is Connect with another request than that of the options.
func (c *Client) Handshake(ctx context.Context, r *HandshakeRequest) (*HandshakeResponse, error) {
	c.mu.Lock()
	switch c.state {
	case clientClosed:
		c.mu.Unlock()
		return nil, ErrClosed
	case clientIdle:
		c.state = clientHandshaking
	}
	c.mu.Unlock()
	c.start.Do(c.begin)
	answer, err := c.roundTrip(ctx, TypeHandshakeRequest, r, &CallOptions{Timeout: handshakeTimeout})
	if err != nil {
		return nil, c.failed(fmt.Errorf("a2e: handshake: %w", err))
	}
	resp, ok := answer.Body.(*HandshakeResponse)
	switch {
	case !ok:
		return nil, c.failed(ErrUnexpectedResponse)
	case !resp.OK:
		return nil, c.failed(&HandshakeError{Reason: resp.Reason})
	}
	c.accept(answer, resp)
	return resp, nil
}

// failed ends the client after a handshake that failed, unless one before was good:
// then the session is what it was (A2E-D24).
func (c *Client) failed(err error) error {
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
	c.welcome = answer
	c.parallel = max(1, int(min(resp.MaxParallel, 1<<20)))
	c.caps = map[string]Capability{}
	for _, cap := range resp.AcceptedCaps {
		if cap.Enabled {
			c.caps[cap.Capability] = cap
		}
	}
	c.peer = PeerInfo{VersionMember: answer.Extra.Get("version") != nil}
	if v := answer.Extra.text.Get("features"); v.IsArray() {
		for e := v.Elements(); e.Next(); {
			if s, ok := e.Value.Text(); ok {
				c.peer.Features = append(c.peer.Features, s)
			}
		}
	}
	c.admit()
}

func (c *Client) begin() {
	c.out = newOutbox(c.rw, c.opts.WriteTimeout)
	go c.read()
}

// HandshakeMessage returns the host's last answer to a handshake as it came, or nil.
func (c *Client) HandshakeMessage() *Message { c.mu.Lock(); defer c.mu.Unlock(); return c.welcome }

// SessionID returns the id that the host gave the session.
func (c *Client) SessionID() string { c.mu.Lock(); defer c.mu.Unlock(); return c.sessionID }

// HasCapability reports whether a capability was accepted and is enabled.
func (c *Client) HasCapability(capability string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.caps[capability]
	return ok
}

// Capability returns what the host said about an accepted capability.
func (c *Client) Capability(name string) (Capability, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cap, ok := c.caps[name]
	return cap, ok
}

// Supports reports whether the host has not yet said of a namespace, the first
// segment of a type, that it does not know it. The base types and skill are
// what every host of the older Skill Call Protocol serves (A2E-D50).
func (c *Client) Supports(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.lacking[namespace]
}

// PeerInfo returns what the client noticed about its host.
func (c *Client) PeerInfo() PeerInfo { c.mu.Lock(); defer c.mu.Unlock(); return c.peer }

// Registry returns the client's types, which may be extended at any time.
func (c *Client) Registry() *Registry { return c.codec.Types }

// Dropped returns how many messages were dropped because nobody waits for them:
// unknown, late and repeated answers, and invalid errors.
func (c *Client) Dropped() uint64 { return c.dropped.Load() }

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.ctx.Done() }

// Ping asks the host whether it is there and returns how long the answer took.
func (c *Client) Ping(ctx context.Context) (time.Duration, *Pong, error) {
	start := time.Now()
	m, err := c.Call(ctx, TypePing, &Ping{}, &CallOptions{Timeout: pingTimeout})
	if err != nil {
		return 0, nil, err
	}
	pong, ok := m.Body.(*Pong)
	if !ok {
		return 0, nil, ErrUnexpectedResponse
	}
	return time.Since(start), pong, nil
}

// OnPush calls fn for messages of a type that belong to no waiting call: events
// of processes, pushes, late events; for the type "error", errors that name
// no request. Several functions may wait for one type. They are called one
// after the other by the goroutine that reads the connection, so they must not
// wait for answers. The returned function takes fn away again.
func (c *Client) OnPush(msgType string, fn func(m *Message)) (remove func()) {
	p := &pusher{fn: fn}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pushers[msgType] = append(slices.Clip(c.pushers[msgType]), p)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pushers[msgType] = without(c.pushers[msgType], p)
	}
}

// OnMessage calls fn for messages that no other function takes. It is otherwise like
// OnPush.
func (c *Client) OnMessage(fn func(m *Message)) (remove func()) {
	p := &pusher{fn: fn}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anyPush = append(slices.Clip(c.anyPush), p)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.anyPush = without(c.anyPush, p)
	}
}

func without(list []*pusher, p *pusher) []*pusher {
	return slices.DeleteFunc(slices.Clone(list), func(q *pusher) bool { return q == p })
}

// Handle answers requests of the host for a type with fn (A2E-D39), which returns
// the body of the answer. Each call runs in a goroutine of its own, at most 16
// at a time; the context ends with the connection. Nil takes the handler away.
func (c *Client) Handle(msgType string, fn func(ctx context.Context, m *Message) (any, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fn == nil {
		delete(c.handlers, CanonicalType(msgType))
		return
	}
	c.handlers[CanonicalType(msgType)] = fn
}

// Close ends the session: it tells the host, fails the calls that wait with
// [ErrClosed], and waits a little for the host to end the connection. It may be
// called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	ready := c.state == clientReady
	c.mu.Unlock()
	c.shut(ErrClosed, ready)
	c.work.Wait()
	return nil
}

// Shutdown waits for the calls in flight and then closes. If ctx ends first, the
// rest fails with [ErrClosed].
func (c *Client) Shutdown(ctx context.Context) error {
	for {
		c.mu.Lock()
		last := c.calls.last
		if n := len(c.waiting); n > 0 && last == nil {
			last = c.waiting[n-1]
		}
		var done <-chan struct{}
		if last != nil {
			done = last.whenDone()
		}
		c.mu.Unlock()
		if last == nil {
			return c.Close()
		}
		select {
		case <-done:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), c.Close())
		}
	}
}

// shut ends the client, with a shutdown message to the host or without.
func (c *Client) shut(err error, polite bool) {
	c.mu.Lock()
	already := c.state == clientClosed
	c.state = clientClosed
	calls := append(slices.Collect(c.calls.all()), c.waiting...)
	for _, p := range calls {
		c.finish(p, nil, wrapClosed(err))
	}
	c.mu.Unlock()
	c.start.Do(func() { // never begun: nothing runs
		c.out = nil
		close(c.ended)
		_ = c.rw.Close()
	})
	if c.out != nil {
		if polite && !already {
			if line, err := c.codec.Append(nil, NewMessage(TypeShutdown, New[Shutdown]())); err == nil {
				c.out.put(line)
			}
			timer := time.NewTimer(c.opts.CloseTimeout)
			defer timer.Stop()
			select {
			case <-c.ended:
			case <-timer.C:
			}
		}
		c.out.finish()
		select {
		case <-c.out.done:
		case <-time.After(time.Second):
			c.out.kill()
			<-c.out.done
		}
		<-c.ended
	}
	c.cancel()
}

func wrapClosed(err error) error {
	if errors.Is(err, ErrClosed) {
		return err
	}
	return ErrClosed
}
