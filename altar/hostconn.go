// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/sendq"
)

// A role is the use of a connection. It is set once (ALT-D16).
type role int

const (
	roleNew role = iota
	roleClient
	roleRuntime
)

// A hostConn is the Host's side of one connection. Its fields are guarded by the
// lock of the Host, but for out, which has its own.
type hostConn struct {
	h        *Host
	conn     Conn // nil for HTTP and in-process connections
	identity *Principal
	addr     string // of the peer, if it is known
	work     *life.Work
	out      *outbox
	link     *link         // nil for HTTP and in-process connections
	removed  chan struct{} // closed after the connection was removed from the Host

	role     role
	isClosed bool       // closed by either side
	limit    queueLimit // of out

	inProcess bool // see Host.Dial
	released  sync.Once

	// of a Runtime
	runtime      core.Runtime
	capabilities []string
	wildcard     bool // sent a "*" fulfilment
	heartbeat    core.Timer
	refulfill    core.Timer
	lastReceived time.Time
	expiry       core.Timer          // of the authentication
	fulfilled    map[string][]string // contracts by session, in the store; used by the reader only
	names        map[string]string   // namespaced, by contract

	// of a Runtime of another Host: its only call
	remote *forwarding

	// of another Host that forwards a call
	peer *cluster.Call

	// of a client
	waiting   map[string]*attachment // by invocation id
	stalled   []*attachment          // whose chunks wait for space in out
	isStalled atomic.Bool            // stalled is not empty

	bad    int  // consecutive frames without a JSON object; used by the reader only
	isSlow bool // does not read; used by the reader only
}

func (hc *hostConn) can(capability string) bool { return slices.Contains(hc.capabilities, capability) }

// answers of a Host, a Runtime or a client are never answered (ALT-D02).
func isAnswer(typ string) bool {
	switch typ {
	case "AcknowledgeRuntime", "AcknowledgeFulfillment", "SessionCreated", "SessionDestroyed", "ToolList", "Authenticated", "Pong", "Error", "ToolResult", "StreamChunk":
		return true
	}
	return false
}

