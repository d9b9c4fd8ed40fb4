// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/sendq"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// ErrDisconnected reports that the connection to the Host was lost and not restored in time. The
// outcome of the request is unknown.
var ErrDisconnected = errors.New("altar: disconnected")

// ErrSlowReader reports a stream whose reader left too many payloads lie.
var ErrSlowReader = errors.New("altar: slow reader")

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// ReconnectTimeout is how long a call outlives a lost connection: the client
	// dials again and repeats the call under its old id, which never runs it
	// twice (ALT-D22). A call that a Host refuses because it shuts down is repeated
	// in the same way (ALT-D45). Zero means 25 seconds, a little less than a Host
	// waits. A negative value disables reconnecting.
	ReconnectTimeout time.Duration

	// Retry specifies the delays between the attempts to reconnect. Nil means the zero value.
	Retry *RetryPolicy

	// DialTimeout bounds one attempt to connect. Zero means 30 seconds; a negative
	// value removes the bound.
	DialTimeout time.Duration

	// Heartbeat is the interval of pings to the Host, except over HTTP. A connection without a
	// received message for three intervals is closed (ALT-D36). Zero means 15 seconds; a negative
	// value disables it.
	Heartbeat time.Duration

	// WriteTimeout is how long the Host may take no bytes before the connection is closed. Zero
	// means 30 seconds; a negative value removes the bound.
	WriteTimeout time.Duration

	// MaxQueue bounds the payloads of a stream that wait to be read, in bytes. The client requests
	// 16 of them at first, and then at most 64 and 1 MiB at a time (ALT-D37); from a Host that sends
	// unrequested ones, the stream is cancelled and ends with [ErrSlowReader]. Zero means 16 MiB; a
	// negative value removes the bound.
	MaxQueue int

	// TokenSource supplies the token that authenticates each new connection, and another token before the
	// authentication expires, so that calls in flight are not disturbed (ALT-D40). It is not used over
	// HTTP. Nil means the TokenSource of [WebSocketDialOptions], if that is set.
	TokenSource TokenSource

	// Interceptors wrap each call of [Session.Call]. The first is the outermost (ALT-D48).
	Interceptors []Interceptor

	// Logger receives errors that no call returns. Nil means slog.Default().
	Logger *slog.Logger
}

// A RetryPolicy specifies how a connection is restored: after random delays below a bound that
// doubles. An error that another attempt cannot change ends the attempts.
type RetryPolicy struct {
	MaxAttempts   int           // zero means no bound but time; a negative value disables retries
	Base          time.Duration // first bound; zero means 200 ms; a negative value disables delays
	Max           time.Duration // largest bound; zero means 10 s, of a Runtime 30 s; a negative value removes it
	MaxRetryAfter time.Duration // longest delay that a Host requests; zero means 60 s; a negative value 0 s
}

// withDefaults returns a copy of a policy, which may be nil.
func (p *RetryPolicy) withDefaults(longest time.Duration) *RetryPolicy {
	var o RetryPolicy
	if p != nil {
		o = *p
	}
	o.Base, o.Max = cmp.Or(o.Base, 200*time.Millisecond), cmp.Or(o.Max, longest)
	return &o
}

// loop calls connect until it returns nil or a permanent error, or ctx ends.
func (p *RetryPolicy) loop(ctx context.Context, log *slog.Logger, subject string, connect func(ctx context.Context, connected func()) error) error {
	policy := retry.Policy{Base: p.Base, Max: p.Max, MaxRetryAfter: p.MaxRetryAfter, Logger: log, Subject: subject}
	attempts := 0
	return retry.Loop(ctx, policy, func(ctx context.Context, connected func()) error {
		attempts++
		err := connect(ctx, func() {
			attempts = 0
			connected()
		})
		if _, isPanic := errors.AsType[*guard.PanicError](err); isPanic || isFinal(err) || p.MaxAttempts < 0 || p.MaxAttempts > 0 && attempts >= p.MaxAttempts {
			return retry.Mark(err, retry.Permanent, 0)
		}
		return err
	})
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.ReconnectTimeout = option.Or(o.ReconnectTimeout, 25*time.Second, 0)
	o.DialTimeout = option.Duration(o.DialTimeout, 30*time.Second)
	o.Heartbeat = option.Duration(o.Heartbeat, 15*time.Second)
	o.MaxQueue = option.Count(o.MaxQueue, 16<<20)
	o.Retry = o.Retry.withDefaults(10 * time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

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
	lastReceived atomic.Int64          // Unix nanoseconds
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
			c.call = in(c.call)
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
				l.close()
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
		return a.link, a.err
	case <-c.ctx.Done(): // the Dialer may ignore its context
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
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
		return false, ctx.Err()
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
	var conn Conn
	err := guard.Call("Dialer", func() (err error) {
		conn, err = c.dial(ctx)
		return err
	})
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
	l.lastReceived.Store(l.opened.UnixNano())
	l.renewal = newRenewal(c.opts.TokenSource, conn, l.link, c.opts.Logger)
	return l
}

// beat sends a ping, or closes a silent connection (ALT-D36). It is called after each interval.
func (c *Client) beat(l *clientLink) {
	if time.Since(time.Unix(0, l.lastReceived.Load()))/3 >= c.opts.Heartbeat {
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
	for {
		m, err := l.conn.Receive()
		bad, ok := asBadFrame(err)
		switch {
		case !ok:
			c.lost(l, err)
			return
		case bad != nil:
			c.broken(l, bad)
		default:
			c.receive(l, m)
		}
	}
}

// receive handles one message.
func (c *Client) receive(l *clientLink, m Message) {
	l.lastReceived.Store(time.Now().UnixNano())
	if !l.isProved {
		l.isProved = true
		close(l.received)
		c.mu.Lock()
		c.wasConnected = true
		c.mu.Unlock()
	}
	if l.reason = connectionError(m); l.reason == nil {
		c.take(l, m)
	}
}

// connectionError returns the error that a message reports about the connection, or nil.
func connectionError(m Message) error {
	if e, ok := m.(*ErrorMessage); ok && e.RequestID == "" {
		return remote(e.Err)
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
	if w, ok := l.conn.(*wsConn); ok && w.isDrained {
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
	var own []*pendingCall
	for _, p := range c.calls {
		if p.link == l {
			p.link = nil
			own = append(own, p)
		}
	}
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
	p.mu.Lock()
	defer p.mu.Unlock()
	done, _ := p.stream.End()
	return !waited && !done
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
	l.lastReceived.Store(time.Now().UnixNano())
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
		return nil, ctx.Err()
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
			Metadata: maps.Clone(p.Metadata), header: header{CorrelationID: p.CorrelationID}}
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
	return fmt.Errorf("altar: unexpected response %s", typeOf(m))
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
