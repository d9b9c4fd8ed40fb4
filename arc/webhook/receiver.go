// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook receives the notifications of tasks that run elsewhere.
package webhook

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/signature"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

// Sign returns the value of the header X-ARC-Signature for a body (ARC-D43).
func Sign(secret, body []byte) string { return signature.Sign(secret, body) }

// Verify reports whether sig is the signature of body, in a time that does not depend
// on the cause. Without a secret nothing is valid.
func Verify(secret, body []byte, sig string) bool { return signature.Verify(secret, body, sig) }

// VerifyPython is [Verify] that also accepts the signatures of the Python SDK: it signs
// the text that its JSON module prints by default and then sends the same JSON in
// compact form.
func VerifyPython(secret, body []byte, sig string) bool {
	return signature.VerifyPython(secret, body, sig)
}

// ReceiverOptions adjust a [Receiver]. The zero value is right for production.
type ReceiverOptions struct {
	// AllowUnsigned accepts unsigned notifications. Any program that can reach the
	// URL can then send them.
	AllowUnsigned bool

	// AllowPythonSignatures also accepts the signatures of the Python SDK; see
	// [VerifyPython].
	AllowPythonSignatures bool

	// Authenticator, if set, authenticates the sender of each request, who needs the
	// scopes of task.notification.
	Authenticator arc.Authenticator

	// Store keeps the ids of handled notifications, so that a repeated delivery is
	// handled once, in any process. Nil means in memory.
	Store store.KV

	// MaxMessage bounds a request in bytes. Zero means 16 MiB; a negative value removes
	// the bound.
	MaxMessage int

	// MaxMemory and MaxMemoryPerAddress bound the bodies of all requests, and of those of one address, in
	// bytes. Zero means 64 MiB per address, and the lesser of 128 MiB and a sixth of GOMEMLIMIT in all; a
	// negative value removes the bound.
	MaxMemory, MaxMemoryPerAddress int64

	// ReadTimeout is how long the body of a request may take to arrive. It never extends
	// that of the [http.Server]. Zero means 60 s; a negative value removes the bound.
	ReadTimeout time.Duration

	// MaxAge and MaxClockSkew bound how far the time of an event may lie in the past and
	// in the future. Zero means 24 h and 5 min (ARC-D43); a negative value removes the
	// bound, and a removed MaxAge keeps the ids for 24 h.
	MaxAge       time.Duration
	MaxClockSkew time.Duration

	// Logger receives refused notifications. Nil means slog.Default().
	Logger *slog.Logger
}

func (o ReceiverOptions) withDefaults() ReceiverOptions {
	if o.Store == nil {
		o.Store = store.NewMemory()
	}
	o.MaxMessage = cmp.Or(o.MaxMessage, 16<<20)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, time.Minute)
	o.MaxAge = option.Or(o.MaxAge, 24*time.Hour, -1)
	o.MaxClockSkew = option.Or(o.MaxClockSkew, 5*time.Minute, -1)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// A Receiver receives notifications at a callback URL and passes each to its
// handler once. It accepts the ARC request of the specification and the flat object
// of the Python SDK.
//
// It responds with 200 if the handler succeeded, also for an earlier delivery of the
// same notification; with 401 for an invalid signature or time; with 400, 405, 408, 413
// or 415 for a request that is not a notification; with 503 over MaxMemory, and with
// 500 if the handler failed, so that the sender retries.
//
// Notifications are passed on in the order of their arrival, late ones too: a sender repeats one that
// failed while newer ones are sent (ARC-D44). A handler that keeps the state of a task keeps the one with
// the newest Timestamp. The sender makes no two deliveries of a subscription at a time, except for
// repeated ones.
//
// A Receiver is safe for concurrent use.
type Receiver struct {
	handler arc.NotificationHandler
	secrets []string
	opts    ReceiverOptions
	budget  *budget.Budget // of bodies

	mu      sync.Mutex
	running map[string]*delivery // by the key in the store; guarded by mu
}

