// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/internal/randid"
)

// ErrDisconnected reports that the connection to the Host was lost and not restored in time. The
// outcome of the request is unknown.
var ErrDisconnected = errors.New("altar: disconnected")

// ErrSlowReader reports a stream whose reader left too many payloads lie.
var ErrSlowReader = errors.New("altar: stream: reader too slow")

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// ReconnectTimeout is how long a call outlives a lost connection: the client
	// dials again and repeats the call under its old id, which never runs it
	// twice (ALT-D22). Zero means 25 seconds, a little less than a Host waits.
	ReconnectTimeout time.Duration

	// DialTimeout bounds one attempt to connect. Zero means 30 seconds.
	DialTimeout time.Duration

	// QueueLimit bounds the payloads of a stream that wait to be read. A
	// stream with more is cancelled and ends with [ErrSlowReader], so that it
	// never holds up the others. Zero means 4096.
	QueueLimit int

	// Logger receives errors that no call returns. Nil disables logging.
	Logger *slog.Logger
}

// A Client makes calls at a Host. All its methods may be called from several
// goroutines.
type Client struct {
	dial Dialer
	opts ClientOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	notify sync.Pool // of those of calls, with room for one

	mu      sync.Mutex
	closed  bool
	link    *clientLink // nil: not connected
	dialing *attempt    // not nil while a dial is in progress
	calls   map[string]*pendingCall
	retries bool      // a goroutine tries to reconnect
	down    time.Time // when the connection was lost while calls waited; zero if no reconnect is in progress
	tries   int       // connections and attempts since then
	cause   error     // why the last one failed or was lost
	seq     uint64
}

// A clientLink is one connection with the requests that were sent over it.
type clientLink struct {
	*link
	opened   time.Time
	requests map[string]chan Message // by request id; guarded by the lock of the client
}

type attempt struct {
	done chan struct{}
	link *clientLink // once done; it may be lost by now
	err  error
}

