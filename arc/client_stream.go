// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// errStreamUsed reports a stream that is ranged over a second time.
var errStreamUsed = errors.New("arc: a stream can be ranged over once only")

// Stream sends a request for a streamed response, with params as in [Client.Call];
// those of a chat must contain stream: true, which [Client.StreamChat] and
// [Client.StreamChatMessage] set. The request is sent when the events are ranged
// over, which can be done once.
//
// The last event of a complete response has Done set. An error is yielded once and
// last: an [*Error] of the peer, [ErrTruncated] or the network error for a cut
// stream, [ErrTimeout] for a silent one. Leaving the loop closes the connection,
// which ends the work of the peer. A response without streaming is yielded as one
// event, followed by the end (ARC-D24).
func (c *Client) Stream(ctx context.Context, target, method string, params any, opts *CallOptions) iter.Seq2[*ChatEvent, error] {
	text, err := encodeParams(params)
	if err != nil {
		return failed(c.named(&Request{Method: method, TargetAgent: target}, err))
	}
	events, err := c.guardedStream(ctx, c.outgoing(ctx, target, method, text, opts))
	if err != nil {
		return failed(err)
	}
	return guard.Once(events, errStreamUsed)
}

// guardedStream calls the stream interceptors. Their panic is the error of the stream.
func (c *Client) guardedStream(ctx context.Context, out *ClientRequest) (iter.Seq2[*ChatEvent, error], error) {
	if len(c.opts.StreamInterceptors) == 0 {
		return c.stream(ctx, out), nil
	}
	var events iter.Seq2[*ChatEvent, error]
	err := guard.Call("stream interceptor", func() error {
		events = c.stream(ctx, out)
		return nil
	})
	return guard.Seq("stream interceptor", events), err
}

func failed(err error) iter.Seq2[*ChatEvent, error] {
	return func(yield func(*ChatEvent, error) bool) { yield(nil, err) }
}

// openStream is the [StreamFunc] under all interceptors.
func (c *Client) openStream(ctx context.Context, out *ClientRequest) iter.Seq2[*ChatEvent, error] {
	return func(yield func(*ChatEvent, error) bool) {
		s := &streaming{c: c, x: transfer{c: c, out: out}, yield: yield}
		work := &s.x.work
		err := work.Start(ctx, c.life, life.Request)
		if err != nil {
			yield(nil, c.named(&out.Request, err))
			return
		}
		defer work.Finish()
		s.x.header, err = c.header(work, &s.x, c.acceptStream)
		if err == nil {
			s.x.data, err = AppendRequest(s.x.buf[:0], &out.Request)
		}
		if err != nil {
			yield(nil, c.named(&out.Request, err))
			return
		}
		for cut := 0; ; cut++ {
			before := s.lastID
			if cut > 0 {
				err = s.resume(work, err)
			}
			if err == nil {
				err = s.run(work)
			}
			if before != s.lastID {
				cut = 0 // there was progress
			}
			if err == nil {
				return
			}
			if cut >= c.opts.MaxResumes || !s.resumable(work, err) {
				yield(nil, c.named(&out.Request, err))
				return
			}
			c.opts.Logger.WarnContext(ctx, "arc: stream resumed", "method", out.Method, "attempt", cut+1, "err", err)
			if retry.Sleep(work, retry.Delay(cut+1, 200*time.Millisecond, time.Minute)) != nil {
				yield(nil, c.named(&out.Request, err))
				return
			}
		}
	}
}

// A streaming is a stream over one connection or several.
type streaming struct {
	c      *Client
	x      transfer
	yield  func(*ChatEvent, error) bool
	lastID string // of the last event that carried one
	status int    // of the last response unless it was 2xx, or 0

	numbers wire.EventNumbers

	idle  time.Duration
	timer *time.Timer
}

