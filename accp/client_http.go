// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/httpx"
)

// SyncRegistry exchanges the registries in every session of the client and reports whether both
// sides then have the same schemas. Clients do so before their first message, and again when the peer
// lacks a schema (ACCP-D74).
func (c *Client) SyncRegistry(ctx context.Context) (isSynced bool, err error) {
	isSynced = true
	a := c.newAttempt(ctx, &Message{Intent: IntentSync, Op: OpRegistry}, c.opts.Timing.Timeout)
	for range c.all {
		if c.http != nil {
			s, err := c.take(ctx, c.opts.Timing.Timeout)
			if err != nil {
				return false, c.final(ctx, a, err)
			}
			defer func() { c.free <- s }() // after the loop, so that each session is synchronized once
			err = c.greetAgain(a, s)
			if err != nil {
				return false, c.final(ctx, a, err)
			}
			isSynced = isSynced && s.isSynced(&s.exchange)
			continue
		}
		w, err := c.connect(ctx)
		if err != nil {
			return false, c.final(ctx, a, err)
		}
		isSynced = c.session.isSynced(&w.registry)
	}
	return isSynced, nil
}

// greet exchanges the registries before the first message of a session over HTTP. Opening a connection
// does so over WebSocket.
func (c *Client) greet(a *attempt, s *Session) error {
	if c.http == nil || s.hasGreeted() || c.opts.skipGreeting || a.m.Intent == IntentCancel {
		return nil
	}
	return c.greetAgain(a, s)
}

// greetAgain begins an exchange of registries and ends it.
func (c *Client) greetAgain(a *attempt, s *Session) error {
	if c.http == nil {
		w, err := c.connect(a.ctx)
		if err != nil {
			return err
		}
		return w.greet(a.ctx, a.timeout)
	}
	m := s.hello(&s.exchange)
	for range 4 { // hello, delta, hello: the longest exchange
		next := (*Message)(nil)
		var failure error
		g := c.newAttempt(a.ctx, m, a.timeout)
		g.yield = func(r *Message, _ error) bool {
			if r.Intent == IntentSync && r.Op == OpRegistry {
				s.mu.Lock()
				next, failure = s.answerLocked(&s.exchange, r)
				s.mu.Unlock()
			}
			return failure == nil
		}
		err := c.exchange(g, s)
		if err = cmp.Or(err, failure); err != nil {
			s.mu.Lock()
			s.exchange = exchangeState{} // the next call greets again
			s.mu.Unlock()
			return err
		}
		if m = next; m == nil {
			break
		}
	}
	return nil
}

// running returns the session of the running chain that m cancels, or nil. A cancel does not wait
// for a free session, since it ends the exchange that holds the session.
func (c *Client) running(m *Message) *Session {
	if m.Intent != IntentCancel || m.Meta == nil {
		return nil
	}
	for _, s := range c.all {
		s.mu.Lock()
		_, ok := s.running[m.Meta.CID]
		s.mu.Unlock()
		if ok {
			return s
		}
	}
	return nil
}

// take waits for a session without a running exchange.
func (c *Client) take(ctx context.Context, timeout time.Duration) (*Session, error) {
	select {
	case s := <-c.free:
		return s, nil
	default:
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case s := <-c.free:
		return s, nil
	case <-timer.C:
		return nil, fail(ErrTimeout, "another exchange is running")
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "another exchange is running", Cause: context.Cause(ctx)}
	}
}

// transmitPosts sends the frames of a message, each with a request, and delivers the messages that
// answer it. It ends with the chain, and returns the number of the frame that failed.
func (c *Client) transmitPosts(a *attempt, s *Session, sent *SendResult, first int) (int, error) {
	chain, ctx := sent.Message.Chain(), a.ctx
	if sent.Message.Intent != IntentCancel {
		var done context.CancelFunc
		ctx, done = s.ChainContext(ctx, chain)
		defer done()
	}
	for i := first; i < len(sent.Frames); i++ {
		for r, err := range c.post(ctx, s, chain, sent.Frames[i], a.timeout) {
			if err != nil {
				if ctx.Err() != nil && a.ctx.Err() == nil && c.life.Ready() == nil {
					err = ErrCancelled
				}
				return i, err
			}
			m := r.Message
			switch {
			case i < len(sent.Frames)-1 && m.Intent == IntentAck:
				continue // of a part
			case m.Meta.CID != "" && m.Meta.CID != chain && m.Intent != IntentFail:
				c.opts.Logger.WarnContext(ctx, "accp: unrelated message skipped", "intent", string(m.Intent), "operation", m.Op)
				continue
			case r.Outcome == OutcomeCancelled:
				return i, ErrCancelled
			}
			if more, err := a.deliver(m); err != nil || !more {
				return i, err
			}
		}
	}
	return len(sent.Frames), nil
}

