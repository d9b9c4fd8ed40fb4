// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

// ServeHTTP answers requests for [FramesPath], and for [WebSocketPath] if they
// ask for a connection.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case FramesPath:
		s.ServeFrames(w, r)
	case WebSocketPath:
		s.ServeWebSocket(w, r)
	default:
		s.boundBody(w, r)
		w.WriteHeader(http.StatusNotFound)
	}
}

// boundBody gives the body its time to arrive, be it read here or thrown away by
// net/http. A transport without deadlines is served without.
func (s *Server) boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.opts.Timing.ReadTimeout))
	}
}

// ServeFrames answers a request whose body is one frame, whatever its path
// (ACCP-153 to ACCP-156, ACCP-D53).
func (s *Server) ServeFrames(w http.ResponseWriter, r *http.Request) {
	s.boundBody(w, r)
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if !isMediaType(r.Header.Get("Content-Type")) {
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	limit := s.opts.Session.FrameLimits.withDefaults().MaxFrame
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(limit)+2))
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		w.Header().Set("Connection", "close") // where the next request begins is not known
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	// The work may take longer than the body did. After a failure the deadline
	// stays: net/http reads on before it answers.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if frame, ok := bytes.CutSuffix(body, []byte("\n")); ok {
		body = bytes.TrimSuffix(frame, []byte("\r"))
	}
	if len(body) > limit {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if !s.begin() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer s.end()
	s.serveBody(w, r, body)
}

func (s *Server) serveBody(w http.ResponseWriter, r *http.Request, frame []byte) {
	ctx, cancel := mergeDone(r.Context(), s.ctx)
	defer cancel()
	out := &httpAnswer{w: w, control: http.NewResponseController(w), timeout: s.opts.Timing.WriteTimeout}
	e := &exchange{}
	e.out = func(session *Session, m *Message) error {
		sent, err := session.Send(ctx, m)
		if err != nil {
			return err
		}
		return out.write(sent.Frames, e.failed && !out.started, m.Intent == IntentStream)
	}
	var err error
	if e.session, err = s.sessionFor(r, frame); err != nil {
		// Without a session: the answer is the first frame of none (ACCP-D52).
		var serr error
		if e.session, serr = NewSession(s.self, "", &s.opts.Session); serr == nil {
			err = s.refuse(e, err, frame)
		}
	} else {
		defer s.release(e.session)
		err = s.serve(ctx, e, frame)
	}
	if err != nil {
		s.log.Info("accp: answer not sent", "err", err)
	}
	out.finish(err != nil)
}

// sessionFor finds the session that a frame belongs to, and asks whether the
// request may use it. Who gets one releases it.
func (s *Server) sessionFor(r *http.Request, frame []byte) (*Session, error) {
	c := Codec{Lenient: s.opts.Session.Lenient, FrameLimits: s.opts.Session.FrameLimits}
	m, err := c.DecodeRaw(frame)
	if err != nil {
		return nil, err
	}
	if err := c.ValidateEnvelope(m); err != nil {
		return nil, err
	}
	if sid := m.Meta.SID; sid != "" && s.opts.Auth.Authorizer != nil {
		if err := s.opts.Auth.Authorizer(r, sid); err != nil {
			return nil, &Error{Code: ErrPolicyDenied, Message: "session not allowed", Cause: err}
		}
	}
	return s.session(m.Meta.SID)
}

// httpAnswer is the answer to one request: nothing (204), or frames. The first
// frame waits for the handler to end, so that an error after it can still set the
// status; the chunks of streams do not. A peer that does not read is cut off.
type httpAnswer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	waiting [][]byte
	bytes   int // that wait
	status  int
	started bool
}

const maxHeld = 64 << 10 // bytes of an answer that wait for the handler to end

func (a *httpAnswer) write(frames [][]byte, failed, flush bool) error {
	if len(frames) == 0 {
		return nil
	}
	if !a.started && len(a.waiting) == 0 {
		a.status = http.StatusOK
		if failed {
			a.status = http.StatusBadRequest // every error frame comes with 400 (ACCP-D53)
		}
	}
	for _, f := range frames {
		a.waiting = append(a.waiting, f)
		a.bytes += len(f) + 1
	}
	if !flush && a.bytes <= maxHeld {
		return nil
	}
	return a.flush()
}

// flush sends what waits, in its time.
func (a *httpAnswer) flush() error {
	_ = a.control.SetWriteDeadline(time.Now().Add(a.timeout))
	defer func() { _ = a.control.SetWriteDeadline(time.Time{}) }()
	if err := a.put(); err != nil {
		return err
	}
	if err := a.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (a *httpAnswer) put() error {
	if !a.started {
		a.started = true
		a.w.Header().Set("Content-Type", MediaType)
		a.w.Header().Set("X-Content-Type-Options", "nosniff")
		a.w.WriteHeader(a.status)
	}
	out := make([]byte, 0, a.bytes)
	for _, f := range a.waiting {
		out = append(append(out, f...), '\n')
	}
	a.waiting, a.bytes = nil, 0
	_, err := a.w.Write(out)
	return err
}

func (a *httpAnswer) finish(broken bool) {
	var err error
	switch {
	case broken, len(a.waiting) == 0:
	case a.started:
		err = a.flush()
	default: // all of it, in one piece that net/http has room for
		a.w.Header().Set("Content-Length", strconv.Itoa(a.bytes))
		err = a.put()
	}
	switch {
	case a.started && (broken || err != nil):
		panic(http.ErrAbortHandler) // so that the peer sees a cut stream and not a finished one
	case a.started:
	case broken:
		a.w.WriteHeader(http.StatusInternalServerError)
	default:
		a.w.WriteHeader(http.StatusNoContent)
	}
}