// admit makes the Host's side of a connection.
func (h *Host) admit(conn Conn, id *Principal, addr string) (*hostConn, error) {
	hc := &hostConn{h: h, conn: conn, identity: id, addr: addr, out: newOutbox(), removed: make(chan struct{}),
		limit: queueLimit{h.opts.Limits.ClientQueueLimit, h.opts.Limits.MaxClientQueue}}
	hc.heartbeat = core.Timer{Event: timerCall(hc.beat)}
	hc.refulfill = core.Timer{Event: timerCall(hc.requestAgain)}
	hc.expiry = core.Timer{Event: timerCall(hc.expired)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.draining && conn != nil { // HTTP requests get an answer (ALT-D45)
		return nil, ErrClosed
	}
	work, err := h.life.Start(h.ctx, life.Idle)
	if err != nil {
		return nil, err
	}
	hc.work = work
	h.conns[hc] = true
	if !hc.isHTTP() {
		h.setExpiry(hc)
		h.setWakeup()
	}
	return hc, nil
}

// Serve serves one connection of a Runtime or a client until it ends, and closes it (ALT-011). The
// principal is the one verified by the transport, or nil (ALT-136). Serve returns nil if the peer
// closed the connection cleanly.
func (h *Host) Serve(ctx context.Context, conn Conn, id *Principal) error {
	return h.serve(ctx, conn, id, "")
}

func (h *Host) serve(ctx context.Context, conn Conn, id *Principal, addr string) error {
	hc, err := h.admit(conn, id, addr)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	queue := sendq.Options{WriteTimeout: h.opts.Timing.WriteTimeout, MaxBytes: 256 << 10, MaxMessages: max(1, min(128, hc.limit.messages/2))}
	hc.link = newLink(conn, h.opts.Logger, queue)
	hc.conn = hc.link.conn
	stop := context.AfterFunc(ctx, hc.cut)
	defer stop()
	written := make(chan struct{})
	hc.out.start(func() {
		if hc.write() {
			close(written)
		}
	})
	err = guard.Call("connection", hc.read)
	if p, ok := errors.AsType[*guard.PanicError](err); ok { // it ends this connection alone (ALT-D34)
		h.opts.Logger.ErrorContext(ctx, "altar: connection panicked", "err", p, "stack", string(p.Stack))
		now := h.lock()
		h.expel(hc, goodbyePanic, now)
		h.unlock()
	} else if !errors.Is(err, errOver) {
		hc.detach()
	}
	<-written
	_ = conn.Close() // the writer may have closed its direction only
	h.release(hc)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// authenticate renews the principal of a connection (ALT-D40).
func (h *Host) authenticate(hc *hostConn, m *Authenticate) {
	id, err := h.verify(hc, m.Token)
	now := h.lock()
	defer h.unlock()
	hc.lastReceived = now
	switch {
	case hc.isClosed:
		return
	case err == nil && hc.identity != nil && hc.identity.principal() != id.principal():
		err = Errorf(ErrAuthorizationFailed, reasonPrincipalMismatch, "the token belongs to another principal")
	}
	if err != nil {
		h.refuseRequest(hc, m, "", err, now)
		return
	}
	hc.identity = id
	h.setExpiry(hc)
	answer := &Authenticated{}
	if !id.Expires.IsZero() {
		seconds := int64(id.Expires.Sub(now) / time.Second)
		answer.ExpiresIn = &seconds
	}
	h.reply(hc, m, answer)
	h.auditLocked(now, &AuditRecord{Operation: "auth.renewed", RuntimeID: hc.runtime.ID, CorrelationID: m.CorrelationID}, hc)
}

// verify returns the principal of a token, as the Authenticator finds it in a handshake.
func (h *Host) verify(hc *hostConn, token string) (*Principal, *Error) {
	var id *Principal
	err := errors.New("no Authenticator")
	if h.opts.Auth.Authenticator != nil {
		err = h.guard("Authenticator", func() (err error) {
			id, err = h.opts.Auth.Authenticator.Authenticate(tokenRequest(h.ctx, hc.addr, token))
			return err
		})
	}
	if e := asError(err); e != nil && e.Code == ErrInternal && !e.Remote {
		return nil, e
	}
	if err != nil || id == nil || !id.Expires.IsZero() && !id.Expires.After(time.Now()) {
		h.opts.Logger.WarnContext(h.ctx, "altar: authentication failed", "peer", hc.addr, "err", err)
		return nil, errUnauthenticated()
	}
	return id, nil
}

// setExpiry sets the timer of the end of an authentication. h.mu must be held.
func (h *Host) setExpiry(hc *hostConn) {
	h.timers.Stop(&hc.expiry)
	if hc.identity != nil && !hc.identity.Expires.IsZero() {
		h.timers.Set(&hc.expiry, hc.identity.Expires)
	}
}

// expired ends a connection whose authentication has expired (ALT-D40).
func (hc *hostConn) expired(now time.Time) {
	h := hc.h
	err := Errorf(ErrAuthorizationFailed, reasonExpired, "the authentication has expired")
	h.auditLocked(now, &AuditRecord{Operation: "auth.expired", RuntimeID: hc.runtime.ID, Error: err}, hc)
	h.send(hc, &ErrorMessage{Err: err})
	h.expel(hc, goodbyeRefused(err.Code), now)
}

func (h *Host) release(hc *hostConn) {
	h.lock()
	delete(h.conns, hc)
	h.unlock()
	close(hc.removed)
	hc.work.Finish()
}

// errOver reports that the Host has ended a connection. Queued messages may still be sent.
var errOver = fmt.Errorf("altar: connection ended by the Host: %w", ErrClosed)

// burstTimeout is how long a full queue may take until the requests of its peer are refused.
const burstTimeout = time.Second

// read handles the received messages in order (ALT-D02). It does not wait for a peer that does not
// read, but refuses its requests; only if the queue is full of refusals, it waits, until the peer
// is cut.
func (hc *hostConn) read() error {
	for {
		m, err := hc.conn.Receive()
		bad, ok := asBadFrame(err)
		if !ok {
			return err
		}
		if !isRequest(m, bad) {
			hc.isSlow = hc.isSlow && !hc.out.hasSpace(hc.limit, 0)
		} else if hc.isSlow {
			hc.out.waitSpace(hc.limit.double(0), option.Off)
			hc.isSlow = !hc.out.hasSpace(hc.limit, 0)
		} else {
			hc.isSlow = !hc.out.waitSpace(hc.limit, burstTimeout)
		}
		if !hc.h.handle(hc, m, bad) {
			return errOver
		}
	}
}

// isRequest reports whether a message may have a response. Others are handled even if the peer does
// not read.
func isRequest(m Message, bad *badFrame) bool {
	if bad != nil {
		return true
	}
	switch m.(type) {
	case *StreamCredit, *CancelCall:
		return false
	}
	return !isAnswer(typeOf(m))
}

// asBadFrame returns the error of one bad frame, nil if there is none, and false
// for any other error.
func asBadFrame(err error) (bad *badFrame, ok bool) {
	if err == nil {
		return nil, true
	}
	var e *badFrame
	ok = errors.As(err, &e)
	return e, ok
}

// write sends the queued messages. At the end of the queue it closes the connection and reports true.
func (hc *hostConn) write() bool {
	for {
		m, more, isOver := hc.out.take()
		if m == nil && !isOver {
			return false
		}
		if m == nil {
			break
		}
		hc.resumeStalled()
		if !hc.sent(m, hc.forward(m, more)) {
			hc.cut()
			return true
		}
	}
	why := hc.out.goodbye()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hc.h.ctx), hc.h.opts.Timing.WriteTimeout)
	defer cancel()
	if why.code == 0 || hc.link.queue.Close(ctx) != nil || !hc.link.wire.hangUp(why) {
		hc.cut() // else the reader receives the end
	}
	return true
}

