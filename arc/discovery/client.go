// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package discovery finds ARC agents behind known endpoints and reads agent cards.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/endpoint"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
)

// ClientOptions adjust a [Client]. The zero value is right for production.
type ClientOptions struct {
	// HTTPClient sends the requests; see [arc.ClientOptions].
	HTTPClient *http.Client

	// TokenSource supplies an access token for servers that require one for
	// discovery. It is called with an empty target. Nil sends no token.
	TokenSource arc.TokenSource

	// AllowInsecure permits plain http to hosts other than this machine.
	AllowInsecure bool

	// CacheTTL is how long a response is used. Zero means 5 min; a negative value
	// disables the cache.
	CacheTTL time.Duration

	// Timeout bounds the requests for one endpoint. Zero means 10 s; a negative value
	// removes the bound.
	Timeout time.Duration

	// MaxMessage bounds a response in bytes. Zero means 4 MiB; a negative value removes
	// the bound.
	MaxMessage int
}

// A Agent is an agent and where to call it.
type Agent struct {
	arc.AgentInfo
	URL string // the ARC endpoint, for [arc.NewClient]
}

// A Client finds agents behind known endpoints (section 5). It is safe for
// concurrent use. Its results are unverified claims of the servers.
type Client struct {
	opts      ClientOptions
	endpoints []*url.URL
	http      *httpx.Client

	turns    []chan struct{} // held during a request to the endpoint of this index
	mu       sync.Mutex
	caches   []knownAgents // by endpoint; guarded by mu
	failures []failure     // by endpoint; guarded by mu
}

// A failure is the last failed request to an endpoint.
type failure struct {
	err error
	at  time.Time
}

type knownAgents struct {
	agents []Agent
	until  time.Time
}

// NewClient returns a Client for these ARC endpoints. It does no I/O.
func NewClient(opts *ClientOptions, endpoints ...string) (*Client, error) {
	d := &Client{caches: make([]knownAgents, len(endpoints)), failures: make([]failure, len(endpoints))}
	if opts != nil {
		d.opts = *opts
	}
	o := &d.opts
	o.CacheTTL = cmp.Or(o.CacheTTL, 5*time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.MaxMessage = cmp.Or(o.MaxMessage, 4<<20)
	for _, e := range endpoints {
		u, err := endpoint.Parse(e, o.AllowInsecure)
		if err != nil {
			return nil, err
		}
		d.endpoints = append(d.endpoints, u)
		d.turns = append(d.turns, make(chan struct{}, 1))
	}
	d.http = httpx.NewClient(&httpx.ClientOptions{Prefix: "arc: ", HTTPClient: o.HTTPClient, AllowInsecure: o.AllowInsecure,
		MaxResponse: int64(o.MaxMessage)})
	return d, nil
}

// Close releases idle connections.
func (d *Client) Close() error {
	d.http.Close()
	return nil
}

// bounded returns the context of the requests for one endpoint.
func (d *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.opts.Timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d.opts.Timeout, arc.ErrTimeout)
}

// Agents returns all agents, in the order of the endpoints and of their responses.
// If an endpoint fails, the agents of the others are returned with the error.
func (d *Client) Agents(ctx context.Context) ([]Agent, error) {
	results, errs := make([][]Agent, len(d.endpoints)), make([]error, len(d.endpoints))
	var wg sync.WaitGroup
	for i := range d.endpoints {
		wg.Go(func() {
			guard.Run("discovery", func() (err error) {
				results[i], err = d.ask(ctx, i)
				return err
			}, func(err error) { errs[i] = err }) // also if the token source ends the goroutine
		})
	}
	wg.Wait()
	var all []Agent
	for _, r := range results {
		for _, a := range r {
			all = append(all, a.clone())
		}
	}
	return all, errors.Join(errs...)
}

// clone returns a copy, so that callers cannot change the cache.
func (a Agent) clone() Agent {
	a.Capabilities = slices.Clone(a.Capabilities)
	a.SupportedMethods = slices.Clone(a.SupportedMethods)
	a.Extra = maps.Clone(a.Extra)
	return a
}

// An AgentQuery selects agents. Empty fields match every agent.
type AgentQuery struct {
	AgentID    string
	Capability string
	Method     string
	Status     string
}

