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

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/sendq"
)

// A role is the use of a connection. It is set once (ALT-D16).
type role int32

const (
	roleNew role = iota
	roleClient
	roleRuntime
)

// A hostConn is the Host's side of one connection. Its fields change in the goroutine that reads, or with all shards
// locked, unless they are atomic.
type hostConn struct {
	core.Conn // of a client

	h        *Host
	conn     Conn // nil for HTTP and in-process connections
	identity atomic.Pointer[Principal]
	addr     string // of the peer, if it is known
	work     *life.Work
	out      *outbox
	link     *link                      // nil for HTTP and in-process connections
	removed  chan struct{}              // closed after the connection was removed from the Host
	limit    atomic.Pointer[queueLimit] // of out
	lastSeen atomic.Int64               // when a message was received last, nanoseconds after the start of the Host

	role      atomic.Int32  // a role
	isClosed  atomic.Bool   // closed by either side
	isRuntime atomic.Bool   // of a Runtime, or about to be
	seated    atomic.Uint32 // the shards that may have readers of the connection
	invalid   atomic.Int32  // consecutive frames without a JSON object
	inProcess bool          // see Host.Dial
	released  sync.Once
	expiry    core.Timer // of the authentication

	// of a Runtime
	runtime       core.Runtime
	capabilities  []string
	wildcard      bool // sent a "*" fulfilment
	heartbeat     core.Timer
	refulfill     core.Timer
	keeping       sync.Mutex          // of one access to the ledger at a time
	fulfilled     map[string][]string // contracts by session, in the ledger; guarded by keeping
	manyFulfilled int                 // size of fulfilled at which ended sessions are removed; guarded by keeping
	names         nameTable           // namespaced, by contract

	via     *peer    // of a Runtime of another Host: the way to it
	matched []string // likewise: the contracts that it fulfils here
	session *session // of a connection from another Host: that of its calls
	offered hostOffers

	isOffering   bool // offered is queued
	isOfferStale bool // the fulfilments may have changed since then

	isSlow bool // does not read; used by the reader only
}

// A nameTable has the namespaced names of contracts at a Runtime, each made once.
type nameTable struct {
	mu     sync.RWMutex
	byName map[string]string // guarded by mu
}

