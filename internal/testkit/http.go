// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// ServeSlowBody sends a request whose body never ends to a handler behind an [http.Server] with a
// ReadTimeout, and returns the response. The head is that of the request without Content-Length. It
// fails unless the server closes the connection within 20 seconds.
func ServeSlowBody(t *testing.T, h http.Handler, readTimeout time.Duration, head string) string {
	t.Helper()
	ts := httptest.NewUnstartedServer(h)
	ts.Config.ReadTimeout = readTimeout
	ts.Start()
	defer ts.Close()
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, head+"Content-Length: 100\r\n\r\n{")
	if err != nil {
		t.Fatal(err)
	}
	err = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	response, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("the connection did not end: %v", err)
	}
	return string(response)
}
