// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package httpx

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/fivewire/fivewire/internal/kit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A pipeListener is a network in memory, whose time synctest controls.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// newPipeServer serves srv with h until the test calls stop.
func newPipeServer(t *testing.T, srv *http.Server, h http.HandlerFunc) (l *pipeListener, stop func()) {
	t.Helper()
	srv.Handler = h
	l = &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	wait := kit.Connections(srv)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	return l, func() {
		_ = srv.Close()
		<-served
		wait()
	}
}

// client returns a client without idle connections.
func (l *pipeListener) client() *Client {
	t := &http.Transport{DialContext: l.dial, DisableKeepAlives: true}
	return NewClient(&ClientOptions{AllowInsecure: true, HTTPClient: &http.Client{Transport: t}})
}