// A delivery is a running call of the handler. The others of the same notification wait for it.
type delivery struct {
	done  chan struct{} // closed after the fields below are set
	err   error
	isCut bool // its request has ended, which may be the cause of err
}

// NewReceiver returns a receiver that calls h. A notification must be signed by one of
// the secrets; several of them let a secret be replaced without losing any. It fails
// with an empty secret, and without a secret unless the options allow that or have an
// Authenticator.
func NewReceiver(h arc.NotificationHandler, secrets []arc.WebhookSecret, opts *ReceiverOptions) (*Receiver, error) {
	r := &Receiver{handler: h, running: map[string]*delivery{}}
	if opts != nil {
		r.opts = *opts
	}
	r.opts = r.opts.withDefaults()
	all := min(r.opts.MaxMemory, math.MaxInt64/2) * 2 // senders without a name share half of a budget
	r.budget = budget.New(budget.Limits{Memory: budget.Limit{Session: -1, Principal: r.opts.MaxMemoryPerAddress, All: all}, Logger: r.opts.Logger}, nil)
	switch {
	case h == nil:
		return nil, errors.New("arc: webhook: no handler")
	case len(secrets) == 0 && !r.opts.AllowUnsigned && r.opts.Authenticator == nil:
		return nil, errors.New("arc: webhook: no secret; AllowUnsigned accepts unsigned notifications")
	}
	for _, s := range secrets {
		if s == "" {
			return nil, errors.New("arc: webhook: empty secret")
		}
		r.secrets = append(r.secrets, string(s))
	}
	return r, nil
}

// ServeHTTP handles one delivery.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	status, err := r.receive(w, req)
	if err == nil {
		_ = httpx.Respond(w, status, "application/json", []byte(`{"success":true}`), r.opts.ReadTimeout)
		return
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		r.opts.Logger.ErrorContext(req.Context(), "arc: panic recovered", "err", err, "stack", string(p.Stack))
	} else {
		r.opts.Logger.WarnContext(req.Context(), "arc: webhook refused", "peer", req.RemoteAddr, "code", status, "err", err)
	}
	body := `{"success":false}`
	var e *arc.Error
	if errors.As(err, &e) && status != http.StatusInternalServerError {
		if text, err := e.MarshalJSON(); err == nil {
			body = `{"success":false,"error":` + string(text) + `}`
		}
	}
	_ = httpx.Respond(w, status, "application/json", []byte(body), r.opts.ReadTimeout) // an error means that the sender disconnected
}

