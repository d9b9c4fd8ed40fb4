// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// httpClient returns a client for the address of a configuration, which the guard must permit.
func (c *Connector) httpClient(config *mcp.ServerConfig) (*http.Client, error) {
	u, err := url.Parse(config.URL)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, misfit("config.url")
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && netguard.Loopback(u.Hostname())) {
		return nil, misfit("config.url")
	}
	if err := c.guard.Host(u.Hostname()); err != nil {
		return nil, misfit("config.url")
	}
	t := c.guard.Transport()
	t.ResponseHeaderTimeout = 0 // the header may be sent together with the answer
	if limit := timeLimit(config); limit > 0 {
		t.ResponseHeaderTimeout = limit + headerGrace
	}
	return &http.Client{CheckRedirect: netguard.NoRedirect, Transport: &roundTripper{next: t, origin: u, headers: config.Headers,
		limit: int64(c.opts.MaxMessage)}}, nil
}

// headerGrace lets the time limit of a call expire first: the server is notified of the end of a
// call, not of the end of an HTTP request.
const headerGrace = 10 * time.Second

// timeLimit returns the time limit of a request to a server, at most a day, or 0 for none.
func timeLimit(config *mcp.ServerConfig) time.Duration {
	return min(wire.Seconds(config.Timeout, 300), 24*time.Hour)
}

// A roundTripper adds the headers of a configuration, and checks the responses.
type roundTripper struct {
	next    *http.Transport
	origin  *url.URL
	headers a2e.OrderedObject[string]
	limit   int64
}

// RoundTrip sends one request. Requests to an address that the server chose, as in the older
// transport, get no configured headers.
func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == t.origin.Scheme && r.URL.Host == t.origin.Host {
		r = r.Clone(r.Context())
		for _, h := range t.headers {
			r.Header.Set(h.Name, h.Value)
		}
	} else if r.URL.Scheme != "https" && t.origin.Scheme == "https" {
		return nil, fmt.Errorf("mcpbridge: the server names the address %s without encryption", r.URL.Host)
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind == "text/event-stream" {
		return resp, nil // bounded by events
	}
	return t.whole(resp, kind)
}

// whole replaces a body by its checked content, because the SDK reads without limit and without
// strictness.
func (t *roundTripper) whole(resp *http.Response, kind string) (*http.Response, error) {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, t.limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > t.limit {
		return nil, fmt.Errorf("mcpbridge: the answer is longer than %d bytes", t.limit)
	}
	if kind == "application/json" && len(bytes.TrimSpace(data)) > 0 {
		if _, err := strictjson.Check(data, strictjson.Options{MaxDepth: maxDepth}); err != nil {
			return nil, fmt.Errorf("mcpbridge: answer of the server: %w", err)
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return resp, nil
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *roundTripper) CloseIdleConnections() { t.next.CloseIdleConnections() }

// clip shortens untrusted text for logs and error messages.
func clip(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
