// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// sessionHeader carries the secret of an HTTP session (A2E-135).
const sessionHeader = "X-Session-Id"

// HTTPHandlerOptions configures the HTTP side of a [Host]. The zero value is right for production.
type HTTPHandlerOptions struct {
	// SendPath and StreamPath replace /send and /stream.
	SendPath, StreamPath string

	// AllowedHosts are further names of the host that are accepted on a loopback connection. Names
	// other than these, localhost and loopback addresses are refused there, which stops DNS
	// rebinding.
	AllowedHosts []string

	// AllowedOrigins are the origins of web pages that may send requests, such as
	// "https://app.example", in addition to the host's own origin.
	AllowedOrigins []string

	// Heartbeat is the interval of keep-alive comments on an idle stream. Zero means 15 s; a
	// negative value disables them.
	Heartbeat time.Duration

	// WriteTimeout is the maximum duration of one write to a reader. Zero means 30 s.
	WriteTimeout time.Duration

	// ReadTimeout bounds the arrival of a request body. Zero means 60 s.
	ReadTimeout time.Duration
}

const defaultBodyTimeout = 60 * time.Second

// An HTTPHandler serves a [Host] over HTTP with server-sent events (A2E-D41): POST
// /session, POST /send, GET /stream, GET /health and DELETE /session.
type HTTPHandler struct {
	host    *Host
	opts    HTTPHandlerOptions
	origins httpx.Origins

	mu       sync.Mutex
	sessions map[string]*httpSession // by the secret
}

type httpSession struct {
	*Session
	secret string
	replay *replay
	feeder sync.Mutex // serializes bodies

	mu          sync.Mutex // guards everything below
	reader      context.CancelFunc
	turn        *turn       // identifies the reader
	idleTimer   *time.Timer // ends an idle or closed session; nil without a limit
	isForgotten bool        // no timer may be started
}

// A turn identifies a reader by its address. It is not empty because pointers to empty values may
// be equal.
type turn struct{ _ byte }

// NewHTTPHandler returns a handler that serves h.
func NewHTTPHandler(h *Host, opts *HTTPHandlerOptions) (*HTTPHandler, error) {
	if h == nil {
		return nil, errors.New("a2e: new http handler: no host")
	}
	o := opts.withDefaults()
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("a2e: new http handler: %w", err)
	}
	if h.durable != nil {
		h.mu.Lock()
		h.serving = true
		h.mu.Unlock()
		h.durable.begin()
	}
	return &HTTPHandler{host: h, opts: o, sessions: map[string]*httpSession{},
		origins: httpx.Origins{AllowedOrigins: o.AllowedOrigins, AllowedHosts: o.AllowedHosts}}, nil
}

func (o *HTTPHandlerOptions) withDefaults() HTTPHandlerOptions {
	var d HTTPHandlerOptions
	if o != nil {
		d = *o
	}
	d.SendPath = cmp.Or(d.SendPath, "/send")
	d.StreamPath = cmp.Or(d.StreamPath, "/stream")
	d.AllowedHosts, d.AllowedOrigins = slices.Clone(d.AllowedHosts), slices.Clone(d.AllowedOrigins)
	d.Heartbeat = cmp.Or(d.Heartbeat, 15*time.Second)
	d.ReadTimeout = cmp.Or(d.ReadTimeout, defaultBodyTimeout)
	return d
}

// ServeHTTP serves one request.
func (x *HTTPHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.LeaveIf(x.host.life.Ready(), w)
	httpx.Bound(w, r, x.opts.ReadTimeout)
	_, err := httpx.CheckRequest(r, nil, sessionHeader, "Last-Event-ID")
	if err == nil {
		err = x.origins.Check(r)
	}
	if name, ok := netguard.RequestHost(r); err == nil && !ok && !x.allows(name, r.Host) {
		err = &httpx.Error{Status: http.StatusForbidden, Message: "host not allowed"}
	}
	if err != nil {
		x.refuse(w, r, err)
		return
	}
	switch r.URL.Path {
	case "/session":
		switch r.Method {
		case http.MethodPost:
			x.create(w, r)
		case http.MethodDelete:
			x.drop(w, r)
		default:
			wrongMethod(w, "POST, DELETE")
		}
	case x.opts.SendPath:
		if r.Method != http.MethodPost {
			wrongMethod(w, http.MethodPost)
			return
		}
		x.send(w, r)
	case x.opts.StreamPath:
		if r.Method != http.MethodGet {
			wrongMethod(w, http.MethodGet)
			return
		}
		x.stream(w, r)
	case "/health":
		if r.Method != http.MethodGet {
			wrongMethod(w, http.MethodGet)
			return
		}
		writeJSON(w, http.StatusOK, `{"status":"ok"}`)
	default:
		writeDetail(w, http.StatusNotFound, "Not Found")
	}
}

