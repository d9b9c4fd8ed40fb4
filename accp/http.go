// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
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
		w.WriteHeader(http.StatusNotFound)
	}
}

// ServeFrames answers a request whose body is one frame, whatever its path
// (ACCP-153 to ACCP-156, D53).
func (s *Server) ServeFrames(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if !isMediaType(r.Header.Get("Content-Type")) {
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	limit := s.opts.Session.Limits.withDefaults().Frame
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(limit)+2))
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
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
	out := &httpAnswer{w: w, control: http.NewResponseController(w)}
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
		// Without a session: the answer is the first frame of none (D52).
		var serr error
		if e.session, serr = NewSession(s.self, "", &s.opts.Session); serr == nil {
			err = s.refuse(e, err, frame)
		}
	} else {
		err = s.serve(ctx, e, frame)
	}
	if err != nil {
		s.log.Info("accp: answer not sent", "err", err)
	}
	out.finish(err != nil)
}

// sessionFor finds the session that a frame belongs to, and asks whether the
// request may use it.
func (s *Server) sessionFor(r *http.Request, frame []byte) (*Session, error) {
	c := Codec{Lenient: s.opts.Session.Lenient, Limits: s.opts.Session.Limits}
	m, err := c.Parse(frame)
	if err != nil {
		return nil, err
	}
	if err := c.CheckEnvelope(m); err != nil {
		return nil, err
	}
	if sid := m.Meta.SID; sid != "" && s.opts.Authorize != nil {
		if err := s.opts.Authorize(r, sid); err != nil {
			return nil, &Error{Code: ErrPolicyDenied, Message: "session not allowed", Cause: err}
		}
	}
	return s.session(m.Meta.SID)
}

// httpAnswer is the answer to one request: nothing (204), or frames. The first
// frame waits for the handler to end, so that an error after it can still set the
// status; the chunks of streams do not.
type httpAnswer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	waiting [][]byte
	status  int
	started bool
}

func (a *httpAnswer) write(frames [][]byte, failed, flush bool) error {
	if len(frames) == 0 {
		return nil
	}
	if !a.started && len(a.waiting) == 0 {
		a.status = http.StatusOK
		if failed {
			a.status = http.StatusBadRequest // every error frame comes with 400 (D53)
		}
	}
	a.waiting = append(a.waiting, frames...)
	if !flush {
		return nil
	}
	if err := a.flush(); err != nil {
		return err
	}
	if err := a.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (a *httpAnswer) flush() error {
	if !a.started {
		a.started = true
		a.w.Header().Set("Content-Type", MediaType)
		a.w.Header().Set("X-Content-Type-Options", "nosniff")
		a.w.WriteHeader(a.status)
	}
	for _, f := range a.waiting {
		if _, err := a.w.Write(append(f, '\n')); err != nil {
			return err
		}
	}
	a.waiting = nil
	return nil
}

func (a *httpAnswer) finish(broken bool) {
	if len(a.waiting) > 0 || a.started {
		if err := a.flush(); err == nil {
			return
		}
		broken = true
	}
	switch {
	case a.started:
		panic(http.ErrAbortHandler) // so that the peer sees a cut stream and not a finished one
	case broken:
		a.w.WriteHeader(http.StatusInternalServerError)
	default:
		a.w.WriteHeader(http.StatusNoContent)
	}
}