// next takes the next message for the peer, and continues the streams that wait for space.
func (hc *hostConn) next(ctx context.Context) (m Message, more bool) {
	m, more = hc.out.pop(ctx)
	hc.resumeStalled()
	return m, more
}

func (hc *hostConn) resumeStalled() {
	if hc.isStalled.Load() && hc.out.hasSpace(queueLimit{max(1, hc.limit.messages/2), hc.limit.bytes / 2}, 0) {
		hc.h.resume(hc)
	}
}

// isHTTP reports whether the connection is one exchange over HTTP.
func (hc *hostConn) isHTTP() bool { return hc.conn == nil && !hc.inProcess && hc.peer == nil }

// forward passes a message to the queue of the connection. If no more follow and no other write is
// in progress, this goroutine writes the message.
func (hc *hostConn) forward(m Message, more bool) error {
	return hc.link.put(m, func(q *sendq.Queue, frame []byte) error {
		if more {
			return q.PutWait(context.Background(), frame, 0)
		}
		return q.Write(context.Background(), frame, 0)
	})
}

// sent handles an error of sending, and reports whether the connection continues. The peer gets an
// error in place of an answer that cannot be sent.
func (hc *hostConn) sent(m Message, err error) bool {
	unsendable := asError(err)
	if unsendable == nil {
		return err == nil
	}
	hc.h.opts.Logger.ErrorContext(hc.h.ctx, "altar: message not sent", "type", typeOf(m), "err", err)
	unsendable = Errorf(ErrInternal, unsendable.Reason(), "%s", unsendable.Message)
	switch m := m.(type) {
	case *ToolCall:
		now := hc.h.lock()
		defer hc.h.unlock()
		if c := callOf(hc.h.sessions.InUse(m.InvocationID)); c != nil && c.IsAt(&hc.runtime) {
			c.CloseAnswer() // the Runtime has no call to answer
			hc.h.fail(c, unsendable, "", now)
		}
		return true
	case *ToolResult:
		m = &ToolResult{InvocationID: m.InvocationID, Error: unsendable, header: m.header}
		return hc.forward(m, false) == nil
	case *StreamChunk:
		m = &StreamChunk{InvocationID: m.InvocationID, ChunkID: m.ChunkID, Error: unsendable, IsFinal: true, header: m.header}
		return hc.forward(m, false) == nil
	}
	answer := &ErrorMessage{Err: unsendable, header: *m.head()}
	return isAnswer(typeOf(m)) && hc.forward(answer, false) == nil || !isAnswer(typeOf(m))
}

// cut ends the connection from this side at once.
func (hc *hostConn) cut() {
	hc.out.close()
	if hc.link != nil {
		hc.link.close() // the reader sees it
		return
	}
	hc.detach()
	if hc.inProcess {
		hc.released.Do(func() { hc.h.release(hc) })
	}
}

// detach takes the connection out of everything, once.
func (hc *hostConn) detach() {
	h := hc.h
	now := h.lock()
	h.disconnect(hc, now)
	h.unlock()
	hc.out.close()
}

// disconnect is the event "transport closed" (section e).
func (h *Host) disconnect(hc *hostConn, now time.Time) {
	if hc.isClosed {
		return
	}
	hc.isClosed = true
	h.timers.Stop(&hc.expiry)
	h.timers.Stop(&hc.refulfill)
	if hc.role == roleRuntime {
		h.runtimeGone(hc, now)
	}
	h.clientGone(hc, now)
}

