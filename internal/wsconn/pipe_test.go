// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wsconn

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testURL = "ws://a.example/"

// A pipeNet is a network in memory with one server, whose time synctest controls.
type pipeNet struct {
	conns chan net.Conn
	done  chan struct{}
	wrap  func(net.Conn) net.Conn // the end of the client
}

func newPipeNet() *pipeNet { return &pipeNet{conns: make(chan net.Conn), done: make(chan struct{})} }

func (n *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *pipeNet) Close() error {
	select {
	case <-n.done:
	default:
		close(n.done)
	}
	return nil
}

func (n *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func (n *pipeNet) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	if n.wrap != nil {
		client = n.wrap(client)
	}
	select {
	case n.conns <- server:
		return client, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

// options returns options that dial over n.
func (n *pipeNet) options(o Options) *DialOptions {
	t := &http.Transport{DialContext: n.dial, DisableKeepAlives: true}
	return &DialOptions{Options: o, HTTP: httpx.ClientOptions{AllowInsecure: true, HTTPClient: &http.Client{Transport: t}}}
}

// newPipeServer accepts connections and returns them on a channel, until the test calls stop.
func newPipeServer(o *AcceptOptions) (n *pipeNet, accepted chan *Conn, stop func()) {
	n, accepted = newPipeNet(), make(chan *Conn, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := Accept(w, r, o); err == nil {
			accepted <- c
		}
	})}
	wait := kit.Connections(srv)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(n)
	}()
	return n, accepted, func() {
		_ = srv.Close()
		<-served
		wait()
	}
}

// newPair returns both sides of a connection in memory.
func newPair(t *testing.T, client Options, server *AcceptOptions) (a, b *Conn) {
	t.Helper()
	n, accepted, stop := newPipeServer(server)
	t.Cleanup(stop)
	a, err := Dial(t.Context(), testURL, n.options(client))
	require.NoError(t, err)
	b = <-accepted
	t.Cleanup(func() {
		a.Close(CodeNormal, "")
		b.Close(CodeNormal, "")
	})
	return a, b
}

// A rawPeer speaks WebSocket frame by frame, or not at all.
type rawPeer struct {
	net.Conn
	r        *bufio.Reader
	isClient bool
}

// newRawServer returns a client and a raw server.
func newRawServer(t *testing.T, o Options) (*Conn, *rawPeer) {
	t.Helper()
	return newRawServerOver(t, newPipeNet(), o)
}

func newRawServerOver(t *testing.T, n *pipeNet, o Options) (*Conn, *rawPeer) {
	t.Helper()
	raw := make(chan *rawPeer, 1)
	go func() {
		conn := <-n.conns
		p := &rawPeer{Conn: conn, r: bufio.NewReader(conn)}
		req, err := http.ReadRequest(p.r)
		if err != nil {
			return
		}
		sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
		raw <- p
	}()
	c, err := Dial(t.Context(), testURL, n.options(o))
	require.NoError(t, err)
	p := <-raw
	t.Cleanup(func() {
		c.Close(CodeNormal, "")
		p.Close()
	})
	return c, p
}

// newRawClient returns a server and a raw client.
func newRawClient(t *testing.T, o Options) (*Conn, *rawPeer) {
	t.Helper()
	n, accepted, stop := newPipeServer(&AcceptOptions{Options: o})
	t.Cleanup(stop)
	conn, err := n.dial(t.Context(), "", "")
	require.NoError(t, err)
	p := &rawPeer{Conn: conn, r: bufio.NewReader(conn), isClient: true}
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	require.NoError(t, err)
	res, err := http.ReadResponse(p.r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	c := <-accepted
	t.Cleanup(func() {
		p.Close()
		c.Close(CodeNormal, "")
	})
	return c, p
}

// eachRole runs f with a Conn of each role and its raw peer, in virtual time.
func eachRole(t *testing.T, o Options, f func(t *testing.T, c *Conn, p *rawPeer)) {
	for name, connect := range map[string]func(*testing.T, Options) (*Conn, *rawPeer){
		"client": newRawServer, "server": newRawClient,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, p := connect(t, o)
				f(t, c, p)
			})
		})
	}
}

const (
	opText   = 0x81
	opBinary = 0x82
	opClose  = 0x88
	opPing   = 0x89
	opPong   = 0x8a
)

// send writes a frame, with the mask 0 of a client.
func (p *rawPeer) send(t *testing.T, op byte, payload []byte) {
	t.Helper()
	_, err := p.Write(p.frame(op, payload))
	require.NoError(t, err)
}

func (p *rawPeer) frame(op byte, payload []byte) []byte {
	mask := byte(0)
	if p.isClient {
		mask = 0x80
	}
	f := []byte{op}
	if n := len(payload); n < 126 {
		f = append(f, mask|byte(n))
	} else {
		f = binary.BigEndian.AppendUint64(append(f, mask|127), uint64(n))
	}
	if p.isClient {
		f = append(f, 0, 0, 0, 0)
	}
	return append(f, payload...)
}

// receive reads a frame.
func (p *rawPeer) receive() (op byte, payload []byte, err error) {
	head := make([]byte, 2)
	if _, err = io.ReadFull(p.r, head); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1] & 0x7f)
	size := map[uint64]int{126: 2, 127: 8}[n]
	ext := make([]byte, 8)
	if _, err = io.ReadFull(p.r, ext[8-size:]); err != nil {
		return 0, nil, err
	}
	if size > 0 {
		n = binary.BigEndian.Uint64(ext)
	}
	mask := make([]byte, 4)
	if head[1]&0x80 != 0 {
		if _, err = io.ReadFull(p.r, mask); err != nil {
			return 0, nil, err
		}
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(p.r, payload)
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return head[0], payload, err
}

// discard reads all bytes and answers nothing.
func (p *rawPeer) discard() { _, _ = io.Copy(io.Discard, p.r) }

// receiveClose reads frames up to a close frame.
func (p *rawPeer) receiveClose(t *testing.T) (code int, reason string) {
	t.Helper()
	for {
		op, payload, err := p.receive()
		require.NoError(t, err)
		if op == opClose {
			return int(binary.BigEndian.Uint16(payload)), string(payload[2:])
		}
	}
}

// waitDone returns the time until c ends and the cause.
func waitDone(t *testing.T, c *Conn) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	select {
	case <-c.Done():
	case <-time.After(time.Hour):
		t.Fatal("the connection did not end")
	}
	_, err := c.Read(t.Context())
	return time.Since(start), err
}
