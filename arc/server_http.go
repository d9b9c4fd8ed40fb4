// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/sse"
)

// ServeHTTP serves the endpoint and the paths of discovery.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if r.ContentLength != 0 {
		s.boundBody(w)
	}
	switch {
	case path == s.opts.Path || strings.HasSuffix(path, "/") && path[:len(path)-1] == s.opts.Path:
		if s.cors(w, r) {
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
		s.refuse(w, r, http.StatusMethodNotAllowed, &Error{Code: ErrInvalidRequest, Message: "Invalid request: only POST is allowed"})
		return
	}
	if !acceptable(r.Header) {
		s.refuse(w, r, http.StatusUnsupportedMediaType, &Error{Code: ErrInvalidRequest,
			Message: "Invalid request: the media type must be " + MediaType})
		return
	}
	data, err := s.readBody(w, r)
	if err != nil {
		var fault *Error
		if errors.As(err, &fault) {
			s.refuse(w, r, s.opts.HTTPStatus(fault), fault)
			return
		}
		// The body was cut off: the caller disconnected, or the request took too
		// long.
		s.refuse(w, r, http.StatusBadRequest, &Error{Code: ErrParse, Message: ErrParse.Message()})
		return
	}
	h := r.Header
	x := &exchange{}
	x.web = webCall{rw: w, opts: &s.opts, in: ServerRequest{Data: data, Authorization: one(h, "Authorization"), Traceparent: one(h, "Traceparent"),
		AgentPath: one(h, "X-Arc-Path"), LastEventID: one(h, "Last-Event-Id")}}
	x.in = &x.web.in
	a := s.exchange(r.Context(), x)
	if x.web.sink != nil { // kept only by calls that stream
		x.web.sink.close()
	}
	if a.Data != nil {
		s.write(w, r, a, 0)
		x.web.answer.free()
		x.web.answer = nil
	}
}

// A webCall is what belongs to a request over HTTP.
type webCall struct {
	in   ServerRequest
	rw   http.ResponseWriter // nil for other transports
	opts *ServerOptions
	sink *httpSink // nil unless the answer is streamed

	answer *ready // where the envelope is written, unless it is kept
}

// streams reports whether the transport can carry a stream.
func (x *exchange) streams() bool { return x.open != nil || x.web.rw != nil }

// begin begins a streamed answer.
func (x *exchange) begin() EventSink {
	if x.open != nil {
		return x.open()
	}
	x.web.sink = newHTTPSink(x.web.rw, x.web.opts)
	return x.web.sink
}

// one returns a header without canonicalising its name.
func one(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// acceptable checks the media type and coding of a request (ARC-D10).
func acceptable(h http.Header) bool {
	if c := one(h, "Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return false
	}
	ct := one(h, "Content-Type")
	if ct == MediaType {
		return true
	}
	media, params, err := mime.ParseMediaType(ct)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return false
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") {
		return false
	}
	return media == MediaType || media == "application/json" || media == MediaTypeStream
}

// readBody reads at most what is allowed (ARC-D13), in at most the time allowed.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := s.opts.Limits.MaxMessage
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // what follows would have to be read first
		return nil, sizeFault(limit)
	}
	data, err := s.readAll(r, limit)
	switch {
	case err == nil:
		// The work may take longer than the body did. After a failure the
		// deadline stays: net/http reads on before it answers.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	case errors.Is(err, ErrTooLarge):
		w.Header().Set("Connection", "close")
		return nil, sizeFault(limit)
	default:
		w.Header().Set("Connection", "close") // where the next request begins is not known
	}
	return data, err
}

// boundBody gives the body its time to arrive, be it read here or thrown away by
// net/http (ARC-D18). A transport without deadlines is served without.
func (s *Server) boundBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.opts.Timing.ReadTimeout))
}

func (s *Server) readAll(r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength >= 0 {
		// Beyond this size memory is taken as the bytes arrive, not on the word
		// of the header.
		const trusted = 64 << 10
		if r.ContentLength <= trusted {
			data := make([]byte, r.ContentLength)
			_, err := io.ReadFull(r.Body, data)
			return data, err
		}
	}
	return readLimited(nil, r.Body, limit)
}

func sizeFault(limit int64) *Error {
	d := append(appendInt([]byte(`{"limit":`), limit), '}')
	return &Error{Code: ErrMessageTooLarge, Message: ErrMessageTooLarge.Message(), Details: d}
}