// refuse answers a request that httpx refuses.
func (x *HTTPHandler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, detail := http.StatusBadRequest, "Bad Request"
	var e *httpx.Error
	if errors.As(err, &e) {
		status, detail = e.Status, e.Message
		switch {
		case status == http.StatusRequestEntityTooLarge:
			detail = "Message too large"
		case status == http.StatusBadRequest && e.Cause != nil:
			detail = "Incomplete body"
		case detail != "":
			detail = strings.ToUpper(detail[:1]) + detail[1:]
		}
	}
	x.host.recordRefusal(r, status, err)
	writeDetail(w, status, detail)
}

// recordRefusal logs and audits a refused request.
func (h *Host) recordRefusal(r *http.Request, status int, err error) {
	h.log.WarnContext(r.Context(), "a2e: http request refused", "peer", r.RemoteAddr, "err", err)
	h.audit(r.Context(), &AuditRecord{Time: time.Now(), Peer: r.RemoteAddr, Operation: r.Method + " " + r.URL.Path,
		Outcome: OutcomeRefused, Code: strconv.Itoa(status)})
}

func writeJSON(w http.ResponseWriter, status int, body string) {
	_ = httpx.Respond(w, status, "application/json", []byte(body), defaultStall)
}

func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, `{"detail":`+string(strictjson.AppendString(nil, detail))+`}`)
}

func wrongMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
}

// allows reports whether a host name on a loopback connection is one of AllowedHosts.
func (x *HTTPHandler) allows(names ...string) bool {
	return slices.ContainsFunc(x.opts.AllowedHosts, func(allowed string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(allowed, name) })
	})
}

// unavailable returns the answer to a request over a bound of the host, or after its end.
func unavailable(w http.ResponseWriter, err error, detail string) *httpx.Error {
	after := "5"
	if errors.Is(err, ErrClosed) {
		detail = "Shutting down"
	}
	if b, ok := errors.AsType[*budget.Error](err); ok {
		after = strconv.FormatInt(retrySeconds(b), 10)
	}
	w.Header().Set("Retry-After", after)
	return &httpx.Error{Status: http.StatusServiceUnavailable, Message: detail, Cause: err}
}

// create makes a session. A body is its first one, with the handshake (A2E-D61).
func (x *HTTPHandler) create(w http.ResponseWriter, r *http.Request) {
	stranger := x.host.budget.Scope(principalName(nil, r.RemoteAddr, ""), "")
	data, hold, err := x.body(w, r, stranger, pendingLimit(x.host.codec.maxBytes()))
	defer hold.Release()
	if err != nil {
		x.refuse(w, r, err)
		return
	}
	limits := &x.host.opts.Limits
	hs := &httpSession{secret: randid.UUID4Hex(), replay: newReplay(limits.MaxReplayEvents, limits.unread())}
	hs.replay.keepAll = x.host.durable != nil
	var s *Session
	if err = x.host.ready(); err == nil {
		s, err = x.host.newSession(nil, hs.replay, r.RemoteAddr, x.host.httpExtensions())
	}
	if err != nil {
		x.refuse(w, r, unavailable(w, err, "Too many sessions"))
		return
	}
	hs.Session = s
	if d := x.host.durable; d != nil {
		s.promote = func(ctx context.Context, r sessionRecord) (*kept, error) {
			return d.open(ctx, sessionKey(hs.secret), r)
		}
	}
	hs.replay.overflow = func() { s.abort(session.EndCut) }
	x.mu.Lock()
	x.sessions[hs.secret] = hs
	x.mu.Unlock()
	if x.host.opts.Timing.SessionIdleTimeout > 0 {
		x.expire(hs)
	}
	s.atEnd(func(session.End) {
		hs.replay.finish()
		x.closed(hs)
	})
	note := ""
	if len(data) > 0 {
		if _, err := x.feedBody(r.Context(), hs, data, hold); err != nil {
			x.refuse(w, r, storeFailed(w, err))
			return
		}
		note = `,"taken":true`
	}
	writeJSON(w, http.StatusOK, `{"session_id":"`+hs.secret+`"`+note+`}`)
}

