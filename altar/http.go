// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The paths under which a [Host] answers HTTP (ALT-D04, ALT-D05).
const (
	MessagesPath  = transport.MessagesPath
	WebSocketPath = transport.WebSocketPath
)

// ServeHTTP answers clients at [MessagesPath] and upgrades clients and Runtimes
// at [WebSocketPath].
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.LeaveIf(h.Ready(), w)
	if r.ContentLength != 0 {
		httpx.Bound(w, r, h.opts.Timing.ReadTimeout)
	}
	switch r.URL.Path {
	case MessagesPath:
		h.serveMessage(w, r)
	case WebSocketPath:
		h.serveWebSocket(w, r)
	default:
		http.NotFound(w, r)
	}
}

// identify asks the Authenticator.
func (h *Host) identify(r *http.Request) (id *Principal, refused *Error) {
	if h.opts.Auth.Authenticator == nil {
		return nil, nil
	}
	place, err := h.budget.Scope(budget.Anonymous(r.RemoteAddr), "").Reserve(budget.Unauthenticated, 1)
	if err != nil {
		refused = overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
		h.auditAuth(r, refused)
		return nil, refused
	}
	defer place.Release()
	err = h.guard("Authenticator", func() (err error) {
		id, err = h.opts.Auth.Authenticator.Authenticate(r)
		return err
	})
	if err != nil {
		h.opts.Logger.WarnContext(r.Context(), "altar: authentication failed", "peer", r.RemoteAddr, "err", err)
		if !errors.As(err, &refused) || refused.Code != ErrInternal || refused.Remote {
			refused = errUnauthenticated()
		}
	} else if id != nil && !id.Expires.IsZero() && !id.Expires.After(time.Now()) {
		refused = errUnauthenticated()
	}
	if refused != nil {
		h.auditAuth(r, refused)
		return nil, refused
	}
	return id, nil
}

// tokenRequest returns a request with a token, for the Authenticator.
func tokenRequest(ctx context.Context, addr, token string) *http.Request {
	r := (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: WebSocketPath}, RemoteAddr: addr, Header: http.Header{}}).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

func (h *Host) auditAuth(r *http.Request, refused *Error) {
	h.auditOne(&AuditRecord{Operation: "auth.refused", Peer: r.RemoteAddr, Error: refused}, nil)
}

// serveMessage takes one message of a client (ALT-D05).
func (h *Host) serveMessage(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		h.httpError(w, header{}, formFault(reasonMethodNotAllowed, "", "only POST is allowed here"))
		return
	}
	if _, err := httpx.CheckRequest(r, nil, APIKeyHeader); err != nil {
		h.httpError(w, header{}, formFault(reasonInvalidValue, "", httpText(err)))
		return
	}
	if h.origins.Check(r) != nil {
		h.httpError(w, header{}, Errorf(ErrAuthorizationFailed, ReasonDenied, "the origin is not allowed"))
		return
	}
	id, err := h.identify(r)
	if err == nil && id == nil && !h.opts.Auth.AllowAnonymous {
		err = errUnauthenticated()
	}
	if err != nil {
		h.httpError(w, header{}, err)
		return
	}
	if _, err := httpx.CheckRequest(r, []string{transport.TypeJSON}); err != nil {
		h.httpError(w, header{}, formFault(reasonUnsupportedMediaType, "", httpText(err)))
		return
	}
	kind := transport.Acceptable(r.Header.Values("Accept"))
	if kind == "" {
		h.httpError(w, header{}, formFault(reasonNotAcceptable, "", "none of the accepted media types is available"))
		return
	}
	body, err := h.body(w, r, id)
	if err != nil {
		h.httpError(w, header{}, err)
		return
	}
	h.exchange(w, r, id, body, kind)
}

// httpText returns the text of a refusal of [httpx.CheckRequest].
func httpText(err error) string {
	e, _ := errors.AsType[*httpx.Error](err)
	return e.Message
}

// body reads the body of a request. A call in it then reserves the memory of its parameters.
func (h *Host) body(w http.ResponseWriter, r *http.Request, id *Principal) ([]byte, *Error) {
	limit := int64(h.opts.Limits.MaxMessage)
	hold, err := httpx.ReserveBody(r, h.budget.Scope(principalKey(id.principal(), r.RemoteAddr), ""), limit)
	defer hold.Release()
	var body []byte
	if err == nil {
		body, err = httpx.Body(w, r, limit, h.opts.Timing.ReadTimeout)
	}
	if full := overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err); full != nil {
		return nil, full
	}
	switch {
	case errors.Is(err, httpx.ErrTooLarge):
		return nil, frameError(reasonMessageTooLarge).Err
	case err != nil:
		return nil, frameError(reasonMalformedJSON).Err
	}
	return body, nil
}

