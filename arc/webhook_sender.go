// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/fivewire/fivewire/arc/internal/signature"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// WebhookOptions adjusts how a [Server] sends notifications. The zero value sends
// unsigned ones to public HTTPS addresses.
type WebhookOptions struct {
	// CallbackPolicy selects the accepted callback URLs. Addresses are checked when
	// a client subscribes, and again for each connection.
	CallbackPolicy CallbackPolicy

	// Static webhooks subscribe to all tasks of the server. Only they receive
	// TASK_CREATED (ARC-D41).
	Static []StaticWebhook

	// Secrets returns the signing secrets for a subscriber, the current one first.
	// Nil, or no secret, leaves notifications unsigned.
	Secrets func(ctx context.Context, subscriber, callbackURL string) ([]WebhookSecret, error)

	// TokenSource returns the access token of the agent that sends, with the scopes of
	// task.notification; never one that the subscriber gave. Nil sends none.
	TokenSource func(ctx context.Context, agent, callbackURL string) (string, error)

	// WritePythonMembers adds the members that the Python SDK looks for at the top of the body.
	WritePythonMembers bool

	// OnDeadLetter, if set, is called with each abandoned notification, from the delivering
	// goroutine. The letter is also listed by [Server.DeadLetters] if it has an ID.
	OnDeadLetter func(ctx context.Context, l DeadLetter)

	// Transport sends the requests. Nil means one that refuses addresses outside the
	// policy; another transport must do that itself.
	Transport http.RoundTripper

	// Timeout bounds an attempt. Zero means 10 s; a negative value removes the bound.
	Timeout time.Duration

	// Retry specifies the first attempts of a notification: zero fields mean 3 attempts with a
	// delay of 5 s after the first one, which doubles. Later attempts follow for 20 hours, while
	// newer notifications are sent (ARC-D44); a negative MaxAttempts means that there are none.
	// MaxRetryAfter bounds the delay that a webhook requests. Zero means 1 h.
	Retry *RetryPolicy

	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error) // of tests
	exact  bool                                                                  // no jitter, in tests
	logger *slog.Logger
}

// A DeadLetter is a notification that was given up. It is kept for 30 days.
type DeadLetter struct {
	ID             string // for [Server.Redeliver] and [Server.Discard]; empty if the queue was full
	SubscriptionID string
	CallbackURL    string
	Event          Event
	Body           []byte // the ARC request that could not be delivered
	Attempts       int
	Err            error // of the last attempt
}

// A delivery is one notification to one webhook. The body is the complete ARC
// request of ARC-D42, with the same id on every attempt.
type delivery struct {
	ID             string // X-ARC-Delivery
	SubscriptionID string // X-ARC-Subscription
	URL            string
	Event          Event
	Agent          string // the processor, whose token may go with it
	Target         string // the subscriber's requestAgent
	TraceID        string
	Body           []byte

	taskID   string // of the subscription
	isStatic bool
	isEnd    bool          // no notification, but the end of the subscription
	attempts int           // before those of the queue
	age      time.Duration // when it was put into the queue
	wait     time.Duration // from then to the first attempt
	letterID string        // of the dead letter
	dialect  dialect       // of the subscription
}

// webhookSender sends notifications over HTTP (ARC-D42 to ARC-D45).
type webhookSender struct {
	opts  WebhookOptions
	guard *netguard.Guard
	http  *http.Client
	retry RetryPolicy // with its defaults
	hosts retry.Limiter

	dialects dialects
}

func newWebhookSender(opts *WebhookOptions) (*webhookSender, error) {
	s := &webhookSender{}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	if o.Retry != nil {
		s.retry = *o.Retry
	}
	s.retry.MaxAttempts = cmp.Or(s.retry.MaxAttempts, 3)
	s.retry.Base = max(cmp.Or(s.retry.Base, 5*time.Second), 0)
	s.retry.MaxRetryAfter = max(cmp.Or(s.retry.MaxRetryAfter, time.Hour), 0)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.logger = cmp.Or(o.logger, slog.Default())
	s.guard = wire.CallbackPolicy(o.CallbackPolicy).Guard()
	s.guard.Lookup = o.lookup
	transport := o.Transport
	if transport == nil {
		transport = s.guard.Transport()
	}
	s.http = &http.Client{Transport: transport, CheckRedirect: netguard.NoRedirect}
	return s, nil
}

