// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package kit has what the test kits and tests of the protocols share: HTTP servers in memory, scripted peers, and the size of
// the heap. All of it works in a bubble of testing/synctest.
package kit

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A Server is an HTTP server whose connections are in memory.
type Server struct {
	Client *http.Client // sends every request to the server, whatever host it names
	HTTP   *http.Server
}

// Serve runs h until the end of the test. If h has a method Close, it is closed then, after the connections. Errors of
// the test begin with name.
func Serve(t testing.TB, name string, h http.Handler) *Server {
	t.Helper()
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	transport := &http.Transport{DialContext: l.dial, DisableCompression: true}
	s := &Server{Client: &http.Client{Transport: transport}, HTTP: &http.Server{Handler: h}}
	wait := Connections(s.HTTP)
	served := make(chan error, 1)
	go func() { served <- s.HTTP.Serve(l) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := s.HTTP.Close(); err != nil {
			t.Errorf("%s: closing the server: %v", name, err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("%s: serving: %v", name, err)
		}
		if c, ok := h.(interface{ Close() error }); ok {
			if err := c.Close(); err != nil {
				t.Errorf("%s: closing the handler: %v", name, err)
			}
		}
		wait()
	})
	return s
}

// Connections counts the connections of a server that does not serve yet. The result waits until they have ended, at
// most for a second: net/http keeps one whose request was not read to its end for half a second after its response, which
// a bubble of testing/synctest must not end before.
func Connections(srv *http.Server) (wait func()) {
	var open sync.WaitGroup
	srv.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateHijacked, http.StateClosed:
			open.Done()
		}
	}
	return func() {
		end := make(chan struct{})
		go func() {
			open.Wait()
			close(end)
		}()
		limit := time.NewTimer(time.Second)
		defer limit.Stop()
		select {
		case <-end:
		case <-limit.C:
		}
	}
}

// Wrap makes the requests of the client pass through a transport, unless wrap is nil.
func (s *Server) Wrap(wrap func(http.RoundTripper) http.RoundTripper) {
	if wrap != nil {
		s.Client = &http.Client{Transport: wrap(s.Client.Transport)}
	}
}

// listener hands out the ends of pipes.
type listener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener].
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