// refuse answers a request without reading its message.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, e *Error) {
	x := &exchange{in: &ServerRequest{}, agent: s.opts.ID, startTime: time.Now()}
	a := s.failure(x, e)
	s.write(w, r, a, status)
	if s.opts.Audit != nil {
		s.audit(r.Context(), x, a)
	}
}

// bigAnswer is the size in bytes from which a response has a write deadline: smaller
// ones fit into the buffers of the connection.
const bigAnswer = 64 << 10

// write sends an answer; a status of zero goes by the error.
func (s *Server) write(w http.ResponseWriter, r *http.Request, a *ServerResponse, status int) {
	h := w.Header()
	h["Content-Type"] = mediaTypeFor(r.Header)
	if status == 0 {
		status = http.StatusOK
		if a.Error != nil {
			status = s.opts.HTTPStatus(a.Error)
		}
	}
	if a.Error != nil {
		errorHeaders(h, a, status)
	}
	if len(a.Data) > 1<<10 { // net/http sees to short answers
		h["Content-Length"] = []string{strconv.Itoa(len(a.Data))}
	}
	if len(a.Data) > bigAnswer {
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(s.opts.Timing.ReadTimeout))
		defer func() {
			_ = rc.Flush()
			_ = rc.SetWriteDeadline(time.Time{})
		}()
	}
	w.WriteHeader(status)
	_, _ = w.Write(a.Data) // an error means that the caller disconnected
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
		h.Set("Retry-After", strconv.FormatInt(retrySeconds(a.RetryAfter), 10))
		return
	}
	if a.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(retrySeconds(a.RetryAfter), 10))
	}
}

// neededScopes reads the scopes out of the details of the error. Nothing but
// the characters of a scope gets into the header (ARC-D71).
func neededScopes(e *Error) string {
	v, err := checkJSON(e.Details)
	if err != nil {
		return ""
	}
	var list []string
	for _, s := range textsOf(v.Get("required_scopes")) {
		if !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
			list = append(list, s)
		}
	}
	return strings.Join(list, " ")
}

var (
	headerARC  = []string{MediaType}
	headerJSON = []string{"application/json"}
)

// mediaTypeFor chooses the media type of a response (ARC-D11).
func mediaTypeFor(h http.Header) []string {
	list := h["Accept"]
	if len(list) == 0 || list[0] == MediaType {
		return headerARC
	}
	json := false
	for _, line := range list {
		for media := range strings.SplitSeq(line, ",") {
			media, _, _ = strings.Cut(media, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case MediaType, "application/*", "*/*":
				return headerARC
			case "application/json":
				json = true
			}
		}
	}
	if json {
		return headerJSON
	}
	return headerARC
}

// cors answers what browsers ask, for the origins that are allowed (ARC-D17), and
// reports whether the request is to be served.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) bool {
	if len(s.opts.AllowedOrigins) == 0 {
		return true
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := one(r.Header, "Origin")
	if origin == "" {
		return true
	}
	allowed := false
	for _, o := range s.opts.AllowedOrigins {
		allowed = allowed || o == origin
	}
	if !allowed {
		return true // the browser keeps the answer from the page
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate")
	if r.Method != http.MethodOptions || one(r.Header, "Access-Control-Request-Method") == "" {
		return true
	}
	h.Set("Access-Control-Allow-Methods", http.MethodPost)
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Last-Event-ID, traceparent, X-ARC-Path")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return false
}

// httpSink sends the events of a streamed answer.
type httpSink struct {
	rw     http.ResponseWriter
	w      *sse.Writer
	closed bool
}

func newHTTPSink(w http.ResponseWriter, o *ServerOptions) *httpSink {
	return &httpSink{rw: w, w: sse.NewWriter(w, &sse.WriterOptions{KeepAlive: max(o.Timing.Heartbeat, 0),
		KeepAliveText: keepAliveText, WriteTimeout: o.Timing.WriteTimeout})}
}

// Send sends an event.
func (s *httpSink) Send(ctx context.Context, name, id string, data []byte) error {
	if !s.closed {
		return s.w.Send(ctx, name, id, data)
	}
	// Abandon met a stream that had just begun with a keep-alive. The writer is
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
