// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// WebhookOptions adjusts how a [Server] sends notifications. The zero value sends
// unsigned ones to public HTTPS addresses.
type WebhookOptions struct {
	// CallbackPolicy selects the accepted callback URLs. Addresses are checked when
	// a client subscribes, and again for each connection.
	CallbackPolicy CallbackPolicy

	// Secrets returns the signing secrets for a subscriber, the current one first.
	// Nil, or no secret, leaves notifications unsigned.
	Secrets func(ctx context.Context, subscriber, callbackURL string) ([]WebhookSecret, error)

	// TokenSource returns the access token of the agent that sends, with the scopes of
	// task.notification; never one that the subscriber gave. Nil sends none.
	TokenSource func(ctx context.Context, agent, callbackURL string) (string, error)

	// WritePythonMembers adds the members that the Python SDK looks for at the top of the body.
	WritePythonMembers bool

	// OnDeadLetter, if set, is called with each abandoned notification and the
	// cause, from the delivering goroutine.
	OnDeadLetter func(ctx context.Context, l DeadLetter)

	// Transport sends the requests. Nil means one that refuses addresses outside the
	// policy; another transport must do that itself.
	Transport http.RoundTripper

	// Lookup resolves the names of callback URLs, for tests. Nil means the
	// system's resolver.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

	// Attempts, Timeout and Backoff are how often a notification is sent, for how
	// long each time, and the wait after the first attempt, which doubles. Zero
	// means 3, 10 s and 5 s. NoJitter makes the waits exact, for tests.
	Attempts int
	Timeout  time.Duration
	Backoff  time.Duration
	NoJitter bool

	logger *slog.Logger
}

// A DeadLetter is a notification that was given up.
type DeadLetter struct {
	SubscriptionID string
	CallbackURL    string
	Event          Event
	Body           []byte // the ARC request that could not be delivered
	Attempts       int
	Err            error // what happened at the last attempt
}

// webhookSender sends notifications over HTTP (ARC-D42 to ARC-D45).
type webhookSender struct {
	opts  WebhookOptions
	guard *netguard.Guard
	http  *http.Client
	wait  backoff.Backoff
}

func newWebhookSender(opts *WebhookOptions) *webhookSender {
	s := &webhookSender{}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	if o.Attempts <= 0 {
		o.Attempts = 3
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Backoff <= 0 {
		o.Backoff = 5 * time.Second
	}
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}
	s.wait = backoff.Backoff{Base: o.Backoff, Jitter: 0.2}
	if o.NoJitter {
		s.wait.Jitter = 0
	}
	s.guard = o.CallbackPolicy.guard()
	s.guard.Lookup = o.Lookup
	transport := o.Transport
	if transport == nil {
		transport = s.guard.Transport()
	}
	s.http = &http.Client{Transport: transport, CheckRedirect: netguard.NoRedirect}
	return s
}

// close gives idle connections back.
func (s *webhookSender) close() { s.http.CloseIdleConnections() }

// check refuses a callback URL by ARC-D45.
func (s *webhookSender) check(ctx context.Context, callbackURL string) error {
	if err := s.opts.CallbackPolicy.Validate(callbackURL); err != nil {
		return fieldError(ErrInvalidParams, "callbackUrl", err.Error())
	}
	u, err := url.Parse(callbackURL)
	if err != nil {
		return fieldError(ErrInvalidParams, "callbackUrl", callbackSyntax.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	switch _, err := s.guard.Resolve(ctx, u.Hostname()); {
	case errors.Is(err, netguard.ErrForbidden):
		return fieldError(ErrInvalidParams, "callbackUrl", faultOf(err).Error())
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fieldError(ErrInvalidParams, "callbackUrl", "arc: callback URL refused: its host cannot be found")
	}
	return nil
}

// errStatus reports an answer that is not 2xx.
type errStatus int

func (e errStatus) Error() string { return fmt.Sprintf("arc: webhook answered HTTP status %d", int(e)) }

// deliver makes all attempts of ARC-D44.
func (s *webhookSender) deliver(ctx context.Context, d *delivery) outcome {
	var err error
	attempt := 1
	for ; ; attempt++ {
		if err = s.attempt(ctx, d); err == nil {
			return outcomeDelivered
		}
		if ctx.Err() != nil {
			return outcomeStopped
		}
		s.opts.logger.DebugContext(ctx, "arc: webhook attempt failed", "subscription", d.SubscriptionID,
			"delivery", d.ID, "attempt", attempt, "err", err)
		if attempt >= s.opts.Attempts || !retryable(err) {
			break
		}
		if s.wait.Wait(ctx, attempt) != nil {
			return outcomeStopped
		}
	}
	s.opts.logger.WarnContext(ctx, "arc: webhook notification given up", "subscription", d.SubscriptionID,
		"delivery", d.ID, "event", string(d.Event), "attempts", attempt, "err", err)
	if s.opts.OnDeadLetter != nil {
		s.opts.OnDeadLetter(ctx, DeadLetter{SubscriptionID: d.SubscriptionID, CallbackURL: d.URL, Event: d.Event,
			Body: d.Body, Attempts: attempt, Err: err})
	}
	if err == errStatus(http.StatusGone) {
		return outcomeGone
	}
	return outcomeDropped
}

// retryable reports whether an attempt may succeed when it is repeated.
func retryable(err error) bool {
	var status errStatus
	if errors.As(err, &status) {
		return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500
	}
	return !errors.Is(err, netguard.ErrForbidden)
}

func (s *webhookSender) attempt(ctx context.Context, d *delivery) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	body := d.Body
	if s.opts.WritePythonMembers {
		body = flatten(body, d.SubscriptionID)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	h := req.Header
	h.Set("Content-Type", MediaType)
	h.Set(headerEvent, string(d.Event))
	h.Set(headerDelivery, d.ID)
	h.Set(headerSubscription, d.SubscriptionID)
	if d.TraceID != "" {
		h.Set("Traceparent", traceparent(d.TraceID))
	}
	if s.opts.Secrets != nil {
		secrets, err := s.opts.Secrets(ctx, d.Target, d.URL)
		if err != nil {
			return fmt.Errorf("arc: webhook secret: %w", err)
		}
		sign(h, secrets, d.ID, time.Now(), body)
	}
	if s.opts.TokenSource != nil {
		token, err := s.opts.TokenSource(ctx, d.Agent, d.URL)
		if err != nil {
			return fmt.Errorf("arc: webhook token: %w", err)
		}
		if token != "" {
			h.Set("Authorization", "Bearer "+token)
		}
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	// The body means nothing (ARC-114); reading a little of it keeps the
	// connection.
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
	_ = res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return errStatus(res.StatusCode)
	}
	return nil
}

// flatten puts the members of the params at the top of the body too, where the
// Python SDK looks for them.
func flatten(body []byte, subscriptionID string) []byte {
	v, err := checkJSON(body)
	if err != nil {
		return body
	}
	w := writer{}
	w.open()
	have := map[string]bool{"subscriptionId": true}
	for m := v.Members(); m.Next(); {
		have[string(m.Name)] = true
		w.member(m.Key, m.Value)
	}
	for m := v.Get("params").Members(); m.Next(); {
		if !have[string(m.Name)] {
			w.member(m.Key, m.Value)
		}
	}
	w.text("subscriptionId", subscriptionID)
	w.close()
	return w.b
}

// member writes a member unchanged.
func (w *writer) member(key, value strictjson.Value) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(append(append(w.b, key...), ':'), value...)
}
