// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A proxy is between clients and a server.
type proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	// pass returns the bytes of a received piece that are sent, and whether the connection ends then.
	pass func(piece []byte, isAnswer bool) (passed []byte, isLast bool)

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

// newProxy returns one before the server of the URL, and the URL through it.
func newProxy(t *testing.T, database string, pass func(piece []byte, isAnswer bool) (passed []byte, isLast bool)) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, server: u.Host, pass: pass, conns: map[net.Conn]bool{}}
	p.wg.Go(p.serve)
	u.Host = l.Addr().String()
	return p, u.String()
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(client, server, false) })
		p.wg.Go(func() { p.copy(server, client, true) })
	}
}

func (p *proxy) copy(from, to net.Conn, isAnswer bool) {
	defer from.Close()
	defer to.Close()
	piece := make([]byte, 16<<10)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		passed, isLast := p.pass(piece[:n], isAnswer)
		if _, err := to.Write(passed); err != nil || isLast {
			return
		}
	}
}

// cutAll closes all connections.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// close ends the proxy.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.cutAll()
	p.wg.Wait()
}
