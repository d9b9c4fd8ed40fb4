// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package endpoint sends requests to the origin of an ARC endpoint.
package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
)

// ErrRedirect reports a redirect that must not be followed (ARC-D14).
var ErrRedirect = errors.New("arc: redirect refused")

const maxRedirects = 3

// operator allows every host, because the operator names it.
var operator = netguard.Guard{AllowLoopback: true, AllowPrivate: true}

// Parse returns the URL of an endpoint (ARC-001).
func Parse(raw string, allowInsecure bool) (*url.URL, error) {
	u, err := operator.URL(raw, allowInsecure)
	var refused *netguard.Error
	switch {
	case errors.As(err, &refused) && refused.Reason == netguard.ReasonScheme:
		return nil, fmt.Errorf("arc: endpoint: must be https, unless AllowInsecure permits http: %w", err)
	case err != nil:
		return nil, fmt.Errorf("arc: endpoint: %w", err)
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("arc: endpoint: scheme %q is not supported", u.Scheme)
	}
	return u, nil
}

// Name returns a URL for an error, without the parts that may be secret.
func Name(u *url.URL) string { return u.Scheme + "://" + u.Host + u.Path }

// Do is [httpx.Client.Do], but follows redirects within the origin of r.
func Do(ctx context.Context, c *httpx.Client, r *httpx.Request) (*http.Response, error) {
	next := *r
	for hops := 0; ; hops++ {
		res, err := c.Do(ctx, &next)
		e, ok := errors.AsType[*httpx.Error](err)
		if !ok || !isRedirect(e.Status) {
			return res, err
		}
		to, err := target(next.URL, e)
		if err == nil && hops == maxRedirects {
			err = fmt.Errorf("%w: more than %d in a row", ErrRedirect, maxRedirects)
		}
		if err != nil {
			return nil, err
		}
		next.URL = to
	}
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// target returns the URL of a redirect, if it may be followed.
func target(from *url.URL, e *httpx.Error) (*url.URL, error) {
	if e.Status != http.StatusTemporaryRedirect && e.Status != http.StatusPermanentRedirect {
		return nil, fmt.Errorf("%w: status %d would change the request", ErrRedirect, e.Status)
	}
	location := e.Header.Get("Location")
	to, err := from.Parse(location)
	switch {
	case err != nil || location == "":
		return nil, fmt.Errorf("%w: no usable location", ErrRedirect)
	case to.User != nil || !SameOrigin(from, to):
		return nil, fmt.Errorf("%w: it leads to another origin", ErrRedirect)
	}
	to.Fragment, to.RawFragment = "", ""
	return to, nil
}

// SameOrigin reports whether two URLs have the same scheme, host and port.
func SameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	return cmp.Or(u.Port(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
}