// NewClient returns a client that connects when it first has to. It does no I/O. It
// panics without a Dialer.
func NewClient(dial Dialer, opts *ClientOptions) *Client {
	if dial == nil {
		panic("altar: NewClient without a Dialer")
	}
	c := &Client{dial: dial, calls: make(map[string]*pendingCall)}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.ReconnectTimeout = cmp.Or(max(c.opts.ReconnectTimeout, 0), 25*time.Second)
	c.opts.DialTimeout = cmp.Or(max(c.opts.DialTimeout, 0), 30*time.Second)
	c.opts.QueueLimit = cmp.Or(max(c.opts.QueueLimit, 0), 4096)
	if c.opts.Logger == nil {
		c.opts.Logger = slog.New(slog.DiscardHandler)
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// Close closes the connection, ends every call, and waits for all goroutines of the client.
// Sessions stay at the Host until they are destroyed or expire. Close is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	l := c.link
	c.failCalls(ErrClosed)
	c.mu.Unlock()
	c.stop()
	if l != nil {
		l.close()
	}
	c.wg.Wait()
	return nil
}

// connect returns the connection, making it if there is none. It may be lost
// already.
func (c *Client) connect(ctx context.Context) (*clientLink, error) {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil, ErrClosed
	case c.link != nil:
		l := c.link
		c.mu.Unlock()
		return l, nil
	}
	a := c.dialing
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		c.dialing = a
		c.wg.Go(func() { c.open(a) })
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open makes one attempt to connect, and repeats the calls in flight.
func (c *Client) open(a *attempt) {
	ctx, cancel := context.WithTimeout(c.ctx, c.opts.DialTimeout)
	defer cancel()
	conn, err := c.dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(a.done)
	c.dialing = nil
	if err == nil && c.closed {
		err = errors.Join(ErrClosed, conn.Close())
	}
	if err != nil {
		a.err = fmt.Errorf("altar: connect: %w", err)
		return
	}
	l := &clientLink{link: newLink(conn, c.opts.Logger), opened: time.Now(), requests: make(map[string]chan Message)}
	c.link, a.link = l, l
	if l.direct == nil {
		c.wg.Go(l.write)
	}
	c.wg.Go(func() { c.read(l) })
	var inFlight []*pendingCall
	for _, p := range c.calls {
		if p.sent {
			inFlight = append(inFlight, p)
		}
	}
	slices.SortFunc(inFlight, func(a, b *pendingCall) int { return cmp.Compare(a.seq, b.seq) })
	if len(inFlight) > 0 {
		c.wg.Go(func() { // sending may wait, the lock may not
			for _, p := range inFlight {
				l.send(c.ctx, p.message())
				if c.abandoned(p) { // its CancelCall may have been sent first
					l.post(p.cancellation())
				}
			}
		})
	}
}

// read handles received messages until the connection ends.
func (c *Client) read(l *clientLink) {
	for received := false; ; {
		m, err := l.conn.Receive()
		if !received && err == nil {
			received = true
			c.mu.Lock()
			c.down, c.tries = time.Time{}, 0
			c.mu.Unlock()
		}
		if err == nil {
			c.take(l, m)
			continue
		}
		var bad *DecodeError
		if !errors.As(err, &bad) {
			c.lost(l, err)
			return
		}
		c.broken(bad)
	}
}

// lost is the end of a connection.
func (c *Client) lost(l *clientLink, err error) {
	l.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
	for id, answer := range l.requests {
		delete(l.requests, id)
		close(answer)
	}
	if c.closed {
		return
	}
	c.opts.Logger.Info("altar: connection lost", "err", err, "calls", len(c.calls))
	if c.cause = err; len(c.calls) == 0 || time.Since(l.opened) >= reconnectPause {
		c.down, c.tries = time.Time{}, 0 // it was well for a while
	}
	if len(c.calls) > 0 {
		c.retry()
	}
}

// reconnectPause is the longest pause between two attempts to connect.
const reconnectPause = 5 * time.Second

// retry starts a reconnect unless one is in progress. c.mu must be held.
func (c *Client) retry() {
	if c.retries {
		return
	}
	c.retries = true
	if c.down.IsZero() {
		c.down = time.Now()
	}
	c.wg.Go(c.reconnect)
}

// reconnect restores the connection for the calls in flight. A connection without a received
// message does not reset the backoff, so a Host that accepts and drops connections is dialed at a
// decreasing rate and only until ReconnectTimeout.
func (c *Client) reconnect() {
	pause := backoff.Backoff{Base: 50 * time.Millisecond, Max: reconnectPause, Jitter: 0.3}
	c.mu.Lock()
	ctx, cancel := context.WithDeadline(c.ctx, c.down.Add(c.opts.ReconnectTimeout))
	c.mu.Unlock()
	defer cancel()
	for {
		c.mu.Lock()
		c.tries++
		attempt := c.tries
		c.mu.Unlock()
		if attempt > 1 {
			_ = pause.Wait(ctx, attempt-1)
		}
		var err error
		if ctx.Err() == nil {
			_, err = c.connect(ctx)
		}
		c.mu.Lock()
		if err != nil && ctx.Err() == nil {
			c.cause = err
		}
		switch {
		case len(c.calls) == 0 || c.closed:
			c.down, c.tries = time.Time{}, 0
		case c.link != nil: // if it is lost later, lost starts the next reconnect
		case ctx.Err() != nil:
			c.down, c.tries = time.Time{}, 0
			c.failCalls(fmt.Errorf("%w: %w", ErrDisconnected, c.cause))
		default:
			c.mu.Unlock()
			continue
		}
		c.retries = false
		c.mu.Unlock()
		return
	}
}

// abandoned reports whether an unfinished call has no waiting caller.
func (c *Client) abandoned(p *pendingCall) bool {
	c.mu.Lock()
	waited := c.calls[p.call.InvocationID] == p
	c.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	done, _ := p.stream.End()
	return !waited && !done
}

// failCalls ends all calls with a local error. c.mu must be held.
func (c *Client) failCalls(err error) {
	for _, p := range c.calls {
		p.abort(err)
	}
	clear(c.calls)
}

// take deals with one message of the Host.
func (c *Client) take(l *clientLink, m Message) {
	switch m := m.(type) {
	case *ToolResult:
		c.toCall(m.InvocationID, m)
		return
	case *StreamChunk:
		c.toCall(m.InvocationID, m)
		return
	case *Ping:
		l.post(&Pong{Header: m.Header})
		return
	}
	id := m.header().RequestID
	c.mu.Lock()
	answer := l.requests[id]
	delete(l.requests, id)
	p := c.calls[id] // a call has its invocation id as request id
	c.mu.Unlock()
	failed, isError := m.(*ErrorMessage)
	switch {
	case answer != nil:
		answer <- m // it has room
	case p != nil && isError:
		p.abort(failed.Err)
	default:
		c.opts.Logger.Debug("altar: message ignored", "type", m.Type(), "request_id", id)
	}
}

func (c *Client) toCall(id string, m Message) {
	c.mu.Lock()
	p := c.calls[id]
	c.mu.Unlock()
	if p == nil || !p.add(m) {
		c.opts.Logger.Debug("altar: message ignored", "type", m.Type(), "invocation_id", id)
	}
}

func (c *Client) broken(bad *DecodeError) {
	c.opts.Logger.Debug("altar: frame ignored", "err", bad)
	c.mu.Lock()
	p := c.calls[bad.InvocationID]
	c.mu.Unlock()
	if p != nil {
		p.broken(bad)
	}
}

// request sends a request other than a call and waits for its answer.
func (c *Client) request(ctx context.Context, m Message) (Message, error) {
	l, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	id := randid.UUID4()
	m.header().RequestID = id
	answer := make(chan Message, 1)
	c.mu.Lock()
	if c.link != l {
		c.mu.Unlock()
		return nil, ErrDisconnected
	}
	l.requests[id] = answer
	c.mu.Unlock()
	l.send(ctx, m)
	select {
	case got, ok := <-answer:
		if !ok {
			return nil, ErrDisconnected
		}
		if e, ok := got.(*ErrorMessage); ok {
			return nil, e.Err
		}
		return got, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(l.requests, id)
		c.mu.Unlock()
		return nil, ctx.Err()
	}
}

// Ping waits for a Pong from the Host.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.request(ctx, &Ping{})
	return err
}

