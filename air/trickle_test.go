// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
)

// trickle sends the beginning of a body and returns how the server ends the
// connection: an answer perhaps, but an end in any case.
func trickle(t *testing.T, addr string, heads ...string) {
	t.Helper()
	var conns []net.Conn
	for _, head := range heads {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, head+"\r\nHost: x\r\n\r\n{")
		require.NoError(t, err)
		conns = append(conns, c)
	}
	for i, c := range conns {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, err := io.Copy(io.Discard, c); err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server keeps the connection of %q", heads[i])
		}
	}
}

// The wait for a slow body is bounded, both where it is read and where the request is refused
// earlier.
func TestTricklingBodies(t *testing.T) {
	relay := newRelay(t, &relay.ServerOptions{Auth: relay.Auth{PushSecret: "s"}, Timing: relay.Timing{ReadTimeout: 200 * time.Millisecond}})
	defer relay.Close()
	srv := httptest.NewServer(relay)
	defer srv.Close()
	const box = "/inbox/AIR-TEST-0000-0001"
	trickle(t, srv.Listener.Addr().String(),
		"POST "+box+" HTTP/1.1\r\nX-Agent-Secret: s\r\nContent-Length: 1000",
		"POST "+box+" HTTP/1.1\r\nX-Agent-Secret: s\r\nTransfer-Encoding: chunked",
		"POST "+box+" HTTP/1.1\r\nX-Agent-Secret: s\r\nContent-Length: 100000",
		"POST "+box+" HTTP/1.1\r\nContent-Length: 1000",
		"POST "+box+"/ack HTTP/1.1\r\nContent-Length: 1000",
		"GET "+box+"/pull HTTP/1.1\r\nContent-Length: 1000",
		"PUT "+box+" HTTP/1.1\r\nTransfer-Encoding: chunked",
		"POST /nowhere HTTP/1.1\r\nContent-Length: 1000",
		"GET /health HTTP/1.1\r\nContent-Length: 1000",
	)

	w := newWorld(t, nil)
	bob := w.join(t, 2)
	in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }),
		&air.InboxOptions{Resolver: w.resolver(t), Auth: air.Auth{PushSecret: "s"}, Timing: air.Timing{ReadTimeout: 200 * time.Millisecond}})
	require.NoError(t, err)
	srv2 := httptest.NewServer(in)
	defer srv2.Close()
	trickle(t, srv2.Listener.Addr().String(),
		"POST / HTTP/1.1\r\nX-Agent-Secret: s\r\nContent-Length: 1000",
		"POST / HTTP/1.1\r\nContent-Length: 1000",
		"GET / HTTP/1.1\r\nTransfer-Encoding: chunked",
	)
}

// The deadline is that of the body: a handler may take longer.
func TestSlowHandlerAfterBody(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	in, err := air.NewInbox(bob, air.HandlerFunc(func(ctx context.Context, _ *air.Delivery) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(150 * time.Millisecond):
			return nil
		}
	}), &air.InboxOptions{Resolver: w.resolver(t), Timing: air.Timing{ReadTimeout: 50 * time.Millisecond}})
	require.NoError(t, err)
	for _, timeout := range []time.Duration{0, 50 * time.Millisecond, 20 * time.Second} { // of the server
		srv := httptest.NewUnstartedServer(in)
		srv.Config.ReadTimeout = timeout
		srv.Start()
		for range 2 { // one connection
			res, err := srv.Client().Post(srv.URL, "application/json", strings.NewReader(string(signedOffer(t, alice, bob.DID(), nil))))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, http.StatusOK, res.StatusCode)
		}
		srv.Close()
	}
}

// A stream outlives the ReadTimeout of the server, which is for requests.
func TestStreamOutlivesReadTimeout(t *testing.T) {
	relay := newRelay(t, &relay.ServerOptions{})
	defer relay.Close()
	srv := httptest.NewUnstartedServer(relay)
	srv.Config.ReadTimeout = 50 * time.Millisecond
	srv.Start()
	defer srv.Close()
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/pull/"+bob.AIRID()+"?stream=1", nil)
	require.NoError(t, err)
	res, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	time.Sleep(200 * time.Millisecond) // past the timeout
	data := signedOffer(t, alice, bob.DID(), nil)
	push(t, relay, bob.AIRID(), data)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data:") {
			require.Contains(t, lines.Text(), idOf(t, data))
			return
		}
	}
	t.Fatal("the stream ended: ", lines.Err())
}
