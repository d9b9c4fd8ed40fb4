// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// connect returns the connection. The first call opens it, and so does the next call after its loss. It
// is complete when the greeting was answered (ACCP-D74). The context bounds the handshake only.
func (c *Client) connect(ctx context.Context) (*wsConn, error) {
	select {
	case <-c.dialing:
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "no connection in time", Cause: context.Cause(ctx)}
	}
	defer func() { c.dialing <- struct{}{} }()
	if c.conn != nil && (c.conn.ctx.Err() == nil || c.conn.isRefused()) {
		return c.conn, nil
	}
	work, err := c.life.Start(ctx, life.Request)
	if err != nil {
		return nil, ErrClosed
	}
	defer work.Finish()
	r := c.responder()
	o := &wsconn.DialOptions{Options: r.socketOptions(), HTTP: *c.httpOptions(), Header: c.header()}
	conn, err := wsconn.Dial(work, c.url.String(), o)
	if err != nil {
		return nil, err
	}
	w := r.newConn(context.Background(), conn, &caller{peer: c.url.Host})
	w.session, w.calls = c.session, calls.New[*call](calls.Options{MaxPending: -1})
	if err := c.life.Go("connection", func(context.Context) { w.run(nil) }); err != nil {
		conn.Close(wsconn.CodeNormal, "")
		return nil, ErrClosed
	}
	for range maxGreetings {
		if err = w.greet(work, c.opts.Timing.Timeout); !errors.Is(err, ErrSequenceGap) {
			break
		}
	}
	if err != nil {
		w.finish(wsconn.CodeNormal, "")
		return nil, err
	}
	c.conn = w
	_ = c.life.Go("reconnect", func(ctx context.Context) { c.keepOpen(ctx, w) })
	return w, nil
}

// keepOpen opens the connection again after the loss of w, until Close or a permanent refusal.
func (c *Client) keepOpen(ctx context.Context, w *wsConn) {
	select {
	case <-w.ctx.Done():
	case <-c.done:
		return
	}
	if w.isRefused() || c.life.Ready() != nil {
		return
	}
	isAgain := c.beginLoss()
	defer c.endLoss(isAgain)
	c.opts.Logger.WarnContext(ctx, "accp: connection lost", "peer", c.peer(), "session", c.session.id, "err", w.why())
	for p := (progress{}); ; {
		timer := time.NewTimer(p.delay(c.opts.Retry, 0))
		select {
		case <-timer.C:
		case <-c.done:
			timer.Stop()
			return
		}
		dialing, cancel := context.WithTimeout(ctx, c.opts.Timing.Timeout)
		_, err := c.connect(dialing)
		cancel()
		switch {
		case err == nil:
			if c.opts.OnReconnect != nil {
				_ = guard.Call("reconnect hook", func() error {
					c.opts.OnReconnect(ctx)
					return nil
				})
			}
			return
		case c.life.Ready() != nil, errors.Is(err, ErrSessionEnded):
			return
		case retry.ClassOf(err) == retry.Permanent:
			c.opts.Logger.ErrorContext(ctx, "accp: connection refused", "peer", c.peer(), "session", c.session.id, "err", err)
			return
		}
		c.opts.Logger.WarnContext(ctx, "accp: connection not opened", "peer", c.peer(), "session", c.session.id, "err", err)
	}
}

// beginLoss returns the channel that waiting calls wait for.
func (c *Client) beginLoss() chan struct{} {
	c.lossMu.Lock()
	defer c.lossMu.Unlock()
	c.isAgain = make(chan struct{})
	return c.isAgain
}

func (c *Client) endLoss(isAgain chan struct{}) {
	c.lossMu.Lock()
	defer c.lossMu.Unlock()
	if c.isAgain == isAgain {
		c.isAgain = nil
	}
	close(isAgain)
}

// awaitReturn waits until a lost connection was opened again. It returns false if none is being opened, and
// at the end of the time or of the call.
func (c *Client) awaitReturn(a *attempt) bool {
	c.lossMu.Lock()
	isAgain := c.isAgain
	c.lossMu.Unlock()
	if isAgain == nil {
		return false
	}
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case <-isAgain:
		return true
	case <-timer.C:
	case <-a.ctx.Done():
	case <-c.done:
	}
	return false
}