// send queues a message.
func (h *Host) send(hc *hostConn, m Message) {
	if hc == nil || hc.isClosed || hc.remote != nil {
		return
	}
	hc.out.put(m, budget.Hold{})
	if hc.role == roleRuntime && !hc.out.hasSpace(hc.limit.double(h.sessions.Len()), 0) {
		h.opts.Logger.WarnContext(h.ctx, "altar: slow Runtime disconnected", "runtime", hc.runtime.ID)
		h.background(hc.cut)
	}
}

// sendResult queues the final result of a call. If its peer does not read, the result is charged to
// the session until it is sent; the record of the call has it, too.
func (h *Host) sendResult(s *session, hc *hostConn, m *ToolResult) {
	if hc.isClosed || hc.out.hasSpace(hc.limit, weight(m)) {
		h.send(hc, m)
		return
	}
	hold, err := s.scope.Reserve(budget.Memory, int64(weight(m)))
	if err != nil {
		m = &ToolResult{InvocationID: m.InvocationID, Error: errSlowConsumer(), header: m.header}
	}
	hc.out.put(m, hold)
}

func errSlowConsumer() *Error {
	return Errorf(ErrInternal, reasonSlowConsumer, "the client does not read")
}

// reply sends an answer with the ids of its request (ALT-D02, ALT-D30).
func (h *Host) reply(hc *hostConn, request, answer Message) {
	*answer.head() = *request.head()
	h.send(hc, answer)
}

// answer refuses a request with an Error message.
func (h *Host) answer(hc *hostConn, request Message, err *Error) {
	h.reply(hc, request, &ErrorMessage{Err: err})
}

// refuse answers and closes the connection after that.
func (h *Host) refuse(hc *hostConn, request Message, err *Error, now time.Time) {
	h.answer(hc, request, err)
	h.expel(hc, goodbyeRefused(err.Code), now)
}

// expel closes a connection after sending its queue.
func (h *Host) expel(hc *hostConn, why goodbye, now time.Time) {
	hc.out.end(why)
	h.disconnect(hc, now)
}

// handle processes one message or one invalid frame, and reports whether the connection continues.
// Either m or bad is nil.
func (h *Host) handle(hc *hostConn, m Message, bad *badFrame) bool {
	if bad != nil {
		if bad.salvaged == nil || hc.role != roleRuntime { // the role is settled before any answer
			return h.handleBad(hc, bad)
		}
		m = bad.salvaged
	}
	hc.bad = 0
	if !h.prepare(hc, m) {
		h.unavailable(hc, m)
		return !h.isOver(hc)
	}
	h.audits.wait(h.ctx)
	if h.isThrottled(hc, m) {
		return !h.isOver(hc)
	}
	switch m := m.(type) {
	case *ToolCall:
		h.toolCall(hc, m)
	case *Authenticate:
		h.authenticate(hc, m)
	case *FulfillTools:
		if h.runtimeOnly(hc, m) {
			h.fulfill(hc, m)
		}
	case *AnnounceRuntime:
		h.announce(hc, m)
	case *CreateSession:
		h.createSession(hc, m)
	case *ListTools:
		h.listTools(hc, m)
	default:
		h.handleSimple(hc, m)
	}
	return !h.isOver(hc)
}

// handleSimple processes a message that needs no hook but the types of results.
func (h *Host) handleSimple(hc *hostConn, m Message) {
	var stray bool
	var id string
	if h.opts.ResultTypes != nil && hc.runtime.ID != "" {
		id, stray = h.stray(hc, m)
	}
	now := h.lock()
	defer h.unlock()
	if hc.isClosed {
		return
	}
	hc.lastReceived = now
	if stray {
		h.strayed(hc, id, now)
	} else {
		h.simple(hc, m, now)
	}
}

// isThrottled refuses a request of a client that does not read its answers, or whose principal sends
// too many requests (ALT-D38), and reports whether it did.
func (h *Host) isThrottled(hc *hostConn, m Message) bool {
	switch m.(type) {
	case *ToolCall, *CreateSession, *ListTools:
	default:
		return false
	}
	var err *Error
	if hc.isSlow {
		err = errOverloaded().with("limit", []byte(`"ClientQueueLimit"`)).with("retry_after_ms", []byte("1000"))
	} else if h.opts.Limits.RequestRate > 0 && hc.peer == nil {
		_, full := h.budget.Scope(hc.budgetKey(), "").Reserve(budget.Requests, 1)
		err = overBudget(ErrRuntimeUnavailable, ReasonOverloaded, full)
	}
	if err == nil {
		return false
	}
	now := h.lock()
	defer h.unlock()
	if call, ok := m.(*ToolCall); ok {
		h.refused(hc, call, nil, err, now)
	} else if !hc.isClosed {
		h.auditLocked(now, &AuditRecord{Operation: "request.refused", CorrelationID: m.head().CorrelationID, Error: err}, hc)
		h.answer(hc, m, err)
	}
	return true
}