// resume prepares the next request after an error, with the present token.
func (s *streaming) resume(ctx context.Context, err error) error {
	h := maps.Clone(s.x.header) // a connection may still write the other one
	h["Last-Event-Id"] = []string{s.lastID}
	if s.x.tokens != nil {
		delete(h, "Authorization")
		if err := s.x.authorize(ctx, h); err != nil {
			return err
		}
	}
	if errors.Is(err, ErrTokenExpired) && slices.Equal(h["Authorization"], s.x.header["Authorization"]) {
		s.status = http.StatusUnauthorized // of a request with the same token
		return err
	}
	s.x.header = h
	return nil
}

// resumable reports whether the connection failed, not the work, and the last
// event had an id.
func (s *streaming) resumable(ctx context.Context, err error) bool {
	var e *Error
	var h *HTTPError
	switch {
	case s.lastID == "" || ctx.Err() != nil:
		return false
	case errors.Is(err, ErrTokenExpired) && s.status == 0 && s.numbers.ID == s.lastID: // no event of the stream
		return true
	case errors.As(err, &e) || errors.As(err, &h):
		return retry.IsAway(s.status) // it answers only the attempt to resume
	}
	return !errors.Is(err, ErrMalformedEvent) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrRedirect) &&
		retry.ClassOf(err) != retry.Permanent
}

// run reads the stream from one connection. It returns nil after a done event,
// and when the user left the loop.
func (s *streaming) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	s.idle = cmp.Or(s.x.out.Timeout, s.c.opts.IdleTimeout)
	if s.idle > 0 {
		s.timer = time.AfterFunc(s.idle, func() { cancel(ErrTimeout) })
		defer s.timer.Stop()
	}
	var resp *http.Response
	err := retry.Do(ctx, s.c.retry, s.c.isIdempotent(s.x.out), func(ctx context.Context, _ int) (err error) {
		s.awake()
		resp, err = s.open(ctx)
		if err != nil && s.timer != nil {
			s.timer.Stop() // a delay before the next attempt is no silence
		}
		return err
	})
	if err != nil {
		return s.c.failure(ctx, s.x.out, err)
	}
	defer resp.Body.Close() // on break and panic too
	if mediaType(resp.Header) == mediaTypeStream {
		return s.events(ctx, resp)
	}
	return s.whole(ctx, resp)
}

// open sends the request. A response with another status than 2xx is a response, too.
func (s *streaming) open(ctx context.Context) (*http.Response, error) {
	resp, err := s.x.do(ctx, -1)
	s.status = 0
	var e *httpx.Error
	if !errors.As(err, &e) || e.Status == 0 {
		return resp, err
	}
	s.status = e.Status
	if s.c.opts.Retry.MaxRetryAfter > 0 && e.Header.Get("Retry-After") != "" &&
		(e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable) {
		return nil, retry.MarkStatus(httpError(e.Status, e.Body), e.Status, e.Header)
	}
	return &http.Response{StatusCode: e.Status, Header: e.Header, ContentLength: int64(len(e.Body)),
		Body: io.NopCloser(bytes.NewReader(e.Body))}, nil
}

// awake restarts the timer for a silent peer.
func (s *streaming) awake() {
	if s.timer != nil {
		s.timer.Reset(s.idle)
	}
}

// An idleReader measures the time that a reader waits for bytes, not the time
// that the caller uses them.
type idleReader struct {
	s    *streaming
	body io.Reader
}

func (r idleReader) Read(p []byte) (int, error) {
	if r.s.timer == nil {
		return r.body.Read(p)
	}
	r.s.timer.Reset(r.s.idle)
	n, err := r.body.Read(p)
	r.s.timer.Stop()
	return n, err
}

// events reads a stream of events.
func (s *streaming) events(ctx context.Context, resp *http.Response) error {
	in := newStreamReader(idleReader{s, resp.Body}, s.c.opts.Limits.MaxEvent, s.ignored(ctx))
	in.numbers = &s.numbers
	for {
		ev, err := in.Next()
		if err != nil || resp.StatusCode >= http.StatusBadRequest {
			return s.endOf(ctx, resp, err)
		}
		if ev.ID != "" {
			s.lastID = ev.ID
		}
		more := s.yield(ev, nil)
		if ev.Done {
			s.drain(resp)
			return nil
		}
		if !more {
			return nil
		}
	}
}

