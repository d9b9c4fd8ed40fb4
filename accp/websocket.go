// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/sendq"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// subprotocol is offered by clients. Peers need not support it (ACCP-D56).
const subprotocol = "accp.v1"

var (
	errSilent     = errors.New("accp: peer silent for too long")
	errConnClosed = errors.New("accp: connection closed")
)

const (
	greetTimeout = 30 * time.Second // of the first frame (ACCP-D56)
	maxGreetings = 3
)

// errGreetAgain reports a greeting out of order. The connection waits for the next one.
var errGreetAgain = errors.New("accp: greeting out of order")

// A wsConn is one side of a WebSocket connection. Its goroutines are the reader (the caller of
// run), the watch, those of the queue, and one for each running handler.
type wsConn struct {
	conn    *wsconn.Conn
	queue   *sendq.Queue
	s       *responder
	peer    *caller
	session *Session
	calls   *calls.Table[*call] // of a client, else nil
	in      arrival             // of each frame

	buffered  atomic.Int64 // bytes of the messages in calls
	registry  *negotiation
	greetings int         // refused ones
	agent     string      // of the peer of a server, with the session; guarded by the mutex of the server
	hold      budget.Hold // of the memory of a session without id

	ctx      context.Context // ends with the connection
	base     context.Context // its values, without an end
	cancel   context.CancelFunc
	work     sync.WaitGroup // handlers
	opened   chan struct{}  // closed when the session is established
	turn     chan struct{}  // holds a token while no goroutine numbers and queues frames
	start    time.Time
	lastRead atomic.Int64  // time of the last received message, since start
	closing  atomic.Bool   // finish was called
	closed   chan struct{} // closed at the end of finish
	done     chan struct{} // closed at the end of the reader

	mu       sync.Mutex
	cause    error                // first reason for the end; guarded by mu
	greeting *greeting            // of a client: the next one of the peer; nil if none is awaited; guarded by mu
	running  map[*resume]struct{} // of the running handlers; guarded by mu
	timers   []*time.Timer        // stopped; guarded by mu
}

// A greeting is one of the peer that a client awaits.
type greeting struct {
	done chan struct{} // closed by the greeting
	err  error         // of it; set before done is closed
}

// serveWebSocket upgrades a request and serves the connection until it ends.
func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request, p *caller) {
	work, err := s.life.Start(r.Context(), life.Idle)
	if err != nil {
		s.refuseRequest(w, r, p, err)
		return
	}
	defer work.Finish()
	hold, err := s.reserve(p, connBytes)
	if err != nil {
		s.refuseRequest(w, r, p, err)
		return
	}
	defer hold.Release()
	o := &wsconn.AcceptOptions{Options: s.socketOptions(), Origins: s.origins, ExpiredReason: string(ErrPolicyDenied)}
	o.HandshakeTimeout = s.opts.Timing.ReadTimeout // of a request that upgrades nothing
	if p.principal != nil {
		o.Expires = p.principal.Expires
	}
	conn, err := wsconn.Accept(w, r, o)
	if err != nil {
		s.log.WarnContext(r.Context(), "accp: websocket upgrade failed", "peer", p.peer, "err", err)
		s.auditRefusal(r.Context(), p, r.Method+" "+r.URL.Path, strconv.Itoa(http.StatusBadRequest))
		return
	}
	c := s.newConn(work, conn, p)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if s.Ready() != nil { // the shutdown may have missed it
		go c.shutdown(work)
	}
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		if s.agents[c.agent] == c {
			delete(s.agents, c.agent)
		}
		s.mu.Unlock()
		if c.session != nil {
			s.release(c.session)
		}
		c.hold.Release()
	}()
	c.run(func(frame []byte) error { return c.open(s, frame) })
}

