// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
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
	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjusts a [Client]. The zero value is right for production.
type Options struct {
	// RegistryURL is the base URL. Empty means [air.DefaultRegistryURL].
	RegistryURL string

	// HTTPClient sends the requests. Nil means one that connects to public
	// addresses only. No redirect is followed in any case.
	HTTPClient *http.Client

	// AllowLoopback accepts a registry on this machine, and plain http for it, for
	// tests.
	AllowLoopback bool

	// AllowPrivate accepts private addresses, for closed networks.
	AllowPrivate bool

	// Resolver, if set, forgets the document of an agent that this client changes.
	Resolver *air.Resolver

	// MaxRetryAfter is the longest delay named by an answer that is waited for.
	// Zero means 30 s.
	MaxRetryAfter time.Duration

	// Logger receives what no error reports, such as retries. Nil is silent.
	Logger *slog.Logger
}

// A Client asks one registry. All its methods may be called from several
// goroutines. It starts none, so it needs no closing.
//
// A call that changes nothing, or the same when repeated, is tried up to four times
// while the registry is out of reach or asks for patience. A registration and an
// attestation are sent once: nobody knows what became of one whose answer is lost.
//
// Every failure is an [*air.Error]: [air.ErrBadRequest], [air.ErrUnauthorized],
// [air.ErrForbidden], [air.ErrNotFound], [air.ErrConflict], [air.ErrRateLimited]
// with the delay that the registry asks for, [air.ErrBadGateway] if it is out of
// reach or fails, [air.ErrBadDocument] if the answer cannot be read, and
// [air.ErrHTTP] for the rest. Detail says in the registry's words what is wrong.
type Client struct {
	opts Options
	base string
	http *http.Client
	log  *slog.Logger
}

const (
	apiPath   = "/api/v1"
	maxAnswer = 1 << 20
	attempts  = 4
	once      = 1
)

// pause is what lies between two attempts.
var pause = backoff.Backoff{Base: 500 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.5}

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
	if _, err := air.DocumentURL(o.RegistryURL, "AIR-0000-0000-0000"); err != nil {
		return nil, err
	}
	if _, err := air.ParseEndpoint(o.RegistryURL, &air.EndpointOptions{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate}); err != nil {
		return nil, err
	}
	if o.MaxRetryAfter <= 0 {
		o.MaxRetryAfter = 30 * time.Second
	}
	c.base = strings.TrimSuffix(o.RegistryURL, "/") + apiPath
	c.log = o.Logger
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.http = web.Client(o.HTTPClient, o.AllowLoopback, o.AllowPrivate)
	return c, nil
}

// GetHealth asks whether the registry is alive.
func (c *Client) GetHealth(ctx context.Context) (*Health, error) {
	return get[Health](ctx, c, "/health")
}

// GetAgent looks an agent up.
func (c *Client) GetAgent(ctx context.Context, airID string) (*Agent, error) {
	return getAgent[Agent](ctx, c, airID, "")
}

// GetTrustScore returns how far the registry trusts an agent.
func (c *Client) GetTrustScore(ctx context.Context, airID string) (*TrustScore, error) {
	return getAgent[TrustScore](ctx, c, airID, "/trust-score")
}

// GetDocument fetches the DID document of an agent, past all caches that can be told
// so. To send and to receive, use an [air.Resolver].
func (c *Client) GetDocument(ctx context.Context, airID string) (*air.Document, error) {
	if err := air.ValidateAIRID(airID); err != nil {
		return nil, err
	}
	text, err := c.do(ctx, http.MethodGet, "/agents/"+airID+"/did-document", nil, "")
	if err != nil {
		return nil, err
	}
	return air.DecodeDocument(text)
}

// LookupName tells which agents have a name. It is answered for names that nobody
// has, too.
func (c *Client) LookupName(ctx context.Context, name string) (*NameInfo, error) {
	return get[NameInfo](ctx, c, "/agents/check-name?name="+url.QueryEscape(name))
}

// List returns a part of the list of agents, those with the best scores first. A
// limit of zero means what the registry thinks right.
func (c *Client) List(ctx context.Context, limit, offset int) (*Page, error) {
	q := url.Values{"offset": {strconv.Itoa(offset)}}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return get[Page](ctx, c, "/agents?"+q.Encode())
}

// ListAll ranges over all agents, one [Client.List] after the other. An error comes
// once and last. Agents that are registered meanwhile may be missed or come twice.
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