// ignored returns the guarded hook for unknown events.
func (s *streaming) ignored(ctx context.Context) func(string, []byte) {
	f := s.c.opts.OnUnknownEvent
	if f == nil {
		return nil
	}
	return func(name string, data []byte) {
		err := guard.Call("OnUnknownEvent", func() error {
			f(name, data)
			return nil
		})
		if err != nil {
			s.c.opts.Logger.ErrorContext(ctx, "arc: panic recovered", "err", err)
		}
	}
}

// endOf returns the error of a stream that ends without a valid done event.
func (s *streaming) endOf(ctx context.Context, resp *http.Response, err error) error {
	var fault *Error
	switch {
	case errors.As(err, &fault):
		s.c.refused(&s.x, err)
		return err
	case resp.StatusCode >= http.StatusBadRequest:
		return httpError(resp.StatusCode, nil) // no success, whatever the events say
	case ctx.Err() != nil && !errors.Is(err, ErrMalformedEvent) && !errors.Is(err, ErrTooLarge):
		return s.c.failure(ctx, s.x.out, &httpx.Error{Cause: err})
	}
	return err
}

// drain reads the end of a finished body, so that the connection can be reused. It
// does not wait for a peer that keeps the body open.
func (s *streaming) drain(resp *http.Response) {
	const patience = 100 * time.Millisecond
	if s.timer == nil {
		return
	}
	s.timer.Reset(patience)
	_, _ = io.CopyN(io.Discard, resp.Body, maxErrorText)
}

// whole reads a response without a stream (ARC-D23, ARC-D24).
func (s *streaming) whole(ctx context.Context, resp *http.Response) error {
	media := mediaType(resp.Header)
	limit := int64(s.c.opts.Limits.MaxMessage)
	data, err := io.ReadAll(io.LimitReader(idleReader{s, resp.Body}, limit+1))
	switch {
	case int64(len(data)) > limit && resp.StatusCode >= http.StatusBadRequest:
		return httpError(resp.StatusCode, data)
	case int64(len(data)) > limit:
		return ErrTooLarge
	case err != nil:
		return s.c.failure(ctx, s.x.out, err)
	}
	out := s.x.out
	res, err := DecodeResponse(data, out.ID)
	switch json := media == MediaType || media == "application/json"; {
	case err != nil && !errors.Is(err, ErrIDMismatch) && (resp.StatusCode >= http.StatusBadRequest || !json):
		err = httpError(resp.StatusCode, data)
	case err == nil && res.Error != nil:
		err = res.Error
	}
	if err != nil {
		s.c.refused(&s.x, err)
		return err
	}
	chat, err := chatIn(out.Method, res)
	if err != nil {
		return err
	}
	if s.lastID != "" {
		return fmt.Errorf("%w: the rest of the stream is a whole answer", ErrMalformedEvent)
	}
	if chat.Message != nil {
		ev := &ChatEvent{ChatID: chat.ID, Message: chat.Message, Text: chat.Message.Text()}
		if !s.yield(ev, nil) {
			return nil
		}
	}
	s.yield(&ChatEvent{ChatID: chat.ID, Done: true, Status: chat.Status}, nil)
	return nil
}

// chatIn returns the chat of a result. An acknowledgment, and the result of a
// custom method without one, has an empty chat.
func chatIn(method string, res *Response) (*Chat, error) {
	got, err := DecodeResult(method, res.Result)
	if err != nil {
		return nil, err
	}
	if got.Object != nil {
		got.Chat, _ = readMember[Chat](strictjson.Value(got.Object).Get("chat"), "chatId", "chatId")
	}
	if got.Chat == nil {
		return &Chat{}, nil
	}
	return got.Chat, nil
}
