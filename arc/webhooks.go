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
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/signature"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/netguard"
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
	// delay of 5 s after the first one, which doubles without a largest one. Later attempts follow for 20 hours, while
	// newer notifications are sent (ARC-D44); a negative MaxAttempts means that there are none.
	// MaxRetryAfter bounds the delay that a webhook requests. Zero means 1 h.
	Retry *RetryPolicy

	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error) // of tests
	exact  bool                                                                  // no jitter, in tests
}

// A CallbackPolicy selects the URLs that webhooks may be sent to (ARC-D45). The
// zero value permits HTTPS to public addresses, so that a subscriber cannot make
// a server connect to its own network.
type CallbackPolicy struct {
	AllowInsecure bool // plain http too
	AllowPrivate  bool // local names, and addresses that are not public
}

// A StaticWebhook follows all tasks of a server (ARC-D41).
type StaticWebhook struct {
	ID          string // unique among those of the server; names it in X-ARC-Subscription
	CallbackURL string
	TargetAgent string  // recipient of the notifications
	Events      []Event // empty means all
}

// A WebhookSecret is what the sender and the receiver of a webhook share. With
// the prefix whsec_ it is, for the Standard Webhooks headers, Base64 of the key;
// in every other use its bytes are the key.
type WebhookSecret string

// Format hides the secret in formatted text.
func (WebhookSecret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenSecret) }

// LogValue hides the secret in every handler of log/slog. Of a larger value that has a secret, a handler that writes
// JSON shows it.
func (WebhookSecret) LogValue() slog.Value { return slog.StringValue(hiddenSecret) }

const hiddenSecret = "whsec_..."

// A DeadLetter is a notification that was given up. It is kept for 30 days. Beyond about 10,000 letters or 256 MiB of a
// queue the oldest ones are removed.
type DeadLetter struct {
	ID             string // for [Server.Redeliver] and [Server.Discard]; empty if the queue was full
	SubscriptionID string
	CallbackURL    string
	Event          Event
	Body           []byte // the ARC request that could not be delivered
	Attempts       int
	Err            error // of the last attempt
}

func letterOf(l engine.Letter) DeadLetter {
	return DeadLetter{ID: l.ID, SubscriptionID: l.SubscriptionID, CallbackURL: l.URL, Event: Event(l.Event), Body: l.Body,
		Attempts: l.Attempts, Err: l.Err}
}

// DeadLetters iterates over the notifications that were given up, of all processes that share the
// store. An error comes once and last.
func (s *Server) DeadLetters(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for l, err := range s.engine.Webhooks.DeadLetters(ctx) {
			if err != nil {
				yield(DeadLetter{}, fmt.Errorf("arc: dead letters: %w", err))
				return
			}
			if !yield(letterOf(l), nil) {
				return
			}
		}
	}
}

// Redeliver queues a dead letter again, with all attempts, also after status 410. A receiver of package
// webhook refuses one over 24 h old unless its MaxAge is longer. It returns
// [store.ErrNotFound] if the letter is absent, and an error if the subscriber has removed the subscription.
func (s *Server) Redeliver(ctx context.Context, id string) error {
	if err := s.engine.Webhooks.Redeliver(ctx, id); err != nil {
		return fmt.Errorf("arc: redeliver: %w", err)
	}
	return nil
}

// Discard removes a dead letter. It returns [store.ErrNotFound] for an id of another form.
func (s *Server) Discard(ctx context.Context, id string) error {
	if err := s.engine.Webhooks.Discard(ctx, id); err != nil {
		return fmt.Errorf("arc: discard: %w", err)
	}
	return nil
}

// A sender sends notifications over HTTP (ARC-D42, ARC-D43, ARC-D45).
type sender struct {
	opts  WebhookOptions
	guard *netguard.Guard
	http  *http.Client

	dialects dialects
}

