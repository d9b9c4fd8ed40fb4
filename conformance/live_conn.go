// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/internal/lines"
)

// maxFrame bounds a message of a server under test.
const maxFrame = 16 << 20

// A liveConn is a connection to a server under test: a WebSocket, or one whose messages are lines.
type liveConn struct {
	write    func(message []byte) error
	endWrite func() // ends the direction to the server; nil: impossible
	close    func()
}

// connect connects by the transport of the run. Messages go to received, whose last call has an
// error. The connection ends with the case. The path, the subprotocol and the header are those of a WebSocket.
func (s *liveServer) connect(path, subprotocol string, header http.Header, received func([]byte, error)) (*liveConn, error) {
	c, read, err := s.open(path, subprotocol, header)
	if err != nil {
		return nil, err
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			message, err := read()
			if err == nil {
				s.t.Logf("received %s", message)
			}
			received(message, err)
			if err != nil {
				return
			}
		}
	})
	s.t.Cleanup(func() {
		c.close()
		done.Wait()
	})
	return c, nil
}

// open returns a connection and the function that reads a message.
func (s *liveServer) open(path, subprotocol string, header http.Header) (*liveConn, func() ([]byte, error), error) {
	if s.pool.Transport != "" {
		return s.openLines()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.client.Timeout)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, s.base+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: s.client.Transport}, HTTPHeader: header, Subprotocols: []string{subprotocol}})
	if err != nil {
		return nil, nil, err
	}
	ws.SetReadLimit(maxFrame)
	c := &liveConn{
		write: func(message []byte) error { return ws.Write(context.Background(), websocket.MessageText, message) },
		close: func() { _ = ws.CloseNow() },
	}
	return c, func() ([]byte, error) {
		_, message, err := ws.Read(context.Background())
		return message, err
	}, nil
}

func (s *liveServer) openLines() (*liveConn, func() ([]byte, error), error) {
	conn := s.stdio
	if conn == nil {
		address, ok := strings.CutPrefix(s.base, "tcp://")
		if !ok {
			return nil, nil, errors.New("the URL of the server does not begin with tcp://")
		}
		var err error
		if conn, err = net.DialTimeout("tcp", address, s.client.Timeout); err != nil {
			return nil, nil, err
		}
	}
	in := lines.NewReader(conn, maxFrame)
	c := &liveConn{
		write: func(message []byte) error {
			_, err := conn.Write(append(bytes.Clone(message), '\n'))
			return err
		},
		endWrite: func() { _ = conn.(interface{ CloseWrite() error }).CloseWrite() },
		close:    func() { _ = conn.Close() },
	}
	return c, func() ([]byte, error) {
		line, err := in.Next()
		return bytes.Clone(line), err
	}, nil
}
