// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// A Handler answers messages. Several calls may run at the same time. The context
// ends when the chain of the message is cancelled, the connection is lost or the
// server closes.
//
// An error that is an [*Error] or a [Code] is sent to the peer as it stands;
// any other is logged, and the peer learns of an internal error only. A handler
// that sends nothing and returns nil is answered for with ack, which says that the
// message came and not that the work is done: whoever asked with req or qry over a
// connection goes on waiting for a result.
type Handler interface {
	ServeACCP(ctx context.Context, w *ReplyWriter, m *Message) error
}

// A HandlerFunc is a function that handles messages.
type HandlerFunc func(ctx context.Context, w *ReplyWriter, m *Message) error

// ServeACCP calls f.
func (f HandlerFunc) ServeACCP(ctx context.Context, w *ReplyWriter, m *Message) error {
	return f(ctx, w, m)
}

// Middleware wraps handlers.
type Middleware func(Handler) Handler

// A ReplyWriter sends answers to one message. It is valid until the handler returns, and
// may be used by several goroutines.
type ReplyWriter struct {
	session *Session
	to      *ReceiveResult

	mu   sync.Mutex
	sent int
	over bool // the handler returned
	out  func(*Session, *Message) error
}

var errReplyOver = errors.New("accp: the handler has returned")

// Send sends a message in the chain of the one that is answered. It may be called
// several times; stream chunks are on their way when it returns. After the chain
// was cancelled nothing is sent, which is no error. The correlation and causation
// ids are set here.
func (w *ReplyWriter) Send(m *Message) error {
	if m == nil {
		return errNoMessage()
	}
	out := m.clone()
	answer(out, w.to.Message)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return errReplyOver
	}
	w.sent++
	return w.out(w.session, out)
}

// Session returns the session of the message.
func (w *ReplyWriter) Session() *Session { return w.session }

// ReceiveResult returns the message with what else the session knows about it.
func (w *ReplyWriter) ReceiveResult() *ReceiveResult { return w.to }

// SendResult sends a done message with these params for the operation that was asked
// for.
func (w *ReplyWriter) SendResult(params Params) error {
	return w.Send(&Message{Intent: IntentDone, Op: w.to.Message.Op, Params: params})
}

// ServerOptions adjusts a [Server]. The zero value is right for production.
type ServerOptions struct {
	Auth   Auth
	Limits Limits
	Timing Timing

	// Session is what each session begins with. If its Store is nil, each has
	// memory of its own, which ends with it.
	Session SessionOptions

	// AllowedOrigins are the hosts of browser pages that may open a WebSocket
	// connection, besides the host of the server.
	AllowedOrigins []string

	// Logger gets what peers are not told. Nil is silent.
	Logger *slog.Logger
}

// Auth is a group of [ServerOptions].
type Auth struct {
	// Authorize, if set, decides whether a request may use a session id, which
	// is a name and no secret (ACCP-D55). The request carries what a middleware
	// found out about the caller. An error is answered by [ErrPolicyDenied].
	// It is not called for frames without session id.
	Authorizer func(r *http.Request, sid string) error
}

// Limits is a group of [ServerOptions].
type Limits struct {
	// MaxSessions bounds how many sessions are kept. Zero means 10,000. A new
	// one takes the place of the one that was idle for longest, if that was
	// for SessionIdle, else it is refused with [ErrInternal]. A session that took
	// 65,536 frames holds about 3.5 MB for its window of replays.
	MaxSessions int

	// MaxConcurrent bounds how many messages of one WebSocket connection are
	// handled at the same time; the reader waits. Zero means 64.
	MaxConcurrent int
}

// Timing is a group of [ServerOptions].
type Timing struct {
	// SessionIdleTimeout is how long a session is kept after its last frame, or the end
	// of its connection. Zero means an hour. A session that is dropped forgets
	// its numbers and replays, unless they lie in a Store of its own.
	SessionIdleTimeout time.Duration

	// Heartbeat is the interval of pings on WebSocket connections. Zero means
	// 30 s; a peer that sends nothing for two intervals is dropped (ACCP-D56).
	Heartbeat time.Duration

	// WriteTimeout is how long one frame may take to be written before the
	// connection is cut. Zero means 10 s.
	WriteTimeout time.Duration

	// ReadTimeout is how long the body of a request may take to arrive. Zero
	// means 30 s.
	ReadTimeout time.Duration
}

// Paths under which a [Server] answers.
const (
	FramesPath    = "/accp/v1/frames" // POST (ACCP-153)
	WebSocketPath = "/accp/v1/ws"     // ACCP-D56
)