func newSender(opts *WebhookOptions) *sender {
	s := &sender{}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Timeout = cmp.Or(s.opts.Timeout, 10*time.Second)
	s.guard = wire.CallbackPolicy(s.opts.CallbackPolicy).Guard()
	s.guard.Lookup = s.opts.lookup
	transport := s.opts.Transport
	if transport == nil {
		transport = s.guard.Transport()
	}
	s.http = &http.Client{Transport: transport, CheckRedirect: netguard.NoRedirect}
	return s
}

// validate refuses a static webhook whose notifications could not be sent. Two with one id would share a queue.
func (w *StaticWebhook) validate(earlier []StaticWebhook) error {
	issue := ""
	u, err := url.Parse(w.CallbackURL)
	switch {
	case checkName(ErrInvalidFieldFormat, "id", w.ID) != nil:
		issue = "invalid id"
	case slices.ContainsFunc(earlier, func(o StaticWebhook) bool { return o.ID == w.ID }):
		issue = "the id is in use"
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		issue = "invalid callback URL"
	case checkAgentID("targetAgent", w.TargetAgent) != nil:
		issue = "invalid target agent"
	case slices.ContainsFunc(w.Events, func(ev Event) bool { return !slices.Contains(wire.Events(), string(ev)) }):
		issue = "unknown event"
	default:
		return nil
	}
	return fmt.Errorf("arc: server: static webhook %q: %s", w.ID, issue)
}

// options are those of the queues.
func (s *sender) options() engine.WebhookOptions {
	var p RetryPolicy
	if s.opts.Retry != nil {
		p = *s.opts.Retry
	}
	o := engine.WebhookOptions{Deliver: s.attempt, IsExact: s.opts.exact, MaxAttempts: cmp.Or(p.MaxAttempts, 3),
		Base: max(cmp.Or(p.Base, 5*time.Second), 0), Max: p.Max, MaxRetryAfter: max(cmp.Or(p.MaxRetryAfter, time.Hour), 0)}
	for _, w := range s.opts.Static {
		sub := engine.Subscription{ID: w.ID, URL: w.CallbackURL, Target: w.TargetAgent, Events: wire.Events()}
		if len(w.Events) > 0 {
			sub.Events = nil
			for _, ev := range w.Events {
				sub.Events = append(sub.Events, string(ev))
			}
		}
		o.Static = append(o.Static, sub)
	}
	return o
}

// check refuses a callback URL by ARC-D45.
func (s *sender) check(ctx context.Context, callbackURL string) error {
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

// bounded returns the context of an attempt.
func (s *sender) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.opts.Timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.opts.Timeout)
}

// attempt posts a notification once.
func (s *sender) attempt(ctx context.Context, d *engine.Delivery) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	h, body := http.Header{"Content-Type": {MediaType}}, []byte(d.Body)
	var err error
	switch {
	case d.Dialect != nil:
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
	h.Set(signature.HeaderEvent, d.Event)
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
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = fmt.Errorf("arc: webhook at %s: %w", req.URL.Host, u.Err) // the query may have a secret
	}
	if errors.Is(err, netguard.ErrForbidden) {
		return fmt.Errorf("%w: %w", engine.ErrRefused, err)
	}
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
		return retry.MarkStatus(engine.StatusError(res.StatusCode), res.StatusCode, res.Header)
	}
	return engine.StatusError(res.StatusCode)
}

// flatten puts the members of the params at the top of the body too, where the
// Python SDK looks for them.
func flatten(body []byte, subscriptionID string) []byte {
	v, err := wire.Check(body)
	if err != nil {
		return body
	}
	o := wire.Open(nil)
	have := map[string]bool{"subscriptionId": true}
	add := func(m strictjson.Members) {
		if len(o.B) > 1 {
			o.B = append(o.B, ',')
		}
		o.B = append(append(append(o.B, m.Key...), ':'), m.Value...)
	}
	for m := v.Members(); m.Next(); {
		have[string(m.Name)] = true
		add(m)
	}
	for m := v.Get("params").Members(); m.Next(); {
		if !have[string(m.Name)] {
			add(m)
		}
	}
	o.Text("subscriptionId", subscriptionID)
	return o.Close()
}
