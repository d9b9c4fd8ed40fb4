// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/sse"
)

// ServeHTTP serves the endpoint and the paths of discovery.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.LeaveIf(s.life.Ready(), w)
	path := r.URL.Path
	if r.ContentLength != 0 {
		httpx.Bound(w, r, s.opts.Timing.ReadTimeout)
	}
	switch {
	case path == s.opts.Path || strings.HasSuffix(path, "/") && path[:len(path)-1] == s.opts.Path:
		if !s.origins.CORS(w, r) {
			s.serveEndpoint(w, r)
		}
	case s.serveDiscovery(w, r):
	default:
		http.NotFound(w, r)
	}
}

// serveEndpoint answers a request to the endpoint. The checks before the message
// itself come in the order of ARC-D07.
func (s *Server) serveEndpoint(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		s.refuse(w, r, http.StatusMethodNotAllowed, "only POST is allowed")
		return
	}
	_, err := httpx.CheckRequest(r, requestTypes, "Last-Event-Id", "Traceparent", "X-Arc-Path")
	if err == nil && !isUTF8(r.Header.Get("Content-Type")) {
		err = &httpx.Error{Status: http.StatusUnsupportedMediaType, Message: "charset is not utf-8"}
	}
	if err != nil {
		e, _ := errors.AsType[*httpx.Error](err)
		s.refuse(w, r, e.Status, e.Message)
		return
	}
	if err := s.origins.Check(r); err != nil {
		s.refuse(w, r, http.StatusForbidden, "the origin is not allowed")
		return
	}
	x := &exchange{agent: s.opts.ID, startTime: time.Now()}
	x.web = webCall{rw: w, opts: &s.opts, in: requestOf(r)}
	x.in = &x.web.in
	fault, err := s.receive(w, r, x, true)
	defer x.body.Release()
	if fault == nil && err != nil {
		s.respond(w, r, x, s.refusedBody(x, err))
		return
	}
	a := s.decodeAndServe(r.Context(), x, fault)
	defer x.output.Release()
	s.respond(w, r, x, a)
}

// isUTF8 reports whether the parameters of a Content-Type are well formed and name no other charset (ARC-D10).
func isUTF8(contentType string) bool {
	if !strings.Contains(contentType, ";") {
		return true
	}
	_, params, err := mime.ParseMediaType(contentType)
	return err == nil && strings.EqualFold(cmp.Or(params["charset"], "utf-8"), "utf-8")
}

// requestOf returns a request without its body.
func requestOf(r *http.Request) ServerRequest {
	h := r.Header
	return ServerRequest{Authorization: one(h, "Authorization"), Traceparent: one(h, "Traceparent"),
		AgentPath: one(h, "X-Arc-Path"), LastEventID: one(h, "Last-Event-Id"), Header: h, RemoteAddr: r.RemoteAddr}
}

// receive authenticates the caller of x, reserves memory for the body, and reads it. After a fault the body is
// small and read only if readsRefused, or empty. An error means that the body is too large or incomplete.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, x *exchange, readsRefused bool) (fault *Error, err error) {
	limit := int64(s.opts.Limits.MaxMessage)
	if limit < 0 || r.ContentLength <= limit {
		if x.principal, fault = s.authenticate(r.Context(), x); fault == nil && (r.ContentLength < 0 || r.ContentLength > small) {
			fault = s.reserveBody(r, x)
		}
	}
	if fault != nil && !readsRefused {
		return fault, nil
	}
	if fault != nil && (limit < 0 || limit > maxUnauthenticated) {
		limit = maxUnauthenticated
	}
	data, err := httpx.Body(w, r, limit, s.opts.Timing.ReadTimeout)
	if e, ok := errors.AsType[*budget.Error](err); ok && fault == nil {
		fault = asError(engine.Refused("", e))
	}
	if err == nil {
		x.in.Data = data
	}
	return fault, err
}

// reserveBody reserves the announced length of a body, and that of another one as it arrives.
func (s *Server) reserveBody(r *http.Request, x *exchange) *Error {
	hold, err := httpx.ReserveBody(r, s.engine.Scope(x.account()), int64(s.opts.Limits.MaxMessage))
	if err != nil {
		return asError(engine.Refused("", err))
	}
	x.body = hold
	return nil
}

// requestTypes are the media types of requests (ARC-D10).
var requestTypes = []string{MediaType, "application/json", mediaTypeStream}

// statusOf returns the HTTP status of an error of package httpx.
func statusOf(err error) int {
	var h *httpx.Error
	if errors.As(err, &h) {
		return h.Status
	}
	return http.StatusBadRequest
}

// refusedBody answers a request whose body is too large or incomplete.
func (s *Server) refusedBody(x *exchange, err error) *ServerResponse {
	fault := &Error{Code: ErrParse, Message: ErrParse.Message(), Cause: err}
	if statusOf(err) == http.StatusRequestEntityTooLarge {
		d := append(strconv.AppendInt([]byte(`{"limit":`), int64(s.opts.Limits.MaxMessage), 10), '}')
		fault = &Error{Code: ErrMessageTooLarge, Message: ErrMessageTooLarge.Message(), Details: d, Cause: err}
	}
	a := s.failure(x, fault)
	s.audit(context.Background(), x, a)
	return a
}

// respond sends the answer of an exchange, unless it is streamed.
func (s *Server) respond(w http.ResponseWriter, r *http.Request, x *exchange, a *ServerResponse) {
	if x.web.sink.w != nil {
		x.web.sink.close()
	}
	if a.Data != nil {
		status := 0
		if x.profile == ProfilePythonSDK {
			status = http.StatusOK
		}
		s.write(w, r, a, status, x.isHurried)
	}
}

