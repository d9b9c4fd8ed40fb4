// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/sendq"
)

// ErrDisconnected reports that the connection to the Host was lost and not restored in time. The
// outcome of the request is unknown.
var ErrDisconnected = errors.New("altar: disconnected")

// ErrSlowReader reports a stream whose reader left too many payloads lie.
var ErrSlowReader = errors.New("altar: slow reader")

// A CallFunc makes one call of a session.
type CallFunc func(ctx context.Context, s *Session, tool string, params any, opts *CallOptions) (*Result, error)

// An Interceptor wraps a [CallFunc].
type Interceptor func(next CallFunc) CallFunc

// A Client makes calls at a Host. All its methods may be called from several
// goroutines.
type Client struct {
	dial Dialer
	opts ClientOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	life *life.Life // goroutines
	call CallFunc   // with the interceptors

	notify sync.Pool // of those of calls, with capacity 1

	mu           sync.Mutex // guards everything below
	closed       bool
	link         *clientLink          // for new calls; nil: not connected
	links        map[*clientLink]bool // that are not lost: link, and the retired ones
	dialing      *attempt             // not nil while a dial is in progress
	calls        map[string]*pendingCall
	retries      bool // a goroutine tries to reconnect
	wasConnected bool // a message was received once
	seq          uint64
}

// A clientLink is one connection with the requests that were sent over it.
type clientLink struct {
	*link
	renewal      *renewal
	heartbeat    *time.Timer // nil: none; guarded by the lock of the client
	opened       time.Time
	requests     *calls.Table[Message] // by request id
	lastReceived atomic.Int64          // nanoseconds after opened; not used in one process
	received     chan struct{}         // closed by the first message
	isProved     bool                  // received is closed; used by receive
	reason       error                 // the last message, if it is an error that belongs to the connection (ALT-D06); likewise
	done         chan struct{}         // closed after the end of the connection
	err          error                 // why it ended; before done is closed
	cause        error                 // why this side closed it; guarded by the lock of the client
	isRetired    bool                  // its Host takes no new requests (ALT-D45); guarded by the lock of the client
	isEnding     bool                  // retired, and nothing runs there; likewise
}

type attempt struct {
	done chan struct{}
	link *clientLink // once done; it may be lost by now
	err  error
}

