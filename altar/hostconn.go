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
	"time"
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
	out      *outbox
	removed  chan struct{} // closed after the connection was removed from the Host

	role     role
	isClosed bool // closed by either side
	limit    int  // of the queue

	refused   bool // closed because of an error of the peer
	inProcess bool // see Host.Dial
	released  sync.Once

	// of a Runtime
	runtimeID    string
	capabilities []string
	alive        bool // announced and connected
	wildcard     bool // sent a "*" fulfilment
	running      int  // calls
	breaker      breaker
	unanswered   map[string]*hostCall
	heartbeat    timer
	lastReceived time.Time
	names        map[string]string // namespaced, by contract

	// of a Runtime of another Host: its only call
	remote *forwarding

	// of another Host that forwards a call
	peer *ForwardedCall

	// of a client
	waiting map[string]*attachment // by invocation id

	bad int // consecutive frames without a JSON object; used by the reader only
}

func (hc *hostConn) can(capability string) bool { return slices.Contains(hc.capabilities, capability) }

// answers of a Host, a Runtime or a client are never answered (ALT-D02).
func isAnswer(typ string) bool {
	switch typ {
	case "AcknowledgeRuntime", "AcknowledgeFulfillment", "SessionCreated", "SessionDestroyed", "ToolList", "Pong", "Error", "ToolResult", "StreamChunk":
		return true
	}
	return false
}

