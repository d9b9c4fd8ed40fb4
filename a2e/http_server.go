// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// sessionHeader carries the secret of an HTTP session (A2E-135).
const sessionHeader = "X-Session-Id"

// HTTPHandlerOptions adjusts the HTTP side of a [Host]. The zero value is right for
// production.
type HTTPHandlerOptions struct {
	// SendPath and StreamPath replace /send and /stream.
	SendPath, StreamPath string

	// AllowedHosts are further names under which the host may be asked on a
	// loopback connection. Anything else but localhost and loopback addresses
	// is refused there, which stops DNS rebinding.
	AllowedHosts []string

	// AllowedOrigins are the origins of web pages that may ask, such as
	// "https://app.example", beside those of the host itself.
	AllowedOrigins []string

	// Heartbeat is how long a stream may be silent. Zero means 15 seconds,
	// negative for ever.
	Heartbeat time.Duration

	// WriteTimeout is how long a reader may take nothing. Zero means 30 seconds.
	WriteTimeout time.Duration

	// ReadTimeout is how long the body of a request may take to arrive. Zero
	// means 60 seconds.
	ReadTimeout time.Duration
}

const defaultBodyTimeout = 60 * time.Second

// An HTTPHandler serves a [Host] over HTTP with server-sent events (A2E-D41): POST
// /session, POST /send, GET /stream, GET /health and DELETE /session.
type HTTPHandler struct {
	host *Host
	opts HTTPHandlerOptions

	mu       sync.Mutex
	sessions map[string]*httpSession // by the secret
}

type httpSession struct {
	*Session
	secret string
	replay *replay
	feeder sync.Mutex // bodies go in one after the other

	mu     sync.Mutex // guards everything below
	reader context.CancelFunc
	turn   *turn       // identifies the reader
	gone   *time.Timer // idle, or closed and never read
	over   bool        // forgotten: no timer holds it any more
}

// A turn identifies a reader by its address, so it must not be empty: pointers to
// nothing may be equal.
type turn struct{ _ byte }

// NewHTTPHandler returns a handler that serves h.
func NewHTTPHandler(h *Host, opts *HTTPHandlerOptions) *HTTPHandler {
	x := &HTTPHandler{host: h, sessions: map[string]*httpSession{}}
	if opts != nil {
		x.opts = *opts
	}
	if x.opts.SendPath == "" {
		x.opts.SendPath = "/send"
	}
	if x.opts.StreamPath == "" {
		x.opts.StreamPath = "/stream"
	}
	if x.opts.Heartbeat == 0 {
		x.opts.Heartbeat = 15 * time.Second
	}
	if x.opts.ReadTimeout <= 0 {
		x.opts.ReadTimeout = defaultBodyTimeout
	}
	return x
}

// ServeHTTP serves one request.
func (x *HTTPHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	boundBody(w, r, x.opts.ReadTimeout)
	if detail := x.forbidden(r); detail != "" {
		writeDetail(w, http.StatusForbidden, detail)
		return
	}
	switch r.URL.Path {
	case "/session":
		switch r.Method {
		case http.MethodPost:
			x.create(w)
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

// boundBody gives a body its time to arrive, be it read here or thrown away by
// net/http, which has no limit of its own for that. A transport without
// deadlines is served without.
func boundBody(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
	}
}

func writeJSON(w http.ResponseWriter, status int, body string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, `{"detail":`+string(strictjson.AppendString(nil, detail))+`}`)
}

func wrongMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
}

// forbidden keeps web pages of other origins out.
func (x *HTTPHandler) forbidden(r *http.Request) string {
	if origins := r.Header.Values("Origin"); len(origins) > 0 {
		for _, origin := range origins {
			u, err := url.Parse(origin)
			own := err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
			if !own && !slices.Contains(x.opts.AllowedOrigins, origin) {
				return "Origin not allowed"
			}
		}
	}
	if name, foreign := foreignHost(r); foreign &&
		!slices.ContainsFunc(x.opts.AllowedHosts, func(a string) bool { return strings.EqualFold(a, name) || strings.EqualFold(a, r.Host) }) {
		return "Host not allowed"
	}
	return ""
}

// foreignHost returns the name under which this host was asked, and whether that is
// none of its own although the connection came in on a loopback address: what a
// web page does whose name was made to stand for that address.
func foreignHost(r *http.Request) (name string, foreign bool) {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !isLoopback(local) {
		return "", false
	}
	name = r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return name, name != "localhost" && (!netguard.Loopback(name) || strings.HasSuffix(name, ".localhost"))
}

func isLoopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

func (x *HTTPHandler) create(w http.ResponseWriter) {
	limits := &x.host.limits
	hs := &httpSession{secret: randid.UUID4Hex(), replay: newReplay(limits.MaxReplayEvents, limits.QueueLimit)}
	s, err := x.host.newSession(hs.replay)
	if err != nil {
		detail := "Too many sessions"
		if errors.Is(err, ErrClosed) {
			detail = "Shutting down"
		}
		writeDetail(w, http.StatusServiceUnavailable, detail)
		return
	}
	hs.Session = s
	hs.replay.overflow = s.abort
	x.mu.Lock()
	x.sessions[hs.secret] = hs
	x.mu.Unlock()
	if limits.SessionIdle > 0 {
		x.expire(hs)
	}
	context.AfterFunc(s.ctx, func() { x.closed(hs) })
	writeJSON(w, http.StatusOK, `{"session_id":"`+hs.secret+`"}`)
}

