// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/arc/internal/endpoint"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/retry"
)

// ErrTimeout reports a response that did not arrive in time. It wraps
// [context.DeadlineExceeded].
var ErrTimeout = fmt.Errorf("arc: timeout: %w", context.DeadlineExceeded)

// send is the [CallFunc] under all interceptors: one call, with its retries (ARC-D49).
func (c *Client) send(ctx context.Context, out *ClientRequest) (res *Response, err error) {
	x := &transfer{c: c, out: out}
	work := &x.work
	work.Timeout, work.TimeoutCause = cmp.Or(out.Timeout, c.opts.Timeout), ErrTimeout
	if err := work.Start(ctx, c.life, life.Request); err != nil {
		return nil, c.named(&out.Request, err)
	}
	defer work.Finish()
	if x.header, err = c.header(work, x, c.accept); err != nil {
		return nil, c.named(&out.Request, err)
	}
	if x.data, err = AppendRequest(x.buf[:0], &out.Request); err != nil {
		return nil, c.named(&out.Request, err)
	}
	err = retry.Do(work, c.retry, c.isIdempotent(out), func(ctx context.Context, _ int) error {
		res, err = c.once(ctx, x)
		return err
	})
	return res, c.named(&out.Request, c.failure(work, out, err))
}

// named returns an error of a call that names the call and the endpoint, as errors of package httpx do.
func (c *Client) named(out *Request, err error) error {
	if _, ok := errors.AsType[*httpx.Error](err); ok || err == nil {
		return err
	}
	return &callError{out.Method + " " + out.TargetAgent + " at " + endpoint.Name(c.endpoint), errorOfCall(err)}
}

// A callError is the error of a call.
type callError struct {
	call string
	err  error
}

// Error names the call and the error.
func (e *callError) Error() string {
	return "arc: " + e.call + ": " + strings.TrimPrefix(e.err.Error(), "arc: ")
}

// Unwrap returns the error.
func (e *callError) Unwrap() error { return e.err }

// isIdempotent reports whether running a request twice does no harm.
func (c *Client) isIdempotent(out *ClientRequest) bool {
	return c.opts.Idempotent || out.Idempotent || out.Method == MethodTaskInfo || out.Method == methodGetCapabilities
}

// once makes one attempt. Its error has a class if the request may be repeated.
func (c *Client) once(ctx context.Context, x *transfer) (*Response, error) {
	status, header, data := http.StatusOK, http.Header(nil), []byte(nil)
	resp, err := x.do(ctx, int64(c.opts.Limits.MaxMessage))
	if err == nil {
		status, header = resp.StatusCode, resp.Header
		data, err = x.read(resp)
	}
	if err != nil {
		e, _ := errors.AsType[*httpx.Error](err)
		switch {
		case errors.Is(err, httpx.ErrTooLarge):
			return nil, ErrTooLarge
		case e == nil || e.Status == 0:
			return nil, err
		}
		status, header, data = e.Status, e.Header, e.Body // the response has another status than 2xx
	}
	var res *Response
	if x.out.buffers != nil {
		res = &x.out.buffers.res
	} else {
		res = new(Response)
	}
	res, err = answerOf(res, x.out, status, data)
	c.refused(x, err)
	if err != nil && c.opts.Retry.MaxRetryAfter > 0 && header.Get("Retry-After") != "" &&
		(status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		err = retry.MarkStatus(err, status, header)
	}
	return res, err
}

// answerOf interprets the body of an answer (ARC-D12) and reads it into res.
func answerOf(res *Response, out *ClientRequest, status int, data []byte) (*Response, error) {
	if out.Method == MethodTaskNotification {
		if status < 200 || status > 299 {
			return nil, httpError(status, data)
		}
		return &Response{ID: out.ID, Result: []byte(`{"success":true}`)}, nil // ARC-114
	}
	*res = Response{}
	err := res.decode(data, &out.Request)
	switch {
	case err != nil && status >= http.StatusBadRequest && !errors.Is(err, ErrIDMismatch):
		return nil, httpError(status, data)
	case err != nil:
		return nil, err
	case res.Error != nil:
		return res, res.Error
	}
	return res, nil
}

const maxErrorText = 4 << 10

func httpError(status int, body []byte) *HTTPError {
	return &HTTPError{Status: status, Body: strings.ToValidUTF8(string(body[:min(len(body), maxErrorText)]), "\uFFFD")}
}

// failure returns the cause of a context that has ended in place of the error of the
// network, whose other errors name the call.
func (c *Client) failure(ctx context.Context, out *ClientRequest, err error) error {
	if _, ok := errors.AsType[*httpx.Error](err); !ok || ctx.Err() == nil {
		return err // names the operation and the endpoint
	}
	err = context.Cause(ctx)
	if errors.Is(err, ErrTimeout) || errors.Is(err, ErrClosed) {
		return err
	}
	return fmt.Errorf("arc: %s: %w", out.Method, err)
}

// refused notifies the token source of a refused token, so that the next call gets
// another one. This call is not repeated: its answer is an answer (ARC-D49).
func (c *Client) refused(x *transfer, err error) {
	s, ok := c.opts.TokenSource.(TokenInvalidator)
	if !ok || err == nil {
		return
	}
	var h *HTTPError
	if errors.Is(err, ErrTokenExpired) || errors.Is(err, ErrTokenInvalid) || errors.As(err, &h) && h.Status == http.StatusUnauthorized {
		if auth := x.header["Authorization"]; len(auth) == 1 {
			s.InvalidateToken(x.out.TargetAgent, strings.TrimPrefix(auth[0], "Bearer "))
		}
	}
}

// A transfer is a request with all that is needed to send it, once or again.
type transfer struct {
	c      *Client
	out    *ClientRequest
	work   life.Work
	header http.Header
	tokens TokenSource // of the token in the header; nil if the caller has given that
	trace  [1]string   // the value of a header
	data   []byte      // in buf, unless it is large
	buf    [512]byte   // part of the transfer, because a failed connection may still read it
}

// do makes one attempt to send the request.
func (x *transfer) do(ctx context.Context, limit int64) (*http.Response, error) {
	return endpoint.Do(ctx, x.c.http, &httpx.Request{Op: x.out.Method, Method: http.MethodPost,
		URL: x.c.endpoint, Header: x.header, Body: x.data, Limit: limit})
}

// read reads a response, into the buffer of the call if there is one.
func (x *transfer) read(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	var buf []byte
	if x.out.buffers != nil {
		buf = x.out.buffers.reply[:0]
	}
	// Beyond this size memory is taken as the bytes arrive, not on the word of the header.
	const trusted = 256 << 10
	if n := resp.ContentLength; n >= 0 && n <= trusted {
		buf = slices.Grow(buf, int(n)+1) // one more, so that the read that fills it also meets the end
	}
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(len(buf), 512))
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil && err != io.EOF {
			return nil, err
		}
		if err == io.EOF {
			if x.out.buffers != nil {
				x.out.buffers.reply = buf
			}
			if n := resp.ContentLength; n >= 0 && int64(len(buf)) != n {
				return nil, io.ErrUnexpectedEOF
			}
			return buf, nil
		}
	}
}

// mediaType returns the media type of an answer, in lower case.
func mediaType(h http.Header) string {
	ct := h.Get("Content-Type")
	if ct == MediaType || ct == mediaTypeStream {
		return ct
	}
	media, _, err := mime.ParseMediaType(ct)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return media
}
