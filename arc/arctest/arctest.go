// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package arctest provides an HTTP server in memory, which works in a bubble of
// testing/synctest, and scripted agents for tests of ARC programs.
//
//	synctest.Test(t, func(t *testing.T) {
//		srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
//		...
//		srv.HandleTasks("worker-01", arctest.ScriptedTask(arctest.AddMessage("which color?"), arctest.WaitInput("color")))
//		mem := arctest.NewServer(t, srv)
//		client, err := arc.NewClient(mem.URL, "tester-01", &arc.ClientOptions{HTTPClient: mem.HTTPClient})
//		...
//	})
package arctest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/hook"
)

// Vector runs an operation of the conformance vectors that concerns no exported
// function of package arc. An unknown operation is an error.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) { return hook.Vector(op, in) }

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
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	transport := &http.Transport{DialContext: l.dial, DisableCompression: true}
	s := &Server{URL: "http://127.0.0.1/arc", HTTPClient: &http.Client{Transport: transport}, HTTPServer: &http.Server{Handler: h}}
	served := make(chan error, 1)
	go func() { served <- s.HTTPServer.Serve(l) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := s.HTTPServer.Close(); err != nil {
			t.Errorf("arctest: closing the server: %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("arctest: serving: %v", err)
		}
		if c, ok := h.(interface{ Close() error }); ok {
			if err := c.Close(); err != nil {
				t.Errorf("arctest: closing the handler: %v", err)
			}
		}
	})
	return s
}

// listener hands out the ends of pipes.
type listener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return address{} }

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "127.0.0.1:0" }
