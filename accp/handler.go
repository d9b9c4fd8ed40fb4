// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
)

// A Handler answers messages. It must be safe for concurrent use. The context ends when the chain
// of the message is cancelled, the server closes, or the connection is lost: for a transaction, and for a
// req over WebSocket, only if the client does not return within [Timing].ResumeWindow. A transaction that
// returns an error after that runs again only with [Server.HandleIdempotent] (ACCP-D72).
//
// The code of a returned [*Error] or [Code] is sent to the peer, except that of an error which is
// Remote. That and any other error is sent as [ErrInternal]. An error of this code or of
// [ErrToolExecFailed] is logged. If a handler sends nothing and returns nil, the server answers a req
// or qry by done without params, an ack, ping or pong by nothing, and another message by ack. If the
// last message that it sends is a chunk and not the final one, the server sends end (ACCP-D60).
type Handler interface {
	ServeACCP(ctx context.Context, w *ReplyWriter, m *Message) error
}

// A HandlerFunc is a function that serves as a [Handler].
type HandlerFunc func(ctx context.Context, w *ReplyWriter, m *Message) error

// ServeACCP calls f.
func (f HandlerFunc) ServeACCP(ctx context.Context, w *ReplyWriter, m *Message) error {
	return f(ctx, w, m)
}

// HandlerOf returns a handler that calls f with the params of the message as a struct (see [Unmarshal]) and sends done with
// the params of the result (see [Marshal]). Params of another form are [ErrInvalidType], and f does not run. It panics if f
// is nil, if In is no struct, and if Out is neither a struct, a pointer to one, nor an interface.
func HandlerOf[In, Out any](f func(ctx context.Context, in In) (Out, error)) Handler {
	if f == nil {
		panic("accp: HandlerOf: nil function")
	}
	err, result := checkStruct(reflect.TypeFor[In]()), reflect.TypeFor[Out]()
	if result.Kind() == reflect.Pointer {
		result = result.Elem()
	}
	if result.Kind() != reflect.Interface {
		err = cmp.Or(err, checkStruct(result))
	}
	if err != nil {
		panic("accp: HandlerOf: " + strings.TrimPrefix(err.Error(), "accp: "))
	}
	return HandlerFunc(func(ctx context.Context, w *ReplyWriter, m *Message) error {
		var in In
		if err := Unmarshal(m.Params, &in); err != nil {
			return err
		}
		out, err := f(ctx, in)
		if err != nil {
			return err
		}
		params, err := Marshal(out)
		if err != nil {
			return err
		}
		return w.SendResult(params)
	})
}

// Middleware wraps handlers.
type Middleware func(Handler) Handler

// A ReplyWriter sends the answers to one message. It is valid until the handler returns and safe
// for concurrent use.
type ReplyWriter struct {
	session *Session
	answers *exchange
	turn    chan sentMessages // holds an element while no goroutine sends; closed after the handler
}

// sentMessages are those of a handler.
type sentMessages struct {
	count   int
	isChunk bool // whether the last message is a chunk
	isEnded bool // whether a message ends the answer
}

func (s *sentMessages) add(m *Message) {
	s.count++
	s.isChunk = m.Intent == IntentStream
	s.isEnded = s.isEnded || last(IntentReq, m)
}

var errReplyOver = errors.New("accp: the handler has returned")

// Send sends a message in the chain of the request, with its correlation and causation ids. It may
// be called several times; stream chunks are written before it returns. After the chain was
// cancelled it sends nothing and returns nil.
func (w *ReplyWriter) Send(m *Message) error {
	if m == nil {
		return errNoMessage()
	}
	return w.send(m.clone())
}

// send is Send for a message that it may change.
func (w *ReplyWriter) send(out *Message) error {
	answer(out, w.answers.received.Message)
	sent, isOpen := <-w.turn
	if !isOpen {
		return errReplyOver
	}
	defer func() { w.turn <- sent }()
	err := w.answers.out(w.session, out)
	if err == nil {
		sent.add(out)
	}
	return err
}

