// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/internal/lines"
)

// A socketPeer is a server with one connection to the client under test: a WebSocket, or one whose
// messages are lines.
type socketPeer struct {
	t           T
	subprotocol string
	received    func([]byte, error) // each message, and then an error

	mu   sync.Mutex
	conn *liveConn // guarded by mu
	done sync.WaitGroup
}

// newSocketPeer returns a server that ends with t.
func newSocketPeer(t T, subprotocol string, received func([]byte, error)) *socketPeer {
	p := &socketPeer{t: t, subprotocol: subprotocol, received: received}
	t.Cleanup(func() {
		if c := p.current(); c != nil {
			c.close()
		}
		p.done.Wait()
	})
	return p
}

// serveMessages starts the server of a script by the transport of the run.
func (s *clientSession) serveMessages(p *socketPeer) error {
	if s.transport == "" {
		return s.serve(p)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.url = "tcp://" + l.Addr().String()
	p.done.Go(func() {
		conn, err := l.Accept()
		if err == nil {
			p.serveLines(conn.(*net.TCPConn))
		}
	})
	s.t.Cleanup(func() { _ = l.Close() })
	return nil
}

// ServeHTTP accepts the first WebSocket.
func (p *socketPeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Del("Connection")
	p.done.Add(1)
	defer p.done.Done()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{p.subprotocol}})
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxFrame)
	p.serve(&liveConn{
		write: func(message []byte) error {
			m, err := ws.Writer(context.Background(), websocket.MessageText)
			for piece := range slices.Chunk(message, pieceSize(message)) {
				if err != nil {
					return err
				}
				_, err = m.Write(piece)
			}
			if err != nil {
				return err
			}
			return m.Close()
		},
		endWrite: func() { halfClose(r.Context()) },
		close:    func() { _ = ws.CloseNow() },
	}, func() ([]byte, error) {
		_, message, err := ws.Read(context.Background())
		return message, err
	})
}

func (p *socketPeer) serveLines(conn *net.TCPConn) {
	defer conn.Close()
	in := lines.NewReader(conn, maxFrame)
	p.serve(&liveConn{
		write: func(message []byte) error {
			for piece := range slices.Chunk(append(bytes.Clone(message), '\n'), pieceSize(message)) {
				if _, err := conn.Write(piece); err != nil {
					return err
				}
			}
			return nil
		},
		endWrite: func() { _ = conn.CloseWrite() },
		close:    func() { _ = conn.Close() },
	}, func() ([]byte, error) {
		line, err := in.Next()
		return bytes.Clone(line), err
	})
}

// serve reads the messages of the first connection.
func (p *socketPeer) serve(c *liveConn, read func() ([]byte, error)) {
	p.mu.Lock()
	isFirst := p.conn == nil
	if isFirst {
		p.conn = c
	}
	p.mu.Unlock()
	for isFirst {
		message, err := read()
		if err == nil {
			p.t.Logf("received %s", message)
		}
		p.received(message, err)
		if err != nil {
			return
		}
	}
}

// send sends a message in pieces, which end within characters. A connection that has ended takes nothing.
func (p *socketPeer) send(text string) {
	p.t.Logf("sent     %s", text)
	if c := p.current(); c != nil {
		_ = c.write([]byte(text))
	}
}

// halfClose ends the direction to the client.
func (p *socketPeer) halfClose() {
	if c := p.current(); c != nil {
		c.endWrite()
	}
}

func (p *socketPeer) current() *liveConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn
}
