// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package probe finds out what a peer or a relay speaks, and why an envelope would not verify elsewhere.
//
// [Probe] sends requests to the registry and to the inbox of an agent; no message is delivered by it. [Lint] inspects an
// envelope only.
package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjust [Probe]. Resolver is required.
type Options struct {
	// Resolver fetches the document of the agent.
	Resolver *air.Resolver

	// Identity is a registered agent that signs requests to find the accepted forms of signatures of a
	// direct inbox. Nil leaves that out.
	Identity *air.Identity

	// BodyTypes are further types of bodies to try at a direct inbox.
	BodyTypes []string

	// HTTPClient sends the requests. Nil means a client that connects to public addresses only.
	HTTPClient *http.Client

	AllowLoopback bool // connect to loopback addresses
	AllowPrivate  bool // connect to private addresses
}

// A Kind is what answers at an endpoint.
type Kind string

// The kinds.
const (
	KindRelay   Kind = "relay"
	KindInbox   Kind = "inbox"   // receives directly
	KindUnknown Kind = "unknown" // also an inbox that needs a secret
)

// A Report is the result of [Probe].
type Report struct {
	DID      string        `json:"did"`
	Key      string        `json:"publicKeyMultibase"`
	Endpoint string        `json:"endpoint"`
	Kind     Kind          `json:"kind"`
	Dialects []air.Dialect `json:"dialects,omitempty"` // in which mail is pulled

	// IsOpen reports whether every caller can pull the mail.
	IsOpen bool `json:"isOpen"`

	// NeedsSecret reports whether senders need a secret.
	NeedsSecret bool `json:"needsSecret"`

	// Bodies are the accepted body types of a direct inbox, and Forms the accepted forms of signatures.
	Bodies []string   `json:"bodies,omitempty"`
	Forms  []air.Form `json:"forms,omitempty"`

	// Clock is by how much the clock of the endpoint is ahead; known to the second if HasClock is set.
	Clock    time.Duration `json:"clockNanoseconds"`
	HasClock bool          `json:"hasClock"`

	// Advice recommends options and names what is wrong.
	Advice []string `json:"advice,omitempty"`
}

const maxReply = 1 << 20

// A prober sends requests to one endpoint.
type prober struct {
	opts   *Options
	http   *exchange.Client
	report *Report
}

// Probe resolves the document of an agent and probes its inbox. It sends requests that a relay or an inbox
// refuses or that change nothing, so nothing is delivered and nothing is acknowledged. The error is that
// of the document or of its endpoint, or of the network.
func Probe(ctx context.Context, did string, opts *Options) (*Report, error) {
	if opts == nil || opts.Resolver == nil {
		return nil, errors.New("probe: Options.Resolver missing")
	}
	doc, err := opts.Resolver.Resolve(ctx, did)
	if err != nil {
		return nil, fmt.Errorf("probe: document: %w", err)
	}
	key, err := doc.SigningKey(did)
	if err != nil {
		return nil, fmt.Errorf("probe: document: %w", err)
	}
	limits := air.EndpointOptions{AllowLoopback: opts.AllowLoopback, AllowPrivate: opts.AllowPrivate}
	spec, err := doc.Inbox(did, &limits)
	if err != nil {
		return nil, fmt.Errorf("probe: endpoint: %w", err)
	}
	p := &prober{opts: opts, report: &Report{DID: did, Key: key.String(), Endpoint: spec.URL, Kind: KindUnknown}}
	p.http = exchange.New(exchange.Options{HTTPClient: opts.HTTPClient, AllowLoopback: opts.AllowLoopback, AllowPrivate: opts.AllowPrivate})
	defer p.http.Close()
	if err := p.pull(ctx, air.DialectSpec, spec.Pull); err != nil {
		return nil, err
	}
	limits.Dialect = air.DialectDeployed
	if deployed, err := doc.Inbox(did, &limits); err == nil {
		if err := p.pull(ctx, air.DialectDeployed, deployed.Pull); err != nil {
			return nil, err
		}
	}
	if len(p.report.Dialects) > 0 {
		p.report.Kind = KindRelay
	}
	if err := p.push(ctx, spec.URL); err != nil {
		return nil, err
	}
	p.advise()
	return p.report, nil
}

// send sends a request without a secret.
func (p *prober) send(ctx context.Context, method, url string, body []byte) (*exchange.Reply, error) {
	sent := time.Now()
	r, err := p.http.Do(ctx, &exchange.Request{Op: "probe", Method: method, URL: url, Body: body, Limit: maxReply})
	if err != nil {
		return nil, fmt.Errorf("probe: %s: %w", method, err)
	}
	if at, err := http.ParseTime(r.Header.Get("Date")); err == nil {
		p.report.HasClock = true
		p.report.Clock = at.Sub(sent).Round(time.Second)
	}
	return r, nil
}

// answer returns the text of an answer; none if it is not JSON.
func answer(r *exchange.Reply) strictjson.Value {
	v, err := strictjson.Check(r.Body, strictjson.Options{})
	if err != nil {
		return nil
	}
	return v
}