// socketOptions returns the options of a connection. Pings are frames (ACCP-D50). The queue of frames has
// the bound of slow readers, so that of the connection is longer.
func (s *responder) socketOptions() wsconn.Options {
	return wsconn.Options{MaxMessage: s.session.FrameLimits.withDefaults().MaxFrame, MaxOutput: -1,
		Heartbeat: -1, WriteTimeout: 2 * s.timing.WriteTimeout, Subprotocols: []string{subprotocol}}
}

func (s *responder) newConn(ctx context.Context, conn *wsconn.Conn, p *caller) *wsConn {
	c := &wsConn{conn: conn, s: s, peer: p, opened: make(chan struct{}), turn: make(chan struct{}, 1), start: time.Now(),
		closed: make(chan struct{}), done: make(chan struct{}), running: map[*resume]struct{}{}}
	c.turn <- struct{}{}
	c.ctx, c.cancel = context.WithCancel(ctx)
	context.AfterFunc(c.ctx, c.detach)
	c.base = context.WithoutCancel(ctx)
	c.queue = sendq.New(c, sendq.Options{MaxBytes: queueBytes, Separate: true, WriteTimeout: s.timing.WriteTimeout, OnCut: func(err error) {
		if errors.Is(err, sendq.ErrSlowReader) {
			s.log.WarnContext(ctx, "accp: slow reader disconnected", "peer", p.peer)
			s.auditRefusal(ctx, p, "connection", "slow reader")
		}
		c.because(err)
		c.cancel()
	}})
	return c
}

// Write writes one frame for the queue.
func (c *wsConn) Write(frame []byte) (int, error) {
	return len(frame), c.conn.Write(context.Background(), frame)
}

// run reads until the connection ends. The function first handles the first message; its error
// ends the connection.
func (c *wsConn) run(first func([]byte) error) {
	var helpers sync.WaitGroup
	helpers.Go(c.watch)
	defer func() { // also after runtime.Goexit in code of the user
		c.stop()
		c.work.Wait()
		helpers.Wait()
		close(c.done)
	}()
	if first == nil {
		close(c.opened)
	}
	for {
		data, err := c.conn.Read(c.ctx)
		if err != nil {
			c.s.log.DebugContext(c.ctx, "accp: connection ended", "err", err)
			if c.ctx.Err() == nil {
				c.because(err)
			}
			break
		}
		c.lastRead.Store(int64(time.Since(c.start)))
		if first == nil {
			c.receive(data)
			continue
		}
		if err := first(data); errors.Is(err, errGreetAgain) {
			continue
		} else if err != nil {
			c.finish(refusalCode(err), string(codeOf(err)))
			break
		}
		first = nil
		close(c.opened)
	}
}

// stop ends the work of a connection without a reader.
func (c *wsConn) stop() {
	c.cancel()
	if c.calls != nil {
		c.calls.FailAll(c.why())
	}
	c.finish(wsconn.CodeShutdown, "")
}

// refusalCode returns the code that closes the connection of a refused greeting. After that of a server that fails or
// is full, the client connects again.
func refusalCode(err error) int {
	if _, isFull := errors.AsType[*budget.Error](err); isFull {
		return wsconn.CodeOverloaded
	} else if codeOf(err) == ErrInternal {
		return wsconn.CodeInternal
	}
	return wsconn.CodeNotAllowed
}

// open handles the first message on the server side.
func (c *wsConn) open(s *Server, frame []byte) error {
	e := &exchange{to: c, record: s.audited(c.peer, frame), registry: c.registry, caller: c.peer}
	defer func() { s.audit(c.ctx, e.record) }()
	m, in, err := c.greeted(s, e.record, frame)
	if errors.Is(err, ErrSequenceGap) {
		c.greetings++
		e.session = c.session
		c.report(s.refuse(c.ctx, e, err, frame))
		if c.greetings < maxGreetings {
			return errGreetAgain
		}
		return err
	}
	if err == nil && in.Outcome == OutcomeDelivered {
		_, err = c.registry.reply(in.Message, func(m *Message) error { return e.out(c.session, m) })
	}
	if err != nil {
		var serr error
		if e.session, serr = NewSession(s.self, "", &s.session); serr == nil {
			c.report(s.refuse(c.ctx, e, err, frame))
		}
		return err
	}
	if in.Outcome != OutcomeDelivered {
		e.record.end(outcomeRefused, ErrPolicyDenied)
		return ErrPolicyDenied
	}
	s.replace(c, m.From)
	return nil
}

