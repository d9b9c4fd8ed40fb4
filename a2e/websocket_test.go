// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
)

// wsPeer is one end of a WebSocket without the rules of the package.
type wsPeer struct {
	t *testing.T
	c *websocket.Conn
}

// newWSPeer connects to a handler of h.
func newWSPeer(t *testing.T, h *a2e.Host, opts *a2e.WebSocketOptions) wsPeer {
	t.Helper()
	web := webServer(t.Context(), t, a2etest.Must(a2e.NewWebSocketHandler(h, opts)))
	return dialWSPeer(t, web.URL)
}

func dialWSPeer(t *testing.T, url string) wsPeer {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{Subprotocols: []string{a2e.Subprotocol}})
	require.NoError(t, err)
	require.Equal(t, a2e.Subprotocol, c.Subprotocol())
	t.Cleanup(func() { _ = c.CloseNow() })
	return wsPeer{t, c}
}

func (p wsPeer) send(kind websocket.MessageType, text string) {
	p.t.Helper()
	require.NoError(p.t, p.c.Write(p.t.Context(), kind, []byte(text)))
}

// receive reads one message, which is one line with a text in it.
func (p wsPeer) receive(want string) {
	p.t.Helper()
	kind, text, err := p.c.Read(p.t.Context())
	require.NoError(p.t, err)
	require.Equal(p.t, websocket.MessageText, kind)
	require.Contains(p.t, string(text), want)
	require.NotContains(p.t, string(text), "\n")
}

// closeCode reads messages until the connection ends, and returns the code of its end.
func (p wsPeer) closeCode() websocket.StatusCode {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	for {
		_, _, err := p.c.Read(ctx)
		if err != nil {
			var e websocket.CloseError
			require.ErrorAs(p.t, err, &e)
			return e.Code
		}
	}
}

func wsHost(t *testing.T, opts a2e.HostOptions) *a2e.Host {
	opts.Auth.Authenticator = a2etest.KeyAuthenticator("s")
	h := a2etest.Must(a2e.NewHost(&opts))
	t.Cleanup(func() { _ = h.Close() })
	return h
}

const (
	wsPing  = `{"a2e":"1.0","type":"ping","id":"p","ts":1}`
	wsHello = `{"a2e":"1.0","type":"handshake/req","id":"h","ts":1,"agent_id":"a","agent_caps":[],"auth_token":"s"}`
	wsBad   = `{"a2e":"1.0","type":"handshake/req","id":"h","ts":1,"agent_id":"a","agent_caps":[],"auth_token":"x"}`
	wsLeave = `{"a2e":"1.0","type":"shutdown","id":"s","ts":1,"timeout":0}`
	wsLimit = 200
)

// Each end of a connection has its close code (A2E-D59).
func TestWebSocketCloseCodes(t *testing.T) {
	small := a2e.HostOptions{Limits: a2e.Limits{MaxMessage: wsLimit}}
	tests := []struct {
		name string
		host a2e.HostOptions
		do   func(p wsPeer, h *a2e.Host)
		want websocket.StatusCode
	}{
		{name: "binary message", do: func(p wsPeer, _ *a2e.Host) { p.send(websocket.MessageBinary, wsPing) },
			want: websocket.StatusUnsupportedData},
		{name: "invalid UTF-8", do: func(p wsPeer, _ *a2e.Host) { p.send(websocket.MessageText, "{\"a\":\"\xff\"}") },
			want: websocket.StatusInvalidFramePayloadData},
		{name: "too large", host: small, do: func(p wsPeer, _ *a2e.Host) {
			p.send(websocket.MessageText, strings.Repeat("x", wsLimit+64<<10+1))
		}, want: websocket.StatusMessageTooBig},
		{name: "shutdown", do: func(p wsPeer, _ *a2e.Host) { p.send(websocket.MessageText, wsHello+"\n"+wsLeave) },
			want: websocket.StatusNormalClosure},
		{name: "third refused handshake", do: func(p wsPeer, _ *a2e.Host) {
			p.send(websocket.MessageText, wsBad+"\n"+wsBad+"\n"+wsBad)
		}, want: websocket.StatusPolicyViolation},
		{name: "no handshake", host: a2e.HostOptions{Timing: a2e.Timing{HandshakeTimeout: time.Millisecond}},
			do: func(wsPeer, *a2e.Host) {}, want: websocket.StatusPolicyViolation},
		{name: "end of the host", do: func(p wsPeer, h *a2e.Host) {
			p.send(websocket.MessageText, wsHello)
			p.receive(`"ok":true`)
			go h.Close()
		}, want: websocket.StatusGoingAway},
		{name: "shutdown of the host", do: func(p wsPeer, h *a2e.Host) {
			p.send(websocket.MessageText, wsHello)
			p.receive(`"ok":true`)
			go h.Shutdown(p.t.Context())
		}, want: websocket.StatusGoingAway},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := wsHost(t, tt.host)
			p := newWSPeer(t, h, nil)
			tt.do(p, h)
			require.Equal(t, tt.want, p.closeCode())
		})
	}
}

