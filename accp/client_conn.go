// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// A connTransport carries all frames over one WebSocket connection, which it opens again after a loss.
type connTransport struct {
	*Client
	dialing chan struct{}          // holds a token while no goroutine connects
	conn    atomic.Pointer[wsConn] // the last opened one, or nil; changed with the token only

	lossMu  sync.Mutex
	isAgain chan struct{} // closed when the lost connection was opened again, or refused; nil without a loss; guarded by lossMu
}

func newConnTransport(c *Client) *connTransport {
	t := &connTransport{Client: c, dialing: make(chan struct{}, 1)}
	t.dialing <- struct{}{}
	return t
}

func (t *connTransport) use(*attempt) (*Session, bool, error) { return t.Session(), false, nil }

// prepare greets only for a schema of the peer: a connection is opened with a greeting.
func (t *connTransport) prepare(a *attempt, s *Session) error {
	if a.m.Intent == IntentCancel || !s.isBehind.Swap(false) {
		return nil
	}
	_, err := t.greet(a, s)
	return err
}

// greet greets again if the peer had other schemas; the first exchange gave it those of this side.
func (t *connTransport) greet(a *attempt, s *Session) (isSynced bool, err error) {
	before := t.conn.Load()
	w, err := t.redial(a)
	if err != nil {
		return false, err
	}
	isSynced = w != before && w.registry.synced()
	for i := 0; i < 2 && !isSynced && err == nil; i++ {
		if err = w.greet(a.ctx, a.timeout); errors.Is(err, ErrUnreachable) {
			w, err = t.redial(a) // which greets
		}
		isSynced = err == nil && w.registry.synced()
	}
	return isSynced, err
}

func (t *connTransport) close(callsDone <-chan struct{}) {
	select {
	case <-t.dialing:
		defer func() { t.dialing <- struct{}{} }()
	case <-callsDone: // also if a TokenSource ignores the end of its context, which leaves no open connection
	}
	if w := t.conn.Load(); w != nil {
		w.because(errConnClosed)
		w.finish(wsconn.CodeNormal, "")
	}
}

// connect returns the connection. The first call opens it, and so does the next call after its loss. It
// is complete when the greeting was answered (ACCP-D74). The context bounds the handshake only.
func (t *connTransport) connect(ctx context.Context) (*wsConn, error) {
	select {
	case <-t.dialing:
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "no connection in time", Cause: context.Cause(ctx)}
	}
	defer func() { t.dialing <- struct{}{} }()
	if w := t.usable(); w != nil {
		return w, nil
	}
	work, err := t.life.Start(ctx, life.Request)
	if err != nil {
		return nil, ErrClosed
	}
	defer work.Finish()
	r := t.responder()
	o := &wsconn.DialOptions{Options: r.socketOptions(), HTTP: *t.httpOptions(), Header: t.header()}
	conn, err := wsconn.Dial(work, t.url.String(), o)
	if err != nil {
		return nil, t.recovered(work, err)
	}
	w := r.newConn(context.Background(), conn, &caller{peer: t.url.Host})
	w.serve(t.Session())
	w.calls = calls.New[*call](calls.Options{MaxPending: -1})
	w.in = arrival{isClient: true, isOpen: w.isOpen}
	if err := t.life.Go("connection", func(context.Context) { w.run(nil) }); err != nil {
		conn.Close(wsconn.CodeNormal, "")
		return nil, ErrClosed
	}
	for range maxGreetings {
		if err = w.greet(work, t.opts.Timing.Timeout); !errors.Is(err, ErrSequenceGap) {
			break
		}
	}
	if err != nil {
		w.finish(wsconn.CodeNormal, "")
		return nil, err
	}
	t.conn.Store(w)
	_ = t.life.Go("reconnect", func(ctx context.Context) { t.keepOpen(ctx, w) })
	return w, nil
}

