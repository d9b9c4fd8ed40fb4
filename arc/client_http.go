// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// ErrTimeout reports an answer that did not come in time. It wraps
// [context.DeadlineExceeded].
var ErrTimeout = fmt.Errorf("arc: no answer in time: %w", context.DeadlineExceeded)

// send is the [CallFunc] under all interceptors: one call, with its retries.
func (c *Client) send(ctx context.Context, out *ClientRequest) (*Response, error) {
	if d := orDefault(out.Timeout, c.opts.Timeout); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, ErrTimeout)
		defer cancel()
	}
	x := &transfer{c: c, out: out}
	var err error
	if x.header, err = c.header(ctx, x, c.accept); err != nil {
		return nil, err
	}
	var b *buffers
	if x.untracked = c.harmless(out); x.untracked {
		x.data, err = AppendRequest(make([]byte, 0, 256+len(out.Params)), &out.Request)
	} else {
		b = c.buffers.Get().(*buffers)
		b.body, err = AppendRequest(b.body[:0], &out.Request)
		x.data = b.body
	}
	if err != nil {
		return nil, err
	}
	var res *Response
	for attempt := 1; ; attempt++ {
		var retryable bool
		if res, retryable, err = c.once(ctx, x, attempt); !retryable {
			break
		}
	}
	if b != nil && err == nil && x.open.Load() == 0 {
		// The transport may still read the buffer after a failure or an early
		// response; here it cannot.
		b.release(c)
	}
	return res, err
}

// once makes one attempt and reports whether another one shall follow, after
// having waited for it.
func (c *Client) once(ctx context.Context, x *transfer, attempt int) (res *Response, retryable bool, err error) {
	x.read.Store(false)
	resp, err := x.do(ctx)
	if err != nil {
		return nil, c.shouldRetry(ctx, x, attempt, err), c.failure(ctx, x.out, err)
	}
	if c.later(ctx, x, attempt, resp) {
		return nil, true, nil
	}
	var data []byte
	if buf := x.out.room; buf != nil {
		data, err = readReply(buf.reply, resp, c.opts.MaxMessage)
		buf.reply, res = data, &buf.res
	} else {
		data, err = readReply(nil, resp, c.opts.MaxMessage)
		res = &Response{}
	}
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return nil, c.shouldRetry(ctx, x, attempt, err), c.failure(ctx, x.out, err)
	}
	if err != nil {
		if resp.StatusCode >= http.StatusBadRequest {
			return nil, false, httpError(resp.StatusCode, data)
		}
		return nil, false, err
	}
	res, err = answerOf(res, x.out, resp.StatusCode, data)
	c.refused(x, err)
	return res, false, err
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
	err := res.decode(data, out.ID)
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

// failure adds the call to an error of the network. If the context has ended, the
// error is its cause.
func (c *Client) failure(ctx context.Context, out *ClientRequest, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ErrRedirect) {
		err = context.Cause(ctx)
		if errors.Is(err, ErrTimeout) {
			return err
		}
	}
	return fmt.Errorf("arc: %s: %w", out.Method, err)
}

// refused tells the token source that its token was, so that the next call gets
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
	header http.Header
	trace  [1]string // the value of a header
	data   []byte
	first  requestBody

	// The request is repeatable, so the amount of body read does not matter. The
	// transport then gets a body of known length and writes it with the header.
	untracked bool

	read atomic.Bool  // the transport began to read the body
	open atomic.Int32 // bodies that the transport may still read
}

// A requestBody is one reading of the request.
type requestBody struct {
	x      *transfer
	r      bytes.Reader
	closed atomic.Bool
}

func (x *transfer) body() (io.ReadCloser, error) {
	if x.untracked {
		return io.NopCloser(bytes.NewReader(x.data)), nil
	}
	b := &x.first
	if b.x != nil { // in use, maybe
		b = &requestBody{}
	}
	b.x = x
	b.r.Reset(x.data)
	x.open.Add(1)
	return b, nil
}

func (b *requestBody) Read(p []byte) (int, error) {
	if !b.x.read.Load() {
		b.x.read.Store(true)
	}
	return b.r.Read(p)
}

func (b *requestBody) Close() error {
	if !b.closed.Swap(true) {
		b.x.open.Add(-1)
	}
	return nil
}