func (q *AgentQuery) fits(a *Agent) bool {
	return (q.AgentID == "" || a.AgentID == q.AgentID) && (q.Status == "" || a.Status == q.Status) &&
		(q.Capability == "" || slices.Contains(a.Capabilities, q.Capability)) &&
		(q.Method == "" || slices.Contains(a.SupportedMethods, q.Method))
}

// Find returns the agents that fit the query. If it finds some, an endpoint that
// failed is no error.
func (d *Client) Find(ctx context.Context, q AgentQuery) ([]Agent, error) {
	all, err := d.Agents(ctx)
	all = slices.DeleteFunc(all, func(a Agent) bool { return !q.fits(&a) })
	if len(all) > 0 {
		return all, nil
	}
	return nil, err
}

// Invalidate drops all answers, so that the next question goes to the endpoints.
func (d *Client) Invalidate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.caches)
}

// ask returns the agents behind one endpoint. One caller asks, others wait for its result.
func (d *Client) ask(ctx context.Context, i int) ([]Agent, error) {
	if agents, ok := d.cached(i); ok {
		return agents, nil
	}
	start, caller := time.Now(), ctx
	select {
	case d.turns[i] <- struct{}{}:
		defer func() { <-d.turns[i] }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if agents, ok := d.cached(i); ok {
		return agents, nil
	}
	if err := d.failedSince(i, start); err != nil {
		return nil, err
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	base := d.endpoints[i]
	infos, err := d.infos(ctx, base)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = fmt.Errorf("arc: discovery at %s: %w", endpoint.Name(base), err)
		if caller.Err() == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.failures[i] = failure{err, time.Now()}
		}
		return nil, err
	}
	agents := make([]Agent, len(infos))
	for j, info := range infos {
		agents[j] = Agent{AgentInfo: info, URL: agentURL(base, info.Endpoint)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.caches[i] = knownAgents{agents, time.Now().Add(d.opts.CacheTTL)}
	return agents, nil
}

// failedSince returns the error of a request to an endpoint that has failed since start.
func (d *Client) failedSince(i int, start time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := &d.failures[i]; f.at.After(start) {
		return f.err
	}
	return nil
}

func (d *Client) cached(i int) ([]Agent, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.caches[i]
	return k.agents, k.agents != nil && time.Now().Before(k.until)
}

// agentURL resolves the path in the description of an agent. It never leads to
// another origin, which would receive the tokens.
func agentURL(base *url.URL, path string) string {
	u, err := base.Parse(path)
	if err != nil || !endpoint.SameOrigin(u, base) || u.User != nil {
		return base.String()
	}
	return u.String()
}

// infos tries the locations of ARC-D67: /agent-info next to the endpoint, then info
// below it.
func (d *Client) infos(ctx context.Context, base *url.URL) ([]arc.AgentInfo, error) {
	path := strings.TrimSuffix(base.Path, "/")
	data, err := d.get(ctx, base, path[:strings.LastIndexByte(path, '/')+1]+"agent-info")
	if err == nil {
		var infos []arc.AgentInfo
		if infos, err = arc.DecodeAgentInfo(data); err == nil {
			return infos, nil
		}
	}
	if ctx.Err() != nil {
		return nil, err
	}
	data, second := d.get(ctx, base, path+"/info")
	if second != nil {
		return nil, errors.Join(err, second)
	}
	infos, second := arc.DecodeAgentInfo(data)
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
func (d *Client) get(ctx context.Context, base *url.URL, path string) ([]byte, error) {
	to := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: path}
	if !strings.HasPrefix(path, "/") {
		to.Path = "/" + path
	}
	header := http.Header{"Accept": {"application/json"}}
	if d.opts.TokenSource != nil {
		var token string
		err := guard.Call("token source", func() (err error) {
			token, err = d.opts.TokenSource.Token(ctx, "")
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("access token: %w", err)
		}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
		}
	}
	var data []byte
	resp, err := endpoint.Do(ctx, d.http, &httpx.Request{Op: "discovery", Method: http.MethodGet, URL: to, Header: header})
	if err == nil {
		defer resp.Body.Close()
		data, err = io.ReadAll(resp.Body)
	}
	var e *httpx.Error
	switch {
	case errors.Is(err, httpx.ErrTooLarge):
		return nil, arc.ErrTooLarge
	case errors.As(err, &e) && e.Status != 0:
		return nil, &arc.HTTPError{Status: e.Status, Body: strings.ToValidUTF8(string(e.Body[:min(len(e.Body), 4<<10)]), "\uFFFD")}
	}
	return data, err
}
