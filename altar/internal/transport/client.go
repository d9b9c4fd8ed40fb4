// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/retry"
)

// anyHost permits all hosts: the operator names the peers.
var anyHost = &netguard.Guard{AllowLoopback: true, AllowPrivate: true}

// URL checks the URL of a Host. An error is permanent.
func URL(raw string, allowInsecure bool) (*url.URL, error) {
	u, err := anyHost.URL(raw, allowInsecure)
	if err != nil {
		return nil, retry.Mark(err, retry.Permanent, 0)
	}
	return u, nil
}

// An HTTPClient sends each frame as one request (ALT-D05).
type HTTPClient struct {
	url      *url.URL
	client   *httpx.Client
	header   http.Header
	maxFrame int
}

// NewHTTPClient returns a client of the Host at a URL, with or without the path of messages. Header goes with every
// request; maxFrame bounds a received frame.
func NewHTTPClient(rawURL string, header http.Header, maxFrame int, opts *httpx.ClientOptions) (*HTTPClient, error) {
	u, err := URL(rawURL, opts.AllowInsecure)
	if err == nil && u.Scheme != "http" && u.Scheme != "https" {
		err = retry.Mark(fmt.Errorf("want an http or https URL, got scheme %q", u.Scheme), retry.Permanent, 0)
	}
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(u.Path, MessagesPath) {
		u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+MessagesPath, ""
	}
	return &HTTPClient{url: u, client: httpx.NewClient(opts), header: header, maxFrame: maxFrame}, nil
}

// Close closes idle connections.
func (c *HTTPClient) Close() { c.client.Close() }

// A Response is what a request brings: one frame or a stream of them, or nothing if the Host has only accepted the request.
type Response struct {
	*Reader        // of the frames, or nil
	Kind    string // media type
	body    io.Closer
}

// Close ends the response.
func (r *Response) Close() { _ = r.body.Close() }

// Exchange sends a frame, and asks for a stream or for one frame. Op names the request in errors. A refusal is a
// [*httpx.Error].
func (c *HTTPClient) Exchange(ctx context.Context, op string, frame []byte, isStream bool) (*Response, error) {
	r := &httpx.Request{Op: op, Method: http.MethodPost, URL: c.url, Header: c.header.Clone(), Body: frame}
	r.Header.Set("Content-Type", TypeJSON)
	r.Header.Set("Accept", TypeJSON)
	if isStream {
		r.Header.Set("Accept", TypeNDJSON)
	}
	res, err := c.client.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusAccepted {
		return &Response{body: res.Body}, nil
	}
	kind, ok := httpx.MediaType(res.Header.Get("Content-Type"), TypeJSON, TypeNDJSON)
	if !ok {
		_ = res.Body.Close()
		return nil, fmt.Errorf("status %d without a message", res.StatusCode)
	}
	return &Response{Reader: NewReader(res.Body, c.maxFrame), Kind: kind, body: res.Body}, nil
}