// greeted receives the greeting of the peer in the session that it names.
func (c *wsConn) greeted(s *Server, r *AuditRecord, frame []byte) (m *Message, in *ReceiveResult, err error) {
	if m, err = s.decode(frame); err != nil {
		return nil, nil, err
	}
	r.describe(m)
	if m.Intent != IntentSync || m.Op != opRegistry {
		return nil, nil, fail(ErrPolicyDenied, "the first frame must be sync:registry")
	}
	if err = s.authorize(c.ctx, m); err != nil {
		return nil, nil, err
	}
	if c.session == nil {
		session, err := s.open(c.peer, m.Meta.SID)
		if err == nil && session.id == "" {
			if c.hold, err = s.budget.Scope(c.peer.name, "").Reserve(budget.Memory, sessionBytes); err == nil {
				session.holds.memory.use(c.hold, sessionBytes)
			}
		}
		if err != nil {
			return nil, nil, overBudget(err)
		}
		c.serve(session)
	}
	in, err = c.session.Receive(c.ctx, frame)
	return m, in, err
}

// serve makes a session that of the connection.
func (c *wsConn) serve(session *Session) { c.session, c.registry = session, session.negotiate() }

// replace closes the earlier connection of an agent to the session of c (ACCP-D56).
func (s *Server) replace(c *wsConn, agent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.session.id == "" {
		return
	}
	c.agent = c.session.id + "/" + agent
	if other := s.agents[c.agent]; other != nil {
		go other.finish(wsconn.CodeReplaced, "replaced")
	}
	s.agents[c.agent] = c
}

// receive handles a message of an established session. A registered handler runs in its own
// goroutine, so that a cancel can reach it; other messages are answered at once.
func (c *wsConn) receive(frame []byte) {
	record := c.s.audited(c.peer, frame)
	err := c.s.permit(c.ctx, frame)
	var r ReceiveResult
	if err == nil {
		r, err = c.session.receive(c.ctx, frame, c.in)
	}
	if err == nil && r.Outcome != OutcomeDropped && r.Outcome != OutcomePending && c.deliver(&r, len(frame)) {
		return
	}
	e := &exchange{session: c.session, to: c, received: r, record: record, registry: c.registry, caller: c.peer}
	if c.calls != nil {
		e.greeted = c.onGreeting
	}
	if errors.Is(err, ErrSessionEnded) {
		e.record.end(outcomeRefused, err)
		c.s.audit(c.ctx, e.record)
		c.because(err)
		c.finish(wsconn.CodeShutdown, "the session has ended")
		return
	}
	if err == nil && r.Message != nil {
		e.record.describe(r.Message)
		if _, isRegistered := c.s.find(r.Message); isRegistered && (r.Message.Intent != IntentSync || r.Message.Op != opRegistry) {
			c.handle(e, frame)
			return
		}
	}
	if err != nil {
		c.failCall(err, frame)
		err = c.s.refuse(c.ctx, e, err, frame)
	} else {
		err = c.s.dispatch(c.ctx, e, frame)
	}
	c.report(err)
	c.s.audit(c.ctx, e.record)
}

// isOpen reports whether a chain has an open call.
func (c *wsConn) isOpen(chain string) bool {
	_, isOpen := c.calls.Get(chain)
	return isOpen
}

// A handling is a message whose handler runs in its own goroutine.
type handling struct {
	life.Work
	resume resume
	conn   *wsConn
	e      *exchange
	frame  []byte
	memory budget.Hold
}