// Session returns the session of the message.
func (w *ReplyWriter) Session() *Session { return w.session }

// ReceiveResult returns the result of receiving the message.
func (w *ReplyWriter) ReceiveResult() *ReceiveResult { return &w.answers.received }

// SendResult sends a done message with these params and the operation of the request.
func (w *ReplyWriter) SendResult(params Params) error {
	return w.send(newAnswer(IntentDone, w.answers.received.Message.Op, params))
}

// close ends the use of w and returns the sent messages. Further calls have no effect.
func (w *ReplyWriter) close() sentMessages {
	sent, isOpen := <-w.turn
	if isOpen {
		close(w.turn)
	}
	return sent
}

// A responder answers the messages of peers: those of a Server, or those that a Client receives
// outside of its calls.
type responder struct {
	self    string
	session SessionOptions
	log     *slog.Logger
	timing  Timing
	life    *life.Life
	find    func(m *Message) (h Handler, isRegistered bool)
	permit  func(ctx context.Context, frame []byte) error
	acquire func(ctx context.Context, c *caller, sid string) (budget.Hold, error)
	reserve func(c *caller, n int64) (budget.Hold, error) // memory of a message
	rate    func(c *caller) error                         // counts a message over a connection; nil: no bound
	auditor func(ctx context.Context, r *AuditRecord)     // nil: no records

	outcomes *outcomes // nil in a client
	runs     runs
}

// errNoHandler has the message for the peer (ACCP-D51).
var errNoHandler = errors.New("no_handler")

// isStateQuery reports whether m requests the shared state, which a session answers without a registered
// handler (ACCP-D46).
func isStateQuery(m *Message) bool { return m.Intent == IntentQry && m.Op == opState }

// byDefault answers messages without a handler (ACCP-D50, ACCP-D53).
func byDefault(_ context.Context, w *ReplyWriter, m *Message) error {
	if isStateQuery(m) {
		version, state := w.session.State()
		return w.Send((&sharedState{version: version, params: state}).message())
	}
	switch m.Intent {
	case intentPing:
		return w.Send(&Message{Intent: intentPong, Op: m.Op})
	case IntentAck, intentPong, IntentDone, IntentFail, IntentWait, IntentEsc, IntentComp,
		IntentStream, IntentEnd, IntentSync, IntentCancel:
		return nil
	}
	return noHandler(m)
}

// noHandler returns the error for a message that no handler takes.
func noHandler(m *Message) error {
	return &Error{Code: ErrInvalidIntent, Message: fmt.Sprintf("no handler for %s:%s", m.Intent, m.Op), Cause: errNoHandler}
}

// An exchange is one frame and its answers.
type exchange struct {
	session  *Session
	to       answerer
	failed   bool         // the only answer is an error frame
	record   *AuditRecord // of the frame, or nil
	arrival  arrival
	registry *negotiation // nil: another one for each frame
	greeted  func(error)  // of a client, or nil
	caller   *caller
	received ReceiveResult
	resume   *resume   // nil: the handler ends with its request
	recorder *recorder // of the answers; nil: they are not recorded
	refusal  error     // of the message before a handler runs, or nil
	alias    [1]string // memory of an outcomeKey

	isHandled     bool // by another goroutine than the reader
	isInterrupted bool // the handler returned an error after the end of its context
}

// An answerer sends the answers to a frame.
type answerer interface {
	answer(e *exchange, session *Session, m *Message) error
}

// out sends an answer and records it. While the handler outlives its connection, each answer is part of its outcome only.
func (e *exchange) out(session *Session, m *Message) error {
	rec := e.recorder
	if rec != nil && isTemporary(m) {
		rec.hasFailed.Store(true) // before the peer can repeat the request
	}
	err := e.to.answer(e, session, m)
	if err != nil && e.resume != nil && e.resume.isHoldingAfterLoss() {
		err = nil
	}
	if rec != nil && (err == nil || codeOf(err).Info().Retryable) { // also an answer that the peer did not get
		rec.add(m, err == nil)
		rec.responder.publish(rec)
	}
	return err
}