// CreateSessionParams are the requested properties of a session. The zero value and nil request
// none.
type CreateSessionParams struct {
	ID              string        // used if it is free and well formed (ALT-D18)
	TTL             time.Duration // whole seconds; the Host has limits (ALT-D19)
	SecurityContext *SecurityContext
	Metadata        map[string]string
	CorrelationID   string
}

// A Session is a session of a client at its Host. All its methods may be called
// from several goroutines.
type Session struct {
	c   *Client
	id  string
	ttl time.Duration
}

// CreateSession makes a session (ALT-090).
func (c *Client) CreateSession(ctx context.Context, p *CreateSessionParams) (*Session, error) {
	m := &CreateSession{}
	if p != nil {
		m = &CreateSession{SessionID: p.ID, TTLSeconds: int64((p.TTL + time.Second - 1) / time.Second),
			Metadata: maps.Clone(p.Metadata), Header: Header{CorrelationID: p.CorrelationID}}
		if requested := p.SecurityContext; requested != nil {
			m.SecurityContext = &SecurityContext{PrincipalID: requested.PrincipalID, TenantID: requested.TenantID, Claims: maps.Clone(requested.Claims)}
		}
	}
	got, err := c.request(ctx, m)
	if err != nil {
		return nil, err
	}
	created, ok := got.(*SessionCreated)
	if !ok {
		return nil, errUnexpected(got)
	}
	return &Session{c: c, id: created.SessionID, ttl: time.Duration(min(created.TTLSeconds, 1<<33)) * time.Second}, nil
}

func errUnexpected(m Message) error {
	return fmt.Errorf("altar: unexpected response %s", m.Type())
}

// Session returns a session that was created before, over another connection
// or by another process of the same principal. It does not ask the Host.
func (c *Client) Session(id string) *Session { return &Session{c: c, id: id} }

// ID returns the id that the Host gave the session.
func (s *Session) ID() string { return s.id }

// TTL returns how long the session lives from its creation, zero if that is not
// known here.
func (s *Session) TTL() time.Duration { return s.ttl }

// Destroy ends the session with everything that is in flight in it (ALT-096).
func (s *Session) Destroy(ctx context.Context) error {
	_, err := s.c.request(ctx, &DestroySession{SessionID: s.id})
	return err
}

// ListTools returns the tools that can be called now (ALT-D31).
func (s *Session) ListTools(ctx context.Context) ([]ToolInfo, error) {
	got, err := s.c.request(ctx, &ListTools{SessionID: s.id})
	if err != nil {
		return nil, err
	}
	list, ok := got.(*ToolList)
	if !ok {
		return nil, errUnexpected(got)
	}
	return list.Tools, nil
}