// toolName returns the namespaced name of a contract.
func (hc *hostConn) toolName(contract string) string {
	t := &hc.names
	t.mu.RLock()
	s, ok := t.byName[contract]
	t.mu.RUnlock()
	if ok {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byName == nil {
		t.byName = make(map[string]string)
	}
	s = namespaced(hc.runtime.ID, contract)
	t.byName[contract] = s
	return s
}

func (hc *hostConn) is() role { return role(hc.role.Load()) }

func (hc *hostConn) become(r role) {
	if hc.is() != r {
		hc.role.Store(int32(r))
	}
}

func (hc *hostConn) can(capability string) bool { return slices.Contains(hc.capabilities, capability) }

// principal returns the authenticated principal, or nil.
func (hc *hostConn) principal() *Principal { return hc.identity.Load() }

func (hc *hostConn) received(now time.Time) { hc.lastSeen.Store(int64(now.Sub(hc.h.startedAt))) }

func (hc *hostConn) lastReceived() time.Time {
	return hc.h.startedAt.Add(time.Duration(hc.lastSeen.Load()))
}

// isHTTP reports whether the connection is one exchange over HTTP.
func (hc *hostConn) isHTTP() bool { return hc.conn == nil && !hc.inProcess }

// isPeer reports whether the connection is one from another Host.
func (hc *hostConn) isPeer() bool { return hc.session != nil }

// queueLimit returns the limit of the queue. It changes when a connection becomes that of a Runtime.
func (hc *hostConn) queueLimit() queueLimit { return *hc.limit.Load() }

// seat notes that a shard may have readers of the connection. It is called before isClosed is read.
func (hc *hostConn) seat(sh *shard) {
	if bit := uint32(1) << sh.index; hc.seated.Load()&bit == 0 {
		hc.seated.Or(bit)
	}
}

// Take implements [core.Queue].
func (hc *hostConn) Take(shard, bytes int) bool {
	return hc.out.reserve(hc.queueLimit(), itemWeight+bytes, shard)
}

// answers of a Host, a Runtime or a client are never answered (ALT-D02).
func isAnswer(typ string) bool {
	switch typ {
	case "AcknowledgeRuntime", "AcknowledgeFulfillment", "SessionCreated", "SessionDestroyed", "ToolList", "Authenticated", "Pong", "Error", "ToolResult", "StreamChunk":
		return true
	}
	return false
}

// admit makes the Host's side of a connection.
func (h *Host) admit(conn Conn, inProcess bool, id *Principal, addr string) (*hostConn, error) {
	hc := &hostConn{h: h, conn: conn, inProcess: inProcess, addr: addr, out: newOutbox(), removed: make(chan struct{})}
	hc.limit.Store(&h.clientQueue)
	hc.Queue, hc.Data = hc, hc
	hc.identity.Store(id)
	hc.heartbeat.Event, hc.refulfill.Event, hc.expiry.Event = timerFunc(hc.beat), timerFunc(hc.requestAgain), timerFunc(hc.expired)
	if h.drain.isStarted.Load() && !hc.isHTTP() { // HTTP requests get an answer (ALT-D45)
		return nil, ErrClosed
	}
	work, err := h.life.Start(h.ctx, life.Idle)
	if err != nil {
		return nil, err
	}
	hc.work = work
	if hc.isHTTP() {
		hc.limit.Store(&h.httpQueue)
	}
	if conn != nil { // before cut may use it
		queue := sendq.Options{WriteTimeout: h.opts.Timing.WriteTimeout, MaxBytes: 256 << 10, MaxMessages: max(1, min(128, h.clientQueue.messages/2))}
		hc.link = newLink(conn, h.opts.Logger, queue)
		hc.conn = hc.link.conn
	}
	if !h.conns.add(hc) {
		work.Finish()
		return nil, ErrClosed
	}
	if !hc.isHTTP() {
		h.setExpiry(hc)
	}
	return hc, nil
}

// A connTable has the open connections of a Host.
type connTable struct {
	mu       sync.Mutex
	all      map[*hostConn]bool
	isClosed bool
}

func (t *connTable) add(hc *hostConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isClosed {
		t.all[hc] = true
	}
	return !t.isClosed
}

func (t *connTable) remove(hc *hostConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, hc)
}

