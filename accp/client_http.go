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
	"github.com/fivewire/fivewire/internal/life"
)

// A postTransport sends each frame with a request. The response has the answers.
type postTransport struct {
	*Client
	http   *httpx.Client
	header http.Header // of each request
}

func newPostTransport(c *Client) *postTransport {
	t := &postTransport{c, httpx.NewClient(c.httpOptions()), c.header()}
	t.header.Set("Content-Type", MediaType)
	if t.header["Accept"] == nil {
		t.header.Set("Accept", MediaType)
	}
	return t
}

func (t *postTransport) abort(string, string) {} // the end of its request ends a chain

func (t *postTransport) close(callsDone <-chan struct{}) {
	<-callsDone
	t.http.Close()
}

// use waits for a free session. A cancel uses that of its chain, since it ends the exchange in it.
func (t *postTransport) use(a *attempt) (*Session, bool, error) {
	if s := t.running(a.m); s != nil {
		return s, false, nil
	}
	s, err := t.take(a.ctx, a.timeout)
	return s, true, err
}

func (t *postTransport) prepare(a *attempt, s *Session) error {
	if s.greeting.hasGreeted() && !s.isBehind.Load() || t.opts.skipGreeting || a.m.Intent == IntentCancel {
		return nil
	}
	s.isBehind.Store(false)
	_, err := t.greet(a, s)
	return err
}

func (t *postTransport) greet(a *attempt, s *Session) (bool, error) {
	m := s.greeting.begin()
	for range 4 { // hello, delta, hello: the longest exchange
		next := (*Message)(nil)
		var failure error
		g := t.newAttempt(a.ctx, m, a.timeout)
		g.yield = func(r *Message, _ error) bool {
			if r.Intent == IntentSync && r.Op == opRegistry {
				next, failure = s.greeting.answer(r)
			}
			return failure == nil
		}
		err := t.exchange(g, s)
		if err = cmp.Or(err, failure); err != nil {
			s.greeting.reset() // the next call greets again
			return false, err
		}
		if m = next; m == nil {
			break
		}
	}
	return s.greeting.synced(), nil
}

func (t *postTransport) send(a *attempt, s *Session, m *Message) (*SendResult, error) {
	return a.number(s, m)
}

// running returns the session of the running chain that m cancels, or nil.
func (t *postTransport) running(m *Message) *Session {
	if m.Intent != IntentCancel || m.Meta == nil {
		return nil
	}
	for _, s := range t.all {
		if s.chains.isRunning(m.Meta.CID) {
			return s
		}
	}
	return nil
}

// transmit ends with the chain.
func (t *postTransport) transmit(a *attempt, s *Session, sent *SendResult, first int) (int, error) {
	chain := sent.Message.Chain()
	both := &struct {
		work    life.Work
		inChain running
	}{}
	work := &both.work
	if work.Start(a.ctx, t.life, life.Request) != nil {
		return first, ErrClosed
	}
	defer work.Finish()
	if sent.Message.Intent != IntentCancel {
		s.startWork(&both.inChain, work, chain)
		defer both.inChain.end()
	}
	for i := first; i < len(sent.Frames); i++ {
		isAnswered, more, err := t.transmitFrame(work, a, s, chain, sent.Frames[i], i == len(sent.Frames)-1)
		if (err != nil || !isAnswered) && errors.Is(context.Cause(work), ErrCancelled) && a.ctx.Err() == nil {
			a.mayHaveRun = a.mayHaveRun || mayHaveArrived(err)
			err = ErrCancelled // the peer sends nothing in a cancelled chain
		}
		if err != nil || !more {
			return i, err
		}
	}
	return len(sent.Frames), nil
}

// transmitFrame sends a frame and delivers its answers. More is false at the end of the loop of the caller.
func (t *postTransport) transmitFrame(work *life.Work, a *attempt, s *Session, chain string, frame []byte, isLast bool) (isAnswered, more bool, err error) {
	for r, err := range t.post(work, s, chain, frame, a.timeout) {
		if err != nil {
			return false, false, t.recovered(work, err)
		}
		isAnswered = true
		m := r.Message
		switch {
		case !isLast && m.Intent == IntentAck:
			continue // of a part
		case isUnrelated(m, chain):
			t.opts.Logger.WarnContext(work, "accp: unrelated message skipped", "intent", string(m.Intent), "operation", m.Op)
			continue
		case r.Outcome == OutcomeCancelled:
			return true, false, ErrCancelled
		}
		if more, err := a.deliver(m); err != nil || !more {
			return true, false, err
		}
	}
	return isAnswered, true, nil
}

// isUnrelated reports whether m belongs to another chain, and is not an error of the whole response.
func isUnrelated(m *Message, chain string) bool {
	return m.Meta.CID != "" && m.Meta.CID != chain && m.Intent != IntentFail
}

// post sends one frame and yields the results of receiving the answer.
func (t *postTransport) post(work *life.Work, s *Session, chain string, frame []byte, timeout time.Duration) iter.Seq2[ReceiveResult, error] {
	return func(yield func(ReceiveResult, error) bool) {
		timer := time.AfterFunc(timeout, func() { work.Cancel(errNoAnswer) })
		defer timer.Stop()
		body, err := t.open(work, frame)
		if err != nil {
			yield(ReceiveResult{}, timedOut(work, err))
			return
		}
		defer body.Close()
		in := arrival{isClient: true, chain: chain}
		isAnswered := false
		frames := newScanner(body, t.opts.Session.FrameLimits.withDefaults().MaxFrame)
		for {
			answer, err := frames.Next()
			if err == io.EOF {
				return
			}
			timer.Stop() // the timeout bounds the peer alone
			if err != nil {
				yield(ReceiveResult{}, unread(work, err))
				return
			}
			r, err := s.receive(work, answer, in)
			if e, ok := errors.AsType[*Error](err); ok && e.isReplay && isAnswered {
				timer.Reset(timeout)
				continue // the transport has doubled a frame
			}
			if err != nil {
				yield(ReceiveResult{}, refusedBy(err, &s.codec, answer))
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

// unread returns the error of a response that cannot be read. One that is not a frame is permanent.
func unread(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, ErrParse) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return timedOut(ctx, &Error{Code: ErrTimeout, Message: "answer truncated", Cause: errors.Join(ErrTruncated, err)})
}

// refusedBy returns the error of receiving an answer. An error frame without session id that is out of order is
// the error: a server that cannot use the session sends it outside of its order (ACCP-D52).
func refusedBy(err error, c *Codec, answer []byte) error {
	if !errors.Is(err, ErrSequenceGap) {
		return err
	}
	m, derr := c.Decode(answer)
	if derr == nil && m.Meta != nil && m.Meta.SID == "" {
		if e := ErrorFromMessage(m); e != nil {
			return e
		}
	}
	return err
}

var acceptedTypes = []string{MediaType}

// open sends the request and returns the body of the response. An error frame may come under any
// status (ACCP-D53).
func (t *postTransport) open(ctx context.Context, frame []byte) (io.ReadCloser, error) {
	res, err := t.http.Do(ctx, &httpx.Request{Op: "accp: send frame", Method: http.MethodPost, URL: t.url, Header: t.header,
		Body: frame, Accept: acceptedTypes})
	if err == nil {
		return res.Body, nil
	}
	var e *httpx.Error
	if errors.As(err, &e) && e.Status/100 != 2 && len(e.Body) > 0 && isMediaType(e.Header.Get("Content-Type")) {
		return io.NopCloser(bytes.NewReader(e.Body)), nil
	}
	return nil, err
}
