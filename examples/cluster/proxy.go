// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"time"
)

// maxBody bounds a request that the proxy may have to repeat.
const maxBody = 4 << 20

// A proxy sends each request to one of several instances. If that instance fails, it sends the
// request to another one: every request to these services may be repeated, since they store their
// responses.
type proxy struct {
	httputil.ReverseProxy
	addrs     []string
	next      atomic.Uint64
	transport *http.Transport
}

func newProxy(addrs []string) *proxy {
	p := &proxy{addrs: addrs, transport: &http.Transport{MaxIdleConnsPerHost: 64, ResponseHeaderTimeout: 30 * time.Second}}
	p.Rewrite = func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", r.In.Host
		r.SetXForwarded()
	}
	p.Transport = p
	p.ErrorLog = log.New(io.Discard, "", 0)
	return p
}

func (p *proxy) close() { p.transport.CloseIdleConnections() }

// RoundTrip implements [http.RoundTripper].
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, maxBody+1)); err != nil {
			return nil, err
		}
		if len(body) > maxBody {
			return nil, errors.New("the request is too long")
		}
	}
	first := p.next.Add(1)
	var faults []error
	for i := range p.addrs {
		try := r.Clone(r.Context())
		try.URL.Host = p.addrs[(first+uint64(i))%uint64(len(p.addrs))]
		try.Body, try.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		if len(body) == 0 {
			try.Body = http.NoBody
		}
		res, err := p.transport.RoundTrip(try)
		if err == nil {
			return res, nil
		}
		if faults = append(faults, err); r.Context().Err() != nil {
			break
		}
	}
	return nil, errors.Join(faults...)
}