// usable returns the connection if it is open, or refused for later calls, too, else nil.
func (t *connTransport) usable() *wsConn {
	if w := t.conn.Load(); w != nil && (w.ctx.Err() == nil || t.isRefused(w)) {
		return w
	}
	return nil
}

// keepOpen opens the connection again after the loss of w, until Close or a permanent refusal.
func (t *connTransport) keepOpen(ctx context.Context, w *wsConn) {
	select {
	case <-w.ctx.Done():
	case <-t.done:
		return
	}
	if t.isRefused(w) || t.life.Ready() != nil || !t.reopen(ctx, w) || t.opts.OnReconnect == nil {
		return
	}
	_ = guard.Call("reconnect hook", func() error {
		t.opts.OnReconnect(ctx)
		return nil
	})
}

// minRedialDelay is the delay of a client whose Retry disables delays, because its attempts have no bound.
const minRedialDelay = 100 * time.Millisecond

// reopen reports whether the connection was opened again. Then the waiting calls continue.
func (t *connTransport) reopen(ctx context.Context, w *wsConn) bool {
	isAgain := t.beginLoss()
	defer t.endLoss(isAgain)
	t.opts.Logger.WarnContext(ctx, "accp: connection lost", "peer", t.peer(), "session", t.Session().id, "err", w.why())
	for p := (progress{}); ; {
		timer := time.NewTimer(max(p.delay(t.opts.Retry, 0), minRedialDelay))
		select {
		case <-timer.C:
		case <-t.done:
			timer.Stop()
			return false
		}
		dialing, cancel := context.WithTimeout(ctx, t.opts.Timing.Timeout)
		_, err := t.connect(dialing)
		cancel()
		switch {
		case err == nil:
			return true
		case t.life.Ready() != nil, errors.Is(err, ErrSessionEnded):
			return false
		case isRefusal(err):
			t.opts.Logger.ErrorContext(ctx, "accp: connection refused", "peer", t.peer(), "session", t.Session().id, "err", err)
			return false
		}
		t.opts.Logger.WarnContext(ctx, "accp: connection not opened", "peer", t.peer(), "session", t.Session().id, "err", err)
	}
}

// beginLoss returns the channel that waiting calls wait for.
func (t *connTransport) beginLoss() chan struct{} {
	t.lossMu.Lock()
	defer t.lossMu.Unlock()
	t.isAgain = make(chan struct{})
	return t.isAgain
}

func (t *connTransport) endLoss(isAgain chan struct{}) {
	t.lossMu.Lock()
	defer t.lossMu.Unlock()
	if t.isAgain == isAgain {
		t.isAgain = nil
	}
	close(isAgain)
}

// awaitReturn waits until a lost connection was opened again. It returns false if none is being opened, and
// at the end of ctx or of the client.
func (t *connTransport) awaitReturn(ctx context.Context) bool {
	t.lossMu.Lock()
	isAgain := t.isAgain
	t.lossMu.Unlock()
	if isAgain == nil {
		return false
	}
	select {
	case <-isAgain:
		return true
	case <-ctx.Done():
	case <-t.done:
	}
	return false
}

// nextGreeting returns the next greeting of the peer.
func (c *wsConn) nextGreeting() *greeting {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greeting == nil {
		c.greeting = &greeting{done: make(chan struct{})}
	}
	return c.greeting
}

// onGreeting handles a greeting of the peer, or the error of one that this side refuses.
func (c *wsConn) onGreeting(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greeting != nil {
		c.greeting.err = err
		close(c.greeting.done)
		c.greeting = nil
	}
}

