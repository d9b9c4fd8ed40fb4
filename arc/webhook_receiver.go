// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fivewire/fivewire/store"
)

// WebhookReceiverOptions adjusts a [WebhookReceiver]. The zero value is right for
// production.
type WebhookReceiverOptions struct {
	// AllowUnsigned accepts unsigned notifications. Any program that can reach the
	// URL can then send them.
	AllowUnsigned bool

	// AllowPythonSignatures also accepts the signatures of the Python SDK; see
	// [VerifyWebhookPython].
	AllowPythonSignatures bool

	// Authenticator, if set, wants an access token with the scopes of
	// task.notification on each request.
	Authenticator TokenVerifier

	// Store keeps the ids of handled notifications, so that a repeated delivery is
	// handled once, in any process. Nil means in memory.
	Store store.KV

	// MaxMessage bounds a request in bytes. Zero means 16 MiB.
	MaxMessage int64

	// MaxAge and MaxAhead bound how far the time of an event may lie in the past
	// and in the future. Zero means 24 h and 5 min (ARC-D43).
	MaxAge       time.Duration
	MaxClockSkew time.Duration

	// Logger receives what went wrong. Nil is silent.
	Logger *slog.Logger
}

// A WebhookReceiver receives notifications at a callback URL and passes each to its
// handler once. It accepts the ARC request of the specification and the flat object
// of the Python SDK.
//
// It responds with 200 if the handler succeeded, also for an earlier delivery of the
// same notification; with 401 for an invalid signature or time; with 400, 405, 413
// or 415 for a request that is not a notification; and with 500 if the handler
// failed, so that the sender retries.
//
// A WebhookReceiver is safe for concurrent use.
type WebhookReceiver struct {
	handler NotificationHandler
	secrets []WebhookSecret
	opts    WebhookReceiverOptions
	flight  singleflight.Group // deliveries by id
}

// NewWebhookReceiver returns a receiver that calls h. A notification must be
// signed by one of the secrets; several of them let a secret be replaced without
// losing any. It fails without a secret unless the options allow that, or verify
// access tokens instead.
func NewWebhookReceiver(h NotificationHandler, secrets []WebhookSecret, opts *WebhookReceiverOptions) (*WebhookReceiver, error) {
	r := &WebhookReceiver{handler: h, secrets: append([]WebhookSecret(nil), secrets...)}
	if opts != nil {
		r.opts = *opts
	}
	o := &r.opts
	if len(secrets) == 0 && !o.AllowUnsigned && o.Authenticator == nil {
		return nil, errors.New("arc: a webhook receiver needs a secret")
	}
	for _, s := range secrets {
		if s == "" {
			return nil, errors.New("arc: a webhook secret is empty")
		}
	}
	if o.Store == nil {
		o.Store = store.NewMemory()
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = 16 << 20
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 24 * time.Hour
	}
	if o.MaxClockSkew <= 0 {
		o.MaxClockSkew = 5 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// ServeHTTP takes one delivery.
func (r *WebhookReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	status, err := r.receive(w, req)
	w.Header().Set("Content-Type", "application/json")
	if err == nil {
		_, _ = io.WriteString(w, `{"success":true}`)
		return
	}
	r.opts.Logger.WarnContext(req.Context(), "arc: webhook refused", "status", status, "err", err)
	out := writer{}
	out.open()
	out.flag("success", false)
	var e *Error
	if errors.As(err, &e) && status != http.StatusInternalServerError {
		out.key("error")
		out.error(e)
	}
	out.close()
	w.WriteHeader(status)
	_, _ = w.Write(out.b)
}

// receive returns nil, or the HTTP status and the error.
func (r *WebhookReceiver) receive(w http.ResponseWriter, req *http.Request) (int, error) {
	// The body has its time, be it read here or thrown away by net/http after a
	// refusal. A transport without deadlines is served without.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(defaultBodyTimeout))
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return http.StatusMethodNotAllowed, &Error{Code: ErrInvalidRequest, Message: "Only POST is accepted"}
	}
	switch t, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); {
	case err != nil, t != MediaType && t != "application/json":
		return http.StatusUnsupportedMediaType, &Error{Code: ErrInvalidRequest, Message: "Unsupported media type"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.opts.MaxMessage))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, &Error{Code: ErrMessageTooLarge, Message: ErrMessageTooLarge.Message()}
	case err != nil:
		return http.StatusBadRequest, &Error{Code: ErrParse, Message: "The body cannot be read", Cause: err}
	}
	_ = deadline.SetReadDeadline(time.Time{}) // the handler may take longer
	if !r.signed(req.Header, body) {
		return http.StatusUnauthorized, &Error{Code: ErrAuthenticationFailed, Message: "The signature is not valid"}
	}
	if r.opts.Authenticator != nil {
		if err := r.authorize(req); err != nil {
			return err.Code.HTTPStatus(), err
		}
	}
	n, from, fault := readNotification(body)
	if fault != nil {
		return http.StatusBadRequest, fault
	}
	at, err := n.Timestamp.Time()
	if now := time.Now(); err != nil || at.After(now.Add(r.opts.MaxClockSkew)) || at.Before(now.Add(-r.opts.MaxAge)) {
		return http.StatusUnauthorized, &Error{Code: ErrAuthenticationFailed, Message: "The notification is too old, or from the future"}
	}
	if from.id == "" {
		from.id = req.Header.Get(headerDelivery)
	}
	ctx := req.Context()
	if from.traceID != "" {
		ctx = ContextWithTraceID(ctx, from.traceID)
	}
	if err := r.once(ctx, from, n); err != nil {
		return http.StatusInternalServerError, err
	}
	return http.StatusOK, nil
}

