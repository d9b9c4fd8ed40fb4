// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A body that does not come, or comes byte by byte, is not waited for for ever,
// neither where it is read nor where the request is refused before.
func TestTricklingBodies(t *testing.T) {
	h := testHost(t, &HostOptions{Authenticator: keys(), BodyTimeout: 300 * time.Millisecond, MaxMessage: 4096})
	addr := server(t, h).Listener.Addr().String()
	const good = "\r\nX-API-Key: key-user\r\nContent-Type: application/json"
	var wg sync.WaitGroup
	for _, head := range []string{
		"POST " + PathMessages + " HTTP/1.1" + good + "\r\nContent-Length: 1000",
		"POST " + PathMessages + " HTTP/1.1" + good + "\r\nTransfer-Encoding: chunked",
		"POST " + PathMessages + " HTTP/1.1" + good + "\r\nContent-Length: 100000",
		"POST " + PathMessages + " HTTP/1.1" + good + "\r\nAccept: text/plain\r\nContent-Length: 1000",
		"POST " + PathMessages + " HTTP/1.1\r\nX-API-Key: key-user\r\nContent-Length: 1000",
		"POST " + PathMessages + " HTTP/1.1\r\nContent-Length: 1000",
		"PUT " + PathMessages + " HTTP/1.1\r\nTransfer-Encoding: chunked",
		"POST " + PathWebSocket + " HTTP/1.1\r\nContent-Length: 1000",
		"GET /nowhere HTTP/1.1\r\nContent-Length: 1000",
	} {
		for _, trickles := range []bool{false, true} {
			wg.Go(func() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = c.Close() }()
				body := "{"
				if strings.Contains(head, "chunked") {
					body = "fff\r\n{"
				}
				if _, err := io.WriteString(c, head+"\r\nHost: x\r\n\r\n"+body); err != nil {
					t.Error(err)
					return
				}
				over := make(chan struct{})
				defer close(over)
				if trickles {
					go func() {
						tick := time.NewTicker(50 * time.Millisecond)
						defer tick.Stop()
						for {
							select {
							case <-over:
								return
							case <-tick.C:
							}
							if _, err := io.WriteString(c, " "); err != nil {
								return
							}
						}
					}()
				}
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.Copy(io.Discard, c); err != nil && os.IsTimeout(err) {
					t.Errorf("the Host keeps the connection of %q", head)
				}
			})
		}
	}
	wg.Wait()
}

// The deadline is that of the body: a call and its stream may take longer.
func TestSlowCallAfterBody(t *testing.T) {
	s := start(t, httpTransport, &HostOptions{BodyTimeout: 100 * time.Millisecond}, testRuntime("r1", &RuntimeOptions{Standing: true}))
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	got, err := Call[string](t.Context(), sess, "wait", waitIn{300})
	require.NoError(t, err)
	require.Equal(t, "waited", got)
	n := 0
	for _, err := range Stream[int](t.Context(), sess, "ticks", nil) {
		require.NoError(t, err)
		if n++; n == 4 {
			break
		}
	}
	require.Equal(t, 4, n)
	require.Eventually(t, func() bool { return s.h.Stats().InFlight == 0 }, 10*time.Second, time.Millisecond, "leaving the loop cancels the call")
}

// A body above the limit is refused by its length, without being read (D-05).
func TestBodyTooLarge(t *testing.T) {
	h := testHost(t, &HostOptions{Authenticator: keys(), MaxMessage: 4096})
	ts := server(t, h)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+PathMessages, strings.NewReader(strings.Repeat(" ", 5000)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(APIKeyHeader, "key-user")
	res, err := ts.Client().Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
}
