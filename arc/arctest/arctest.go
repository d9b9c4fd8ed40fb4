// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package arctest has a server and a client in memory, scripted agents and scripted servers for tests of programs that use
// package arc. Everything works in a bubble of testing/synctest.
//
//	srv, client := arctest.NewPair(t, nil)
//	srv.HandleTasks("worker-01", arctest.ScriptedTask(arctest.AddMessage("which color?"), arctest.WaitInput("color")))
//	...
//	peer := arctest.NewPeer(t, arctest.Receive("task.create"), arctest.SendStatus(503, nil, "busy"))
//	client, err := arc.NewClient(peer.URL, "tester-01", &arc.ClientOptions{HTTPClient: peer.HTTPClient})
package arctest

import (
	"context"
	"net/http"
	"net/netip"
	"testing"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/hook"
	"github.com/fivewire/fivewire/internal/kit"
)

// ExactWebhooks removes the jitter of the delays between delivery attempts and
// replaces the resolver of host names; nil keeps the resolver of the system.
func ExactWebhooks(o *arc.WebhookOptions, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)) {
	hook.Webhooks(o, lookup)
}

// A Server is an HTTP server whose connections are in memory.
type Server struct {
	// URL is the endpoint of ARC on the server. Its host means nothing
	// elsewhere.
	URL string

	// HTTPClient sends every request to the server, whatever host it names.
	HTTPClient *http.Client

	// HTTPServer is the server itself.
	HTTPServer *http.Server
}

// NewServer runs h until the end of the test. If h has a method Close, like an
// arc.Server, it is closed then, after the connections.
func NewServer(t testing.TB, h http.Handler) *Server {
	t.Helper()
	s := kit.Serve(t, "arctest", h)
	return &Server{URL: "http://127.0.0.1/arc", HTTPClient: s.Client, HTTPServer: s.HTTP}
}

// PairOptions adjusts [NewPair]. Nil means the zero value.
type PairOptions struct {
	// Server are the options of the server. Without an Authenticator it admits every caller.
	Server *arc.ServerOptions

	// Client are the options of the client, the agent tester-01.
	Client *arc.ClientOptions

	// Transport, if set, wraps that of the client: fault.RoundTripper of package conformance/fault injects faults.
	Transport func(http.RoundTripper) http.RoundTripper
}

// NewPair returns a server and a client of it, connected in memory until the end of the test.
func NewPair(t testing.TB, opts *PairOptions) (*arc.Server, *arc.Client) {
	t.Helper()
	var o PairOptions
	if opts != nil {
		o = *opts
	}
	var server arc.ServerOptions
	if o.Server != nil {
		server = *o.Server
	}
	server.Auth.AllowAnonymous = server.Auth.AllowAnonymous || server.Auth.Authenticator == nil
	srv, err := arc.NewServer(&server)
	if err != nil {
		t.Fatal(err)
	}
	mem := kit.Serve(t, "arctest", srv)
	mem.Wrap(o.Transport)
	var client arc.ClientOptions
	if o.Client != nil {
		client = *o.Client
	}
	client.HTTPClient = mem.Client
	c, err := arc.NewClient("http://127.0.0.1/arc", "tester-01", &client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // always succeeds
	return srv, c
}