// A Server answers frames over HTTP and WebSocket. It is an [http.Handler] for
// [FramesPath] and [WebSocketPath]. All its methods may be called from several
// goroutines. Handlers should be registered before it serves.
type Server struct {
	self string
	opts ServerOptions
	log  *slog.Logger
	ctx  context.Context // ends when Close stops waiting
	stop context.CancelFunc

	mu       sync.Mutex // guards the following
	handlers map[route]Handler
	wrap     []Middleware
	sessions map[string]*list.Element // of *kept
	order    list.List                // the one idle for longest first
	closing  bool
	idle     chan struct{} // closed when the last exchange ended after Close began
	active   int
	conns    map[*wsConn]struct{}
}

type route struct {
	intent Intent
	op     string
}

type kept struct {
	session *Session
	used    time.Time
	uses    int // requests and connections that it serves now
}

// NewServer returns a server that answers as agent self.
func NewServer(self string, opts *ServerOptions) (*Server, error) {
	if !validName(self) {
		return nil, fail(ErrParse, "invalid agent-id %.80q", self)
	}
	s := &Server{self: self, handlers: map[route]Handler{}, sessions: map[string]*list.Element{}, conns: map[*wsConn]struct{}{}}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Limits.MaxSessions <= 0 {
		s.opts.Limits.MaxSessions = 10000
	}
	if s.opts.Timing.SessionIdleTimeout <= 0 {
		s.opts.Timing.SessionIdleTimeout = time.Hour
	}
	if s.opts.Timing.Heartbeat <= 0 {
		s.opts.Timing.Heartbeat = 30 * time.Second
	}
	if s.opts.Timing.WriteTimeout <= 0 {
		s.opts.Timing.WriteTimeout = 10 * time.Second
	}
	if s.opts.Timing.ReadTimeout <= 0 {
		s.opts.Timing.ReadTimeout = 30 * time.Second
	}
	if s.opts.Limits.MaxConcurrent <= 0 {
		s.opts.Limits.MaxConcurrent = 64
	}
	if s.opts.Session.NewID == nil {
		s.opts.Session.NewID = newID
	}
	s.log = s.opts.Logger
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Handle registers the handler of an intent with an operation; an empty operation
// means all that have no handler of their own. It panics if there is one already.
//
// Without a handler, ping is answered by pong, sync:registry by the exchange of
// registries (always), done, fail, wait, esc, comp, stream, end, sync and cancel by
// ack, ack and pong by nothing, and anything else by [ErrInvalidIntent].
func (s *Server) Handle(intent Intent, op string, h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.handlers[route{intent, op}]; ok {
		panic("accp: handler for " + string(intent) + ":" + op + " registered twice")
	}
	s.handlers[route{intent, op}] = h
}

// HandleFunc registers a function.
func (s *Server) HandleFunc(intent Intent, op string, f func(ctx context.Context, w *ReplyWriter, m *Message) error) {
	s.Handle(intent, op, HandlerFunc(f))
}

// Use wraps every handler, those registered before and after. The first one
// given is the outermost.
func (s *Server) Use(m ...Middleware) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrap = append(s.wrap, m...)
}

func (s *Server) handler(m *Message) Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.handlers[route{m.Intent, m.Op}]
	if !ok {
		h = s.handlers[route{m.Intent, ""}]
	}
	if h == nil {
		h = HandlerFunc(byDefault)
	}
	for i := len(s.wrap) - 1; i >= 0; i-- {
		h = s.wrap[i](h)
	}
	return h
}

// byDefault answers what has no handler (ACCP-D50, ACCP-D53).
func byDefault(_ context.Context, w *ReplyWriter, m *Message) error {
	switch m.Intent {
	case IntentPing:
		return w.Send(&Message{Intent: IntentPong, Op: m.Op})
	case IntentAck, IntentPong, IntentDone, IntentFail, IntentWait, IntentEsc, IntentComp,
		IntentStream, IntentEnd, IntentSync, IntentCancel:
		return nil
	}
	return fail(ErrInvalidIntent, "nobody handles %s:%s", m.Intent, m.Op)
}

// An exchange is one frame and its answers.
type exchange struct {
	session *Session
	out     func(*Session, *Message) error // sends an answer
	failed  bool                           // the only answer is an error
}

// serve processes a frame that belongs to a session.
func (s *Server) serve(ctx context.Context, e *exchange, frame []byte) error {
	r, err := e.session.Receive(ctx, frame)
	if err != nil {
		return s.refuse(e, err, frame)
	}
	return s.dispatch(ctx, e, r, frame)
}