func (r *WebhookReceiver) signed(h http.Header, body []byte) bool {
	if len(r.secrets) == 0 {
		return true // allowed, or an access token is wanted
	}
	if verifyStandard(h, r.secrets, time.Now(), r.opts.MaxClockSkew, body) {
		return true
	}
	verify, ok := VerifyWebhook, false
	if r.opts.AllowPythonSignatures {
		verify = VerifyWebhookPython
	}
	for _, s := range r.secrets {
		if verify([]byte(s), body, h.Get(headerSignature)) {
			ok = true // but the others take their time too
		}
	}
	return ok
}

// authorize wants the scopes of task.notification (ARC-164).
func (r *WebhookReceiver) authorize(req *http.Request) *Error {
	refused := func(c Code) *Error { return &Error{Code: c, Message: c.Message()} }
	token, ok := bearer(req.Header.Get("Authorization"))
	if !ok {
		return refused(ErrAuthenticationFailed)
	}
	switch p, err := r.opts.Authenticator.VerifyToken(req.Context(), token); {
	case errors.Is(err, ErrTokenExpired):
		return refused(ErrTokenExpired)
	case errors.Is(err, ErrTokenInvalid):
		return refused(ErrTokenInvalid)
	case err != nil || p == nil:
		return &Error{Code: ErrInternal, Message: ErrInternal.Message(), Cause: err}
	default:
		return checkScopes(MethodTaskNotification, p.Scopes)
	}
}

// An origin is what tells a notification from others.
type origin struct{ agent, id, traceID string }

// readNotification reads both forms. The id is that of the ARC request, which the
// signature covers; the flat form has none.
func readNotification(body []byte) (n *Notification, from origin, fault *Error) {
	v, err := checkJSON(body)
	if err != nil {
		return nil, from, jsonFault(err)
	}
	if !v.IsObject() {
		return nil, from, &Error{Code: ErrInvalidRequest, Message: ErrInvalidRequest.Message()}
	}
	params := v
	if v.Get("params") != nil {
		req, err := DecodeRequest(body)
		if err != nil {
			errors.As(err, &fault)
			return nil, from, fault
		}
		if req.Method != MethodTaskNotification {
			return nil, from, &Error{Code: ErrMethodNotFound, Message: ErrMethodNotFound.Message()}
		}
		params, from = v.Get("params"), origin{req.RequestAgent, string(req.ID), req.TraceID}
	} else {
		from.agent, _ = v.Get("requestAgent").Text()
		if s, ok := v.Get("traceId").Text(); ok && checkTrace(v.Get("traceId"), s) == nil {
			from.traceID = s
		}
	}
	var r reader
	n = r.notification(params)
	if r.fault != nil {
		return nil, from, r.fault
	}
	return n, from, nil
}

// once calls the handler unless it has handled the notification before. Of
// deliveries at the same time one calls it and the others wait.
func (r *WebhookReceiver) once(ctx context.Context, from origin, n *Notification) error {
	if from.id == "" {
		return r.call(ctx, n)
	}
	sum := sha256.Sum256([]byte(from.agent + "\x00" + from.id)) // short, whatever peers choose
	key := "arc/webhook/" + hex.EncodeToString(sum[:])
	_, err, _ := r.flight.Do(key, func() (any, error) {
		if _, err := r.opts.Store.Get(ctx, key); err == nil {
			return nil, nil
		} else if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if err := r.call(ctx, n); err != nil {
			return nil, err
		}
		// From now on the notification counts as handled. If this fails, the
		// sender repeats it, and the handler sees it twice rather than never.
		_, err := r.opts.Store.Create(context.WithoutCancel(ctx), key, nil, r.opts.MaxAge)
		if errors.Is(err, store.ErrExists) {
			err = nil
		}
		return nil, err
	})
	return err
}

func (r *WebhookReceiver) call(ctx context.Context, n *Notification) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Error{Code: ErrInternal, Message: ErrInternal.Message()}
			r.opts.Logger.ErrorContext(ctx, "arc: panic in a notification handler", "panic", p)
		}
	}()
	return r.handler.ServeNotification(ctx, n)
}
