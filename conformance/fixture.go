// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/fivewire/fivewire/a2e"
)

// A Fixture is a server of this module with one of the fixtures of the folder fixtures.
type Fixture struct {
	// Handler serves HTTP and WebSocket.
	Handler http.Handler

	// ServeLines serves a connection whose messages are lines, until it ends. It is nil for a
	// protocol without such connections.
	ServeLines func(conn io.ReadWriteCloser)

	// Close ends the server.
	Close func() error
}

// NewFixture returns a server of this module with a fixture. An empty fixture is the usual one
// (see [SharedFixture]). Its requests to https://HOST/PATH go to sink/HOST/PATH.
func NewFixture(protocol, fixture, sink string) (*Fixture, error) {
	p, ok := liveProtocols()[protocol]
	if !ok {
		return nil, fmt.Errorf("conformance: there are no fixtures of %q", protocol)
	}
	return p.serve(cmp.Or(fixture, p.shared), sink)
}

// ServeFixture is the program of a server that the conform command starts: the variables
// CONFORM_FIXTURE, CONFORM_SINK and CONFORM_TRANSPORT describe it, and the standard output has its URL.
func ServeFixture(protocol string) error {
	f, err := NewFixture(protocol, os.Getenv("CONFORM_FIXTURE"), os.Getenv("CONFORM_SINK"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	transport := os.Getenv("CONFORM_TRANSPORT")
	if transport != "" && f.ServeLines == nil {
		return fmt.Errorf("%s has no transport %s", protocol, transport)
	}
	if transport == "stdio" {
		f.ServeLines(a2e.Stdio())
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"url": cmp.Or(transport, "http") + "://" + l.Addr().String()}); err != nil {
		return err
	}
	return f.Serve(l, transport == "tcp")
}

// Serve serves the connections of a listener: those of HTTP, or those whose messages are lines.
func (f *Fixture) Serve(l net.Listener, hasLines bool) error {
	if !hasLines {
		s := &http.Server{Handler: f.Handler, ReadHeaderTimeout: 10 * time.Second}
		return s.Serve(l)
	}
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go f.ServeLines(conn)
	}
}