// refuse answers a frame that the session did not take. Nothing answers a fail
// frame (ACCP-D52).
func (s *Server) refuse(e *exchange, err error, frame []byte) error {
	s.log.Debug("accp: frame refused", "session", e.session.id, "err", err)
	e.failed = true
	c := Codec{Lenient: s.opts.Session.Lenient, FrameLimits: s.opts.Session.FrameLimits}
	m, perr := c.DecodeRaw(frame)
	if perr == nil {
		perr = c.ValidateEnvelope(m)
	}
	if perr != nil {
		m = nil
	} else if m.Intent == IntentFail {
		return nil
	}
	return e.sendError(err, m)
}

// sendError sends an error in the chain of m, or in none if the name of that does
// not fit a frame. If the session can send nothing, since it has ended or its store
// fails, the error is a first frame without session (ACCP-D52): errors must be readable
// also then (ACCP-D35).
func (e *exchange) sendError(err error, m *Message) error {
	session := e.session
	serr := e.out(session, errorMessage(err, m))
	if errors.Is(serr, ErrInternal) {
		var nerr error
		if session, nerr = NewSession(session.self, "", &session.opts); nerr != nil {
			return nerr // cannot be: the name served already
		}
		serr = e.out(session, errorMessage(err, m))
	}
	var perr *Error
	if m != nil && errors.As(serr, &perr) && !perr.Remote {
		serr = e.out(session, errorMessage(err, nil))
	}
	return serr
}

func (s *Server) dispatch(ctx context.Context, e *exchange, r *ReceiveResult, frame []byte) error {
	switch r.Outcome {
	case OutcomeDropped:
		return nil
	case OutcomePending:
		return s.acknowledge(e, frame)
	}
	m := r.Message
	if err := e.session.canAnswer(); err != nil && m.Intent != IntentAck && m.Intent != IntentPong && m.Intent != IntentFail {
		return s.refuse(e, err, frame) // before work is done that nobody would hear of
	}
	if m.Intent == IntentSync && m.Op == OpRegistry {
		n, err := e.session.negotiateWith(ctx, r, e.out)
		if err != nil {
			return s.refuse(e, err, frame)
		}
		if !n {
			return s.acknowledge(e, frame)
		}
		return nil
	}
	if m.Intent == IntentCancel {
		// The chain has ended, so its context has as well; the work of handling
		// the cancel itself has not.
	} else {
		var done context.CancelFunc
		ctx, done = e.session.ChainContext(ctx, m.Chain())
		defer done()
	}
	w := &ReplyWriter{session: e.session, to: r, out: e.out}
	err := s.call(ctx, w, m)
	w.mu.Lock()
	w.over = true // what it left behind has nobody to answer any more
	w.mu.Unlock()
	if err != nil {
		var perr *Error
		var code Code
		if !errors.As(err, &perr) && !errors.As(err, &code) {
			s.log.Error("accp: handler failed", "session", e.session.id, "intent", string(m.Intent), "op", m.Op, "err", err)
		}
		if m.Intent == IntentFail {
			return nil
		}
		e.failed = w.sent == 0
		return e.sendError(err, m)
	}
	if w.sent == 0 && m.Intent != IntentAck && m.Intent != IntentPong && m.Intent != IntentPing {
		return e.ack(m)
	}
	return nil
}

// ack answers m by ack, or by the error that prevents it.
func (e *exchange) ack(m *Message) error {
	out := &Message{Intent: IntentAck, Op: m.Op}
	answer(out, m)
	err := e.out(e.session, out)
	var perr *Error
	if !errors.As(err, &perr) || perr.Remote {
		return err
	}
	if m.Intent == IntentFail {
		return nil
	}
	e.failed = true
	return e.sendError(err, m)
}

// call runs the handler; its panic is an internal error and nothing else is harmed.
func (s *Server) call(ctx context.Context, w *ReplyWriter, m *Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("accp: handler panicked", "intent", string(m.Intent), "op", m.Op, "panic", p, "stack", string(debug.Stack()))
			err = &Error{Code: ErrInternal, Message: "handler panicked", Cause: fmt.Errorf("%v", p)}
		}
	}()
	return s.handler(m).ServeACCP(ctx, w, m)
}

// acknowledge answers a frame by ack with its operation.
func (s *Server) acknowledge(e *exchange, frame []byte) error {
	c := Codec{Lenient: s.opts.Session.Lenient, FrameLimits: s.opts.Session.FrameLimits}
	m, err := c.DecodeRaw(frame)
	if err != nil {
		return err // cannot be: the session took it
	}
	return e.ack(m)
}

