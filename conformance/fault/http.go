// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// RoundTripper returns a view of rt with the faults of plan: one operation "request" for each request,
// with the path of the URL as its name. A nil rt is http.DefaultTransport. It reads the bodies of requests
// that are sent twice or later.
func RoundTripper(rt http.RoundTripper, plan *Plan) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	if plan == nil {
		return rt
	}
	return &transport{rt, plan}
}

type transport struct {
	rt   http.RoundTripper
	plan *Plan
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, release, err := t.plan.enter(r.Context())
	if err != nil {
		closeBody(r)
		return nil, err
	}
	defer release()
	d := t.plan.decide(opRequest, r.URL.Path)
	if err = t.plan.prepare(ctx, &d); err != nil {
		closeBody(r)
		return nil, err
	}
	switch {
	case !d.fails:
		return t.rt.RoundTrip(r)
	case d.action == LandLater || d.action == Duplicate:
		return t.repeat(r, d)
	}
	res, err := t.rt.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch d.action {
	case Truncate:
		res.Body = &cutBody{ReadCloser: res.Body, left: int64(d.random % 4096)}
	case Corrupt:
		res.Body = &corruptBody{ReadCloser: res.Body, random: d.random}
	case Cut, ErrorAfter:
		_ = res.Body.Close()
		return nil, fmt.Errorf("%w: response lost", ErrInjected)
	}
	return res, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// prepare carries out the faults before a request. An error means that it is not made.
func (p *Plan) prepare(ctx context.Context, d *decision) error {
	if d.slow > 0 {
		p.addCount(Delay)
	}
	err := sleep(ctx, d.slow)
	if err != nil || !d.fails {
		return err
	}
	p.addCount(d.action)
	switch d.action {
	case Reorder:
		p.waitNext(ctx, d.delay)
		d.fails = false
		return ctx.Err()
	case Drop, ErrorBefore, Hang, HalfClose:
		if err = sleep(ctx, d.delay); err == nil {
			err = fmt.Errorf("%w: request not sent", ErrInjected)
		}
	}
	return err
}

// waitNext waits until another call has begun, or for a time.
func (p *Plan) waitNext(ctx context.Context, limit time.Duration) {
	if limit <= 0 {
		limit = time.Second
	}
	p.mu.Lock()
	calls := p.calls
	p.mu.Unlock()
	for step := limit / 64; limit > 0; limit -= step {
		if sleep(ctx, max(1, step)) != nil {
			return
		}
		p.mu.Lock()
		isNext := p.calls > calls
		p.mu.Unlock()
		if isNext {
			_ = sleep(ctx, step)
			return
		}
		step = max(1, step)
	}
}

// repeat sends a request twice and returns the second response, or sends it after an error.
func (t *transport) repeat(r *http.Request, d decision) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		closeBody(r)
		if err != nil {
			return nil, err
		}
	}
	send := func(ctx context.Context) (*http.Response, error) {
		second := r.Clone(ctx)
		if r.Body != nil {
			second.Body = io.NopCloser(bytes.NewReader(body))
		}
		return t.rt.RoundTrip(second)
	}
	discard := func(ctx context.Context) {
		if res, err := send(ctx); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	if d.action == Duplicate {
		discard(r.Context())
		return send(r.Context())
	}
	t.plan.land(r.Context(), d.delay, discard)
	return nil, fmt.Errorf("%w: %s", ErrInjected, errorTexts[d.action])
}

// A cutBody ends after some bytes with an error.
type cutBody struct {
	io.ReadCloser
	left int64
}

func (b *cutBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: %w", ErrInjected, io.ErrUnexpectedEOF)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// A corruptBody flips one bit of its first bytes.
type corruptBody struct {
	io.ReadCloser
	random uint64
	isDone bool
}

func (b *corruptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && !b.isDone {
		b.isDone = true
		flip(p[:n], b.random)
	}
	return n, err
}

// Handler returns a view of h with the faults of plan, like those of RoundTripper. A lost request or response
// ends its connection.
func Handler(h http.Handler, plan *Plan) http.Handler {
	if plan == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, release, err := plan.enter(r.Context())
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer release()
		d := plan.decide(opRequest, r.URL.Path)
		if plan.prepare(ctx, &d) != nil {
			panic(http.ErrAbortHandler)
		}
		if !d.fails {
			h.ServeHTTP(w, r)
			return
		}
		serveFault(h, w, r, plan, d)
	})
}

// serveFault serves a request with the fault of d.
func serveFault(h http.Handler, w http.ResponseWriter, r *http.Request, plan *Plan, d decision) {
	out := &recorder{header: http.Header{}}
	switch d.action {
	case Duplicate, LandLater:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		serve := func(ctx context.Context, w http.ResponseWriter) {
			second := r.Clone(ctx)
			second.Body = io.NopCloser(bytes.NewReader(body))
			h.ServeHTTP(w, second)
		}
		if d.action == LandLater {
			plan.land(r.Context(), d.delay, func(ctx context.Context) { serve(ctx, out) })
			panic(http.ErrAbortHandler)
		}
		serve(r.Context(), out)
		serve(r.Context(), w)
		return
	}
	h.ServeHTTP(out, r)
	body := out.body.Bytes()
	switch d.action {
	case Corrupt:
		flip(body, d.random)
		out.copyTo(w, body)
		return
	case Truncate:
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		out.copyTo(w, body[:int(d.random%uint64(len(body)+1))])
		_ = http.NewResponseController(w).Flush()
	}
	panic(http.ErrAbortHandler)
}

// A recorder keeps a response.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
func (r *recorder) WriteHeader(status int)      { r.status = status }

func (r *recorder) copyTo(w http.ResponseWriter, body []byte) {
	for name, values := range r.header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	if r.status > 0 {
		w.WriteHeader(r.status)
	}
	_, _ = w.Write(body)
}
