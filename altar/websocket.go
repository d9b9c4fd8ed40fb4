// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/coder/websocket"
)

// subprotocol is the required WebSocket subprotocol (ALT-D04).
const subprotocol = "altar.v1"

// WebSocketDialOptions adjusts [DialWebSocket].
type WebSocketDialOptions struct {
	// HTTPClient makes the handshake. Nil means one that follows no redirect, so
	// that credentials go to this Host only.
	HTTPClient *http.Client

	// Header goes with the handshake, for authentication above all.
	Header http.Header

	// MaxMessage bounds a received message, in bytes. Zero means 4 MiB.
	MaxMessage int
}

// DialWebSocket connects to a Host, for a Runtime or a client. The context
// bounds the handshake only. If the url has no path, it is [WebSocketPath].
func DialWebSocket(ctx context.Context, url string, opts *WebSocketDialOptions) (Conn, error) {
	var o WebSocketDialOptions
	if opts != nil {
		o = *opts
	}
	if o.HTTPClient == nil {
		o.HTTPClient = noRedirects()
	}
	if scheme, rest, ok := strings.Cut(url, "://"); ok && !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
		url = scheme + "://" + strings.TrimSuffix(rest, "/") + WebSocketPath
	}
	c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: o.HTTPClient, HTTPHeader: o.Header, Subprotocols: []string{subprotocol},
	})
	if err != nil {
		return nil, fmt.Errorf("altar: dial: %w", err)
	}
	if c.Subprotocol() != subprotocol {
		_ = c.CloseNow()
		return nil, fmt.Errorf("altar: dial: the server does not speak %s", subprotocol)
	}
	return newWebSocket(c, o.MaxMessage), nil
}

// serveWebSocket upgrades a connection and serves it until it ends.
func (h *Host) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	offered := func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(s string) bool { return strings.TrimSpace(s) == subprotocol })
	}
	if !slices.ContainsFunc(r.Header.Values("Sec-WebSocket-Protocol"), offered) {
		http.Error(w, "the subprotocol "+subprotocol+" is required", http.StatusBadRequest)
		return
	}
	id, refused := h.identify(r)
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, OriginPatterns: h.opts.AllowedOrigins})
	if err != nil {
		h.opts.Logger.InfoContext(r.Context(), "altar: WebSocket upgrade failed", "peer", r.RemoteAddr, "err", err)
		return // Accept has answered
	}
	conn := newWebSocket(c, h.opts.Limits.MaxMessage)
	if refused != nil {
		_ = conn.Send(&ErrorMessage{Err: refused.(*Error)})
		conn.closeRefused()
		_ = conn.Close()
		return
	}
	// The context of the request ends with the hijacking of its connection.
	_ = h.Serve(context.WithoutCancel(r.Context()), conn, id)
}

type wsConn struct {
	c   *websocket.Conn
	max int
	ctx context.Context // ends with Close
	end context.CancelFunc

	recent recentTexts // for Receive

	mu  sync.Mutex // guards out
	out []byte
}

func newWebSocket(c *websocket.Conn, max int) *wsConn {
	if max <= 0 {
		max = DefaultMaxMessage
	}
	c.SetReadLimit(int64(max))
	w := &wsConn{c: c, max: max}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

func (w *wsConn) Receive() (Message, error) {
	kind, data, err := w.c.Read(w.ctx)
	if err != nil {
		switch websocket.CloseStatus(err) {
		case websocket.StatusNormalClosure, websocket.StatusGoingAway:
			return nil, io.EOF
		}
		return nil, fmt.Errorf("altar: receive: %w", err)
	}
	if kind != websocket.MessageText {
		_ = w.c.Close(websocket.StatusUnsupportedData, "text frames only")
		return nil, fmt.Errorf("altar: receive: binary frame: %w", ErrClosed)
	}
	return DecodeMessage(data, &DecodeOptions{MaxMessage: w.max, recent: &w.recent})
}

func (w *wsConn) Send(m Message) error { return w.send(m, false) }

func (w *wsConn) sendBatch(list []Message) error {
	var failed error
	for _, m := range list {
		if err := w.send(m, true); err != nil {
			if _, ok := err.(*Error); !ok {
				return err
			}
			failed = err
		}
	}
	return failed
}

func (w *wsConn) send(m Message, trusted bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, err := appendMessage(w.out[:0], m, trusted)
	if err != nil {
		return err
	}
	if cap(out) <= 64<<10 {
		w.out = out
	}
	return w.c.Write(w.ctx, websocket.MessageText, out)
}

// closeRefused closes a connection that will not be served (ALT-D04).
func (w *wsConn) closeRefused() { _ = w.c.Close(websocket.StatusPolicyViolation, "refused") }

// hangUp says goodbye and waits a little for the peer to do so. The reader sees
// that, and nothing is left to close.
func (w *wsConn) hangUp() bool {
	_ = w.c.Close(websocket.StatusNormalClosure, "")
	return false
}

func (w *wsConn) Close() error {
	w.end()
	return w.c.CloseNow()
}