// greet begins an exchange of registries and waits for the answer.
func (c *wsConn) greet(ctx context.Context, timeout time.Duration) error {
	next := c.nextGreeting()
	wasSynced := c.registry.synced()
	var k *call
	sent, err := c.post(ctx, false, func() (*SendResult, error) {
		sent, err := c.session.Send(ctx, c.registry.begin())
		if err == nil {
			k, err = c.addCall(sent)
		}
		return sent, err
	})
	if err != nil {
		return err
	}
	defer c.removeCall(sent, k)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-next.done:
			return next.err
		case <-k.ready:
			q, err := k.take()
			if err == nil && q.m != nil {
				if e := ErrorFromMessage(q.m); e != nil {
					return e
				}
				// An ack repeats the result of the present exchange.
				c.registry.keepSynced(wasSynced)
				return nil
			}
			if err != nil {
				return err
			}
		case <-c.ctx.Done():
			return c.lost()
		case <-timer.C:
			return fail(ErrTimeout, "the greeting was not answered")
		case <-ctx.Done():
			return &Error{Code: ErrTimeout, Message: "the greeting was not answered", Cause: context.Cause(ctx)}
		}
	}
}

// isRefused reports whether the peer has closed a connection permanently. With a TokenSource, 1008 is not
// permanent: a server sends it when the token of the handshake expires (ACCP-D75).
func (t *connTransport) isRefused(w *wsConn) bool {
	e, ok := errors.AsType[*wsconn.CloseError](w.why())
	if ok && e.Code == wsconn.CodeNotAllowed && t.opts.TokenSource != nil {
		return false
	}
	return ok && retry.ClassOf(e) == retry.Permanent
}

