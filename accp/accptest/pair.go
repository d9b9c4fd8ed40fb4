// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accptest

import (
	"net/http"
	"testing"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/kit"
)

// A Server is an HTTP server whose connections are in memory.
type Server struct {
	// URL is the endpoint of ACCP on the server. Its host means nothing elsewhere.
	URL string

	// HTTPClient sends every request to the server, whatever host it names.
	HTTPClient *http.Client
}

const endpoint = "http://127.0.0.1" + accp.FramesPath

// NewServer runs h until the end of the test. If h has a method Close, like an accp.Server, it is closed then, after the
// connections.
func NewServer(t testing.TB, h http.Handler) *Server {
	t.Helper()
	return &Server{URL: endpoint, HTTPClient: kit.Serve(t, "accptest", h).Client}
}

// PairOptions adjusts [NewPair]. Nil means the zero value.
type PairOptions struct {
	// Server are the options of the server, the agent desk. Without an Authenticator it admits every caller.
	Server *accp.ServerOptions

	// Client are the options of the client, the agent tester.
	Client *accp.ClientOptions

	// Transport, if set, wraps that of the client: fault.RoundTripper of package conformance/fault injects faults.
	Transport func(http.RoundTripper) http.RoundTripper
}

// NewPair returns a server and a client of it over HTTP, connected in memory until the end of the test.
func NewPair(t testing.TB, opts *PairOptions) (*accp.Server, *accp.Client) {
	t.Helper()
	var o PairOptions
	if opts != nil {
		o = *opts
	}
	var server accp.ServerOptions
	if o.Server != nil {
		server = *o.Server
	}
	server.Auth.AllowAnonymous = server.Auth.AllowAnonymous || server.Auth.Authenticator == nil
	srv, err := accp.NewServer("desk", &server)
	if err != nil {
		t.Fatal(err)
	}
	mem := kit.Serve(t, "accptest", srv)
	mem.Wrap(o.Transport)
	var client accp.ClientOptions
	if o.Client != nil {
		client = *o.Client
	}
	client.HTTPClient = mem.Client
	c, err := accp.NewClient(endpoint, "tester", &client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // always succeeds
	return srv, c
}
