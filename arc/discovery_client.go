// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// DiscoveryOptions adjusts a [Discovery]. The zero value is right for production.
type DiscoveryOptions struct {
	// HTTPClient sends the requests; see [ClientOptions].
	HTTPClient *http.Client

	// TokenSource supplies an access token for servers that require one for
	// discovery. It is called with an empty target. Nil sends no token.
	TokenSource TokenSource

	// AllowInsecure permits plain http to hosts other than this machine.
	AllowInsecure bool

	// CacheTTL is how long an answer is used. Zero means 5 min.
	CacheTTL time.Duration

	// Timeout bounds the requests for one endpoint. Zero means 10 s.
	Timeout time.Duration

	// MaxMessage bounds an answer in bytes. Zero means 4 MiB.
	MaxMessage int64
}

// A FoundAgent is an agent and where to call it.
type FoundAgent struct {
	AgentInfo
	URL string // the ARC endpoint, for [NewClient]
}

// A Discovery finds agents behind known endpoints (section 5). It is safe for
// concurrent use. Its results are unverified claims of the servers.
type Discovery struct {
	opts      DiscoveryOptions
	endpoints []*url.URL
	http      http.Client
	own       *http.Transport

	turns  []chan struct{} // held during a request to the endpoint of this index
	mu     sync.Mutex
	caches []knownAgents // by endpoint; guarded by mu
}

type knownAgents struct {
	agents []FoundAgent
	until  time.Time
}

// NewDiscovery returns a Discovery for these ARC endpoints. It does no I/O.
func NewDiscovery(opts *DiscoveryOptions, endpoints ...string) (*Discovery, error) {
	d := &Discovery{caches: make([]knownAgents, len(endpoints))}
	if opts != nil {
		d.opts = *opts
	}
	o := &d.opts
	o.CacheTTL = orDefault(o.CacheTTL, 5*time.Minute)
	o.Timeout = orDefault(o.Timeout, 10*time.Second)
	if o.MaxMessage <= 0 {
		o.MaxMessage = 4 << 20
	}
	for _, e := range endpoints {
		u, err := parseEndpoint(e, o.AllowInsecure)
		if err != nil {
			return nil, err
		}
		d.endpoints = append(d.endpoints, u)
		d.turns = append(d.turns, make(chan struct{}, 1))
	}
	d.http, d.own = httpClient(o.HTTPClient)
	return d, nil
}

// Close releases idle connections.
func (d *Discovery) Close() error {
	if d.own != nil {
		d.own.CloseIdleConnections()
	}
	return nil
}

// Agents returns all agents, in the order of the endpoints and of their responses.
// If an endpoint fails, the agents of the others are returned with the error.
func (d *Discovery) Agents(ctx context.Context) ([]FoundAgent, error) {
	results, errs := make([][]FoundAgent, len(d.endpoints)), make([]error, len(d.endpoints))
	var wg sync.WaitGroup
	for i := range d.endpoints {
		wg.Go(func() { results[i], errs[i] = d.ask(ctx, i) })
	}
	wg.Wait()
	var all []FoundAgent
	for _, r := range results {
		for _, a := range r {
			all = append(all, a.clone())
		}
	}
	return all, errors.Join(errs...)
}

// clone returns a copy, so that callers cannot change the cache.
func (a FoundAgent) clone() FoundAgent {
	a.Capabilities = slices.Clone(a.Capabilities)
	a.SupportedMethods = slices.Clone(a.SupportedMethods)
	return a
}

// An AgentQuery selects agents. Empty fields match every agent.
type AgentQuery struct {
	AgentID    string
	Capability string
	Method     string
	Status     string
}

func (q *AgentQuery) fits(a *FoundAgent) bool {
	return (q.AgentID == "" || a.AgentID == q.AgentID) && (q.Status == "" || a.Status == q.Status) &&
		(q.Capability == "" || slices.Contains(a.Capabilities, q.Capability)) &&
		(q.Method == "" || slices.Contains(a.SupportedMethods, q.Method))
}

