// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
)

// A request whose body trickles in is ended in time, also where no handler reads the body, and does
// not delay other requests (A2E-153).
func TestTrickledBodies(t *testing.T) {
	t.Parallel() // it waits most of the time
	h := echoHost()
	web := httptest.NewServer(a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{ReadTimeout: 300 * time.Millisecond})))
	defer web.Close()
	defer h.Close()
	addr := web.Listener.Addr().String()
	resp, err := http.Post(web.URL+"/session", "", nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	_ = resp.Body.Close()
	_, secret, _ := strings.Cut(string(body), `:"`)
	secret = strings.TrimSuffix(secret, `"}`)
	starts := []string{
		"POST /send HTTP/1.1\r\nX-Session-Id: " + secret + "\r\nContent-Length: 1000",
		"POST /send HTTP/1.1\r\nX-Session-Id: " + secret + "\r\nTransfer-Encoding: chunked",
		"POST /send HTTP/1.1\r\nX-Session-Id: " + secret + "\r\nContent-Length: 100000000",
		"POST /send HTTP/1.1\r\nX-Session-Id: wrong\r\nContent-Length: 1000",
		"POST /send HTTP/1.1\r\nContent-Length: 1000",
		"PUT /send HTTP/1.1\r\nContent-Length: 1000",
		"POST /session HTTP/1.1\r\nContent-Length: 1000",
		"DELETE /session HTTP/1.1\r\nContent-Length: 1000",
		"GET /health HTTP/1.1\r\nContent-Length: 1000",
		"GET /stream HTTP/1.1\r\nX-Session-Id: " + secret + "\r\nContent-Length: 1000",
		"POST /send HTTP/1.1\r\nOrigin: https://evil.example\r\nContent-Length: 1000",
		"POST /nowhere HTTP/1.1\r\nTransfer-Encoding: chunked",
	}
	var conns []net.Conn
	for i := range 4 * len(starts) {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, starts[i%len(starts)]+"\r\nHost: "+addr+"\r\n\r\n1")
		require.NoError(t, err)
		conns = append(conns, c)
	}
	for i, c := range conns {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		answer, err := io.ReadAll(c) // an answer perhaps, and the end of the connection
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "%s: the host keeps the connection: %q", starts[i%len(starts)], answer)
	}
	c := a2etest.Must(a2e.NewClient(dialHTTP(t, web.URL), &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}}))
	_, err = c.Connect(t.Context())
	require.NoError(t, err, "the host goes on")
	require.NoError(t, c.Close())
	w := &deadlines{ResponseWriter: httptest.NewRecorder()}
	a2etest.Must(a2e.NewHTTPHandler(h, nil)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stream", nil))
	require.Empty(t, w.read, "a deadline would end a stream, which has no body")
}

func dialHTTP(t *testing.T, url string) io.ReadWriteCloser {
	conn, err := a2e.DialHTTP(t.Context(), url, nil)
	require.NoError(t, err)
	return conn
}

// The same where a WebSocket is expected.
func TestTrickledUpgrade(t *testing.T) {
	w := &deadlines{ResponseWriter: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	a2etest.Must(a2e.NewWebSocketHandler(echoHost(), nil)).ServeHTTP(w, r)
	require.Len(t, w.read, 1)
	require.WithinDuration(t, time.Now().Add(10*time.Second), w.read[0], 5*time.Second)
}

type deadlines struct {
	http.ResponseWriter
	read []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}