// NewClient returns a client that connects at its first request. It does no I/O. It
// fails without a Dialer.
func NewClient(dial Dialer, opts *ClientOptions) (*Client, error) {
	if dial == nil {
		return nil, errors.New("altar: client: missing Dialer")
	}
	c := &Client{dial: dial, calls: make(map[string]*pendingCall), links: make(map[*clientLink]bool)}
	if opts != nil {
		c.opts = *opts
	}
	c.opts = c.opts.withDefaults()
	c.call = callTool
	err := guard.Call("interceptor", func() error {
		for _, in := range slices.Backward(c.opts.Interceptors) {
			if in == nil {
				return errors.New("nil Interceptor")
			}
			if c.call = in(c.call); c.call == nil {
				return errors.New("interceptor returned no function")
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("altar: client: %w", err)
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.life = life.New(life.Options{Logger: c.opts.Logger})
	return c, nil
}

// Close cancels every call at the Host, closes the connection, and waits for all goroutines of the
// client, but not longer than a second for a Dialer or a connection that does not end. Sessions stay
// at the Host until they are destroyed or expire. Close is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	isFirst := !c.closed
	c.closed = true
	canceled := make(map[*clientLink][]*pendingCall)
	for l := range c.links {
		canceled[l] = nil
	}
	for _, p := range c.calls {
		if p.link != nil {
			canceled[p.link] = append(canceled[p.link], p)
		}
		p.abort(ErrClosed)
	}
	clear(c.calls)
	c.mu.Unlock()
	c.stop()
	if isFirst {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		for l, list := range canceled {
			go func() {
				for _, p := range list {
					l.post(p.cancellation())
				}
				l.flush()
			}()
		}
		for l := range canceled {
			select {
			case <-l.done:
			case <-ctx.Done():
				go l.close() // a Conn of the user may block
			}
		}
	}
	return c.life.Close()
}

const closeTimeout = 500 * time.Millisecond // of the peer

// flush writes the queued messages and ends the connection.
func (l *clientLink) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	l.finish(ctx, goodbyeEnd)
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
		c.goLocked("dial", func(ctx context.Context) { c.open(ctx, a) })
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		if a.err != nil && ctx.Err() != nil { // it had ended, and select chose the failure
			return nil, context.Cause(ctx)
		}
		return a.link, a.err
	case <-c.ctx.Done(): // the Dialer may ignore its context
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connected is connect, but dials again after a failure until ReconnectTimeout has passed (ALT-D46).
func (c *Client) connected(ctx context.Context) (l *clientLink, err error) {
	if l, err = c.connect(ctx); err == nil || c.opts.ReconnectTimeout == 0 || ctx.Err() != nil {
		return l, err
	}
	first := err
	_, err = c.persist(ctx, "altar: connection", func(bounded context.Context) (err error) {
		if err = first; err == nil {
			l, err = c.connect(bounded)
		}
		first = nil
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// persist repeats f until it succeeds or ReconnectTimeout has passed; then isLate is true, and the error is that of f.
// Otherwise it is that of ctx or of a closed client.
func (c *Client) persist(ctx context.Context, what string, f func(ctx context.Context) error) (isLate bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, c.opts.ReconnectTimeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	err = c.opts.Retry.loop(bounded, c.opts.Logger, what, func(bounded context.Context, _ func()) error { return f(bounded) })
	switch {
	case err == nil:
		return false, nil
	case c.ctx.Err() != nil:
		return false, ErrClosed
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	}
	return true, err
}

// goLocked starts a goroutine that Close ends. c.mu must be held.
func (c *Client) goLocked(what string, f func(ctx context.Context)) {
	if !c.closed {
		_ = c.life.Go(what, f)
	}
}

// open makes one attempt to connect, and repeats the calls that wait for that.
func (c *Client) open(ctx context.Context, a *attempt) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.DialTimeout)
	defer cancel()
	conn, err := c.dial.open(ctx)
	var l *clientLink
	if err == nil {
		l = c.newLink(conn)
		if err = l.renewal.send(ctx); err != nil {
			l.close()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(a.done)
	c.dialing = nil
	if err == nil && c.closed {
		l.close()
		err = ErrClosed
	}
	if err != nil {
		a.err = fmt.Errorf("altar: connect: %w", err)
		return
	}
	c.link, a.link, c.links[l] = l, l, true
	_, isHTTP := conn.(*httpConn)
	c.serveLocked(l, isHTTP)
	var waiting []*pendingCall
	for _, p := range c.calls {
		if p.link == nil {
			p.link = l
			waiting = append(waiting, p)
		}
	}
	slices.SortFunc(waiting, func(a, b *pendingCall) int { return cmp.Compare(a.seq, b.seq) })
	if len(waiting) > 0 {
		c.goLocked("repeats", func(ctx context.Context) { // sending may wait, the lock may not
			for _, p := range waiting {
				if err := l.send(ctx, p.message()); asError(err) != nil {
					p.abort(err)
				}
				if c.abandoned(p) { // its CancelCall may have been sent first
					l.post(p.cancellation())
				}
			}
		})
	}
}

// serveLocked starts the goroutines of a connection. c.mu must be held.
func (c *Client) serveLocked(l *clientLink, isHTTP bool) {
	if l.direct != nil {
		c.goLocked("reader", func(context.Context) {
			l.direct.push(func(m Message) bool {
				c.receive(l, m)
				return true
			}, func() { c.lost(l, io.EOF) })
		})
	} else {
		c.goLocked("reader", func(context.Context) { c.read(l) })
	}
	if !isHTTP && l.direct == nil {
		l.heartbeat = time.AfterFunc(c.opts.Heartbeat, func() {
			_ = c.life.Go("heartbeat", func(context.Context) { c.beat(l) })
		})
	}
	if l.renewal != nil {
		c.goLocked("renewal", func(ctx context.Context) { l.renewal.run(ctx, l.done) })
	}
}

// newLink returns the sending side of a connection that was just dialed.
func (c *Client) newLink(conn Conn) *clientLink {
	l := &clientLink{
		link:     newLink(conn, c.opts.Logger, sendq.Options{WriteTimeout: c.opts.WriteTimeout}),
		opened:   time.Now(),
		requests: calls.New[Message](calls.Options{MaxPending: -1}),
		done:     make(chan struct{}),
		received: make(chan struct{}),
	}
	l.renewal = newRenewal(c.opts.TokenSource, conn, l.link, c.opts.Logger)
	return l
}

// take deals with one message of the Host.
func (c *Client) take(l *clientLink, m Message) {
	if isDraining(m) {
		c.retire(l)
	}
	switch m := m.(type) {
	case *ToolResult:
		c.toCall(m.InvocationID, m)
		return
	case *StreamChunk:
		c.toCall(m.InvocationID, m)
		return
	case *Ping:
		l.post(&Pong{header: m.header})
		return
	}
	if l.renewal.take(m) {
		return
	}
	id := m.head().RequestID
	failed, isError := m.(*ErrorMessage)
	if l.requests.Complete(id, m) {
		return
	}
	c.mu.Lock()
	p := c.calls[id] // a call has its invocation id as request id
	c.mu.Unlock()
	if p != nil && isError {
		p.abort(remote(failed.Err))
		return
	}
	c.opts.Logger.DebugContext(context.Background(), "altar: message ignored", "type", typeOf(m), "request_id", id)
}

func (c *Client) toCall(id string, m Message) {
	c.mu.Lock()
	p := c.calls[id]
	c.mu.Unlock()
	if p == nil || !p.add(m) {
		c.opts.Logger.DebugContext(context.Background(), "altar: message ignored", "type", typeOf(m), "invocation_id", id)
	}
}

func (c *Client) broken(l *clientLink, bad *badFrame) {
	l.lastReceived.Store(int64(time.Since(l.opened)))
	c.opts.Logger.DebugContext(context.Background(), "altar: frame ignored", "err", bad)
	c.mu.Lock()
	p := c.calls[bad.InvocationID]
	c.mu.Unlock()
	if p != nil {
		p.broken(bad)
	}
}

// request sends a request other than a call and waits for its answer. One that a Host refuses because it shuts down is
// sent to another one (ALT-D45).
func (c *Client) request(ctx context.Context, m Message) (got Message, err error) {
	send := func() (isRefused bool, err error) {
		got, err = c.exchange(ctx, m)
		return isElsewhere(err), err
	}
	isRefused, err := send()
	if isRefused {
		err = c.redial(ctx, err, send)
	}
	return got, err
}

// exchange sends a request and waits for its answer.
func (c *Client) exchange(ctx context.Context, m Message) (Message, error) {
	l, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	id := randid.UUID4()
	m.head().RequestID = id
	call, err := l.requests.Add(id, time.Time{}, nil)
	if err != nil {
		return nil, err // the connection was lost
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endRetiredLocked(l)
	}()
	if err := l.send(ctx, m); err != nil {
		l.requests.Fail(id, l.lostBy(ctx, err))
	}
	got, err := call.Wait(ctx)
	switch {
	case ctx.Err() != nil && err != nil:
		l.requests.Fail(id, nil) // its answer is not expected
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	if e, ok := got.(*ErrorMessage); ok {
		return nil, remote(e.Err)
	}
	return got, nil
}

// lostBy returns an error of sending as callers get it.
func (l *clientLink) lostBy(ctx context.Context, err error) error {
	if asError(err) != nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDisconnected, err)
}

// Ping waits for a Pong from the Host.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.request(ctx, &Ping{})
	return err
}