// negotiateWith answers a sync:registry message through out, and reports whether
// there was something to send.
func (s *Session) negotiateWith(ctx context.Context, r *ReceiveResult, out func(*Session, *Message) error) (bool, error) {
	s.mu.Lock()
	reply, undo, err := s.exchange(r.Message)
	s.mu.Unlock()
	if err != nil || reply == nil {
		return false, err
	}
	if err = out(s, reply); err != nil {
		s.mu.Lock()
		undo()
		s.mu.Unlock()
	}
	return true, err
}

// session returns the session of an id, making it if it is new. It is kept at
// least until it is released.
func (s *Server) session(id string) (*Session, error) {
	if id == "" {
		return NewSession(s.self, "", &s.opts.Session)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if el, ok := s.sessions[id]; ok {
		k := el.Value.(*kept)
		if !k.session.ended.Load() {
			k.used = now
			k.uses++
			s.order.MoveToBack(el)
			return k.session, nil
		}
		s.order.Remove(el) // the name begins anew
		delete(s.sessions, id)
	}
	var dropped []*Session
	defer func() { s.settle(dropped) }()
	for el := s.order.Front(); el != nil; el = s.order.Front() {
		k := el.Value.(*kept)
		if now.Sub(k.used) < s.opts.Timing.SessionIdleTimeout {
			break
		}
		if k.uses > 0 { // a connection that lives long
			k.used = now
			s.order.MoveToBack(el)
			continue
		}
		s.order.Remove(el)
		delete(s.sessions, k.session.id)
		dropped = append(dropped, k.session)
	}
	if len(s.sessions) >= s.opts.Limits.MaxSessions {
		return nil, fail(ErrInternal, "too many sessions")
	}
	session, err := NewSession(s.self, id, &s.opts.Session)
	if err != nil {
		return nil, err
	}
	s.sessions[id] = s.order.PushBack(&kept{session: session, used: now, uses: 1})
	return session, nil
}

// settle makes checkpoints of sessions that are dropped, so that what their hot
// state holds is in their store. Who calls it holds the lock and is counted; so is
// the work, and Close waits for it.
func (s *Server) settle(dropped []*Session) {
	if s.opts.Session.Store == nil || len(dropped) == 0 {
		return
	}
	s.active++
	go func() {
		defer s.end()
		for _, session := range dropped {
			_ = s.settleOne(s.ctx, session) // it was logged
		}
	}()
}

func (s *Server) settleOne(ctx context.Context, session *Session) error {
	err := session.settle(ctx)
	if err == nil || errors.Is(err, ErrSessionEnded) {
		return nil
	}
	s.log.Warn("accp: no last checkpoint, so the frames since the one before are in no history", "session", session.id, "err", err)
	return err
}

// release ends the use of a session.
func (s *Server) release(session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if el, ok := s.sessions[session.id]; ok && el.Value.(*kept).session == session {
		k := el.Value.(*kept)
		k.uses--
		k.used = time.Now()
		s.order.MoveToBack(el)
	}
}

// Session returns the session with this id, and whether it is kept. After
// [Session.End] the next frame of that name begins a new one; connections of the
// session are closed with their next frame.
func (s *Server) Session(id string) (*Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el, ok := s.sessions[id]
	if !ok {
		return nil, false
	}
	return el.Value.(*kept).session, true
}

// begin counts an exchange, unless the server is closing.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.active++
	return true
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	if s.active == 0 && s.closing {
		close(s.idle)
	}
}

// Close stops taking requests, waits until those that run have been answered and
// WebSocket connections are closed, makes the last checkpoint of sessions that have a
// Store, one after the other, and returns. When ctx ends first, what still runs is cut
// off, and the error is that of ctx. It may be called more than once.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		s.idle = make(chan struct{})
		if s.active == 0 {
			close(s.idle)
		}
	}
	for c := range s.conns {
		c.shutdown()
	}
	s.mu.Unlock()
	defer s.stop()
	select {
	case <-s.idle:
		return s.settleAll(ctx)
	case <-ctx.Done():
	}
	s.stop()
	<-s.idle
	return ctx.Err()
}

// settleAll makes the last checkpoints, as many as there is time for.
func (s *Server) settleAll(ctx context.Context) error {
	if s.opts.Session.Store == nil {
		return nil
	}
	s.mu.Lock()
	var all []*Session
	for el := s.order.Front(); el != nil; el = el.Next() {
		all = append(all, el.Value.(*kept).session)
	}
	s.mu.Unlock()
	for _, session := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.settleOne(ctx, session) != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
