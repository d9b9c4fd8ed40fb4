// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package web makes the HTTP requests of package air and of the registry client.
package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/netguard"
)

const (
	versionHeader = "X-A2A-Version"
	wireVersion   = "v1" // of the wire; not a claim of conformance (AIR-D66)
	userAgent     = "fivewire-air/draft-1-candidate"

	// SecretHeader carries the secret of an agent or of an inbox.
	SecretHeader = "X-Agent-Secret"

	// JSONType is the media type of everything that is sent.
	JSONType = "application/json"

	requestTimeout = 30 * time.Second
)

// Client returns the client to send with: the caller's own, or one that connects
// to public addresses only; in any case it follows no redirect (AIR-D48).
func Client(user *http.Client, loopback, private bool) *http.Client {
	if user != nil {
		c := *user
		c.CheckRedirect = netguard.NoRedirect
		return &c
	}
	t := (&netguard.Guard{AllowLoopback: loopback, AllowPrivate: private}).Transport()
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{}
	}
	t.TLSClientConfig.MinVersion = tls.VersionTLS12 // 7.1; newer versions come first by themselves
	return &http.Client{Transport: t, CheckRedirect: netguard.NoRedirect}
}

// A Reply is an answer that was read to its end.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// ErrTooLarge reports an answer beyond the limit.
var ErrTooLarge = errors.New("the answer is too large")

// Exchange makes one request, with the secret unless that is empty, and reads the
// answer up to limit bytes.
func Exchange(ctx context.Context, c *http.Client, method, url string, body []byte, secret string, limit int64) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := NewRequest(ctx, method, url, body, secret)
	if err != nil {
		return nil, err
	}
	return Do(c, req, limit)
}

// Do makes a request and reads the answer up to limit bytes.
func Do(c *http.Client, req *http.Request, limit int64) (*Reply, error) {
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, ErrTooLarge
	}
	return &Reply{Status: res.StatusCode, Header: res.Header, Body: data}, nil
}

// NewRequest makes a request with the headers of every request (AIR-133).
func NewRequest(ctx context.Context, method, url string, body []byte, secret string) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set(versionHeader, wireVersion)
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", JSONType)
	if body != nil {
		req.Header.Set("Content-Type", JSONType)
	}
	if secret != "" {
		req.Header.Set(SecretHeader, secret)
	}
	return req, nil
}