// receive returns nil, or the HTTP status and the error.
func (r *Receiver) receive(w http.ResponseWriter, req *http.Request) (int, error) {
	httpx.Bound(w, req, r.opts.ReadTimeout)
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return http.StatusMethodNotAllowed, arc.Errorf(arc.ErrInvalidRequest, "Only POST is accepted")
	}
	types := []string{arc.MediaType, "application/json"}
	if _, err := httpx.CheckRequest(req, types, signature.HeaderSignature, signature.HeaderDelivery); err != nil {
		e, _ := errors.AsType[*httpx.Error](err)
		return e.Status, arc.Errorf(arc.ErrInvalidRequest, "Invalid request: %s", e.Message)
	}
	hold, err := httpx.ReserveBody(req, r.budget.Scope(budget.Anonymous(req.RemoteAddr), ""), int64(r.opts.MaxMessage))
	defer hold.Release()
	var body []byte
	if err == nil {
		body, err = httpx.Body(w, req, int64(r.opts.MaxMessage), r.opts.ReadTimeout)
	}
	full, isFull := errors.AsType[*budget.Error](err)
	switch status := statusOf(err); {
	case err == nil:
	case isFull:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(full.RetryAfter.Seconds()))))
		return http.StatusServiceUnavailable, &arc.Error{Code: arc.ErrAgentCapacityExceeded, Message: arc.ErrAgentCapacityExceeded.Message(), Cause: err}
	case status == http.StatusRequestEntityTooLarge:
		return status, &arc.Error{Code: arc.ErrMessageTooLarge, Message: arc.ErrMessageTooLarge.Message(), Cause: err}
	default:
		return status, &arc.Error{Code: arc.ErrParse, Message: "The body cannot be read", Cause: err}
	}
	if !r.isSigned(req.Header, body) {
		return http.StatusUnauthorized, arc.Errorf(arc.ErrAuthenticationFailed, "The signature is not valid")
	}
	if r.opts.Authenticator != nil {
		if err := r.authorize(req); err != nil {
			return asError(err).Code.HTTPStatus(), err
		}
	}
	n, from, fault := readNotification(body)
	if fault != nil {
		return http.StatusBadRequest, fault
	}
	at, err := n.Timestamp.Time()
	age := time.Since(at)
	if err != nil || r.opts.MaxClockSkew > 0 && age < -r.opts.MaxClockSkew || r.opts.MaxAge > 0 && age > r.opts.MaxAge {
		return http.StatusUnauthorized, &arc.Error{Code: arc.ErrAuthenticationFailed, Message: "The notification is too old, or from the future"}
	}
	if from.id == "" {
		from.id = req.Header.Get(signature.HeaderDelivery)
	}
	ctx := req.Context()
	if from.traceID != "" {
		ctx = arc.ContextWithTraceID(ctx, from.traceID)
	}
	if err := r.once(ctx, from, n, age); err != nil {
		return http.StatusInternalServerError, err
	}
	return http.StatusOK, nil
}

// statusOf returns the HTTP status of an error of package httpx.
func statusOf(err error) int {
	var h *httpx.Error
	if errors.As(err, &h) {
		return h.Status
	}
	return http.StatusBadRequest
}

func (r *Receiver) isSigned(h http.Header, body []byte) bool {
	if len(r.secrets) == 0 {
		return true // allowed, or authenticated by an access token
	}
	tolerance := r.opts.MaxClockSkew
	if tolerance < 0 {
		tolerance = math.MaxInt64
	}
	if signature.VerifyStandard(h, r.secrets, time.Now(), tolerance, body) {
		return true
	}
	verify, ok := Verify, false
	if r.opts.AllowPythonSignatures {
		verify = VerifyPython
	}
	for _, s := range r.secrets {
		if verify([]byte(s), body, h.Get(signature.HeaderSignature)) {
			ok = true // without a break, so that the time does not name the secret
		}
	}
	return ok
}

// authorize demands the scopes of task.notification (ARC-164).
func (r *Receiver) authorize(req *http.Request) error {
	var p *arc.Principal
	err := guard.Call("authenticator", func() (err error) {
		p, err = r.opts.Authenticator.Authenticate(req.Context(), &arc.ServerRequest{
			Authorization: req.Header.Get("Authorization"), Header: req.Header, RemoteAddr: req.RemoteAddr})
		return err
	})
	for _, code := range []arc.Code{arc.ErrTokenExpired, arc.ErrTokenInvalid, arc.ErrAuthenticationFailed} {
		if errors.Is(err, code) {
			return &arc.Error{Code: code, Message: code.Message(), Cause: err}
		}
	}
	if err != nil || p == nil {
		return errors.Join(&arc.Error{Code: arc.ErrInternal, Message: arc.ErrInternal.Message()}, err)
	}
	for _, scope := range arc.RequiredScopes(arc.MethodTaskNotification) {
		if !slices.Contains(p.Scopes, scope) {
			return &arc.Error{Code: arc.ErrInsufficientScope, Message: arc.ErrInsufficientScope.Message()}
		}
	}
	return nil
}

// An origin is what tells a notification from others.
type origin struct{ agent, id, traceID string }