// expire ends a session when nobody has used it for a while.
func (x *HTTPHandler) expire(hs *httpSession) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.gone == nil && !hs.over {
		hs.gone = time.AfterFunc(x.patience(), func() { x.idle(hs) })
	}
}

// patience is how long a session is kept that nobody uses. One that was closed is
// not kept for ever even if others are.
func (x *HTTPHandler) patience() time.Duration {
	if d := x.host.limits.SessionIdle; d > 0 {
		return d
	}
	return defaultIdle
}

// closed forgets a session that has ended, at once if nothing is left to read.
func (x *HTTPHandler) closed(hs *httpSession) {
	if hs.isClosed() && hs.replay.drained() { // it is as soon as its lock is free
		x.forget(hs)
		return
	}
	x.expire(hs)
}

// idle ends a session that nobody used for too long.
func (x *HTTPHandler) idle(hs *httpSession) {
	hs.mu.Lock()
	if hs.reader != nil && !hs.over {
		hs.gone.Reset(x.patience())
		hs.mu.Unlock()
		return
	}
	hs.mu.Unlock()
	hs.abort()
	x.forget(hs)
}

func (x *HTTPHandler) forget(hs *httpSession) {
	x.mu.Lock()
	delete(x.sessions, hs.secret)
	x.mu.Unlock()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.over = true
	if hs.gone != nil {
		hs.gone.Stop()
		hs.gone = nil
	}
}

// find returns the session of a request, or answers that there is none. A closed
// session is found for reading as long as something is left to read.
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
	if hs.gone != nil {
		hs.gone.Reset(x.patience())
	}
	hs.mu.Unlock()
	return hs
}

// attach makes a new reader that of the session, which closes the older one, and
// lets it begin after the event that it names. The reader is told from others by
// what it gets.
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

// took says that a reader was sent the line of that id, and reports whether it is
// still that of the session. What was sent to another one does not count: the
// new one may have asked for it again.
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
	hs := x.find(w, r, false)
	if hs == nil {
		return
	}
	hs.abort()
	hs.mu.Lock()
	if hs.reader != nil {
		hs.reader()
	}
	hs.mu.Unlock()
	x.forget(hs)
	writeJSON(w, http.StatusOK, `{"ok":true}`)
}

// send feeds a body to its session. The lock makes the bodies of one session go
// in one after the other, in the order in which they have arrived completely.
func (x *HTTPHandler) send(w http.ResponseWriter, r *http.Request) {
	hs := x.find(w, r, false)
	if hs == nil {
		return
	}
	most := x.host.codec.maxBytes()
	body := io.Reader(r.Body)
	if most > 0 {
		body = http.MaxBytesReader(w, r.Body, int64(most)+1) // one for the last line feed
	}
	data, err := io.ReadAll(body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large), most > 0 && len(bytes.TrimSuffix(data, []byte{'\n'})) > most:
		w.Header().Set("Connection", "close")
		writeDetail(w, http.StatusRequestEntityTooLarge, "Message too large")
		return
	case err != nil:
		w.Header().Set("Connection", "close") // where the next request begins is not known
		writeDetail(w, http.StatusBadRequest, "Incomplete body")
		return
	}
	hs.feeder.Lock()
	defer hs.feeder.Unlock()
	if hs.isClosed() {
		writeDetail(w, http.StatusNotFound, "Session not found")
		return
	}
	if n := len(data); n > 0 && data[n-1] != '\n' {
		data = append(data, '\n')
	}
	in := NewLineReader(bytes.NewReader(data), x.host.codec)
	for {
		line, err := in.next()
		var e *Error
		if err == nil {
			hs.feed(line)
			continue
		}
		if !errors.As(err, &e) {
			break
		}
		hs.refuse(e)
	}
	writeJSON(w, http.StatusOK, `{"ok":true}`)
}

func (x *HTTPHandler) stream(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 { // the deadline of a body would end the stream
		w.Header().Set("Connection", "close")
		writeDetail(w, http.StatusBadRequest, "Unexpected body")
		return
	}
	hs := x.find(w, r, true)
	if hs == nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	t := hs.attach(cancel, r.Header.Get("Last-Event-ID"))
	defer func() {
		hs.mu.Lock()
		if hs.turn == t {
			hs.reader, hs.turn = nil, nil
			if hs.gone != nil {
				hs.gone.Reset(x.patience())
			}
		}
		hs.mu.Unlock()
	}()
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	out := sse.NewWriter(w, &sse.WriterOptions{ContentType: "text/event-stream; charset=utf-8",
		WriteTimeout: x.opts.WriteTimeout, KeepAlive: max(x.opts.Heartbeat, 0), KeepAliveText: "hb"})
	defer out.Close()
	if out.Start() != nil {
		return
	}
	for ctx.Err() == nil {
		id, line, wait, end := hs.replay.peek()
		if end {
			x.forget(hs)
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