// decode returns the message of a frame with an envelope, keys as written.
func (s *responder) decode(frame []byte) (*Message, error) {
	c := Codec{Lenient: s.session.Lenient, FrameLimits: s.session.FrameLimits}
	return c.decodeRawEnvelope(frame)
}

// serve processes one frame of a session.
func (s *responder) serve(ctx context.Context, e *exchange, c *caller, frame []byte) error {
	var err error
	e.received, err = e.session.receive(ctx, frame, e.arrival)
	if m := e.received.Message; err == nil && m != nil {
		var hold budget.Hold
		if hold, err = s.reserve(c, int64(m.size())); err == nil {
			defer hold.Release()
		}
	}
	if err != nil {
		return s.refuse(ctx, e, err, frame)
	}
	return s.dispatch(ctx, e, frame)
}

// refuse answers a refused frame. A fail frame is never answered (ACCP-D52).
func (s *responder) refuse(ctx context.Context, e *exchange, err error, frame []byte) error {
	s.log.WarnContext(ctx, "accp: frame refused", "session", e.session.id, "code", string(codeOf(err)), "err", err)
	e.record.end(outcomeRefused, err)
	e.failed = true
	m, _ := s.decode(frame)
	if m != nil {
		e.record.describe(m)
	}
	if m != nil && m.Intent == IntentFail {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok && m != nil && own.Code == ErrDuplicate && s.outcomes != nil && e.caller != nil &&
		m.Intent == IntentReq && s.isRemembered(ctx, e, e.caller, frame) {
		err = &Error{Code: ErrDuplicate, Message: own.Message, isInvitation: true}
	} else if ok && m != nil && own.Code == ErrDuplicate && e.session.hasApplied(m.Meta.MID) {
		err = &Error{Code: ErrDuplicate, Message: own.Message, isApplied: true}
	}
	return e.sendError(err, m)
}

// sendError sends an error in the chain of m, or without a chain if its id does not fit into a
// frame. If the session cannot send, because it has ended or its store fails, the error is the
// first frame of a nameless session (ACCP-D35, ACCP-D52).
func (e *exchange) sendError(err error, m *Message) error {
	session := e.session
	serr := e.out(session, errorMessage(err, m))
	if errors.Is(serr, ErrInternal) {
		var nerr error
		if session, nerr = NewSession(session.self, "", &session.opts); nerr != nil {
			return nerr // unreachable: the name is valid
		}
		serr = e.out(session, errorMessage(err, m))
	}
	var perr *Error
	if m != nil && errors.As(serr, &perr) && !perr.Remote {
		serr = e.out(session, errorMessage(err, nil))
	}
	return serr
}

// dispatch answers a received message.
func (s *responder) dispatch(ctx context.Context, e *exchange, frame []byte) error {
	r := &e.received
	switch r.Outcome {
	case OutcomeDropped:
		e.record.end(outcomeCanceled, nil)
		return nil
	case OutcomePending:
		return s.acknowledge(e, frame)
	}
	m := r.Message
	if err := e.session.canSend(s.self); err != nil && isAnswered(m.Intent) {
		return s.refuse(ctx, e, err, frame) // before work without a possible answer
	}
	if m.Intent == IntentSync && m.Op == opRegistry {
		return s.negotiate(ctx, e, m, frame)
	}
	if e.refusal != nil {
		return e.fail(e.refusal, m)
	}
	if _, isRegistered := s.find(m); isRegistered && m.Intent == IntentReq && e.caller != nil {
		k, ok, err := s.outcomeKey(e, e.caller, m, r.mid)
		if err != nil {
			return s.refuse(ctx, e, err, frame)
		}
		if ok {
			return s.runOnce(ctx, e, k)
		}
	}
	return s.run(ctx, e)
}

// isAnswered reports whether messages of an intent get an answer.
func isAnswered(i Intent) bool { return i != IntentAck && i != intentPong && i != IntentFail }

// negotiate answers sync:registry.
func (s *responder) negotiate(ctx context.Context, e *exchange, m *Message, frame []byte) error {
	registry := e.registry
	if registry == nil {
		registry = e.session.negotiate()
	}
	isReplied, err := registry.reply(m, func(m *Message) error { return e.out(e.session, m) })
	if e.greeted != nil {
		e.greeted(err)
	}
	if err != nil {
		return s.refuse(ctx, e, err, frame)
	}
	if isReplied || e.greeted != nil { // a client does not confirm the answer to its greeting
		return nil
	}
	return s.acknowledge(e, frame)
}

// run calls the handler of a message and completes its answer.
func (s *responder) run(ctx context.Context, e *exchange) error {
	m := e.received.Message
	both := &struct {
		w     ReplyWriter
		chain chainContext
	}{w: ReplyWriter{session: e.session, answers: e, turn: make(chan sentMessages, 1)}}
	if m.Intent != IntentCancel { // handling a cancel continues after the end of the chain
		both.chain.begin(ctx, e.session, m.Chain())
		defer both.chain.end()
		ctx = &both.chain
	}
	w := &both.w
	w.turn <- sentMessages{}
	defer w.close() // goroutines of the handler can no longer answer
	h, _ := s.find(m)
	var sent error
	guard.Run("handler", func() error { return h.ServeACCP(ctx, w, m) }, func(err error) {
		sent = s.complete(ctx, e, w, m, s.failure(ctx, w, m, err))
	})
	return sent
}

// complete completes the answer of a handler that has ended with err.
func (s *responder) complete(ctx context.Context, e *exchange, w *ReplyWriter, m *Message, err error) error {
	sent := w.close()
	if err != nil {
		e.record.end(outcomeFailed, err)
		if e.isInterrupted = ctx.Err() != nil; e.isInterrupted {
			e.record.end(outcomeCanceled, err)
		}
		if m.Intent == IntentFail {
			return nil
		}
		e.failed = sent.count == 0
		if codeOf(err) == ErrInvalidIntent { // a handler that dispatches further
			err = noHandler(m)
		}
		return e.sendError(err, m)
	}
	switch {
	case sent.isChunk && !sent.isEnded && ctx.Err() == nil:
		return e.confirm(m, IntentEnd)
	case sent.count > 0, m.Intent == IntentAck, m.Intent == intentPong, m.Intent == intentPing:
		return nil
	case m.Intent == IntentReq, m.Intent == IntentQry:
		return e.confirm(m, IntentDone) // the caller waits for a completion, and an ack is only a receipt
	}
	return e.confirm(m, IntentAck)
}

// failure logs the error of a handler. A panic becomes an internal error.
func (s *responder) failure(ctx context.Context, w *ReplyWriter, m *Message, err error) error {
	p, isPanic := errors.AsType[*guard.PanicError](err)
	switch {
	case isPanic:
		return s.panicked(ctx, p)
	case err != nil && ctx.Err() != nil:
		s.log.DebugContext(ctx, "accp: handler canceled", describe(w.session, m, err)...)
	case err != nil && (codeOf(err) == ErrInternal || codeOf(err) == ErrToolExecFailed): // the peer gets no cause
		s.log.ErrorContext(ctx, "accp: handler failed", describe(w.session, m, err)...)
	}
	return err
}

// describe returns the attributes of a log record about an error of a handler.
func describe(s *Session, m *Message, err error) []any {
	return []any{"session", s.id, "operation", string(m.Intent) + ":" + m.Op, "chain", m.Chain(), "sender", m.From, "err", err}
}

// confirm answers m by an intent without params, or by the error that prevents it.
func (e *exchange) confirm(m *Message, i Intent) error {
	out := newAnswer(i, m.Op, nil)
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

// acknowledge answers a frame by ack with its operation.
func (s *responder) acknowledge(e *exchange, frame []byte) error {
	m, err := s.decode(frame)
	if err != nil {
		return err // unreachable: the session has accepted it
	}
	return e.confirm(m, IntentAck)
}
