// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjusts a [Client]. The zero value is right for production.
type Options struct {
	// RegistryURL is the base URL. Empty means [air.DefaultRegistryURL].
	RegistryURL string

	// HTTPClient sends the requests. Nil means a client that connects to public addresses only.
	// Redirects are never followed.
	HTTPClient *http.Client

	// AllowLoopback accepts a registry on this machine, also over plain http, for tests.
	AllowLoopback bool

	// AllowPrivate accepts private addresses, for closed networks.
	AllowPrivate bool

	// Resolver, if set, drops the document of each agent that this client changes.
	Resolver *air.Resolver

	// Retry adjusts the attempts of calls that read or are idempotent. Nil means 4 attempts of up to
	// 30 s, with random delays of at most 500 ms, then twice as long up to 10 s, and requested delays up
	// to 30 s.
	Retry *air.RetryPolicy

	// Logger receives events that no error reports, such as retries. Nil means slog.Default().
	Logger *slog.Logger
}

// A Client calls one registry. Its methods are safe for concurrent use.
//
// A call that reads, or is idempotent, has up to four attempts while the registry is unreachable or
// limits the rate. Registrations and attestations are sent once: if the response is lost, the
// outcome is unknown.
//
// Every failure is an [*air.Error]: [air.ErrBadRequest], [air.ErrUnauthorized], [air.ErrForbidden],
// [air.ErrNotFound], [air.ErrConflict], [air.ErrRateLimited] with the requested delay,
// [air.ErrBadGateway] if the registry is unreachable or fails, [air.ErrBadDocument] if the response
// is invalid, [air.ErrBadKey] if a signer fails, and [air.ErrHTTP] otherwise. Message has the error text of the registry.
// [Client.RotateKey] also returns errors of files.
type Client struct {
	opts Options
	base string
	http *exchange.Client

	retry retry.Policy
}

const (
	apiPath   = "/api/v1"
	maxAnswer = 1 << 20
	attempts  = 4
	once      = 1
)

// NewClient returns a client. It does no I/O.
func NewClient(opts *Options) (*Client, error) {
	c := &Client{}
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	if o.RegistryURL == "" {
		o.RegistryURL = air.DefaultRegistryURL
	}
	if _, err := (&netguard.Guard{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate}).URL(o.RegistryURL, false); err != nil {
		return nil, &air.Error{Code: air.ErrBadEndpoint, Message: "registry URL not allowed", Cause: err}
	}
	var r air.RetryPolicy
	if o.Retry != nil {
		r = *o.Retry
	}
	c.retry = retry.Policy{
		MaxAttempts: cmp.Or(r.MaxAttempts, attempts), Base: cmp.Or(r.Base, 500*time.Millisecond), Max: r.Max,
		MaxRetryAfter: cmp.Or(r.MaxRetryAfter, 30*time.Second), Logger: o.Logger, Subject: "air: registry request",
	}
	c.base = strings.TrimSuffix(o.RegistryURL, "/") + apiPath
	c.http = exchange.New(exchange.Options{HTTPClient: o.HTTPClient, AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate, Timeout: cmp.Or(r.Timeout, 30*time.Second)})
	return c, nil
}

// GetHealth returns the health of the registry.
func (c *Client) GetHealth(ctx context.Context) (*Health, error) {
	return get[Health](ctx, c, "/health")
}

// GetAgent returns the entry of an agent.
func (c *Client) GetAgent(ctx context.Context, airID string) (*Agent, error) {
	return getAgent[Agent](ctx, c, airID, "")
}

// GetTrustScore returns the trust score of an agent.
func (c *Client) GetTrustScore(ctx context.Context, airID string) (*TrustScore, error) {
	return getAgent[TrustScore](ctx, c, airID, "/trust-score")
}

