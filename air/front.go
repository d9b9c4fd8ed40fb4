// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"errors"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air/internal/canon"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
)

// A front admits the pushes of an inbox over HTTP, within the limits of their callers.
type front struct {
	opts     *InboxOptions
	receiver *receiver
	reports  *reports
	budget   *budget.Budget
	guests   *server.Guests
	origins  httpx.Origins
	proxies  server.ProxyWarning
}

// serve receives one pushed envelope and answers with the codes of 9.2.
func (f *front) serve(w http.ResponseWriter, r *http.Request) {
	httpx.Bound(w, r, f.opts.Timing.ReadTimeout)
	if server.Preflight(&f.origins, w, r, http.MethodPost) {
		return
	}
	ctx, a := r.Context(), &arrival{record: AuditRecord{Time: time.Now(), Peer: r.RemoteAddr, Operation: "push"}}
	if err := f.admit(w, r, a); err != nil {
		defer a.release()
		o := &ReceiveResult{Data: a.data, Final: true}
		o.Err, o.Class = classify(err, viaPush)
		a.record.Bytes = int64(len(a.data))
		f.reports.panicked(ctx, err)
		f.reports.audit(ctx, &a.record, o.Err, false)
		f.reports.refusal(ctx, &a.record, o)
		if c := o.Err.Code; c != errMethodCode && c != ErrUnauthorized && c != ErrForbidden {
			f.reports.outcome(ctx, o)
		}
		writeError(w, err)
		return
	}
	a.arrived, a.record.Bytes = time.Now(), int64(len(a.data))
	o := f.receiver.receive(ctx, a)
	status, text := http.StatusOK, `{"status":"delivered","envelope_id":`
	switch {
	case o.Err != nil && !o.isCopy:
		writeError(w, o.Err)
		return
	case o.Class == ClassLater:
		status, text = http.StatusAccepted, `{"status":"queued","envelope_id":`
	}
	server.WriteJSON(w, status, append(canon.AppendQuoted([]byte(text), o.Envelope.ID), '}'))
}

// admit reads the envelope of a request. The limits of the address follow the secret (AIR-D92).
func (f *front) admit(w http.ResponseWriter, r *http.Request, a *arrival) error {
	if r.Method != http.MethodPost {
		server.Allow(w, http.MethodPost)
		return errMethod
	}
	if message, ok := server.CheckHeaders(r); !ok {
		return ErrBadRequest.err(message)
	}
	if f.origins.Check(r) != nil {
		return ErrForbidden.err("the origin is not allowed")
	}
	hasSecret := f.opts.Auth.PushSecret != ""
	addr, err := f.identify(r, hasSecret)
	if err != nil {
		return err
	}
	scope, err := f.reserve(a, addr, hasSecret)
	if err != nil {
		return err
	}
	if a.data, err = readBody(w, r, f.opts.Limits.MaxMessage, f.opts.Timing.ReadTimeout); err != nil {
		return err
	}
	if a.memory, err = scope.Reserve(budget.Memory, int64(len(a.data))+perItem); err != nil {
		return overBudget(err)
	}
	if contentType := r.Header.Get("Content-Type"); !server.JSONContent(contentType) {
		if a.data, err = f.unwrap(contentType, a.data); err != nil {
			return err
		}
	}
	if delay := f.guests.Sender(addr, outlineText(a.data, "from")); delay > 0 {
		return limited("too many envelopes of this sender in this minute", delay)
	}
	return nil
}

// identify checks the secret of a caller and counts its address, which it returns.
func (f *front) identify(r *http.Request, hasSecret bool) (string, error) {
	if hasSecret && !server.SecretMatches(r.Header.Get(exchange.SecretHeader), f.opts.Auth.PushSecret) {
		return "", ErrUnauthorized.err("the secret is missing or wrong")
	}
	if f.opts.ClientAddr == nil && f.proxies.First(r.Header) {
		f.reports.log.WarnContext(r.Context(), server.ProxyMessage, "peer", r.RemoteAddr)
	}
	addr, err := server.Address(r, f.opts.ClientAddr)
	if err != nil {
		return "", err
	}
	if delay := f.guests.Address(addr); delay > 0 {
		return "", limited("too many requests of this address in this minute", delay)
	}
	return addr, nil
}

// perItem is added to the bytes of an envelope in the budget.
const perItem = 64

// reserve takes the place of a push, before its body is read. Every sender of an inbox is a stranger,
// so none is anonymous in the budget: they share all of it.
func (f *front) reserve(a *arrival, addr string, hasSecret bool) (*budget.Scope, error) {
	scope := f.budget.Scope("caller "+addr, "")
	if hasSecret {
		scope = f.budget.Scope("push secret", "")
	}
	_, err := scope.Reserve(budget.Requests, 1)
	if err == nil {
		a.work, err = scope.Reserve(budget.Work, 1)
	}
	if err == nil && !hasSecret {
		a.unverified, err = scope.Reserve(budget.Unauthenticated, 1)
	}
	if err != nil {
		return nil, overBudget(err)
	}
	return scope, nil
}

// overBudget returns the response to a *budget.Error.
func overBudget(err error) *Error {
	message, delay := server.OverBudget(err)
	return limited(message, delay)
}

// unwrap extracts the envelope from a body of another content type.
func (f *front) unwrap(contentType string, data []byte) ([]byte, error) {
	if f.opts.Unwrap == nil {
		return data, ErrInvalidEnvelope.err("not a content type for envelopes")
	}
	var envelope []byte
	err := guard.Call("Unwrap", func() (err error) {
		envelope, err = f.opts.Unwrap(contentType, data)
		return err
	})
	var p *guard.PanicError
	switch {
	case errors.As(err, &p):
		return data, ErrRelay.because("", err)
	case err != nil:
		return nil, ErrInvalidEnvelope.because("the wrapper could not be opened", err)
	}
	return envelope, nil
}

func limited(message string, delay time.Duration) *Error {
	return &Error{Code: ErrRateLimited, Message: message, RetryAfter: delay}
}

// errMethod has a status that the table of codes lacks (AIR-D67).
var errMethod = &Error{Code: errMethodCode, Message: "the method is not allowed here"}

const errMethodCode Code = server.CodeMethod