// A webCall is what belongs to a request over HTTP.
type webCall struct {
	in   ServerRequest
	rw   http.ResponseWriter // nil for other transports
	opts *ServerOptions
	sink httpSink // of a stream
}

// canStream reports whether the transport can carry a stream.
func (x *exchange) canStream() bool { return x.open != nil || x.web.rw != nil }

// begin begins a streamed answer.
func (x *exchange) begin() EventSink {
	if x.open != nil {
		return x.open()
	}
	t := &x.web.opts.Timing
	x.web.sink = httpSink{rw: x.web.rw, w: sse.NewWriter(x.web.rw, &sse.WriterOptions{KeepAlive: max(t.Heartbeat, 0),
		KeepAliveText: wire.KeepAlive, WriteTimeout: t.WriteTimeout})}
	return &x.web.sink
}

// one returns a header without canonicalising its name.
func one(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// refuse answers a request without reading its message.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	x := &exchange{in: &ServerRequest{RemoteAddr: r.RemoteAddr}, agent: s.opts.ID, startTime: time.Now()}
	a := s.failure(x, &Error{Code: ErrInvalidRequest, Message: "Invalid request: " + text})
	s.write(w, r, a, status, false)
	s.audit(r.Context(), x, a)
}

// write sends an answer; a status of zero goes by the error. WriteTimeout is that of a part, or of the whole if
// isHurried.
func (s *Server) write(w http.ResponseWriter, r *http.Request, a *ServerResponse, status int, isHurried bool) {
	if status == 0 {
		status = http.StatusOK
		if a.Error != nil {
			status = s.statusFor(r.Context(), a.Error)
		}
	}
	if a.Error != nil {
		errorHeaders(w.Header(), a, status)
	}
	w.Header()["Content-Type"] = s.mediaType
	if mediaTypeFor(r.Header) != MediaType {
		w.Header()["Content-Type"] = s.jsonType
	}
	timeout := s.opts.Timing.WriteTimeout
	if isHurried && timeout > 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout)) // not every writer has one
		timeout = 0
	}
	if err := httpx.Respond(w, status, "", a.Data, timeout); err != nil {
		s.opts.Logger.DebugContext(r.Context(), "arc: response not written", "peer", r.RemoteAddr, "err", err)
	}
}

// statusFor returns the HTTP status of an error.
func (s *Server) statusFor(ctx context.Context, e *Error) int {
	status := 0
	s.hook(ctx, "HTTPStatus", func(context.Context) { status = s.opts.HTTPStatus(e) })
	if status < 200 || status > 599 {
		return e.Code.HTTPStatus()
	}
	return status
}

// errorHeaders adds the headers of ARC-D15.
func errorHeaders(h http.Header, a *ServerResponse, status int) {
	switch {
	case status == http.StatusUnauthorized && a.InvalidToken:
		h.Set("WWW-Authenticate", `Bearer realm="arc", error="invalid_token"`)
	case status == http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="arc"`)
	case a.Error.Code == ErrInsufficientScope:
		h.Set("WWW-Authenticate", `Bearer realm="arc", error="insufficient_scope", scope="`+neededScopes(a.Error)+`"`)
	case a.Error.Code == ErrRateLimitExceeded:
		h.Set("Retry-After", strconv.FormatInt(engine.RetrySeconds(a.RetryAfter), 10))
		return
	}
	if a.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(engine.RetrySeconds(a.RetryAfter), 10))
	}
}

// neededScopes reads the scopes out of the details of the error. Nothing but
// the characters of a scope gets into the header (ARC-D71).
func neededScopes(e *Error) string {
	v, err := wire.Check(e.Details)
	if err != nil {
		return ""
	}
	var list []string
	for _, s := range wire.Texts(v.Get("required_scopes")) {
		if !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
			list = append(list, s)
		}
	}
	return strings.Join(list, " ")
}

// mediaTypeFor chooses the media type of a response (ARC-D11).
func mediaTypeFor(h http.Header) string {
	list := h["Accept"]
	if len(list) == 0 || list[0] == MediaType {
		return MediaType
	}
	json := false
	for _, line := range list {
		for media := range strings.SplitSeq(line, ",") {
			media, _, _ = strings.Cut(media, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case MediaType, "application/*", "*/*":
				return MediaType
			case "application/json":
				json = true
			}
		}
	}
	if json {
		return "application/json"
	}
	return MediaType
}

// httpSink sends the events of a streamed answer.
type httpSink struct {
	rw     http.ResponseWriter
	w      *sse.Writer
	closed bool
}

// Send sends an event.
func (s *httpSink) Send(ctx context.Context, name, id string, data []byte) error {
	if !s.closed {
		err := s.w.Send(ctx, name, id, data)
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrSlowReader, err)
		}
		return err
	}
	// Discard met a stream that had just begun with a keep-alive. The writer is
	// closed, but its response is still open.
	b, err := sse.AppendEvent(nil, name, id, data)
	if err == nil {
		_, err = s.rw.Write(b)
	}
	return err
}

// Discard ends the stream unless it has begun.
func (s *httpSink) Discard() bool {
	if s.w.Started() {
		return false
	}
	_ = s.w.Close() // an error shows in the next use of the connection
	s.closed = true
	return !s.w.Started()
}

func (s *httpSink) close() {
	if !s.closed {
		_ = s.w.Close()
	}
}