// body reads the body of a request, of at most limit bytes; 0 is no limit. The hold is the memory of the body.
func (x *HTTPHandler) body(w http.ResponseWriter, r *http.Request, scope *budget.Scope, limit int) ([]byte, budget.Hold, error) {
	maxRead := int64(-1)
	if limit > 0 {
		maxRead = int64(limit) + 1 // one for the last line feed
	}
	hold, err := httpx.ReserveBody(r, scope, maxRead)
	var data []byte
	if err == nil {
		data, err = httpx.Body(w, r, maxRead, x.opts.ReadTimeout)
	}
	full, isOver := errors.AsType[*budget.Error](err)
	isTooLarge := err == nil && limit > 0 && len(bytes.TrimSuffix(data, []byte{'\n'})) > limit ||
		isOver && r.ContentLength > full.Limit // so another attempt fails too
	switch {
	case isTooLarge:
		w.Header().Set("Connection", "close")
		err = &httpx.Error{Status: http.StatusRequestEntityTooLarge, Message: "Message too large", Cause: err}
	case isOver:
		w.Header().Set("Connection", "close")
		err = unavailable(w, full, "Too many messages")
	}
	return data, hold, err
}

// feedBody processes the lines of a body, and reports whether the session was open. The bodies of a
// session are processed one after the other, in the order of their complete arrival. The hold of a body
// ends when its messages reserve their memory. An error means that the store failed.
func (x *HTTPHandler) feedBody(ctx context.Context, hs *httpSession, data []byte, hold budget.Hold) (isOpen bool, err error) {
	hs.feeder.Lock()
	defer hs.feeder.Unlock()
	if k := hs.durable(); k != nil {
		return true, x.host.durable.deliver(ctx, k.key, hs.budgetScope(), inboxBody, data)
	}
	if hs.isClosed() {
		return false, nil
	}
	hold.Release()
	if hs.promote == nil {
		hs.feedLines(data)
		return true, nil
	}
	for line := range bytes.Lines(data) {
		hs.feedLines(line)
		data = data[len(line):]
		if k := hs.durable(); k != nil {
			x.forget(hs)
			k.run()
			if err := k.out.sync(ctx); err != nil || len(data) == 0 {
				return true, err
			}
			return true, x.host.durable.deliver(ctx, k.key, hs.budgetScope(), inboxBody, data)
		}
	}
	return true, nil
}

// expire starts the idle timer of a session.
func (x *HTTPHandler) expire(hs *httpSession) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.idleTimer == nil && !hs.isForgotten {
		hs.idleTimer = time.AfterFunc(x.host.patience(), func() { x.idle(hs) })
	}
}

// closed removes a session that has ended, at once if nothing is left to read.
func (x *HTTPHandler) closed(hs *httpSession) {
	if hs.isClosed() && hs.replay.drained() {
		x.forget(hs)
		return
	}
	x.expire(hs)
}

// idle ends a session that was unused for too long.
func (x *HTTPHandler) idle(hs *httpSession) {
	hs.mu.Lock()
	if hs.reader != nil && !hs.isForgotten {
		hs.idleTimer.Reset(x.host.patience())
		hs.mu.Unlock()
		return
	}
	isForgotten := hs.isForgotten
	hs.mu.Unlock()
	if !isForgotten {
		hs.abort(session.EndIdle)
		x.forget(hs)
	}
}

func (x *HTTPHandler) forget(hs *httpSession) {
	x.mu.Lock()
	delete(x.sessions, hs.secret)
	x.mu.Unlock()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.isForgotten = true
	if hs.idleTimer != nil {
		hs.idleTimer.Stop()
		hs.idleTimer = nil
	}
}

// find returns the session of a request, or answers that the session is unknown. A closed session
// is found for reading as long as messages are left to read.
func (x *HTTPHandler) find(w http.ResponseWriter, r *http.Request, reading bool) *httpSession {
	secret := r.Header.Get(sessionHeader)
	if secret == "" {
		writeDetail(w, http.StatusBadRequest, "Missing X-Session-Id")
		return nil
	}
	x.mu.Lock()
	hs := x.sessions[secret]
	x.mu.Unlock()
	if hs == nil || !reading && hs.isClosed() || reading && hs.replay.drained() {
		if hs != nil && hs.replay.drained() {
			x.forget(hs)
		}
		writeDetail(w, http.StatusNotFound, "Session not found")
		return nil
	}
	hs.mu.Lock()
	if hs.idleTimer != nil {
		hs.idleTimer.Reset(x.host.patience())
	}
	hs.mu.Unlock()
	return hs
}