// exchange handles a message and writes its responses.
func (h *Host) exchange(w http.ResponseWriter, r *http.Request, id *Principal, body []byte, kind string) {
	m, err := DecodeMessage(body, h.opts.Limits.MaxMessage)
	var bad *badFrame
	errors.As(err, &bad)
	var typ string
	var of header
	switch {
	case bad == nil:
		typ, of = typeOf(m), *m.head()
	case bad.InvalidFrame:
		h.httpError(w, header{}, bad.Err)
		return
	default:
		typ, of = bad.Type, header{RequestID: bad.RequestID, CorrelationID: bad.CorrelationID}
	}
	switch typ {
	case "CreateSession", "DestroySession", "ListTools", "Ping", "ToolCall", "CancelCall":
	default:
		e := formFault(reasonWrongTransport, "", "this message does not go over HTTP")
		if bad != nil && (bad.Err.StringDetail("path") == "/type" || typ == "") {
			e = bad.Err
		}
		h.httpError(w, of, e)
		return
	}
	hc, err := h.admit(nil, false, id, r.RemoteAddr)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer h.release(hc)
	defer hc.detach()
	if typ != "ToolCall" {
		kind = transport.TypeJSON
	} else if call, ok := m.(*ToolCall); ok {
		call.Credit = nil
		call.CollectChunks = call.CollectChunks || kind == transport.TypeJSON
	}
	h.handle(hc, m, bad)
	if typ == "CancelCall" {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	h.respond(w, r, hc, kind)
}

// respond writes the responses to a message.
func (h *Host) respond(w http.ResponseWriter, r *http.Request, hc *hostConn, kind string) {
	first, _ := hc.next(r.Context())
	if first == nil {
		if r.Context().Err() == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	first, hold := h.reserveOutput(hc, first)
	defer hold.Release()
	_, failed := first.(*ErrorMessage)
	switch {
	case failed || kind == transport.TypeJSON:
		h.httpMessage(w, first)
	default:
		h.stream(r, hc, first, transport.NewFrameWriter(w, kind, h.opts.Timing.WriteTimeout))
	}
}

// reserveOutput takes the memory of a response for its principal. Without it the response is an error. The record of a call
// has its result, too.
func (h *Host) reserveOutput(hc *hostConn, m Message) (Message, budget.Hold) {
	n := weight(m)
	if n <= httpx.LargeOutput {
		return m, budget.Hold{}
	}
	hold, err := h.budget.Scope(hc.budgetKey(), "").Reserve(budget.Memory, int64(n))
	result, isResult := m.(*ToolResult)
	switch full := overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err); {
	case full == nil:
	case isResult:
		m = &ToolResult{InvocationID: result.InvocationID, Error: errSlowConsumer(), header: result.header}
	default:
		m = &ErrorMessage{Err: full, header: *m.head()}
	}
	return m, hold
}

// httpStatus is the status of an Error message; every other answer is 200.
func httpStatus(e *Error) int {
	switch e.Reason() {
	case ReasonUnauthenticated:
		return http.StatusUnauthorized
	case reasonMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case reasonNotAcceptable:
		return http.StatusNotAcceptable
	case reasonMessageTooLarge:
		return http.StatusRequestEntityTooLarge
	case reasonUnsupportedMediaType:
		return http.StatusUnsupportedMediaType
	case ReasonDraining:
		return http.StatusServiceUnavailable
	}
	switch e.Code {
	case ErrRuntimeUnavailable: // too many requests in authentication
		return http.StatusServiceUnavailable
	case ErrAuthorizationFailed:
		return http.StatusForbidden
	case ErrSessionInvalid:
		return http.StatusNotFound
	case ErrInvalidParameters:
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

func (h *Host) httpError(w http.ResponseWriter, of header, e *Error) {
	h.httpMessage(w, &ErrorMessage{Err: e, header: of})
}

func (h *Host) httpMessage(w http.ResponseWriter, m Message) {
	status := http.StatusOK
	if e, ok := m.(*ErrorMessage); ok {
		status = httpStatus(e.Err)
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		if ms, err := strconv.Atoi(string(strictjson.Value(e.Err.Details).Get("retry_after_ms"))); err == nil {
			w.Header().Set("Retry-After", strconv.Itoa((ms+999)/1000))
		} else if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
	}
	out, err := appendMessage(nil, m, true)
	if err != nil {
		h.opts.Logger.ErrorContext(h.ctx, "altar: message not sent", "err", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_ = httpx.Respond(w, status, transport.TypeJSON, out, h.opts.Timing.WriteTimeout) // fails if the client disconnected
}

// last reports whether a message ends the response to a ToolCall.
func last(m Message) bool {
	c, ok := m.(*StreamChunk)
	return !ok || c.IsFinal
}

// stream writes the messages of a stream, from its first one.
func (h *Host) stream(r *http.Request, hc *hostConn, m Message, out transport.FrameWriter) {
	defer func() { _ = out.Close() }()
	var buf []byte
	for more := false; m != nil; m, more = hc.next(r.Context()) {
		frame, err := appendMessage(buf[:0], m, true)
		if err != nil {
			h.opts.Logger.ErrorContext(h.ctx, "altar: message not sent", "err", err)
			return
		}
		buf = frame
		id := int64(-1)
		if c, ok := m.(*StreamChunk); ok {
			id = c.ChunkID
		}
		if err := out.Send(r.Context(), typeOf(m), id, frame, more || last(m)); err != nil || last(m) {
			return
		}
	}
}