// readNotification reads both forms. The id is that of the ARC request, which the
// signature covers; the flat form has none.
func readNotification(body []byte) (n *arc.Notification, from origin, fault *arc.Error) {
	v, err := wire.Check(body)
	params := []byte(v)
	if err != nil || v.Get("params") != nil {
		req, err := arc.DecodeRequest(body)
		switch {
		case err != nil:
			return nil, from, asError(err)
		case req.Method != arc.MethodTaskNotification:
			return nil, from, &arc.Error{Code: arc.ErrMethodNotFound, Message: arc.ErrMethodNotFound.Message()}
		}
		params, from = req.Params, origin{req.RequestAgent, string(req.ID), req.TraceID}
	} else if !v.IsObject() {
		return nil, from, &arc.Error{Code: arc.ErrInvalidRequest, Message: arc.ErrInvalidRequest.Message()}
	} else {
		from.agent, _ = v.Get("requestAgent").Text()
		if id, _ := v.Get("traceId").Text(); len(id) <= wire.MaxID && !wire.HasControl(id) {
			from.traceID = id
		}
	}
	n = &arc.Notification{}
	if err := n.UnmarshalJSON(params); err != nil {
		return nil, from, asError(err)
	}
	return n, from, nil
}

func asError(err error) *arc.Error {
	var e *arc.Error
	if errors.As(err, &e) {
		return e
	}
	return &arc.Error{Code: arc.ErrInvalidParams, Message: arc.ErrInvalidParams.Message(), Cause: err}
}

// once calls the handler unless it has handled the notification before. Of
// deliveries at the same time one calls it and the others wait.
func (r *Receiver) once(ctx context.Context, from origin, n *arc.Notification, age time.Duration) error {
	if from.id == "" {
		return r.call(ctx, n)
	}
	sum := sha256.Sum256([]byte(from.agent + "\x00" + from.id)) // short, whatever peers choose
	retention := r.opts.MaxAge
	if retention < 0 {
		retention = 24 * time.Hour
	}
	if r.opts.MaxClockSkew > 0 {
		retention += max(-age, 0) // a notification from the future is accepted for longer
	}
	key := "arc/webhook/" + hex.EncodeToString(sum[:])
	for {
		d, isFirst := r.join(key)
		if isFirst {
			guard.Run("webhook store", func() error { return r.callOnce(ctx, key, retention, n) }, func(err error) {
				r.finish(key, d, err, ctx.Err() != nil)
			})
			return d.err
		}
		select {
		case <-d.done:
			if d.err == nil || !d.isCut {
				return d.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// join returns the running delivery of a notification. Without one it adds a delivery, which the caller finishes.
func (r *Receiver) join(key string) (d *delivery, isFirst bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d = r.running[key]
	if d == nil {
		d, isFirst = &delivery{done: make(chan struct{})}, true
		r.running[key] = d
	}
	return d, isFirst
}

// finish ends a delivery. If its request has ended with an error, one of the others calls the handler.
func (r *Receiver) finish(key string, d *delivery, err error, isCut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, key)
	d.err, d.isCut = err, isCut
	close(d.done)
}

func (r *Receiver) callOnce(ctx context.Context, key string, retention time.Duration, n *arc.Notification) error {
	_, err := r.opts.Store.Get(ctx, key)
	if !errors.Is(err, store.ErrNotFound) {
		return err // nil: handled before
	}
	if err := r.call(ctx, n); err != nil {
		return err
	}
	// From this change on, the notification counts as handled. If it fails, the sender
	// repeats the notification, and the handler sees it twice rather than never.
	_, err = r.opts.Store.Create(context.WithoutCancel(ctx), key, nil, retention)
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	return err
}

func (r *Receiver) call(ctx context.Context, n *arc.Notification) error {
	return guard.CallApart("notification handler", func() error { return r.handler.ServeNotification(ctx, n) })
}