// GetDocument fetches the DID document of an agent, bypassing caches. To send and to receive, use
// an [air.Resolver].
func (c *Client) GetDocument(ctx context.Context, airID string) (*air.Document, error) {
	if err := checkAIRID(airID); err != nil {
		return nil, err
	}
	text, err := c.do(ctx, http.MethodGet, "/agents/"+airID+"/did-document", nil, "")
	if err != nil {
		return nil, err
	}
	return air.DecodeDocument(text)
}

// LookupName returns the agents with a name. An unused name is no error.
func (c *Client) LookupName(ctx context.Context, name string) (*NameInfo, error) {
	return get[NameInfo](ctx, c, "/agents/check-name?name="+url.QueryEscape(name))
}

// List returns a page of the agents, the highest scores first. A limit of zero means the default of
// the registry.
func (c *Client) List(ctx context.Context, limit, offset int) (*Page, error) {
	q := url.Values{"offset": {strconv.Itoa(offset)}}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return get[Page](ctx, c, "/agents?"+q.Encode())
}

// ListAll ranges over all agents by repeated calls of [Client.List]. An error comes once and last.
// Agents that register during the iteration may be missed or repeated.
func (c *Client) ListAll(ctx context.Context) iter.Seq2[*Summary, error] {
	return func(yield func(*Summary, error) bool) {
		for offset := 0; ; {
			p, err := c.List(ctx, 100, offset)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range p.Agents {
				if !yield(&p.Agents[i], nil) {
					return
				}
			}
			if offset += len(p.Agents); len(p.Agents) == 0 || offset >= p.Total {
				return
			}
		}
	}
}

// Register registers a new agent. If the registry created it but the response is invalid, Register
// returns an error and a Registration with the readable part.
func (c *Client) Register(ctx context.Context, p *RegisterParams) (*Registration, error) {
	if p == nil || p.Name == "" {
		return nil, invalid("a registration needs a name")
	}
	if p.PublicKey == nil && p.CreatorDID == "" {
		return nil, invalid("a registration needs a public key or the DID of its creator")
	}
	creator := p.CreatorType
	if creator == "" {
		creator = "individual"
	}
	b := fields{}
	b.text("name", p.Name)
	b.text("description", p.Description)
	b.text("creator_name", p.CreatorName)
	b.text("creator_type", creator)
	b.flag("open_source", p.OpenSource)
	b.text("code_repository", p.CodeRepository)
	b.text("documentation_url", p.DocumentationURL)
	if p.CreatorDID != "" {
		b.text("creator_did", p.CreatorDID)
	}
	if p.PublicKey != nil {
		b.text("public_key", keyText(p.PublicKey))
	}
	b.list("capabilities", p.Capabilities)
	b.list("security_certifications", p.Certifications)
	if err := b.services(p.Services); err != nil {
		return nil, err
	}
	text, err := c.do(ctx, http.MethodPost, "/agents/register", b.json(), "")
	if err != nil {
		return nil, err
	}
	r := &Registration{}
	if err := decode(text, r); err != nil {
		return r, err
	}
	if !name.IsAIRID(r.AIRID) || r.Secret == "" {
		return r, &air.Error{Code: air.ErrBadDocument, Message: "the answer to the registration lacks the AIR ID or the secret"}
	}
	return r, nil
}

// Update changes the entry of an agent. The secret is that of its registration.
func (c *Client) Update(ctx context.Context, airID, secret string, p *UpdateParams) (*UpdateResult, error) {
	if p == nil {
		p = &UpdateParams{}
	}
	b := fields{}
	b.optional("description", p.Description)
	b.list("capabilities", p.Capabilities)
	b.list("security_certifications", p.Certifications)
	if p.OpenSource != nil {
		b.flag("open_source", *p.OpenSource)
	}
	b.optional("code_repository", p.CodeRepository)
	b.optional("documentation_url", p.DocumentationURL)
	if err := b.services(p.Services); err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, invalid("an update needs something to change")
	}
	return c.update(ctx, airID, secret, b.json(), attempts)
}

