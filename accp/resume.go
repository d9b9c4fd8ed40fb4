// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// A resume decides when the handler of a message ends after the loss of its connection (ACCP-D75).
type resume struct {
	window  time.Duration
	ctx     *lazy.Context   // of the handler
	request context.Context // ends with the connection

	mu       sync.Mutex
	isHeld   bool // the outcome of the handler is kept, so it may continue
	isEnded  bool
	watchers int // connections that wait for the outcome
	cause    error
	timer    *time.Timer
}

// hold lets the handler continue after the loss of its connection.
func (r *resume) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isHeld = true
}

// drop lets the handler end with its connection, because its outcome is too long to be kept.
func (r *resume) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isHeld = false
	if r.watchers <= 0 {
		r.ctx.Cancel(r.cause)
	}
}

// isHoldingAfterLoss reports whether the connection was lost, and the handler may continue.
func (r *resume) isHoldingAfterLoss() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isHeld && !r.isEnded && r.request.Err() != nil
}

// attach adds a connection that waits for the outcome.
func (r *resume) attach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers++
	if r.timer != nil {
		r.timer.Stop()
	}
}

// detach removes a connection. Without another one, the handler ends after the window.
func (r *resume) detach(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers--
	r.cause = cause
	switch {
	case r.watchers > 0 || r.isEnded:
	case !r.isHeld, r.window <= 0, hasLeft(cause):
		r.ctx.Cancel(cause)
	default:
		r.timer = time.AfterFunc(r.window, func() { r.ctx.Cancel(cause) })
	}
}

// hasLeft reports whether the peer has closed the connection to end its use, or the server closes.
func hasLeft(cause error) bool {
	e, ok := errors.AsType[*wsconn.CloseError](cause)
	return ok && e.Code == wsconn.CodeNormal || errors.Is(cause, life.ErrClosed)
}

// detach returns a context for an HTTP request whose handler outlives the loss of its connection by the window. Each
// message after the loss is part of the outcome only.
func (e *exchange) detach(request context.Context, window time.Duration) (ctx context.Context, end func()) {
	r := &resume{window: window, ctx: lazy.New(context.WithoutCancel(request)), request: request, watchers: 1}
	e.resume = r
	stop := context.AfterFunc(request, func() { r.detach(context.Cause(request)) })
	return r.ctx, func() {
		stop()
		r.end()
		r.ctx.Cancel(context.Canceled)
	}
}

// end releases the timer at the end of the handler.
func (r *resume) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isEnded = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// Runs are the requests whose handlers run in this process.
type runs struct {
	mu   sync.Mutex
	list map[[2]string]*recorder // by principal and id of the request
}

// add registers the recorder of a request.
func (s *runs) add(r *recorder) {
	if r.resume != nil {
		r.resume.hold()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[[2]string]*recorder{}
	}
	s.list[nameOf(&r.key.Key)] = r
}

// remove ends a recorder.
func (s *runs) remove(r *recorder) {
	r.end(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if name := nameOf(&r.key.Key); s.list[name] == r {
		delete(s.list, name)
	}
}

func nameOf(k *once.Key) [2]string { return [2]string{k.Principal, k.ID} }

// find returns the recorder of the same request, or nil. After a failure that is not kept as the
// outcome, a repeat runs the handler instead.
func (s *runs) find(k *once.Key) *recorder {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.list[nameOf(k)]
	if r == nil || r.key.Digest != k.Digest || r.hasFailed.Load() {
		return nil
	}
	return r
}