// greet begins an exchange of registries and waits for the answer.
func (c *wsConn) greet(ctx context.Context, timeout time.Duration) error {
	isAnswered := make(chan struct{})
	c.mu.Lock()
	c.greeted = sync.OnceFunc(func() { close(isAnswered) })
	c.mu.Unlock()
	var k *call
	sent, err := c.post(ctx, c.queue.PutWait, func() (*SendResult, error) {
		sent, err := c.session.Send(ctx, c.session.hello(&c.registry))
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
		case <-isAnswered:
			return nil
		case <-k.ready:
			r, err := k.take()
			if err == nil && r != nil {
				if e := ErrorFromMessage(r.Message); e != nil {
					return e
				}
				continue // an ack
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

// isRefused reports whether the peer has closed the connection permanently (ACCP-D75).
func (c *wsConn) isRefused() bool {
	e, ok := errors.AsType[*wsconn.CloseError](c.why())
	return ok && retry.ClassOf(e) == retry.Permanent
}

// sendConn numbers the message of a call, registers the call and queues the frames.
func (c *Client) sendConn(a *attempt, m *Message) (*SendResult, error) {
	w, err := c.redial(a)
	if err != nil {
		return nil, err
	}
	isCancel := m.Intent == IntentCancel // sent without waiting for an answer
	cid := ""
	if m.Meta != nil && !isCancel {
		cid = m.Meta.CID
	}
	sent, err := w.post(a.ctx, w.queue.PutWait, func() (*SendResult, error) {
		if _, isOpen := w.calls.Get(cid); cid != "" && isOpen {
			return nil, errSameChain
		}
		if n, _ := w.calls.Stats(); n > maxCalls { // before a number is used up
			return nil, fail(ErrBudgetExceeded, "more than %d open calls", maxCalls)
		}
		sent, err := a.send(c.session, m)
		if err == nil && len(sent.Frames) > 0 && !isCancel {
			// The call is registered before its frames are sent.
			a.call, err = w.addCall(sent)
		}
		return sent, err
	})
	if err != nil && a.call != nil {
		w.removeCall(sent, a.call)
		a.call = nil
		if a.ctx.Err() == nil {
			return sent, nil // numbered; the frames are sent over the next connection
		}
	}
	return sent, err
}

// redial returns the connection. An error of a peer that cannot be reached is errUnsent.
func (c *Client) redial(a *attempt) (*wsConn, error) {
	w, err := c.connect(a.ctx)
	if err != nil && retry.ClassOf(err) != retry.Permanent && c.awaitReturn(a) {
		w, err = c.connect(a.ctx)
	}
	if err != nil && a.ctx.Err() == nil && c.life.Ready() == nil && retry.ClassOf(err) != retry.Permanent {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	}
	return w, err
}

// transmitConn waits for the answers to a message, and sends its frames unless that was done.
func (c *Client) transmitConn(a *attempt, sent *SendResult) error {
	if a.m.Intent == IntentCancel {
		return nil
	}
	k := a.call
	a.call = nil
	if k == nil {
		w, err := c.redial(a)
		if err != nil {
			return err
		}
		if k, err = w.addCall(sent); err != nil {
			return err
		}
		if _, err = w.post(a.ctx, w.queue.PutWait, func() (*SendResult, error) { return sent, nil }); err != nil {
			w.removeCall(sent, k)
			return err
		}
	}
	w := k.conn
	defer w.removeCall(sent, k)
	isFinished, err := c.answers(a, w, k, sent)
	if !isFinished && w.ctx.Err() == nil {
		c.abort(sent.Message.Op, a.chain)
	}
	return err
}

// answers delivers the answers of a call. The call is not finished if the peer continues to answer
// it and no retry may follow, which accepts late answers.
func (c *Client) answers(a *attempt, w *wsConn, k *call, sent *SendResult) (isFinished bool, err error) {
	ctx, done := c.session.ChainContext(a.ctx, a.chain)
	defer done()
	// Each part but the last is answered by an ack, in a separate chain unless the message has a cid.
	skip := len(sent.Frames) - len(sent.announced) - 1
	if sent.Message.Meta.CID == "" {
		skip = min(skip, 1)
	}
	defer func() {
		if p := recover(); p != nil {
			c.abort(sent.Message.Op, a.chain)
			panic(p)
		}
	}()
	for {
		r, err := w.next(ctx, k, a.timeout)
		switch {
		case err == nil && r.Outcome == OutcomeCancelled, err != nil && ctx.Err() != nil && a.ctx.Err() == nil:
			return true, ErrCancelled
		case err != nil:
			return a.ctx.Err() == nil && !errors.Is(err, ErrSlowReader), err
		case skip > 0 && r.Message.Intent == IntentAck:
			skip--
			continue
		}
		isLast := last(a.m.Intent, r.Message)
		more, err := a.deliver(r.Message)
		if err != nil || isLast || !more {
			return isLast || err != nil, err
		}
	}
}

// abort cancels a chain at the peer, if the connection still exists.
func (c *Client) abort(op, chain string) {
	ctx, cancel := context.WithTimeout(context.Background(), c.opts.Timing.WriteTimeout)
	defer cancel()
	w, err := c.connect(ctx)
	if err == nil {
		m := &Message{Intent: IntentCancel, Op: op, Meta: &Meta{CID: chain}}
		_, err = w.post(ctx, w.queue.PutWait, func() (*SendResult, error) { return c.session.Send(ctx, m) })
	}
	if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrUnreachable) {
		c.opts.Logger.WarnContext(ctx, "accp: cancel not sent", "session", c.session.id, "err", fmt.Errorf("chain %s: %w", chain, err))
	}
}

// last reports whether m is the last answer to a message with this intent.
func last(intent Intent, m *Message) bool {
	switch m.Intent {
	case IntentDone, IntentFail, IntentEnd, IntentPong, IntentSync:
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