// post sends one frame and yields the results of receiving the answer.
func (c *Client) post(ctx context.Context, s *Session, chain string, frame []byte, timeout time.Duration) iter.Seq2[*ReceiveResult, error] {
	return func(yield func(*ReceiveResult, error) bool) {
		work, err := c.life.Start(ctx, 0)
		if err != nil {
			yield(nil, ErrClosed)
			return
		}
		defer work.Finish()
		ctx, cancel := context.WithCancelCause(work)
		defer cancel(nil)
		timer := time.AfterFunc(timeout, func() { cancel(errNoAnswer) })
		defer timer.Stop()
		body, err := c.open(ctx, frame)
		if err != nil {
			yield(nil, timedOut(ctx, err))
			return
		}
		defer body.Close()
		in := arrival{answers: func(cid string) bool { return cid == chain || cid == "" }}
		isAnswered := false
		frames := NewScanner(body, c.opts.Session.FrameLimits.withDefaults().MaxFrame)
		for {
			answer, err := frames.Next()
			if err == io.EOF {
				return
			}
			timer.Stop() // the timeout bounds the peer alone
			if err != nil {
				if ctx.Err() != nil || !errors.Is(err, ErrParse) || errors.Is(err, io.ErrUnexpectedEOF) {
					err = timedOut(ctx, &Error{Code: ErrTimeout, Message: "answer truncated", Cause: errors.Join(ErrTruncated, err)})
				}
				yield(nil, err)
				return
			}
			r, err := s.receive(ctx, answer, in)
			if e, ok := errors.AsType[*Error](err); ok && e.isReplay && isAnswered {
				timer.Reset(timeout)
				continue // the transport has doubled a frame
			}
			if errors.Is(err, ErrSequenceGap) {
				if e := withoutSession(&s.codec, answer); e != nil {
					err = e
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
			isAnswered = true
			if r.Outcome == OutcomeDelivered || r.Outcome == OutcomeCancelled {
				if !yield(r, nil) {
					return
				}
			}
			timer.Reset(timeout)
		}
	}
}

var errNoAnswer = fail(ErrTimeout, "no answer in time")

// timedOut returns err, with the timeout if that has ended ctx.
func timedOut(ctx context.Context, err error) error {
	if context.Cause(ctx) == error(errNoAnswer) {
		return &Error{Code: ErrTimeout, Message: errNoAnswer.Message, Cause: err}
	}
	return err
}

// withoutSession returns the error of an error frame without session id, or nil for any other
// frame. A server that cannot use the session sends such a frame outside of its order (ACCP-D52).
func withoutSession(c *Codec, frame []byte) *Error {
	m, err := c.Decode(frame)
	if err != nil || m.Meta == nil || m.Meta.SID != "" {
		return nil
	}
	return ErrorFromMessage(m)
}

// open sends the request and returns the body of the response. An error frame may come under any
// status (ACCP-D53).
func (c *Client) open(ctx context.Context, frame []byte) (io.ReadCloser, error) {
	h := c.header()
	h.Set("Content-Type", MediaType)
	res, err := c.http.Do(ctx, &httpx.Request{Op: "accp: send frame", Method: http.MethodPost, URL: c.url, Header: h,
		Body: frame, Accept: []string{MediaType}})
	if err == nil {
		return res.Body, nil
	}
	var e *httpx.Error
	if errors.As(err, &e) && e.Status/100 != 2 && len(e.Body) > 0 && isMediaType(e.Header.Get("Content-Type")) {
		return io.NopCloser(bytes.NewReader(e.Body)), nil
	}
	return nil, err
}
