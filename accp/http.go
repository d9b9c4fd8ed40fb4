// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
)

// ProtocolVersion is the version in the paths and the subprotocol.
const ProtocolVersion = "1"

// MediaType is the media type of frames. It has no parameters.
const MediaType = "application/accp"

// isMediaType compares a Content-Type, ignoring parameters and case.
func isMediaType(s string) bool {
	t, _, _ := strings.Cut(s, ";")
	return strings.EqualFold(strings.TrimSpace(t), MediaType)
}

// ServeHTTP answers requests for [FramesPath] (ACCP-D53), and for [WebSocketPath] if they request
// an upgrade (ACCP-D56).
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.LeaveIf(s.life.Ready(), w)
	httpx.Bound(w, r, s.opts.Timing.ReadTimeout)
	isFrames := r.URL.Path == FramesPath
	var c *caller
	var err error
	var types []string
	switch {
	case !isFrames && r.URL.Path != WebSocketPath:
		err = &httpx.Error{Status: http.StatusNotFound, Message: "no such path"}
	case isFrames && s.origins.CORS(w, r):
		return
	case isFrames && r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		err = &httpx.Error{Status: http.StatusMethodNotAllowed, Message: "method not allowed"}
	case isFrames:
		types = []string{MediaType}
	}
	if err == nil {
		_, err = httpx.CheckRequest(r, types)
		err = cmp.Or(err, s.origins.Check(r))
	}
	if err == nil {
		c, err = s.authenticate(r)
	} else {
		c = &caller{peer: r.RemoteAddr}
	}
	if err == nil {
		err = s.count(c)
	}
	if err != nil {
		s.refuseRequest(w, r, c, err)
		return
	}
	if c.principal != nil {
		r = r.WithContext(context.WithValue(r.Context(), principalKey{}, c.principal))
	}
	if !isFrames {
		s.serveWebSocket(w, r, c)
		return
	}
	if err := s.serveFrames(w, r, c); err != nil {
		s.refuseRequest(w, r, c, err)
	}
}

// refuseRequest answers a request by a status, before anything of its frame is used.
func (s *Server) refuseRequest(w http.ResponseWriter, r *http.Request, c *caller, err error) {
	var refused *httpx.Error
	var full *budget.Error
	var p *guard.PanicError
	status := http.StatusUnauthorized
	switch {
	case errors.As(err, &refused):
		status = refused.Status
	case errors.As(err, &full):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(full.RetryAfter.Seconds()))))
	case errors.Is(err, life.ErrClosed):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	case errors.As(err, &p):
		status = http.StatusInternalServerError
		_ = s.panicked(r.Context(), p)
	case errors.Is(err, errPrincipal):
		status = http.StatusInternalServerError
	default:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	s.log.WarnContext(r.Context(), "accp: request refused", "peer", c.peer, "status", status, "err", err)
	s.auditRefusal(r.Context(), c, r.Method+" "+r.URL.Path, strconv.Itoa(status))
	w.WriteHeader(status)
}

// serveFrames answers a request with one frame. After an error it has not responded.
func (s *Server) serveFrames(w http.ResponseWriter, r *http.Request, c *caller) error {
	limit := s.session.FrameLimits.withDefaults().MaxFrame
	size := int64(limit) + 2 // with a line end
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength)
	}
	size += maxHeld
	memory, err := s.budget.Scope(c.name, "").Reserve(budget.Memory, size)
	if err != nil {
		return err
	}
	defer memory.Release()
	body, err := httpx.Body(w, r, int64(limit)+2, s.opts.Timing.ReadTimeout)
	if err != nil {
		return err
	}
	if frame, ok := bytes.CutSuffix(body, []byte("\n")); ok {
		body = bytes.TrimSuffix(frame, []byte("\r"))
	}
	if len(body) > limit {
		return &httpx.Error{Status: http.StatusRequestEntityTooLarge, Message: "frame too large", Cause: ErrTooLarge}
	}
	q := &struct { // in one piece of memory
		work life.Work
		out  httpAnswer
		e    exchange
	}{}
	work, out, e := &q.work, &q.out, &q.e
	if err := work.Start(r.Context(), s.life, life.Request); err != nil {
		return err
	}
	*out = httpAnswer{w: w, ctx: work, timeout: s.opts.Timing.WriteTimeout, memory: memory, reserved: size}
	*e = exchange{to: out, record: s.audited(c, body), caller: c, refusal: hook.Refusal(work)}
	isDone := false
	work.Run("request", func(ctx context.Context) error { return s.serveBody(ctx, e, c, body) }, func(rerr error) {
		isDone = true
		if _, isFull := errors.AsType[*budget.Error](rerr); isFull && !out.started && len(out.buf) == 0 && e.session == nil {
			err = rerr
			return
		}
		if p, ok := errors.AsType[*guard.PanicError](rerr); ok {
			e.record.end(outcomeFailed, s.panicked(r.Context(), p))
		} else if rerr != nil {
			e.record.end(outcomeFailed, rerr)
			s.log.DebugContext(r.Context(), "accp: answer not sent", "peer", c.peer, "err", rerr)
		}
		s.audit(r.Context(), e.record)
		out.finish(rerr != nil)
	})
	if !isDone {
		e.record.end(outcomeCanceled, nil)
		s.audit(r.Context(), e.record)
		panic(http.ErrAbortHandler) // cut by Close
	}
	return err
}