func (c *Client) update(ctx context.Context, airID, secret string, body []byte, tries int) (*UpdateResult, error) {
	if err := checkAIRID(airID); err != nil {
		return nil, err
	}
	if secret == "" {
		return nil, errNoSecret()
	}
	text, err := c.doTimes(ctx, tries, http.MethodPut, "/agents/"+airID, body, secret)
	c.forget(airID) // after every outcome, since the response may be lost
	if err != nil {
		return nil, err
	}
	return read[UpdateResult](text)
}

func (c *Client) forget(airID string) {
	if c.opts.Resolver != nil {
		c.opts.Resolver.Invalidate(airID)
	}
}

// keyText returns a public key as the registry writes it outside of documents.
func keyText(k *air.PublicKey) string { return base64.RawURLEncoding.EncodeToString(k.Bytes()) }

func checkAIRID(id string) error {
	if !name.IsAIRID(id) {
		return &air.Error{Code: air.ErrBadAIRID, Message: "want AIR-XXXX-XXXX-XXXX"}
	}
	return nil
}

func errNoSecret() error { return invalid("the secret of the agent is missing") }

func invalid(detail string) error { return &air.Error{Code: air.ErrBadRequest, Message: detail} }

func getAgent[T any, P pointer[T]](ctx context.Context, c *Client, airID, path string) (*T, error) {
	if err := checkAIRID(airID); err != nil {
		return nil, err
	}
	return get[T, P](ctx, c, "/agents/"+airID+path)
}

func get[T any, P pointer[T]](ctx context.Context, c *Client, path string) (*T, error) {
	text, err := c.do(ctx, http.MethodGet, path, nil, "")
	if err != nil {
		return nil, err
	}
	return read[T, P](text)
}

func read[T any, P pointer[T]](text []byte) (*T, error) {
	dst := new(T)
	if err := decode(text, P(dst)); err != nil {
		return nil, err
	}
	return dst, nil
}

// do sends a request, repeatedly if it is idempotent, and returns the body of a successful
// response.
func (c *Client) do(ctx context.Context, method, path string, body []byte, secret string) ([]byte, error) {
	tries := attempts
	if method == http.MethodPost {
		tries = once
	}
	return c.doTimes(ctx, tries, method, path, body, secret)
}

func (c *Client) doTimes(ctx context.Context, tries int, method, path string, body []byte, secret string) ([]byte, error) {
	policy := c.retry
	if tries == once {
		policy.MaxAttempts = -1
	}
	var text []byte
	err := retry.Do(ctx, policy, true, func(ctx context.Context, _ int) (err error) {
		text, err = c.try(ctx, method, path, body, secret)
		return classify(err)
	})
	var e *air.Error
	switch {
	case err == nil:
		return text, nil
	case !errors.As(err, &e):
		e = &air.Error{Code: air.ErrBadGateway, Message: "request ended", Cause: err}
	}
	return nil, e
}

// classify marks the errors that are worth another attempt, and the others.
func classify(err error) error {
	var e *air.Error
	if errors.As(err, &e) && (e.Code == air.ErrBadGateway || e.Code == air.ErrRateLimited) && (e.RemoteStatus == 0 || retry.IsAway(e.RemoteStatus)) {
		return retry.Mark(err, retry.Unknown, e.RetryAfter)
	}
	return retry.Mark(err, retry.Permanent, 0)
}

// Close closes the idle connections.
func (c *Client) Close() error {
	c.http.Close()
	return nil
}

func (c *Client) try(ctx context.Context, method, path string, body []byte, secret string) ([]byte, error) {
	h := http.Header{"Cache-Control": {"no-cache"}}
	if secret != "" {
		h.Set(exchange.SecretHeader, secret)
	}
	res, err := c.http.Do(ctx, &exchange.Request{Op: "registry", Method: method, URL: c.base + path, Header: h, Body: body, Limit: maxAnswer})
	if errors.Is(err, httpx.ErrTooLarge) {
		return nil, &air.Error{Code: air.ErrBadDocument, Message: "the answer of the registry is too large"}
	}
	if err != nil {
		return nil, &air.Error{Code: air.ErrBadGateway, Message: "registry unreachable", Cause: err}
	}
	if res.Status < 200 || res.Status > 299 {
		return nil, refusal(res)
	}
	return res.Body, nil
}