func (h *Host) isOver(hc *hostConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return hc.isClosed
}

// simple deals with messages that need no hook, with the lock held.
func (h *Host) simple(hc *hostConn, m Message, now time.Time) {
	switch m := m.(type) {
	case *ToolResult:
		h.toolResult(hc, m, now)
	case *StreamChunk:
		h.streamChunk(hc, m, now)
	case *CancelCall:
		if hc.role == roleRuntime {
			h.dropped(hc, m, "a Runtime cancels nothing")
			return
		}
		hc.role = roleClient
		h.cancelCall(hc, m, now)
	case *StreamCredit:
		h.streamCredit(hc, m, now)
	case *DestroySession:
		if h.clientOnly(hc, m) {
			h.destroySession(hc, m, now)
		}
	case *Ping:
		h.reply(hc, m, &Pong{})
	case *RequestFulfillment:
		h.answer(hc, m, formFault(reasonWrongDirection, "", "only a Host sends this message"))
	case *Pong:
	default:
		h.dropped(hc, m, "nobody waits for it")
	}
}

// clientOnly checks the role and the principal of a request (ALT-D23).
func (h *Host) clientOnly(hc *hostConn, m Message) bool {
	err := h.clientFault(hc)
	if err == nil {
		return true
	}
	if err.Reason() == ReasonUnauthenticated {
		operation := "request.refused"
		if _, ok := m.(*CreateSession); ok {
			operation = "session.refused"
		}
		h.auditLocked(time.Now(), &AuditRecord{Operation: operation, SessionID: sessionIDOf(m), CorrelationID: m.head().CorrelationID, Error: err}, hc)
	}
	h.answer(hc, m, err)
	return false
}

func (h *Host) clientFault(hc *hostConn) *Error {
	if hc.role == roleRuntime {
		return formFault(reasonWrongRole, "", "a Runtime cannot make requests of a client")
	}
	hc.role = roleClient
	if hc.identity == nil && !h.opts.Auth.AllowAnonymous {
		return errUnauthenticated()
	}
	return nil
}

func errUnauthenticated() *Error {
	return Errorf(ErrAuthorizationFailed, ReasonUnauthenticated, "the caller is not authenticated")
}

func (h *Host) runtimeOnly(hc *hostConn, m Message) bool {
	now := h.lock()
	defer h.unlock()
	hc.lastReceived = now
	switch {
	case hc.isClosed:
		return false
	case hc.role == roleClient:
		h.answer(hc, m, formFault(reasonWrongRole, "", "a client cannot fulfil tools"))
		return false
	case hc.role == roleNew:
		h.answer(hc, m, formFault(reasonNotAnnounced, "", "the Runtime has not announced itself"))
		return false
	}
	return true
}

// handleBad processes an invalid frame (section f).
func (h *Host) handleBad(hc *hostConn, bad *badFrame) bool {
	now := h.lock()
	defer h.unlock()
	if hc.isClosed {
		return false
	}
	hc.lastReceived = now
	header := header{RequestID: bad.RequestID, CorrelationID: bad.CorrelationID}
	if bad.InvalidFrame {
		h.stats.InvalidFrames++
		switch bad.Err.Reason() {
		case reasonMalformedJSON, reasonNotAnObject, reasonInvalidUnicode:
			hc.bad++
		case reasonMessageTooLarge: // what it was is not known
		default:
			hc.bad = 0
		}
		h.send(hc, &ErrorMessage{Err: bad.Err})
		if hc.bad >= h.opts.Limits.MaxInvalidFrames {
			h.expel(hc, goodbyeRefused(bad.Err.Code), now)
			return false
		}
		return true
	}
	hc.bad = 0
	switch {
	case bad.Type == "ToolResult" || bad.Type == "StreamChunk":
		h.stats.Dropped++
		if c := callOf(h.sessions.InUse(bad.InvocationID)); c != nil && c.IsAt(&hc.runtime) {
			h.fail(c, errInvalidResult(), "protocol_error", now)
		}
	case isAnswer(bad.Type), bad.Type == "CancelCall", bad.Type == "StreamCredit":
		h.stats.Dropped++
	case bad.Type == "ToolCall" && bad.InvocationID != "":
		h.refuseCall(hc, bad.InvocationID, header, bad.Err)
	default:
		h.send(hc, &ErrorMessage{Err: bad.Err, header: header})
	}
	return true
}