// Register makes a new agent. If the registry made one but its answer cannot be
// used, there is a Registration beside the error, with what could be read.
func (c *Client) Register(ctx context.Context, p *RegisterParams) (*Registration, error) {
	if p.Name == "" {
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
	if air.ValidateAIRID(r.AIRID) != nil || r.Secret == "" {
		return r, &air.Error{Code: air.ErrBadDocument, Message: "the answer to the registration lacks the AIR ID or the secret"}
	}
	return r, nil
}

// Update changes the entry of an agent. The secret is that of its registration.
func (c *Client) Update(ctx context.Context, airID, secret string, p *UpdateParams) (*UpdateResult, error) {
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
	if err := air.ValidateAIRID(airID); err != nil {
		return nil, err
	}
	if secret == "" {
		return nil, invalid("the secret of the agent is missing")
	}
	text, err := c.doTimes(ctx, tries, http.MethodPut, "/agents/"+airID, body, secret)
	c.forget(airID) // whatever the answer says, or if there was none
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

// keyText is how the registry writes public keys outside of documents.
func keyText(k *air.PublicKey) string { return base64.RawURLEncoding.EncodeToString(k.Bytes()) }

func invalid(detail string) error { return &air.Error{Code: air.ErrBadRequest, Message: detail} }

func getAgent[T any, P pointer[T]](ctx context.Context, c *Client, airID, path string) (*T, error) {
	if err := air.ValidateAIRID(airID); err != nil {
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

// do makes a call, again if that is safe, and returns the answer to one that
// succeeded.
func (c *Client) do(ctx context.Context, method, path string, body []byte, secret string) ([]byte, error) {
	tries := attempts
	if method == http.MethodPost {
		tries = once
	}
	return c.doTimes(ctx, tries, method, path, body, secret)
}

func (c *Client) doTimes(ctx context.Context, tries int, method, path string, body []byte, secret string) ([]byte, error) {
	for attempt := 1; ; attempt++ {
		text, err := c.try(ctx, method, path, body, secret)
		if err == nil || ctx.Err() != nil {
			return text, err
		}
		var e *air.Error
		if !errors.As(err, &e) || attempt >= tries || e.Code != air.ErrBadGateway && e.Code != air.ErrRateLimited {
			return nil, err
		}
		switch e.RemoteStatus {
		case 0, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		default:
			return nil, err
		}
		delay := max(pause.Delay(attempt), e.RetryAfter)
		if e.RetryAfter > c.opts.MaxRetryAfter {
			return nil, err
		}
		c.log.DebugContext(ctx, "air: asking the registry again", "method", method, "path", path, "attempt", attempt, "delay", delay, "err", err)
		t := time.NewTimer(delay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

func (c *Client) try(ctx context.Context, method, path string, body []byte, secret string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := web.NewRequest(ctx, method, c.base+path, body, secret)
	if err != nil {
		return nil, &air.Error{Code: air.ErrBadEndpoint, Message: "the request could not be made", Cause: err}
	}
	req.Header.Set("Cache-Control", "no-cache")
	res, err := web.Do(c.http, req, maxAnswer)
	if errors.Is(err, web.ErrTooLarge) {
		return nil, &air.Error{Code: air.ErrBadDocument, Message: "the answer of the registry is too large"}
	}
	if err != nil {
		return nil, &air.Error{Code: air.ErrBadGateway, Message: "the registry is out of reach", Cause: err}
	}
	if res.Status < 200 || res.Status > 299 {
		return nil, refusal(res)
	}
	return res.Body, nil
}

// refusal makes an error of an answer: a text for people in error, and sometimes
// more of it in message and hint.
func refusal(res *web.Reply) error {
	e := &air.Error{RemoteStatus: res.Status}
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
	v := air.Judge(http.StatusTooManyRequests, res.Header, res.Body, 1, time.Now()) // for the delay only
	if v.HasRetryAfter && (e.Code == air.ErrRateLimited || e.Code == air.ErrBadGateway) {
		e.RetryAfter = v.RetryAfter
	}
	e.Message = fmt.Sprintf("the registry answers %d", res.Status)
	body, err := strictjson.Check(res.Body, strictjson.Options{})
	if err != nil {
		return e // not JSON: a proxy on the way, probably
	}
	for _, name := range []string{"error", "message", "hint"} {
		if text, _ := body.Get(name).Text(); text != "" {
			e.Message += ": " + text
		}
	}
	e.AIRID, _ = body.Get("air_id").Text()
	return e
}

// An answer keeps its text.
type answer interface{ keep([]byte) }

// A pointer to something that embeds [RawResponse].
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

// fields are the members of a request.
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

// services adds them as an array, which is the only form that there is (AIR-163).
func (f *fields) services(list []Service) error {
	if list == nil {
		return nil
	}
	b := []byte{'['}
	for i, s := range list {
		if _, err := air.ParseServiceType(s.Type); err != nil {
			return err
		}
		if s.Endpoint == "" {
			return &air.Error{Code: air.ErrBadEndpoint, Message: "a service has no endpoint"}
		}
		if i > 0 {
			b = append(b, ',')
		}
		text, err := strictjson.Encode(s)
		if err != nil {
			return fmt.Errorf("air: encoding a service: %w", err)
		}
		b = append(b, text...)
	}
	f.add("service_endpoints", append(b, ']'))
	return nil
}

func (f fields) json() []byte { return append(f, '}') }