func (t *connTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// list returns the connections. With isLast it is closed.
func (t *connTable) list(isLast bool) (all []*hostConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isClosed = t.isClosed || isLast
	for hc := range t.all {
		all = append(all, hc)
	}
	return all
}

// Serve serves one connection of a Runtime or a client until it ends, and closes it (ALT-011). The
// principal is the one verified by the transport, or nil (ALT-136). Serve returns nil if the peer
// closed the connection cleanly.
func (h *Host) Serve(ctx context.Context, conn Conn, id *Principal) error {
	if conn == nil {
		return errNoConn
	}
	place, refused := h.reservePlace(id, "")
	if refused != nil {
		return errors.Join(refused, conn.Close())
	}
	defer place.Release()
	return h.serve(ctx, conn, id, "")
}

// reservePlace takes a place for a connection of a principal.
func (h *Host) reservePlace(id *Principal, addr string) (budget.Hold, *Error) {
	place, err := h.places.Scope(principalKey(id.principal(), addr), "").Reserve(budget.Items, 1)
	return place, overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
}

func (h *Host) serve(ctx context.Context, conn Conn, id *Principal, addr string) error {
	hc, err := h.admit(conn, false, id, addr)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	if c, ok := conn.(*wireConn); ok {
		memory := &lines.Memory{Scope: func() *budget.Scope { return h.budget.Scope(hc.budgetKey(), "") }}
		defer func() { _ = memory.Reserve(0) }()
		c.SetReserve(memory.Reserve)
	}
	return h.serveConn(ctx, hc)
}

// serveConn serves an admitted connection.
func (h *Host) serveConn(ctx context.Context, hc *hostConn) error {
	stop := context.AfterFunc(ctx, hc.cut)
	defer stop()
	written := make(chan struct{})
	hc.out.start(func() {
		if hc.write() {
			close(written)
		}
	})
	var err error
	guard.Run("connection", hc.read, func(end error) { // also if a hook ends the goroutine
		err = end
		if p, ok := errors.AsType[*guard.PanicError](err); ok { // it ends this connection alone (ALT-D34)
			h.opts.Logger.ErrorContext(ctx, "altar: connection panicked", "err", p, "stack", string(p.Stack))
			h.expelNow(hc, goodbyePanic)
		} else if !errors.Is(err, errOver) {
			hc.detach()
		}
		<-written
		_ = hc.conn.Close() // the writer may have closed its direction only
		h.release(hc)
	})
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
	now := time.Now()
	hc.received(now)
	before := hc.principal()
	switch {
	case hc.isClosed.Load():
		return
	case err == nil && before != nil && before.principal() != id.principal():
		err = Errorf(ErrAuthorizationFailed, reasonPrincipalMismatch, "the token belongs to another principal")
	}
	if err != nil {
		h.auditOne(&AuditRecord{Operation: "request.refused", CorrelationID: m.CorrelationID, Error: err}, hc)
		h.answer(hc, m, err)
		return
	}
	hc.identity.Store(id)
	h.setExpiry(hc)
	answer := &Authenticated{}
	if !id.Expires.IsZero() {
		seconds := int64(id.Expires.Sub(now) / time.Second)
		answer.ExpiresIn = &seconds
	}
	h.reply(hc, m, answer)
	h.auditOne(&AuditRecord{Operation: "auth.renewed", RuntimeID: hc.runtime.ID, CorrelationID: m.CorrelationID}, hc)
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

// setExpiry sets the timer of the end of an authentication.
func (h *Host) setExpiry(hc *hostConn) {
	if id := hc.principal(); id != nil && !id.Expires.IsZero() {
		h.setTimer(&hc.expiry, id.Expires)
	} else {
		h.stopTimer(&hc.expiry)
	}
}

// expired ends a connection whose authentication has expired (ALT-D40). All shards are locked.
func (hc *hostConn) expired(now time.Time) {
	h := hc.h
	if hc.isClosed.Load() {
		return
	}
	err := Errorf(ErrAuthorizationFailed, reasonExpired, "the authentication has expired")
	h.audit(&h.shards[0], now, &AuditRecord{Operation: "auth.expired", RuntimeID: hc.runtime.ID, Error: err}, hc)
	h.expel(hc, goodbyeRefused(err.Code), &ErrorMessage{Err: err}, now)
}

func (h *Host) release(hc *hostConn) {
	h.conns.remove(hc)
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
			hc.isSlow = hc.isSlow && !hc.out.hasSpace(hc.queueLimit(), 0)
		} else if hc.isSlow {
			hc.out.waitSpace(hc.queueLimit().double(0), option.Off)
			hc.isSlow = !hc.out.hasSpace(hc.queueLimit(), 0)
		} else {
			hc.isSlow = !hc.out.waitSpace(hc.queueLimit(), burstTimeout)
		}
		if !hc.h.handle(hc, m, bad) {
			return errOver
		}
	}
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
		if o, ok := m.(*hostOffers); ok && !o.HasMore {
			hc.offerAgain()
		}
	}
	why := hc.out.goodbye()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hc.h.ctx), hc.h.opts.Timing.WriteTimeout)
	defer cancel()
	if why.Code == 0 || hc.link.queue.Close(ctx) != nil || !hc.link.wire.HangUp(why) {
		hc.cut()
	} else { // the reader receives the end, unless the peer leaves its direction open
		time.AfterFunc(departTime, hc.cut)
	}
	return true
}