// pull requests a page and inspects the answer.
func (p *prober) pull(ctx context.Context, dialect air.Dialect, url string) error {
	r, err := p.send(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	name := map[air.Dialect]string{air.DialectSpec: "envelopes", air.DialectDeployed: "messages"}[dialect]
	switch {
	case r.Status == http.StatusOK && answer(r).Get(name).Kind() == '[':
		p.report.IsOpen = true
	case r.Status != http.StatusUnauthorized:
		return nil
	}
	p.report.Dialects = append(p.report.Dialects, dialect)
	return nil
}

// push sends envelopes that are refused.
func (p *prober) push(ctx context.Context, url string) error {
	r, err := p.send(ctx, http.MethodPost, url, []byte("{}"))
	if err != nil {
		return err
	}
	if r.Status == http.StatusUnauthorized {
		p.report.NeedsSecret = true
		return nil
	}
	text, _ := answer(r).Get("error").Text()
	if r.Status != http.StatusBadRequest || text != "Bad Request" || p.report.Kind == KindRelay {
		return nil // a relay could keep what follows
	}
	// An inbox checks the body before the signature, and the clock after it (6.2).
	for _, bodyType := range append([]string{"Offer", "encrypted"}, p.opts.BodyTypes...) {
		r, err := p.send(ctx, http.MethodPost, url, p.envelope(bodyType, time.Now()))
		if err != nil {
			return err
		}
		if text, _ := answer(r).Get("error").Text(); r.Status == http.StatusUnauthorized && text == "Bad Signature" {
			p.report.Kind = KindInbox
			p.report.Bodies = append(p.report.Bodies, bodyType)
		}
	}
	if p.report.Kind != KindInbox || p.opts.Identity == nil {
		return nil
	}
	return p.forms(ctx, url)
}

// forms sends envelopes with stale timestamps, which are refused for that only if the signature is
// accepted.
func (p *prober) forms(ctx context.Context, url string) error {
	for _, form := range []air.Form{air.FormSpec, air.FormDeployed} {
		wire, err := air.Sign(p.envelope("Offer", time.Now().Add(-24*time.Hour)), p.opts.Identity.Signer(), form)
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		r, err := p.send(ctx, http.MethodPost, url, wire)
		if err != nil {
			return err
		}
		if text, _ := answer(r).Get("error").Text(); r.Status == http.StatusConflict && text == "Stale Timestamp" {
			p.report.Forms = append(p.report.Forms, form)
		}
	}
	return nil
}

var bodies = map[string]string{
	"Offer": `{"description":"probe","expires_at":"2000-01-01T00:00:00.000Z","price":{"amount_cents":0,"currency":"USD"},"type":"Offer"}`,
	"encrypted": `{"alg":"x25519-hkdf-sha256-chacha20poly1305","ct":"AAAAAAAAAAAAAAAAAAAAAA","epk":"z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc",` +
		`"nonce":"AAAAAAAAAAAAAAAA","type":"encrypted","v":1}`,
}

// envelope returns an envelope without a signature.
func (p *prober) envelope(bodyType string, at time.Time) []byte {
	from := p.report.DID
	if p.opts.Identity != nil {
		from = p.opts.Identity.DID()
	}
	body, ok := bodies[bodyType]
	if !ok {
		body = `{"type":` + string(strictjson.AppendString(nil, bodyType)) + `}`
	}
	return fmt.Appendf(nil, `{"body":%s,"from":%s,"id":"%s","nonce":"%s","thread_id":"%s","timestamp":"%s","to":%s}`,
		body, strictjson.AppendString(nil, from), air.NewID(), rand.Text(), air.NewID(), at.UTC().Format("2006-01-02T15:04:05.000Z"), strictjson.AppendString(nil, p.report.DID))
}

// advise turns the findings into recommendations.
func (p *prober) advise() {
	r := p.report
	add := func(format string, args ...any) { r.Advice = append(r.Advice, fmt.Sprintf(format, args...)) }
	if r.Kind == KindUnknown && !r.NeedsSecret {
		add("neither a relay nor an inbox answers at the endpoint")
	}
	if len(r.Dialects) == 1 && r.Dialects[0] == air.DialectDeployed {
		add("send with ProfileDeployed, and pull with DialectDeployed")
	}
	if r.IsOpen {
		add("every caller can pull and acknowledge the mail: set a secret or accept signed requests only")
	}
	if r.NeedsSecret {
		add("set ClientOptions.Secrets for this origin")
	}
	if len(r.Forms) == 1 && r.Forms[0] == air.FormDeployed {
		add("send with ProfileDeployed")
	}
	if r.Kind == KindInbox && len(r.Bodies) > 0 {
		add("accepted body types: %s", strings.Join(r.Bodies, ", "))
	}
	if r.HasClock && (r.Clock > maxAhead || r.Clock < -maxAhead) {
		add("the clocks differ by %s: envelopes may be refused as stale", r.Clock)
	}
}