// send registers the call of a message and queues its frames.
func (t *connTransport) send(a *attempt, s *Session, m *Message) (*SendResult, error) {
	w, err := t.redial(a)
	if err != nil {
		return nil, err
	}
	cid := ""
	if m.Meta != nil && !isOneWay(m.Intent) {
		cid = m.Meta.CID
	}
	var sent *SendResult
	_, err = w.post(a.ctx, false, func() (*SendResult, error) {
		if _, isOpen := w.calls.Get(cid); cid != "" && isOpen {
			return nil, errSameChain
		}
		if n, _ := w.calls.Stats(); n >= maxCalls { // before a number is used up
			return nil, fail(ErrBudgetExceeded, "more than %d open calls", maxCalls)
		}
		var err error
		if sent, err = a.number(s, m); err == nil && len(sent.Frames) > 0 && !isOneWay(m.Intent) {
			// The call is registered before its frames are sent.
			a.call, err = w.addCall(sent)
		}
		return sent, err
	})
	if err != nil && a.call != nil {
		w.removeCall(sent, a.call)
		a.call = nil
	}
	switch {
	case !errors.Is(err, ErrUnreachable) || a.ctx.Err() != nil:
		return sent, err
	case sent == nil:
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	return sent, nil // numbered; the frames are sent over the next connection
}

// isOneWay reports whether a message with this intent is sent without waiting for an answer.
func isOneWay(i Intent) bool { return i == IntentCancel || i == IntentAck || i == intentPong }

// redial returns the connection. An error of a peer that cannot be reached, or not in time, is errUnsent.
func (t *connTransport) redial(a *attempt) (*wsConn, error) {
	if w := t.usable(); w != nil {
		return w, nil // without the timer of a wait
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.timeout)
	defer cancel()
	w, err := t.connect(ctx)
	if err != nil && !isRefusal(err) && t.awaitReturn(ctx) {
		w, err = t.connect(ctx)
	}
	if err == nil || a.ctx.Err() != nil || t.life.Ready() != nil || isRefusal(err) {
		return w, err
	}
	if errors.Is(err, ErrTimeout) { // which is that of an answer to a message (ACCP-D78)
		err = fmt.Errorf("%w: %v", ErrUnreachable, err)
	}
	return nil, fmt.Errorf("%w: %w", errUnsent, err)
}

// isRefusal reports whether each later attempt to connect fails alike. A peer that fails or has no room may accept
// the next one.
func isRefusal(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok && !errors.Is(err, ErrSessionEnded) {
		return !e.Code.Info().Retryable && e.Code != ErrBudgetExceeded
	}
	return retry.ClassOf(err) == retry.Permanent
}

// transmit sends the frames unless send has queued them. After a failure, all are sent again.
func (t *connTransport) transmit(a *attempt, _ *Session, sent *SendResult, first int) (int, error) {
	if isOneWay(a.m.Intent) {
		return first, nil
	}
	k := a.call
	a.call = nil
	if k == nil {
		w, err := t.redial(a)
		if err != nil {
			return first, err
		}
		if k, err = w.addCall(sent); err != nil {
			return first, fmt.Errorf("%w: %w", errUnsent, err)
		}
		if _, err = w.post(a.ctx, false, func() (*SendResult, error) { return sent, nil }); err != nil {
			w.removeCall(sent, k)
			return first, err
		}
	}
	w := k.conn
	defer w.removeCall(sent, k)
	isFinished := false
	defer func() { // also after a panic or runtime.Goexit in the loop of the caller
		if !isFinished && w.ctx.Err() == nil {
			t.abort(sent.Message.Op, a.chain)
		}
	}()
	isFinished, err := t.answers(a, w, k, sent)
	return first, err
}

// answers delivers the answers of a call. The call is not finished if the peer continues to answer
// it and no retry may follow, which accepts late answers.
func (t *connTransport) answers(a *attempt, w *wsConn, k *call, sent *SendResult) (isFinished bool, err error) {
	t.Session().startWork(&k.work, k, a.chain)
	defer k.work.end()
	skip := receipts(sent)
	for {
		q, err := w.next(a.ctx, k, a.timeout)
		switch {
		case err == nil && q.isCancel, errors.Is(err, ErrCancelled) && a.ctx.Err() == nil:
			a.mayHaveRun = true
			return true, ErrCancelled
		case err != nil:
			a.mayHaveRun = true
			return a.ctx.Err() == nil && !errors.Is(err, ErrSlowReader), err
		case skip > 0 && q.m.Intent == IntentAck:
			skip--
			continue
		}
		isLast := last(a.m.Intent, q.m)
		more, err := a.deliver(q.m)
		if err != nil || isLast || !more {
			return isLast || err != nil, err
		}
	}
}

// receipts returns the number of acks before the answer: one for each part but the last, in a separate chain
// unless the message has a cid.
func receipts(sent *SendResult) int {
	n := len(sent.Frames) - len(sent.announced) - 1
	if sent.Message.Meta.CID == "" {
		return min(n, 1)
	}
	return n
}

// abortWait bounds the wait of a call that has ended until its cancel is queued.
const abortWait = 100 * time.Millisecond

// abort cancels a chain at the peer, if the connection still exists. While the queue is full, it continues in
// the background.
func (t *connTransport) abort(op, chain string) {
	sent := make(chan struct{})
	err := t.life.Go("cancel", func(ctx context.Context) {
		defer close(sent)
		t.cancelChain(ctx, op, chain)
	})
	if err != nil {
		return
	}
	timer := time.NewTimer(abortWait)
	defer timer.Stop()
	select {
	case <-sent:
	case <-timer.C:
	}
}

func (t *connTransport) cancelChain(ctx context.Context, op, chain string) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timing.WriteTimeout)
	defer cancel()
	w, err := t.connect(ctx)
	if err == nil {
		m := &Message{Intent: IntentCancel, Op: op, Meta: &Meta{CID: chain}}
		_, err = w.post(ctx, false, func() (*SendResult, error) { return t.Session().Send(ctx, m) })
	}
	if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrUnreachable) {
		t.opts.Logger.WarnContext(ctx, "accp: cancel not sent", "session", t.Session().id, "err", fmt.Errorf("chain %s: %w", chain, err))
	}
}

// last reports whether m is the last answer to a message with this intent.
func last(intent Intent, m *Message) bool {
	switch m.Intent {
	case IntentDone, IntentFail, IntentEnd, intentPong, IntentSync:
		return true
	case IntentStream:
		v, _ := m.Params.Get("is_final")
		final, _ := v.Bool()
		return final
	case IntentAck:
		return intent != IntentReq && intent != IntentQry
	}
	return false
}