// admit makes the Host's side of a connection.
func (h *Host) admit(conn Conn, id *Principal) (*hostConn, error) {
	hc := &hostConn{h: h, conn: conn, identity: id, out: newOutbox(), removed: make(chan struct{}), limit: h.opts.Limits.ClientQueueLimit}
	hc.heartbeat = timer{index: -1, fire: timerCall(hc.beat)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.draining {
		return nil, ErrClosed
	}
	h.conns[hc] = true
	h.wg.Add(1)
	return hc, nil
}

// Serve serves one connection of a Runtime or a client until it ends, and closes it (ALT-011). The
// principal is the one verified by the transport, or nil (ALT-136). Serve returns nil if the peer
// closed the connection cleanly.
func (h *Host) Serve(ctx context.Context, conn Conn, id *Principal) error {
	hc, err := h.admit(conn, id)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	stop := context.AfterFunc(ctx, hc.cut)
	defer stop()
	written := make(chan struct{})
	go func() {
		defer close(written)
		hc.write()
	}()
	if err = hc.read(); !errors.Is(err, errOver) {
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

func (h *Host) release(hc *hostConn) {
	h.lock()
	delete(h.conns, hc)
	h.unlock()
	close(hc.removed)
	h.wg.Done()
}

// errOver reports that the Host has ended a connection. Queued messages may still be sent.
var errOver = fmt.Errorf("altar: connection ended by the Host: %w", ErrClosed)

// read handles the received messages in order (ALT-D02).
func (hc *hostConn) read() error {
	for {
		m, err := hc.conn.Receive()
		bad, ok := decodeError(err)
		if !ok {
			return err
		}
		hc.out.waitRoom(hc.limit)
		if !hc.h.handle(hc, m, bad) {
			return errOver
		}
	}
}

// decodeError returns the error of one bad frame, nil if there is none, and false
// for any other error.
func decodeError(err error) (bad *DecodeError, ok bool) {
	if err == nil {
		return nil, true
	}
	var e *DecodeError
	ok = errors.As(err, &e)
	return e, ok
}

// batcher is a Conn that sends several messages at once and trusts their JSON.
type batcher interface {
	sendBatch(list []Message) error
}

// refuser is a Conn that can tell its peer that it was refused (ALT-D04).
type refuser interface{ closeRefused() }

// write sends the queue until it ends, and closes the connection.
func (hc *hostConn) write() {
	watch := time.AfterFunc(time.Hour, func() {
		hc.h.opts.Logger.Warn("altar: slow reader disconnected")
		hc.cut()
	})
	watch.Stop()
	defer watch.Stop()
	batch, single := hc.conn.(batcher)
	var buf []Message
	lost := false
	for {
		var ok bool
		buf, ok = hc.out.take(context.Background(), buf[:0])
		if !ok {
			break
		}
		watch.Reset(hc.h.opts.Timing.WriteTimeout)
		if single {
			lost = hc.sent(batch.sendBatch(buf))
		} else {
			for _, m := range buf {
				lost = hc.sent(hc.conn.Send(m)) || lost
			}
		}
		watch.Stop()
		clear(buf)
		if lost {
			break
		}
	}
	switch r, ok := hc.conn.(refuser); {
	case lost:
	case ok && hc.refused:
		r.closeRefused()
	case hangUp(hc.conn):
		return // the reader sees the end
	}
	hc.cut()
}

// sent deals with an error of sending, and reports whether the connection is lost.
func (hc *hostConn) sent(err error) bool {
	if err == nil {
		return false
	}
	var unsendable *Error
	if errors.As(err, &unsendable) {
		hc.h.opts.Logger.Error("altar: message not sent", "err", err)
		return false
	}
	return true
}

// cut ends the connection from this side at once.
func (hc *hostConn) cut() {
	hc.out.close()
	if hc.conn != nil {
		_ = hc.conn.Close() // the reader sees it
		return
	}
	hc.detach()
	if hc.inProcess {
		hc.released.Do(func() { hc.h.release(hc) })
	}
}

// leave takes the connection out of everything, once.
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
	if hc.role == roleRuntime {
		h.runtimeGone(hc, now)
	}
	h.clientGone(hc, now)
}

// send queues a message.
func (h *Host) send(hc *hostConn, m Message) {
	if hc != nil && !hc.isClosed && hc.remote == nil {
		hc.out.put(m)
	}
}

// reply sends an answer with the ids of its request (ALT-D02, ALT-D30).
func (h *Host) reply(hc *hostConn, request, answer Message) {
	*answer.header() = *request.header()
	h.send(hc, answer)
}

// answer refuses a request with an Error message.
func (h *Host) answer(hc *hostConn, request Message, err *Error) {
	h.reply(hc, request, &ErrorMessage{Err: err})
}

// refuse answers and closes the connection after that.
func (h *Host) refuse(hc *hostConn, request Message, err *Error, now time.Time) {
	h.answer(hc, request, err)
	h.expel(hc, now)
}

// expel closes a connection after sending its queue.
func (h *Host) expel(hc *hostConn, now time.Time) {
	hc.refused = true
	hc.out.end()
	h.disconnect(hc, now)
}

// handle processes one message or one invalid frame, and reports whether the connection continues.
// Either m or bad is nil.
func (h *Host) handle(hc *hostConn, m Message, bad *DecodeError) bool {
	if bad != nil && bad.salvaged != nil && hc.role == roleRuntime { // the role is settled before any answer
		m, bad = bad.salvaged, nil
	}
	if bad != nil {
		return h.handleBad(hc, bad)
	}
	hc.bad = 0
	if h.state != nil && (hc.identity != nil || h.opts.Auth.AllowAnonymous) && !h.prepare(hc, m) {
		h.unavailable(hc, m)
		return !h.isOver(hc)
	}
	switch m := m.(type) {
	case *ToolCall:
		h.toolCall(hc, m)
	case *FulfillTools:
		if h.runtimeOnly(hc, m) {
			h.fulfill(hc, m)
		}
	case *AnnounceRuntime:
		h.announce(hc, m)
	case *CreateSession:
		h.createSession(hc, m)
	default:
		var stray bool
		var id string
		if h.opts.ResultTypes != nil && hc.runtimeID != "" {
			id, stray = h.stray(hc, m)
		}
		now := h.lock()
		switch {
		case hc.isClosed:
		case stray:
			hc.lastReceived = now
			h.strayed(hc, id, now)
		default:
			hc.lastReceived = now
			h.simple(hc, m, now)
		}
		h.unlock()
	}
	return !h.isOver(hc)
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
	case *DestroySession:
		if h.clientOnly(hc, m) {
			h.destroySession(hc, m, now)
		}
	case *ListTools:
		if h.clientOnly(hc, m) {
			h.listTools(hc, m)
		}
	case *Ping:
		h.reply(hc, m, &Pong{})
	case *RequestFulfillment:
		h.answer(hc, m, formFault(ReasonWrongDirection, "", "only a Host sends this message"))
	case *Pong:
	default:
		h.dropped(hc, m, "nobody waits for it")
	}
}

// clientOnly checks the role and the principal of a request (ALT-D23).
func (h *Host) clientOnly(hc *hostConn, m Message) bool {
	if err := h.clientFault(hc); err != nil {
		h.answer(hc, m, err)
		return false
	}
	return true
}

func (h *Host) clientFault(hc *hostConn) *Error {
	if hc.role == roleRuntime {
		return formFault(ReasonWrongRole, "", "a Runtime cannot make requests of a client")
	}
	hc.role = roleClient
	if hc.identity == nil && !h.opts.Auth.AllowAnonymous {
		return errUnauthenticated()
	}
	return nil
}

func errUnauthenticated() *Error {
	return NewError(ErrAuthorizationFailed, ReasonUnauthenticated, "the caller is not authenticated")
}

func (h *Host) runtimeOnly(hc *hostConn, m Message) bool {
	now := h.lock()
	defer h.unlock()
	hc.lastReceived = now
	switch {
	case hc.isClosed:
		return false
	case hc.role == roleClient:
		h.answer(hc, m, formFault(ReasonWrongRole, "", "a client cannot fulfil tools"))
		return false
	case hc.role == roleNew:
		h.answer(hc, m, formFault(ReasonNotAnnounced, "", "the Runtime has not announced itself"))
		return false
	}
	return true
}

// handleBad processes an invalid frame (section f).
func (h *Host) handleBad(hc *hostConn, bad *DecodeError) bool {
	now := h.lock()
	defer h.unlock()
	if hc.isClosed {
		return false
	}
	hc.lastReceived = now
	header := Header{RequestID: bad.RequestID, CorrelationID: bad.CorrelationID}
	if bad.InvalidFrame {
		h.stats.InvalidFrames++
		switch bad.Err.Reason() {
		case ReasonMalformedJSON, ReasonNotAnObject, ReasonInvalidUnicode:
			hc.bad++
		case ReasonMessageTooLarge: // what it was is not known
		default:
			hc.bad = 0
		}
		h.send(hc, &ErrorMessage{Err: bad.Err})
		if hc.bad >= h.opts.Limits.MaxInvalidFrames {
			h.expel(hc, now)
			return false
		}
		return true
	}
	hc.bad = 0
	switch {
	case bad.Type == "ToolResult" || bad.Type == "StreamChunk":
		h.stats.Dropped++
		if c := h.calls[bad.InvocationID]; c != nil && c.rt == hc && c.state == callRunning {
			h.fail(c, errInvalidResult(), "protocol_error", now)
		}
	case isAnswer(bad.Type), bad.Type == "CancelCall":
		h.stats.Dropped++
	case bad.Type == "ToolCall" && bad.InvocationID != "":
		h.refuseCall(hc, bad.InvocationID, header, bad.Err)
	default:
		h.send(hc, &ErrorMessage{Err: bad.Err, Header: header})
	}
	return true
}