// handle runs the handler of a message. A message for which there is no place is refused.
func (c *wsConn) handle(e *exchange, frame []byte) {
	h := &handling{conn: c, e: e, frame: frame}
	m := e.received.Message
	var err error
	if c.s.rate != nil && m.Intent != IntentCancel {
		err = c.s.rate(c.peer)
	}
	if err == nil {
		h.memory, err = c.s.reserve(c.peer, int64(len(frame)+m.size()))
	}
	if err == nil {
		if err = h.Start(c.base, c.s.life, life.Request); err != nil {
			err = &Error{Code: ErrInternal, Message: "closing", Cause: err}
			h.memory.Release()
		}
	}
	if err != nil {
		c.report(c.s.refuse(c.ctx, e, err, frame))
		c.s.audit(c.ctx, e.record)
		return
	}
	e.isHandled = true
	c.work.Add(1)
	go h.run()
}

// run runs the handler. Each of its answers waits while the queue is full.
func (h *handling) run() {
	c, e := h.conn, h.e
	defer c.work.Done()
	defer h.memory.Release()
	defer c.s.audit(c.ctx, e.record) // also after runtime.Goexit
	h.Run("handler", func(ctx context.Context) error {
		h.resume.window, h.resume.ctx, h.resume.request, h.resume.watchers = c.s.timing.ResumeWindow, &h.Context, c.ctx, 1
		e.resume = &h.resume
		defer e.resume.end()
		c.enlist(e.resume)
		defer c.delist(e.resume)
		if e.received.Message.Intent != IntentCancel {
			place, err := c.s.acquire(ctx, c.peer, c.session.id)
			if err != nil {
				return c.s.refuse(ctx, e, err, h.frame)
			}
			defer place.Release()
		}
		return c.s.dispatch(ctx, e, h.frame)
	}, func(err error) {
		if !guard.IsGoexit(err) { // that of a handler is answered
			c.report(err)
		}
	})
}

// enlist detaches the handler of r at the end of the connection.
func (c *wsConn) enlist(r *resume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[r] = struct{}{}
	if c.ctx.Err() != nil { // the handlers may have been detached
		go c.detach()
	}
}

func (c *wsConn) delist(r *resume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, r)
}

// detach detaches the running handlers at the end of the connection.
func (c *wsConn) detach() {
	c.mu.Lock()
	running := slices.Collect(maps.Keys(c.running))
	clear(c.running)
	c.mu.Unlock()
	for _, r := range running {
		r.detach(c.why())
	}
}

func (c *wsConn) report(err error) {
	if err != nil && c.ctx.Err() == nil {
		c.s.log.WarnContext(c.ctx, "accp: answer not sent", "peer", c.peer.peer, "err", err)
	}
}

// because stores the first reason for the end of the connection.
func (c *wsConn) because(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cause = cmp.Or(c.cause, err)
}

func (c *wsConn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.cause, errConnClosed)
}

// send numbers a message and queues its frames. It waits while the queue is full.
func (c *wsConn) send(session *Session, m *Message) error {
	_, err := c.post(c.ctx, false, func() (*SendResult, error) { return session.Send(c.ctx, m) })
	return err
}

// answer is send for an exchange. In the reader it waits only when the reserve of the queue is full, too.
func (c *wsConn) answer(e *exchange, session *Session, m *Message) error {
	_, err := c.post(c.ctx, !e.isHandled, func() (*SendResult, error) { return session.Send(c.ctx, m) })
	return err
}

// put queues a frame. It waits while the queue is full, for the reader only when its reserve is full, too.
func (c *wsConn) put(isReader bool, frame []byte) error {
	if isReader {
		err := c.queue.Put(frame, 0)
		if errors.Is(err, sendq.ErrFull) {
			err = c.queue.PutControl(frame, math.MaxUint64) // in the order of the numbers
		}
		if !errors.Is(err, sendq.ErrFull) {
			return err
		}
	}
	return c.queue.PutWait(c.ctx, frame, 0)
}

