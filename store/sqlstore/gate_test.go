// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store/sqlstore"
)

// A gate is a proxy before a server that withholds the requests of its clients after a number of answers, as if their
// process was stopped then.
type gate struct {
	listener net.Listener
	server   string
	closed   chan struct{} // once requests are withheld
	wg       sync.WaitGroup

	mu    sync.Mutex // guards all below
	left  int        // answers before that; negative without an end
	conns []net.Conn
}

// newGate returns one that is open, and the URL through it.
func newGate(t *testing.T, database string) (*gate, string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{listener: l, server: u.Host, closed: make(chan struct{}), left: -1}
	g.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(client) })
		}
	})
	u.Host = l.Addr().String()
	return g, u.String()
}

// cut closes all connections.
func (g *gate) cut() {
	_ = g.listener.Close()
	g.mu.Lock()
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// closeAfter lets so many answers pass.
func (g *gate) closeAfter(answers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left = answers; answers == 0 {
		close(g.closed)
	}
}

func (g *gate) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", g.server)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	g.conns = append(g.conns, client, server)
	g.mu.Unlock()
	g.wg.Go(func() {
		defer server.Close()
		for buf := make([]byte, 16<<10); ; {
			n, err := client.Read(buf)
			g.mu.Lock()
			isOpen := g.left != 0
			g.mu.Unlock()
			if isOpen {
				_, _ = server.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	})
	_, _ = io.Copy(answers{g, client}, server)
}

// answers writes answers of the server to a client.
type answers struct {
	g      *gate
	client net.Conn
}

func (a answers) Write(b []byte) (int, error) {
	a.g.mu.Lock()
	if a.g.left > 0 {
		if a.g.left--; a.g.left == 0 {
			close(a.g.closed)
		}
	}
	a.g.mu.Unlock()
	return a.client.Write(b)
}

// TestStoppedInExpire: a process that is stopped or cut off at any moment of an Expire does not keep others from
// appending to the stream.
func TestStoppedInExpire(t *testing.T) {
	d := postgres(t)
	other := d.open(t)
	for n := range 8 {
		for _, ttl := range []time.Duration{0, time.Hour} {
			g, through := newGate(t, d.url)
			s, err := sqlstore.Open(t.Context(), through, &sqlstore.Options{Schema: d.opts.Schema, MaxConns: 1})
			require.NoError(t, err)
			_, err = s.Append(t.Context(), "s", "", nil, 0)
			require.NoError(t, err)
			require.NoError(t, s.Expire(t.Context(), "s", ttl)) // prepares its statements
			g.closeAfter(n)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Expire(ctx, "s", ttl) }()
			select {
			case <-g.closed:
			case <-done:
			}
			appending, stop := context.WithTimeout(t.Context(), 5*time.Second)
			_, err = other.Append(appending, "s", "", nil, 0)
			require.NoError(t, err, fmt.Sprint("after ", n, " answers"))
			stop()
			cancel()
			g.cut()
			require.NoError(t, s.Close())
		}
	}
}