// serveBody processes the frame of a request. Without a session in e, the error is that of the
// budget and nothing was done.
func (s *Server) serveBody(ctx context.Context, e *exchange, c *caller, frame []byte) error {
	session, place, err := s.admit(ctx, e.record, c, frame)
	_, isFull := errors.AsType[*budget.Error](err)
	switch {
	case isFull:
		return err
	case err != nil:
		// Without a session, the error frame is the first frame of a nameless one (ACCP-D52).
		var serr error
		if e.session, serr = NewSession(s.self, "", &s.session); serr != nil {
			return serr
		}
		return s.refuse(ctx, e, err, frame)
	}
	defer place.Release()
	defer s.release(session)
	e.session = session
	return s.serve(ctx, e, c, frame)
}

// admit returns the session of a frame, after the authorizer has allowed the message, and the place of its handler if
// it has one.
func (s *Server) admit(ctx context.Context, r *AuditRecord, c *caller, frame []byte) (*Session, budget.Hold, error) {
	var place budget.Hold
	m, err := s.decode(frame)
	if err != nil {
		return nil, place, err
	}
	r.describe(m)
	hold, err := s.reserve(c, int64(m.size())) // while it waits
	if err != nil {
		return nil, place, err
	}
	defer hold.Release()
	if err := s.authorize(ctx, m); err != nil {
		return nil, place, err
	}
	if _, isRegistered := s.find(m); isRegistered && m.Intent != IntentCancel {
		if place, err = s.acquire(ctx, c, m.Meta.SID); err != nil {
			return nil, place, err
		}
	}
	session, err := s.open(c, m.Meta.SID)
	if err != nil {
		place.Release()
	}
	return session, place, err
}

// An httpAnswer writes the response to one request: status 204, or frames. The first frame is held
// until the handler returns, so that a later error can still set the status; chunks of streams are
// written at once. A slow reader is disconnected.
type httpAnswer struct {
	w        http.ResponseWriter
	ctx      context.Context // of the request
	values   [2]string       // of the header
	timeout  time.Duration
	memory   budget.Hold // of the request
	reserved int64       // of it
	buf      []byte      // frames, each with its line end
	status   int
	started  bool
}

const maxHeld = 64 << 10 // bytes of a response held until the handler returns

func (a *httpAnswer) answer(e *exchange, session *Session, m *Message) error {
	sent, err := session.Send(a.ctx, m)
	if err != nil {
		return err
	}
	return a.write(sent.Frames, e.failed && !a.started, m.Intent == IntentStream)
}

func (a *httpAnswer) write(frames [][]byte, failed, flush bool) error {
	if len(frames) == 0 {
		return nil
	}
	if !a.started && len(a.buf) == 0 {
		a.status = http.StatusOK
		if failed {
			a.status = http.StatusBadRequest // every error frame comes with 400 (ACCP-D53)
		}
	}
	for _, f := range frames {
		a.buf = append(append(a.buf, f...), '\n')
	}
	if !flush && len(a.buf) <= maxHeld {
		return nil
	}
	return a.flush()
}

// flush writes the held frames, each 64 KiB of them within the write timeout.
func (a *httpAnswer) flush() error {
	w := a.w
	if len(a.buf) > maxHeld {
		err := a.memory.Resize(a.reserved + int64(2*len(a.buf)))
		if err == nil && a.timeout < option.Off {
			w = httpx.Bounded(a.w, a.timeout)
		} // else all of it is sent within one timeout, because the handler has run
		defer func() { _ = a.memory.Resize(a.reserved) }()
	}
	control := http.NewResponseController(a.w)
	if a.timeout < option.Off {
		_ = control.SetWriteDeadline(time.Now().Add(a.timeout))
		defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	}
	if !a.started {
		a.started = true
		a.head()
		a.w.WriteHeader(a.status)
	}
	_, err := w.Write(a.buf)
	a.buf = nil
	if err == nil {
		err = control.Flush()
	}
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

func (a *httpAnswer) head() {
	a.values = [2]string{MediaType, "nosniff"}
	h := a.w.Header()
	h["Content-Type"], h["X-Content-Type-Options"] = a.values[:1:1], a.values[1:]
}

func (a *httpAnswer) finish(broken bool) {
	var err error
	switch {
	case broken, len(a.buf) == 0:
	case a.started:
		err = a.flush()
	default:
		a.head()
		a.started = true
		err = httpx.Respond(a.w, a.status, "", a.buf, a.timeout)
	}
	switch {
	case a.started && (broken || err != nil):
		panic(http.ErrAbortHandler) // so that the client detects the truncation
	case a.started:
	case broken:
		a.w.WriteHeader(http.StatusInternalServerError)
	default:
		a.w.WriteHeader(http.StatusNoContent)
	}
}