// Find returns the agents that fit the query. If it finds some, an endpoint that
// failed is no error.
func (d *Discovery) Find(ctx context.Context, q AgentQuery) ([]FoundAgent, error) {
	all, err := d.Agents(ctx)
	all = slices.DeleteFunc(all, func(a FoundAgent) bool { return !q.fits(&a) })
	if len(all) > 0 {
		return all, nil
	}
	return nil, err
}

// Invalidate drops all answers, so that the next question goes to the endpoints.
func (d *Discovery) Invalidate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.caches)
}

// ask returns the agents behind one endpoint. One caller asks, others wait for it.
func (d *Discovery) ask(ctx context.Context, i int) ([]FoundAgent, error) {
	if agents, ok := d.cached(i); ok {
		return agents, nil
	}
	select {
	case d.turns[i] <- struct{}{}:
		defer func() { <-d.turns[i] }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if agents, ok := d.cached(i); ok {
		return agents, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.Timeout, ErrTimeout)
	defer cancel()
	endpoint := d.endpoints[i]
	infos, err := d.infos(ctx, endpoint)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("arc: discovery at %s: %w", endpoint.Redacted(), err)
	}
	agents := make([]FoundAgent, len(infos))
	for j, info := range infos {
		agents[j] = FoundAgent{AgentInfo: info, URL: agentURL(endpoint, info.Endpoint)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.caches[i] = knownAgents{agents, time.Now().Add(d.opts.CacheTTL)}
	return agents, nil
}

func (d *Discovery) cached(i int) ([]FoundAgent, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.caches[i]
	return k.agents, k.agents != nil && time.Now().Before(k.until)
}

// agentURL resolves the path in the description of an agent. It never leads to
// another origin, which would receive the tokens.
func agentURL(endpoint *url.URL, path string) string {
	u, err := endpoint.Parse(path)
	if err != nil || originOf(u) != originOf(endpoint) || u.User != nil {
		return endpoint.String()
	}
	return u.String()
}

// infos tries the locations of ARC-D67: /agent-info next to the endpoint, then info
// below it.
func (d *Discovery) infos(ctx context.Context, endpoint *url.URL) ([]AgentInfo, error) {
	path := strings.TrimSuffix(endpoint.Path, "/")
	data, err := d.get(ctx, endpoint, path[:strings.LastIndexByte(path, '/')+1]+"agent-info")
	if err == nil {
		var infos []AgentInfo
		if infos, err = DecodeAgentInfo(data); err == nil {
			return infos, nil
		}
	}
	if ctx.Err() != nil {
		return nil, err
	}
	data, second := d.get(ctx, endpoint, path+"/info")
	if second != nil {
		return nil, errors.Join(err, second)
	}
	infos, second := DecodeAgentInfo(data)
	if second != nil {
		return nil, errors.Join(err, second)
	}
	for i := range infos {
		// Routers of the Python SDK know their own root only, not where they are mounted.
		if infos[i].Endpoint == "/" {
			infos[i].Endpoint = path + "/"
		}
	}
	return infos, nil
}

// get fetches a document of the endpoint's origin.
func (d *Discovery) get(ctx context.Context, endpoint *url.URL, path string) ([]byte, error) {
	const maxRedirects = 3
	to := &url.URL{Scheme: endpoint.Scheme, Host: endpoint.Host, Path: path}
	if !strings.HasPrefix(path, "/") {
		to.Path = "/" + path
	}
	header := http.Header{"Accept": {"application/json"}}
	if d.opts.TokenSource != nil {
		token, err := d.opts.TokenSource.Token(ctx, "")
		if err != nil {
			return nil, fmt.Errorf("access token: %w", err)
		}
		if err := setToken(header, token); err != nil {
			return nil, err
		}
	}
	for hops := 0; ; hops++ {
		resp, err := doHTTP(&d.http, (&http.Request{Method: http.MethodGet, URL: to, Host: to.Host, Header: header,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx))
		if err != nil {
			return nil, err
		}
		if redirects(resp.StatusCode) {
			discard(resp)
			if to, err = redirectTarget(to, resp); err != nil {
				return nil, err
			}
			if hops == maxRedirects {
				return nil, ErrRedirect
			}
			continue
		}
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
			_ = resp.Body.Close()
			return nil, httpError(resp.StatusCode, text)
		}
		return readReply(nil, resp, d.opts.MaxMessage)
	}
}
