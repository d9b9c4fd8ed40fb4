// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
)

// A message sent to an older reader does not count as received after a new reader has attached,
// which may have requested it again.
func TestReaderTakesOver(t *testing.T) {
	hs := &httpSession{replay: newReplay(4, 8)}
	require.NoError(t, hs.replay.put([]byte("one\n"), 0))
	require.NoError(t, hs.replay.put([]byte("two\n"), 0))
	cut := false
	first := hs.attach(func() { cut = true }, "")
	id, line, _, _ := hs.replay.peek()
	require.Equal(t, "one", string(line))
	second := hs.attach(func() {}, "0")
	require.True(t, cut)
	require.False(t, hs.took(first, id))
	replayedID, line, _, _ := hs.replay.peek()
	require.Equal(t, "one", string(line), "the new reader has not got it")
	require.True(t, hs.took(second, replayedID))
	_, line, _, _ = hs.replay.peek()
	require.Equal(t, "two", string(line))
}

// Sessions that end unread are removed: at once if nothing is left to read, and after a delay even
// if SessionIdleTimeout is disabled (A2E-153).
func TestClosedSessionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost(t, &HostOptions{Timing: Timing{SessionIdleTimeout: -1}})
		x, err := NewHTTPHandler(h, nil)
		require.NoError(t, err)
		create := func() {
			w := httptest.NewRecorder()
			x.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/session", nil))
			require.Equal(t, http.StatusOK, w.Code)
		}
		kept := func() int { synctest.Wait(); x.mu.Lock(); defer x.mu.Unlock(); return len(x.sessions) }
		create()
		create()
		require.Equal(t, 2, kept())
		for _, s := range h.Sessions() {
			s.conn.add(item{message: NewMessage(typePong, &Pong{})}) // something to read
			s.conn.flush()
			break
		}
		time.Sleep(10 * time.Second) // the handshake times out
		require.Equal(t, 1, kept())
		time.Sleep(15 * time.Minute)
		require.Zero(t, kept())
	})
}

// Nor is anything kept of a session that was read to its end.
func TestReadSessionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, err := NewHTTPHandler(newTestHost(t, &HostOptions{}), nil)
		require.NoError(t, err)
		ask := func(method, path, secret, body string) {
			r := httptest.NewRequest(method, path, strings.NewReader(body))
			r.Header.Set(sessionHeader, secret)
			w := httptest.NewRecorder()
			x.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
		}
		ask(http.MethodPost, "/session", "", "")
		require.Len(t, x.sessions, 1)
		for secret, hs := range x.sessions {
			ask(http.MethodPost, "/send", secret, `{"a2e":"1.0","type":"ping","id":"p","ts":1}`)
			ask(http.MethodPost, "/send", secret, `{"a2e":"1.0","type":"shutdown","id":"s","ts":1}`)
			ask(http.MethodGet, "/stream", secret, "")
			synctest.Wait()
			require.Nil(t, hs.idleTimer, "a timer keeps it")
		}
		require.Empty(t, x.sessions)
	})
}

// newTestHost returns a host that admits every agent.
func newTestHost(t *testing.T, opts *HostOptions) *Host {
	t.Helper()
	opts.Auth.AllowAnonymous = true
	h, err := NewHost(opts)
	require.NoError(t, err)
	return h
}

// A stream through a response writer that cannot flush is refused and logged, because no message would arrive.
func TestStreamNeedsFlush(t *testing.T) {
	var log strings.Builder
	h := newTestHost(t, &HostOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	x, err := NewHTTPHandler(h, nil)
	require.NoError(t, err)
	stream := func(wrap func(w http.ResponseWriter) http.ResponseWriter) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/stream", nil)
		r.Header.Set(sessionHeader, "unknown")
		x.ServeHTTP(wrap(w), r)
		return w.Code
	}
	require.Equal(t, http.StatusNotImplemented, stream(func(w http.ResponseWriter) http.ResponseWriter { return struct{ http.ResponseWriter }{w} }))
	require.Contains(t, log.String(), "the response writer has no Flush")
	require.Equal(t, http.StatusNotFound, stream(func(w http.ResponseWriter) http.ResponseWriter { return &statusWriter{ResponseWriter: w} }))
	require.NoError(t, h.Close())
}

// A new session over HTTP or WebSocket is admitted without a walk over the sessions of the host.
func TestAdmissionCostsNoWalkOverSessions(t *testing.T) {
	testkit.RequireLess(t, 20, 10, 20_000, func(sessions int) time.Duration {
		h, err := NewHost(&HostOptions{Auth: Auth{AllowAnonymous: true}, Limits: Limits{MaxItems: -1}})
		require.NoError(t, err)
		h.opts.Limits.MaxItems = int64(sessions) + 1
		for range sessions {
			h.sessions[&Session{}] = struct{}{}
		}
		start := time.Now()
		for range 200 {
			require.NoError(t, h.ready())
		}
		return time.Since(start)
	})
}
