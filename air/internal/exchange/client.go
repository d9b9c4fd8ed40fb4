// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package exchange makes the HTTP requests of package air and of the registry client.
package exchange

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	// SecretHeader carries the secret of an agent or of an inbox.
	SecretHeader = "X-Agent-Secret"

	// VersionHeader has the version of the wire, and does not claim conformance (AIR-D66).
	VersionHeader = "X-A2a-Version"

	// JSONType is the media type of everything that is sent.
	JSONType = "application/json"

	userAgent = "fivewire-air/draft-1-candidate"

	// Timeout is the default time of an exchange.
	Timeout = time.Minute
)

// The headers of every request (AIR-133), and of one with a body. They are shared and not changed.
var (
	headers     = http.Header{VersionHeader: {"v1"}, "User-Agent": {userAgent}, "Accept": {JSONType}}
	bodyHeaders = http.Header{VersionHeader: {"v1"}, "User-Agent": {userAgent}, "Accept": {JSONType}, "Content-Type": {JSONType}}
)

// Options adjust a [Client].
type Options struct {
	HTTPClient                  *http.Client // nil means a new one
	AllowLoopback, AllowPrivate bool
	Transport                   func(*http.Transport)      // changes the transport of a new one; nil means no change
	Secrets                     func(origin string) string // for the header of secrets; nil means none
	Timeout                     time.Duration              // of an exchange; zero means a minute, a negative value none
}

// A Client makes requests to allowed addresses and follows no redirect (AIR-D48).
type Client struct {
	http    *httpx.Client
	timeout time.Duration
}

// New returns a client. Close closes its idle connections.
func New(o Options) *Client {
	guard := &netguard.Guard{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate}
	ho := &httpx.ClientOptions{HTTPClient: o.HTTPClient, Prefix: "air: ", MaxResponse: -1, Guard: guard}
	ho.Transport = func(t *http.Transport) {
		t.DisableCompression = true // no header
		if o.Transport != nil {
			o.Transport(t)
		}
	}
	if o.Secrets != nil {
		ho.Secrets = func(_ context.Context, origin string, h http.Header) error {
			if secret := o.Secrets(origin); secret != "" {
				h.Set(SecretHeader, secret)
			}
			return nil
		}
	}
	if o.Timeout == 0 {
		o.Timeout = Timeout
	}
	return &Client{httpx.NewClient(ho), o.Timeout}
}

// Close closes the idle connections, unless they belong to the HTTPClient of the options.
func (c *Client) Close() { c.http.Close() }

// A Request is one request.
type Request struct {
	Op     string // for errors
	Method string
	URL    string
	Header http.Header // further headers; it is not changed
	Body   []byte      // empty for none
	Limit  int64       // of the answer, in bytes
}

// A Reply is an answer that was read to its end, with any status.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do makes a request and reads the answer.
func (c *Client) Do(ctx context.Context, r *Request) (*Reply, error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	x, err := r.prepare()
	if err != nil {
		return nil, err
	}
	data, res, err := c.http.Fetch(ctx, x)
	var e *httpx.Error
	switch {
	case err == nil:
		return &Reply{res.StatusCode, res.Header, data}, nil
	case errors.As(err, &e) && e.Status != 0:
		return &Reply{e.Status, e.Header, e.Body}, nil
	}
	return nil, err
}

// Stream makes a request for a stream of events. The caller closes the body.
func (c *Client) Stream(ctx context.Context, r *Request) (*http.Response, error) {
	x, err := r.prepare()
	if err != nil {
		return nil, err
	}
	x.Header = maps.Clone(x.Header)
	x.Header.Del("Accept")
	x.Accept = []string{"text/event-stream"}
	return c.http.Do(ctx, x)
}

func (r *Request) prepare() (*httpx.Request, error) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil, errors.New("air: " + r.Op + ": invalid URL") // the error of the parser quotes it
	}
	h := headers
	if len(r.Body) > 0 {
		h = bodyHeaders
	}
	if len(r.Header) > 0 {
		h = maps.Clone(h)
		maps.Copy(h, r.Header)
	}
	return &httpx.Request{Op: r.Op, Method: r.Method, URL: u, Header: h, Body: r.Body, Limit: r.Limit}, nil
}

// RetryAfter returns the delay: seconds or a date in the header, else the member that the deployed
// relay sends instead (AIR-D45).
func RetryAfter(header http.Header, body strictjson.Value, now time.Time) (time.Duration, bool) {
	if h := header.Get("Retry-After"); h != "" {
		if strings.Trim(h, "0123456789") == "" {
			return seconds(h), true
		}
		if at, err := http.ParseTime(h); err == nil {
			return max(0, at.Sub(now)), true
		}
	}
	if v := body.Get("retry_after_seconds"); v.Kind() == '0' {
		if n, ok := v.Int(); ok && n >= 0 {
			return seconds(strconv.FormatInt(n, 10)), true
		}
	}
	return 0, false
}

// seconds returns a number of seconds, capped at the longest duration.
func seconds(digits string) time.Duration {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}