// next takes the next message for the peer, and continues the streams that wait for space.
func (hc *hostConn) next(ctx context.Context) (m Message, more bool) {
	m, more = hc.out.pop(ctx)
	hc.resumeStalled()
	return m, more
}

// resumeStalled continues the streams that wait for space in the queue.
func (hc *hostConn) resumeStalled() {
	limit := hc.queueLimit()
	stalled := hc.out.resumed(queueLimit{max(1, limit.messages/2), limit.bytes / 2})
	for i := 0; stalled != 0; i++ {
		if stalled&(1<<i) == 0 {
			continue
		}
		stalled &^= 1 << i
		sh := &hc.h.shards[i]
		now := hc.h.lock(sh)
		if !hc.isClosed.Load() {
			hc.h.step(sh, now, &core.Event{Kind: core.SpaceFreed, Conn: &hc.Conn})
		}
		hc.h.unlock(sh)
	}
}

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
		hc.h.unsent(hc, m.InvocationID, unsendable)
		return true
	case *forwardedCall:
		hc.h.unsent(hc, m.call.InvocationID, unsendable)
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

// detach is the event "transport closed" (section e).
func (hc *hostConn) detach() {
	h := hc.h
	if !hc.isClosed.Swap(true) {
		h.stopTimer(&hc.expiry)
		h.stopTimer(&hc.refulfill)
		if hc.isRuntime.Load() {
			now := h.lockAll()
			h.loseRuntime(hc, now)
			h.unlockAll()
		}
		seated := hc.seated.Load()
		for i := range h.shards {
			if sh := &h.shards[i]; seated&(1<<i) != 0 {
				now := h.lock(sh)
				h.step(sh, now, &core.Event{Kind: core.ConnClosed, Conn: &hc.Conn})
				h.unlock(sh)
			}
		}
	}
	hc.out.close()
}

// disconnect is detach with all shards locked.
func (h *Host) disconnect(hc *hostConn, now time.Time) {
	if hc.isClosed.Swap(true) {
		return
	}
	h.stopTimer(&hc.expiry)
	h.stopTimer(&hc.refulfill)
	if hc.isRuntime.Load() {
		h.loseRuntime(hc, now)
	}
	seated := hc.seated.Load()
	for i := range h.shards {
		if seated&(1<<i) != 0 {
			h.step(&h.shards[i], now, &core.Event{Kind: core.ConnClosed, Conn: &hc.Conn})
		}
	}
}

// send queues a message.
func (h *Host) send(hc *hostConn, m Message) {
	if hc.out.put(m, budget.Hold{}, false) {
		go hc.out.write() // there may be a lock
	}
	h.checkQueue(hc)
}

// sendIn is send with the shard locked: the message is written when it is unlocked.
func (h *Host) sendIn(sh *shard, hc *hostConn, m Message, hold budget.Hold, isTaken bool) {
	if hc.out.put(m, hold, isTaken) {
		sh.inline = append(sh.inline, hc.out)
	}
	h.checkQueue(hc)
}

// checkQueue disconnects a Runtime that does not read.
func (h *Host) checkQueue(hc *hostConn) {
	if hc.isRuntime.Load() && hc.out.isOver(hc.queueLimit().double(int(h.live.Load()))) {
		h.opts.Logger.WarnContext(h.ctx, "altar: slow Runtime disconnected", "runtime", hc.runtime.ID)
		h.background(hc.cut)
	}
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

// expel closes a connection after sending its queue and a last message, which may be nil. All shards must be locked.
func (h *Host) expel(hc *hostConn, why transport.Goodbye, last Message, now time.Time) {
	hc.out.end(why, last)
	h.disconnect(hc, now)
}

// expelNow is expel without a lock.
func (h *Host) expelNow(hc *hostConn, why transport.Goodbye) {
	now := h.lockAll()
	h.expel(hc, why, nil, now)
	h.unlockAll()
}
