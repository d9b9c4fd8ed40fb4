// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// auditedServer returns a server that denies the operation deny, and a function that returns its
// records as texts since the last call.
func auditedServer(t *testing.T, o accp.ServerOptions) (*accp.Server, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var records []string
	o.Logger = slog.New(slog.DiscardHandler)
	o.Auth.Authenticator = accp.AuthenticatorFunc(func(r *http.Request) (*accp.Principal, error) {
		if r.Header.Get("User") == "" {
			return nil, errors.New("no user")
		}
		return &accp.Principal{ID: r.Header.Get("User")}, nil
	})
	o.Auth.Authorizer = accp.AuthorizerFunc(func(_ context.Context, m *accp.Message) error {
		if m.Op == "deny" {
			return errors.New("denied")
		}
		return nil
	})
	o.Audit = func(_ context.Context, r *accp.AuditRecord) {
		mu.Lock()
		defer mu.Unlock()
		records = append(records, strings.Join([]string{r.Principal, r.Operation, r.Outcome, r.Code}, " "))
	}
	s, err := accp.NewServer("server", &o)
	require.NoError(t, err)
	s.Handle("req", "fail", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return accp.ErrToolExecFailed
	}))
	s.Handle("req", "wait", accp.HandlerFunc(func(ctx context.Context, _ *accp.ReplyWriter, _ *accp.Message) error {
		<-ctx.Done()
		return ctx.Err()
	}))
	return s, func() []string {
		mu.Lock()
		defer mu.Unlock()
		list := records
		records = nil
		return list
	}
}

// Every request has one audit record, also one that is refused before its frame is read.
func TestEachRequestHasAuditRecord(t *testing.T) {
	s, records := auditedServer(t, accp.ServerOptions{Limits: accp.Limits{RequestRate: 1e6}})
	seq := int64(1)
	for _, tt := range []struct{ method, path, contentType, user, body, want string }{
		{"POST", "/other", accp.MediaType, "a", "", " POST /other refused 404"},
		{"GET", accp.FramesPath, accp.MediaType, "a", "", " GET /accp/v1/frames refused 405"},
		{"POST", accp.FramesPath, "text/plain", "a", "", " POST /accp/v1/frames refused 415"},
		{"POST", accp.FramesPath, accp.MediaType, "", "", " POST /accp/v1/frames refused 401"},
		{"POST", accp.FramesPath, accp.MediaType, "a", strings.Repeat("x", 70000), "a POST /accp/v1/frames refused 413"},
		{"GET", accp.WebSocketPath, "", "", "", " GET /accp/v1/ws refused 401"},
		{"GET", accp.WebSocketPath, "", "a", "", "a GET /accp/v1/ws refused 400"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "junk", "a  refused E1001"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "req:deny{}", "a req:deny refused E5001"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "req:none{}", "a req:none failed E1002"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "req:fail{}", "a req:fail failed E4002"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "req:x{schema:ZZ}", "a req:x refused E1003"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "cancel:x{}", "a cancel:x refused E1001"},
		{"POST", accp.FramesPath, accp.MediaType, "a", "ping:x{}", "a ping:x ok "},
	} {
		body := tt.body
		if strings.Contains(body, "{") {
			body = string(frame(body, seq, "sid:s1"))
			seq += 2
		}
		r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(body))
		r.Header.Set("Content-Type", tt.contentType)
		r.Header.Set("User", tt.user)
		s.ServeHTTP(httptest.NewRecorder(), r)
		require.Equal(t, []string{tt.want}, records(), "%+v", tt)
	}
	replay := frame("ping:x{}", 100, "sid:s2")
	for _, want := range []string{"a ping:x ok ", "a ping:x refused E3002"} {
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(replay)))
		r.Header.Set("Content-Type", accp.MediaType)
		r.Header.Set("User", "a")
		s.ServeHTTP(httptest.NewRecorder(), r)
		require.Equal(t, []string{want}, records())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("req:wait{}", 1, "sid:s3"))))
	r.Header.Set("Content-Type", accp.MediaType)
	r.Header.Set("User", "a")
	func() {
		defer func() { _ = recover() }() // the answer is cut
		s.ServeHTTP(httptest.NewRecorder(), r)
	}()
	require.Len(t, records(), 1, "a request without a reader")
	require.NoError(t, s.Close())
	r = httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("ping:x{}", 1, "sid:s4"))))
	r.Header.Set("Content-Type", accp.MediaType)
	r.Header.Set("User", "a")
	s.ServeHTTP(httptest.NewRecorder(), r)
	require.Equal(t, []string{"a POST /accp/v1/frames refused 503"}, records())
}

// Connections that end without the peer have an audit record, as each of their frames.
func TestEndedConnectionsHaveAuditRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, records := auditedServer(t, accp.ServerOptions{})
		s.Handle("req", "flood", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			for {
				if err := w.Send(msg("wait", m.Op, text("k", strings.Repeat("x", 500)))); err != nil {
					return err
				}
			}
		}))
		p := newPipe()
		stop := p.serve(s)
		dial := func() *websocket.Conn {
			ws, _, err := websocket.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath,
				&websocket.DialOptions{HTTPClient: p.client(), HTTPHeader: http.Header{"User": {"a"}}})
			require.NoError(t, err)
			return ws
		}
		write := func(ws *websocket.Conn, body string, seq int64, sid string) {
			require.NoError(t, ws.Write(t.Context(), websocket.MessageText, frame(body, seq, "sid:"+sid)))
			synctest.Wait()
		}
		hello := "sync:registry{hash:" + accp.NewRegistry().Hash()[:12] + "|v:1}"
		read := func(ws *websocket.Conn) {
			go func() {
				for {
					if _, _, err := ws.Read(context.Background()); err != nil {
						return
					}
				}
			}()
		}

		silent := dial()
		read(silent)
		time.Sleep(31 * time.Second)
		require.Equal(t, []string{"a connection refused 1008"}, records())

		early := dial()
		read(early)
		write(early, "req:wait{}", 1, "s1")
		require.Equal(t, []string{"a req:wait refused E5001"}, records())

		expired := dial()
		read(expired)
		f := frame(hello, 1, "ttl:1")
		time.Sleep(3 * time.Second)
		require.NoError(t, expired.Write(t.Context(), websocket.MessageText, f))
		synctest.Wait()
		require.Equal(t, []string{"a sync:registry refused E5001"}, records())

		stale := dial()
		read(stale)
		write(stale, hello, 1, "s2")
		write(stale, "req:deny{}", 3, "s2")
		session, ok := s.Session("s2")
		require.True(t, ok)
		require.NoError(t, session.End(t.Context(), nil))
		write(stale, "req:wait{}", 5, "s2")
		require.Equal(t, []string{"a sync:registry ok ", "a req:deny refused E5001", "a  refused E9999"}, records())

		slow := dial()
		write(slow, hello, 1, "s3")
		_, _, err := slow.Read(t.Context())
		require.NoError(t, err)
		write(slow, "req:flood{}", 3, "s3")
		time.Sleep(time.Minute)
		synctest.Wait()
		list := records()
		require.Contains(t, list, "a connection refused slow reader")
		require.NoError(t, slow.CloseNow())
		require.NoError(t, s.Close())
		stop()
	})
}