// refusal returns the error of a response: the text is in the member error, with additions in
// message and hint.
func refusal(res *exchange.Reply) error {
	e := &air.Error{RemoteStatus: res.Status, Remote: true}
	switch s := res.Status; {
	case s == http.StatusBadRequest, s == http.StatusUnprocessableEntity:
		e.Code = air.ErrBadRequest
	case s == http.StatusUnauthorized:
		e.Code = air.ErrUnauthorized
	case s == http.StatusForbidden:
		e.Code = air.ErrForbidden
	case s == http.StatusNotFound, s == http.StatusGone:
		e.Code = air.ErrNotFound
	case s == http.StatusConflict:
		e.Code = air.ErrConflict
	case s == http.StatusTooManyRequests:
		e.Code = air.ErrRateLimited
	case s >= 500:
		e.Code = air.ErrBadGateway
	default:
		e.Code = air.ErrHTTP
	}
	e.Message = fmt.Sprintf("the registry answers %d", res.Status)
	body, err := strictjson.Check(res.Body, strictjson.Options{})
	if err != nil {
		body = nil
	}
	if e.Code == air.ErrRateLimited || e.Code == air.ErrBadGateway {
		e.RetryAfter, _ = exchange.RetryAfter(res.Header, body, time.Now())
	}
	if err != nil {
		return e // not JSON: probably from a proxy
	}
	for _, name := range []string{"error", "message", "hint"} {
		if text, _ := body.Get(name).Text(); text != "" {
			e.Message += ": " + text
		}
	}
	e.AIRID, _ = body.Get("air_id").Text()
	return e
}

// An answer stores the text of its response.
type answer interface{ keep([]byte) }

// A pointer to a type that embeds [RawResponse].
type pointer[T any] interface {
	*T
	answer
}

func decode(text []byte, dst answer) error {
	v, err := strictjson.Check(text, strictjson.Options{})
	if err == nil && !v.IsObject() {
		err = errors.New("not an object")
	}
	if err == nil {
		dst.keep(v)
		err = strictjson.Decode(v, dst)
	}
	if err != nil {
		return &air.Error{Code: air.ErrBadDocument, Message: "the answer of the registry cannot be read", Cause: err}
	}
	return nil
}

// fields are the members of a request, as JSON.
type fields []byte

func (f *fields) add(name string, value []byte) {
	sep := byte(',')
	if len(*f) == 0 {
		sep = '{'
	}
	*f = append(append(*f, sep, '"'), name...)
	*f = append(append(*f, '"', ':'), value...)
}

func (f *fields) text(name, value string) { f.add(name, strictjson.AppendString(nil, value)) }

func (f *fields) optional(name string, value *string) {
	if value != nil {
		f.text(name, *value)
	}
}

func (f *fields) flag(name string, value bool) { f.add(name, strconv.AppendBool(nil, value)) }

func (f *fields) list(name string, values []string) {
	if values == nil {
		return
	}
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strictjson.AppendString(b, v)
	}
	f.add(name, append(b, ']'))
}

// services adds the services as an array, the only permitted form (AIR-163).
func (f *fields) services(list []Service) error {
	if list == nil {
		return nil
	}
	b := []byte{'['}
	for i, s := range list {
		if _, err := ParseServiceType(s.Type); err != nil {
			return err
		}
		if s.Endpoint == "" {
			return &air.Error{Code: air.ErrBadEndpoint, Message: "a service has no endpoint"}
		}
		if i > 0 {
			b = append(b, ',')
		}
		text, err := guard.Encode(s)
		if err != nil {
			return fmt.Errorf("air: encoding a service: %w", err)
		}
		b = append(b, text...)
	}
	f.add("service_endpoints", append(b, ']'))
	return nil
}

func (f fields) json() []byte { return append(f, '}') }