// close gives idle connections back.
func (s *webhookSender) close() { s.http.CloseIdleConnections() }

// check refuses a callback URL by ARC-D45.
func (s *webhookSender) check(ctx context.Context, callbackURL string) error {
	if err := wire.CallbackPolicy(s.opts.CallbackPolicy).Validate(callbackURL); err != nil {
		return callbackError(err)
	}
	u, err := url.Parse(callbackURL)
	if err != nil {
		return callbackError(wire.CallbackSyntax)
	}
	lookup, cancel := s.bounded(ctx)
	defer cancel()
	_, err = s.guard.Resolve(lookup, u.Hostname())
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, netguard.ErrForbidden):
		return callbackError(wire.FaultOf(err))
	case ctx.Err() != nil:
		return ctx.Err()
	case isDNS && dns.IsNotFound:
		return callbackError(wire.CallbackHost)
	}
	return nil // the dial decides
}

// callbackError returns the error of a refused callback URL.
func callbackError(err error) *Error {
	issue := wire.CallbackSyntax
	errors.As(err, &issue)
	return fieldError(ErrInvalidParams, "callbackUrl", string(issue))
}

// errEmptySecret reports a secret that every program knows.
var errEmptySecret = errors.New("arc: webhook secret: empty")

// errStatus reports an answer that is not 2xx.
type errStatus int

func (e errStatus) Error() string { return fmt.Sprintf("arc: webhook answered HTTP status %d", int(e)) }

// bounded returns the context of an attempt.
func (s *webhookSender) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.opts.Timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.opts.Timeout)
}

// retryable reports whether an attempt may succeed when it is repeated.
func retryable(err error) bool {
	if status, ok := errors.AsType[errStatus](err); ok {
		return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500
	}
	return !errors.Is(err, netguard.ErrForbidden)
}

// delay returns the time to the next attempt: d with jitter, or the time that the receiver requests.
func (s *webhookSender) delay(d time.Duration, err error) time.Duration {
	if !s.opts.exact {
		d += time.Duration((randid.Rand().Float64() - 0.5) * 0.4 * float64(d))
	}
	return max(d, min(retry.After(err), s.retry.MaxRetryAfter))
}

func (s *webhookSender) attempt(ctx context.Context, d *delivery) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	h, body := http.Header{"Content-Type": {MediaType}}, d.Body
	var err error
	switch {
	case d.dialect.name != "":
		if body, err = s.encode(d, h); err != nil || body == nil {
			return err
		}
	case s.opts.WritePythonMembers:
		body = flatten(body, d.SubscriptionID)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = h
	h.Set(signature.HeaderEvent, string(d.Event))
	h.Set(signature.HeaderDelivery, d.ID)
	h.Set(signature.HeaderSubscription, d.SubscriptionID)
	if d.TraceID != "" {
		h.Set("Traceparent", wire.Traceparent(d.TraceID))
	}
	if s.opts.Secrets != nil {
		secrets, err := s.opts.Secrets(ctx, d.Target, d.URL)
		if err != nil {
			return fmt.Errorf("arc: webhook secret: %w", err)
		}
		list := make([]string, len(secrets))
		for i, secret := range secrets {
			if secret == "" {
				return errEmptySecret
			}
			list[i] = string(secret)
		}
		signature.Add(h, list, d.ID, time.Now(), body)
	}
	if s.opts.TokenSource != nil && h.Get("Authorization") == "" {
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
	switch {
	case res.StatusCode >= 200 && res.StatusCode <= 299:
		return nil
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusServiceUnavailable:
		return retry.MarkStatus(errStatus(res.StatusCode), res.StatusCode, res.Header)
	}
	return errStatus(res.StatusCode)
}

// flatten puts the members of the params at the top of the body too, where the
// Python SDK looks for them.
func flatten(body []byte, subscriptionID string) []byte {
	v, err := wire.Check(body)
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
