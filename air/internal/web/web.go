// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package web makes the HTTP requests of package air and of the registry client.
package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
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

// Client returns the client to send with: a copy of the caller's, or a new one. It follows no redirect
// and connects to allowed addresses only (AIR-D48), except through a transport of another type than
// *http.Transport. If the transport is new, the caller closes its idle connections.
func Client(user *http.Client, loopback, private bool) (c *http.Client, isNew bool) {
	copied, isNew := (&netguard.Guard{AllowLoopback: loopback, AllowPrivate: private}).Client(user)
	return &copied, isNew
}

// Origin returns the origin of a valid URL, in lower case and without a default port.
func Origin(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	port := map[string]string{"https": ":443", "http": ":80"}[u.Scheme]
	return u.Scheme + "://" + strings.TrimSuffix(strings.ToLower(u.Host), port)
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

// ExchangeSigned is Exchange with a request that sign has signed.
func ExchangeSigned(c *http.Client, req *http.Request, limit int64, sign func(*http.Request) error) (*Reply, error) {
	ctx, cancel := context.WithTimeout(req.Context(), requestTimeout)
	defer cancel()
	if err := sign(req); err != nil {
		return nil, err
	}
	return Do(c, req.WithContext(ctx), limit)
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
