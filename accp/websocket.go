// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// Subprotocol is offered when a WebSocket connection is opened. Peers need not
// know it (ACCP-D56).
const Subprotocol = "accp.v1"

var errSilent = errors.New("accp: the peer was silent for too long")

const outQueue = 256 // frames that wait to be written to a connection; then senders wait

// A wsConn is one WebSocket connection, of either side. Its goroutines are the
// reader (the caller of run), the writer, the watch, and one for each message that
// a handler works on; run returns when all have ended.
type wsConn struct {
	ws      *websocket.Conn
	s       *Server
	session *Session
	calls   *callTable // of a client, else nil

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	work   sync.WaitGroup // handlers
	slots  chan struct{}  // one for each handler that runs
	stop   chan struct{}  // closed by shutdown
	once   sync.Once
	opened chan struct{} // closed when the session is established

	turn   chan struct{} // holds a token while nobody numbers and queues, so that frames go out in order
	queue  chan []byte   // written to and closed by who has the turn
	over   atomic.Bool   // nothing more is queued
	heard  atomic.Int64  // when the last message came, in Unix nanoseconds
	wrote  chan struct{} // closed when the writer ended
	closed sync.Once

	mu    sync.Mutex
	cause error // why the connection ended; guarded by mu
}

// ServeWebSocket opens a connection and serves it until it ends, whatever the path
// (ACCP-157 to ACCP-159, ACCP-D56).
func (s *Server) ServeWebSocket(w http.ResponseWriter, r *http.Request) {
	s.boundBody(w, r)
	if !s.begin() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer s.end()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{Subprotocol}, OriginPatterns: s.opts.AllowedOrigins,
	})
	if err != nil {
		s.log.Info("accp: no websocket", "err", err)
		return
	}
	ctx, cancel := mergeDone(r.Context(), s.ctx)
	defer cancel()
	c := newConn(ctx, ws, s)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	if s.closing {
		c.shutdown()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	}()
	defer func() {
		if c.session != nil {
			s.release(c.session)
		}
	}()
	c.run(func(frame []byte) bool { return c.open(r, frame) })
}