// do sends the request and follows redirects within the origin (ARC-D14).
func (x *transfer) do(ctx context.Context) (*http.Response, error) {
	const maxRedirects = 3
	to := x.c.endpoint
	for hops := 0; ; hops++ {
		body, _ := x.body()
		req := (&http.Request{Method: http.MethodPost, URL: to, Host: to.Host, Header: x.header, Body: body, GetBody: x.body,
			ContentLength: int64(len(x.data)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
		resp, err := doHTTP(&x.c.http, req)
		if err != nil {
			return nil, err
		}
		if !redirects(resp.StatusCode) {
			return resp, nil
		}
		discard(resp)
		next, err := redirectTarget(to, resp)
		switch {
		case err != nil:
			return nil, err
		case hops == maxRedirects:
			return nil, fmt.Errorf("%w: more than %d in a row", ErrRedirect, maxRedirects)
		}
		to = next
	}
}

var errNoResponse = errors.New("arc: the transport returned neither an answer nor an error")

// doHTTP sends a request. All that an [http.Client] adds to its transport for
// us are cookies and its own timeout; without these, it would copy the request for
// redirects that it does not follow.
func doHTTP(c *http.Client, req *http.Request) (*http.Response, error) {
	if c.Jar != nil || c.Timeout != 0 {
		return c.Do(req)
	}
	t := c.Transport
	if t == nil {
		t = http.DefaultTransport
	}
	resp, err := t.RoundTrip(req)
	switch {
	case err != nil:
		return nil, err
	case resp == nil:
		return nil, errNoResponse
	case resp.Body == nil:
		resp.Body = http.NoBody
	}
	return resp, nil
}

func redirects(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// redirectTarget returns where a redirect leads, if that may be followed.
func redirectTarget(from *url.URL, resp *http.Response) (*url.URL, error) {
	if resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect {
		return nil, fmt.Errorf("%w: status %d would change the request", ErrRedirect, resp.StatusCode)
	}
	to, err := resp.Location()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: no usable location", ErrRedirect)
	case to.User != nil || originOf(to) != originOf(from):
		return nil, fmt.Errorf("%w: it leads to another origin", ErrRedirect)
	}
	to.Fragment, to.RawFragment = "", ""
	return to, nil
}

// originOf returns scheme, host and port of a URL.
func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" && u.Scheme == "https" {
		port = "443"
	} else if port == "" && u.Scheme == "http" {
		port = "80"
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// discard reads the rest of a short response, so that its connection can be
// reused.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxErrorText)
	_ = resp.Body.Close()
}

// readReply reads a body within the limit, into room if it fits there. Beyond the
// limit, it returns the beginning and ErrTooLarge.
func readReply(buf []byte, resp *http.Response, limit int64) ([]byte, error) {
	defer resp.Body.Close()
	// Beyond this size memory is taken as the bytes arrive, not on the word of
	// the header.
	const trusted = 256 << 10
	if resp.ContentLength > limit {
		data, _ := readLimited(nil, resp.Body, maxErrorText)
		return data, ErrTooLarge
	}
	if n := resp.ContentLength; n >= 0 && n <= trusted {
		// One byte more than announced, so that the read that fills it also
		// meets the end, which frees the connection.
		buf = slices.Grow(buf[:0], int(n)+1)
	}
	data, err := readLimited(buf[:0], resp.Body, limit)
	if err == nil && resp.ContentLength >= 0 && int64(len(data)) != resp.ContentLength {
		return nil, io.ErrUnexpectedEOF
	}
	return data, err
}

// readLimited appends the bytes of r to dst. Over the limit it returns the
// beginning and ErrTooLarge. The buffer doubles as bytes arrive, up to the limit.
func readLimited(dst []byte, r io.Reader, limit int64) ([]byte, error) {
	size := int(min(limit, math.MaxInt-1)) + 1 // one more shows that there is more
	for {
		if len(dst) == cap(dst) {
			bigger := make([]byte, len(dst), min(max(2*cap(dst), 512), size))
			copy(bigger, dst)
			dst = bigger
		}
		n, err := r.Read(dst[len(dst):min(cap(dst), size)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) >= size:
			return dst[:limit], ErrTooLarge
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return nil, err
		}
	}
}

// mediaType returns the media type of an answer, in lower case.
func mediaType(h http.Header) string {
	ct := h.Get("Content-Type")
	if ct == MediaType || ct == MediaTypeStream {
		return ct
	}
	media, _, err := mime.ParseMediaType(ct)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return media
}