// attach replaces the reader of the session, closes the older reader, and rewinds the messages to
// the event that the new reader names. The returned turn identifies the reader.
func (hs *httpSession) attach(cancel context.CancelFunc, lastEventID string) *turn {
	t := &turn{}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.reader != nil {
		hs.reader()
	}
	hs.reader, hs.turn = cancel, t
	if last, err := strconv.ParseUint(lastEventID, 10, 63); err == nil {
		hs.replay.rewind(last)
	}
	return t
}

// detach removes the reader of a turn, unless another reader has replaced it.
func (hs *httpSession) detach(t *turn) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.turn != t {
		return
	}
	hs.reader, hs.turn = nil, nil
	if hs.idleTimer != nil {
		hs.idleTimer.Reset(hs.host.patience())
	}
}

// took records that a reader received the line with that id, and reports whether the reader is
// still current. A line sent to an older reader does not count, because the new reader may have
// requested it again.
func (hs *httpSession) took(t *turn, id uint64) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.turn != t {
		return false
	}
	hs.replay.took(id)
	return true
}

func (x *HTTPHandler) drop(w http.ResponseWriter, r *http.Request) {
	if key := x.durableKey(r); key != "" {
		x.dropDurable(w, r, key)
		return
	}
	hs := x.find(w, r, false)
	if hs == nil {
		return
	}
	hs.abort(session.EndAgent)
	hs.mu.Lock()
	if hs.reader != nil {
		hs.reader()
	}
	hs.mu.Unlock()
	x.forget(hs)
	writeJSON(w, http.StatusOK, `{"ok":true}`)
}

// send feeds a body to its session.
func (x *HTTPHandler) send(w http.ResponseWriter, r *http.Request) {
	if key := x.durableKey(r); key != "" {
		x.sendDurable(w, r, key)
		return
	}
	hs := x.find(w, r, false)
	if hs == nil {
		return
	}
	limit := x.host.codec.maxBytes()
	if hs.isPending.Load() {
		limit = pendingLimit(limit)
	}
	data, hold, err := x.body(w, r, hs.budgetScope(), limit)
	defer hold.Release()
	isOpen := false
	if err == nil {
		if isOpen, err = x.feedBody(r.Context(), hs, data, hold); err != nil {
			err = storeFailed(w, err)
		}
	}
	switch {
	case err != nil:
		x.refuse(w, r, err)
	case !isOpen:
		writeDetail(w, http.StatusNotFound, "Session not found")
	default:
		writeJSON(w, http.StatusOK, `{"ok":true}`)
	}
}

// newStream returns the event stream of a response.
func (x *HTTPHandler) newStream(w http.ResponseWriter) *sse.Writer {
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	return sse.NewWriter(w, &sse.WriterOptions{ContentType: "text/event-stream; charset=utf-8",
		WriteTimeout: x.opts.WriteTimeout, KeepAlive: max(x.opts.Heartbeat, 0), KeepAliveText: "hb"})
}

// canFlush reports whether a response can be a stream. That of a middleware without Unwrap cannot.
func canFlush(w http.ResponseWriter) bool {
	switch w := w.(type) {
	case http.Flusher, interface{ FlushError() error }:
		return true
	case interface{ Unwrap() http.ResponseWriter }:
		return canFlush(w.Unwrap())
	}
	return false
}

func (x *HTTPHandler) stream(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 { // the read deadline of a body would end the stream
		w.Header().Set("Connection", "close")
		writeDetail(w, http.StatusBadRequest, "Unexpected body")
		return
	}
	if !canFlush(w) {
		x.refuse(w, r, &httpx.Error{Status: http.StatusNotImplemented, Message: "the response writer has no Flush"})
		return
	}
	if key := x.durableKey(r); key != "" {
		x.followDurable(w, r, key)
		return
	}
	hs := x.find(w, r, true)
	if hs == nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	t := hs.attach(cancel, r.Header.Get("Last-Event-ID"))
	defer hs.detach(t)
	out := x.newStream(w)
	defer out.Close()
	if out.Start() != nil {
		return
	}
	for ctx.Err() == nil {
		id, line, wait, end := hs.replay.peek()
		if end {
			x.forget(hs)
			if k := hs.durable(); k != nil {
				x.host.durable.follow(ctx, out, k.key, &id)
			}
			return
		}
		if wait == nil {
			if out.Send(ctx, "", strconv.FormatUint(id, 10), line) != nil || !hs.took(t, id) {
				return
			}
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
		case <-out.Done():
			return
		}
	}
}