func newConn(ctx context.Context, ws *websocket.Conn, s *Server) *wsConn {
	c := &wsConn{ws: ws, s: s, queue: make(chan []byte, outQueue), wrote: make(chan struct{}),
		slots: make(chan struct{}, s.opts.Limits.MaxConcurrent), stop: make(chan struct{}), opened: make(chan struct{}),
		turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	c.heard.Store(time.Now().UnixNano())
	c.ctx, c.cancel = context.WithCancel(ctx)
	ws.SetReadLimit(int64(s.opts.Session.FrameLimits.withDefaults().MaxFrame))
	return c
}

// run reads until the connection ends. First handles the first message, and
// reports whether the session is established.
func (c *wsConn) run(first func([]byte) bool) {
	var helpers sync.WaitGroup
	helpers.Go(c.write)
	helpers.Go(c.watch)
	opened := first == nil
	if opened {
		close(c.opened)
	}
	for {
		typ, data, err := c.ws.Read(c.ctx)
		if err != nil {
			c.s.log.Debug("accp: connection ends", "err", err)
			c.because(err)
			break
		}
		c.heard.Store(time.Now().UnixNano())
		switch {
		case c.over.Load(): // only the closing handshake is awaited
		case typ != websocket.MessageText:
			c.finish(websocket.StatusUnsupportedData, "text only")
		case opened:
			c.receive(data)
		default:
			if opened = first(data); opened {
				close(c.opened)
			} else {
				c.finish(websocket.StatusPolicyViolation, "the first frame must be sync:registry")
			}
		}
	}
	c.cancel()
	c.finish(websocket.StatusNormalClosure, "")
	c.work.Wait()
	helpers.Wait()
	_ = c.ws.CloseNow()
}

// open handles the first message on the side of the server.
func (c *wsConn) open(r *http.Request, frame []byte) bool {
	refuse := func(err error) bool {
		session, serr := NewSession(c.s.self, "", &c.s.opts.Session)
		if serr != nil {
			return false
		}
		if err := c.s.refuse(&exchange{session: session, out: c.send}, err, frame); err != nil {
			c.s.log.Debug("accp: refusal not sent", "err", err)
		}
		return false
	}
	codec := Codec{Lenient: c.s.opts.Session.Lenient, FrameLimits: c.s.opts.Session.FrameLimits}
	m, err := codec.DecodeRaw(frame)
	if err == nil {
		err = codec.ValidateEnvelope(m)
	}
	if err == nil && (m.Intent != IntentSync || m.Op != OpRegistry) {
		err = fail(ErrPolicyDenied, "the first frame must be sync:registry")
	}
	if err == nil {
		c.session, err = c.s.sessionFor(r, frame)
	}
	var in *ReceiveResult
	if err == nil {
		in, err = c.session.Receive(c.ctx, frame)
	}
	if err != nil {
		return refuse(err)
	}
	if in.Outcome != OutcomeDelivered {
		return false
	}
	if _, err := c.session.negotiateWith(c.ctx, in, c.send); err != nil {
		return refuse(err)
	}
	return true
}

// receive handles a message of an established session. What has a handler runs on
// its own, so that a cancel can reach it; what has none is answered at once.
func (c *wsConn) receive(frame []byte) {
	e := &exchange{session: c.session, out: c.send}
	r, err := c.session.Receive(c.ctx, frame)
	if err == nil && r.Outcome != OutcomeDropped && r.Outcome != OutcomePending && c.calls.deliver(r, len(frame)) {
		return
	}
	if errors.Is(err, ErrSessionEnded) {
		c.because(err)
		c.finish(websocket.StatusGoingAway, "the session has ended")
		return
	}
	if err != nil {
		c.report(c.s.refuse(e, err, frame))
		return
	}
	if r.Message == nil || !c.s.handles(r.Message) {
		c.report(c.s.dispatch(c.ctx, e, r, frame))
		return
	}
	select {
	case <-c.stop:
		c.report(e.sendError(fail(ErrInternal, "closing"), r.Message))
		return
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return
	}
	c.work.Go(func() {
		defer func() { <-c.slots }()
		c.report(c.s.dispatch(c.ctx, e, r, frame))
	})
}

func (c *wsConn) report(err error) {
	if err != nil && c.ctx.Err() == nil {
		c.s.log.Info("accp: answer not sent", "err", err)
	}
}

// handles reports whether a handler was registered for m.
func (s *Server) handles(m *Message) bool {
	if m.Intent == IntentSync && m.Op == OpRegistry {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handlers[route{m.Intent, m.Op}] != nil || s.handlers[route{m.Intent, ""}] != nil
}

// because keeps the first reason why the connection ended.
func (c *wsConn) because(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = err
	}
}

func (c *wsConn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// send numbers a message and queues its frames. It waits while the queue is full.
func (c *wsConn) send(session *Session, m *Message) error {
	_, err := c.post(c.ctx, func() (*SendResult, error) { return session.Send(c.ctx, m) })
	return err
}

// post queues the frames that make returns, in the order of their numbers. Once they
// have numbers they are queued whatever becomes of ctx: a number that is missing
// would make the peer refuse the next one.
func (c *wsConn) post(ctx context.Context, make func() (*SendResult, error)) (*SendResult, error) {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "the connection does not take more", Cause: ctx.Err()}
	case <-c.ctx.Done():
		return nil, errConnClosed
	}
	defer func() { c.turn <- struct{}{} }()
	if c.over.Load() {
		return nil, errConnClosed
	}
	sent, err := make()
	if err != nil {
		return nil, err
	}
	for _, f := range sent.Frames {
		select {
		case c.queue <- f:
		case <-c.ctx.Done():
			return sent, errConnClosed
		}
	}
	return sent, nil
}

// write writes what is queued. A frame that takes too long ends the connection.
func (c *wsConn) write() {
	defer close(c.wrote)
	for f := range c.queue {
		ctx, cancel := context.WithTimeout(c.ctx, c.s.opts.Timing.WriteTimeout)
		err := c.ws.Write(ctx, websocket.MessageText, f)
		cancel()
		if err != nil {
			c.because(err)
			c.cancel()
			for range c.queue { // so that nobody waits for room
			}
			return
		}
	}
}

// watch keeps the times of the connection: the first frame, pings, silence.
func (c *wsConn) watch() {
	interval := c.s.opts.Timing.Heartbeat
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-c.opened:
	case <-timer.C:
		c.finish(websocket.StatusPolicyViolation, "no sync:registry")
		return
	case <-c.stop:
		c.finish(websocket.StatusGoingAway, "closing")
		return
	case <-c.ctx.Done():
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if time.Now().UnixNano()-c.heard.Load() >= int64(2*interval) {
				c.because(errSilent)
				c.finish(websocket.StatusGoingAway, "silent")
				return
			}
			err := c.send(c.session, &Message{Intent: IntentPing, Op: OpHeartbeat})
			if errors.Is(err, ErrSessionEnded) {
				c.because(err)
				c.finish(websocket.StatusGoingAway, "the session has ended")
				return
			}
			c.report(err)
		case <-c.stop:
			for range cap(c.slots) { // what runs is answered first, and nothing new begins
				select {
				case c.slots <- struct{}{}:
				case <-c.ctx.Done():
					return
				}
			}
			c.finish(websocket.StatusGoingAway, "closing")
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// shutdown begins the end of the connection.
func (c *wsConn) shutdown() { c.once.Do(func() { close(c.stop) }) }

// finish writes what is queued and closes the connection.
func (c *wsConn) finish(code websocket.StatusCode, reason string) {
	c.closed.Do(func() {
		<-c.turn
		c.over.Store(true)
		close(c.queue)
		c.turn <- struct{}{}
		<-c.wrote
		_ = c.ws.Close(code, reason)
	})
}