// A message is a line: LF splits it, and one somewhat over the limit is refused without an end of the
// connection (A2E-D59).
func TestWebSocketMessages(t *testing.T) {
	p := newWSPeer(t, wsHost(t, a2e.HostOptions{Limits: a2e.Limits{MaxMessage: wsLimit}}), nil)
	p.send(websocket.MessageText, wsPing+"\n\n"+wsPing)
	p.receive(`"type":"pong"`)
	p.receive(`"type":"pong"`)
	p.send(websocket.MessageText, `{"id":"long","x":"`+strings.Repeat("x", 64<<10)+`"}`)
	p.receive(`"req_id":"long"`)
	p.send(websocket.MessageText, wsPing)
	p.receive(`"type":"pong"`)
}

// A long message is in the budget of its principal before it is complete. Without memory it is refused, and the session
// continues (A2E-D56).
func TestArrivingWebSocketMessagesAreInBudget(t *testing.T) {
	p := newWSPeer(t, wsHost(t, a2e.HostOptions{Limits: a2e.Limits{MaxMemoryPerSession: 1 << 20}}), nil)
	p.send(websocket.MessageText, wsHello)
	p.receive(`"ok":true`)
	w, err := p.c.Writer(t.Context(), websocket.MessageText)
	require.NoError(t, err)
	_, err = io.WriteString(w, `{"a2e":"1.0","type":"ping","id":"long","ts":1,"x":"`+strings.Repeat("x", 3<<20))
	require.NoError(t, err)
	p.receive(`"reason":"overloaded"`) // before its end
	_, err = io.WriteString(w, `"}`)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	p.send(websocket.MessageText, wsPing)
	p.receive(`"type":"pong"`)
}

// A session before its handshake makes room for a newer one with 1013, and a full host refuses the
// upgrade (A2E-D59, A2E-D61).
func TestWebSocketPlaces(t *testing.T) {
	h := wsHost(t, a2e.HostOptions{Limits: a2e.Limits{MaxUnauthenticated: 1, MaxItems: 1}})
	web := webServer(t.Context(), t, a2etest.Must(a2e.NewWebSocketHandler(h, nil)))
	first := dialWSPeer(t, web.URL)
	first.send(websocket.MessageText, wsPing)
	first.receive(`"type":"pong"`) // the host knows the session
	second := dialWSPeer(t, web.URL)
	require.Equal(t, websocket.StatusTryAgainLater, first.closeCode())
	second.send(websocket.MessageText, wsHello)
	second.receive(`"ok":true`)
	_, resp, err := websocket.Dial(t.Context(), web.URL, nil)
	require.Error(t, err)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
}

// Another subprotocol is refused with 400, and none is accepted (A2E-D59).
func TestWebSocketSubprotocol(t *testing.T) {
	web := webServer(t.Context(), t, a2etest.Must(a2e.NewWebSocketHandler(wsHost(t, a2e.HostOptions{}), nil)))
	_, resp, err := websocket.Dial(t.Context(), web.URL, &websocket.DialOptions{Subprotocols: []string{"other"}})
	require.Error(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	c, _, err := websocket.Dial(t.Context(), web.URL, nil)
	require.NoError(t, err)
	require.NoError(t, c.CloseNow())
}

// A peer that answers no ping is cut, and the calls know why (A2E-D59, A2E-D60).
func TestWebSocketHeartbeat(t *testing.T) {
	done := make(chan struct{})
	web := webServer(t.Context(), t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{a2e.Subprotocol}})
		if err != nil {
			return
		}
		<-done // reads nothing, so no pong is sent
		_ = c.CloseNow()
	}))
	conn, err := a2e.DialWebSocket(t.Context(), "ws"+web.URL[4:], &a2e.WebSocketDialOptions{Heartbeat: 20 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { close(done) })
	c := a2etest.Must(a2e.NewClient(conn, nil))
	_, err = c.Connect(t.Context())
	var end *a2e.CloseError
	require.ErrorAs(t, err, &end)
	require.Equal(t, "heartbeat", end.Kind)
}