// post queues the frames that make returns in the order of their numbers. Numbered frames are
// queued even if ctx ends, since the peer would refuse the frame after a gap.
func (c *wsConn) post(ctx context.Context, isReader bool, make func() (*SendResult, error)) (*SendResult, error) {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "not queued in time", Cause: context.Cause(ctx)}
	case <-c.ctx.Done():
		return nil, c.lost()
	}
	hasTurn := true
	defer func() {
		if hasTurn {
			c.turn <- struct{}{}
		}
	}()
	if c.ctx.Err() != nil {
		return nil, c.lost()
	}
	sent, err := make()
	if err != nil {
		return nil, err
	}
	for i, f := range sent.Frames {
		err := c.queue.Put(f, 0)
		if errors.Is(err, sendq.ErrFull) {
			hasTurn = false
			err = c.postBehind(ctx, isReader, sent.Frames[i:])
			return sent, err
		}
		if err != nil {
			return sent, c.lost()
		}
	}
	return sent, nil
}

// postBehind queues the rest of numbered frames and then returns the turn. It waits for that until ctx ends.
func (c *wsConn) postBehind(ctx context.Context, isReader bool, frames [][]byte) error {
	queued := make(chan error, 1)
	go func() { // ends with the connection
		defer func() { c.turn <- struct{}{} }()
		var err error
		for i := 0; i < len(frames) && err == nil; i++ {
			err = c.put(isReader, frames[i])
		}
		queued <- err
	}()
	var err error
	select {
	case err = <-queued:
	case <-ctx.Done():
	}
	if err != nil || c.ctx.Err() != nil {
		return c.lost()
	}
	return nil
}

// silence returns the time since the last received message, by the monotonic clock.
func (c *wsConn) silence(now time.Time) time.Duration {
	return now.Sub(c.start) - time.Duration(c.lastRead.Load())
}

// watch enforces the deadline of the first frame, sends pings, and closes a silent connection.
func (c *wsConn) watch() {
	select {
	case <-c.opened:
	case <-time.After(greetTimeout):
		c.s.auditRefusal(c.ctx, c.peer, "connection", strconv.Itoa(wsconn.CodeNotAllowed))
		c.finish(wsconn.CodeNotAllowed, "no sync:registry")
		return
	case <-c.ctx.Done():
		return
	}
	interval := c.s.timing.Heartbeat
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		if c.silence(time.Now()) >= 2*min(interval, option.Off/2) {
			c.because(errSilent)
			c.finish(wsconn.CodeShutdown, "silent")
			return
		}
		err := c.send(c.session, &Message{Intent: intentPing, Op: opHeartbeat})
		if errors.Is(err, ErrSessionEnded) {
			c.because(err)
			c.finish(wsconn.CodeShutdown, "the session has ended")
			return
		}
		c.report(err)
	}
}

// shutdown ends the connection of a server that has no running handlers, and waits for its reader.
func (c *wsConn) shutdown(ctx context.Context) {
	_ = c.queue.Close(ctx)
	c.finish(wsconn.CodeShutdown, "closing")
	<-c.done
}

// lost returns the error of a call that the end of the connection ends.
func (c *wsConn) lost() error {
	if err := c.why(); !errors.Is(err, errConnClosed) {
		return fmt.Errorf("%w: connection lost: %w", ErrUnreachable, err)
	}
	return ErrClosed
}

// finish writes the queued frames, as far as the peer takes them at once, and closes the
// connection.
func (c *wsConn) finish(code int, reason string) {
	if c.closing.Swap(true) {
		<-c.closed
		return
	}
	defer close(c.closed)
	ctx, cancel := context.WithTimeout(c.ctx, 200*time.Millisecond)
	defer cancel()
	_ = c.queue.Close(ctx)
	c.because(errConnClosed)
	c.conn.Close(code, reason)
	c.cancel()
	c.queue.Cut(nil)
}
