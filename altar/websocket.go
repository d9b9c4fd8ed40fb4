// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/wsconn"
)

const (
	subprotocol = "altar.v1"          // required (ALT-D04)
	limitHeader = "Altar-Max-Message" // of the response to a handshake (ALT-D04)
)

// WebSocketDialOptions adjusts [DialWebSocket]. Its fields are those of [HTTPDialOptions].
type WebSocketDialOptions struct {
	HTTPClient    *http.Client // of the handshake
	Header        http.Header
	TokenSource   TokenSource
	AllowInsecure bool
	MaxMessage    int
	MaxOutput     int // the limit of the Host applies if it is lower
}

// DialWebSocket connects to a Host, for a Runtime or a client. The context
// bounds the handshake only. If the url has no path, it is [WebSocketPath].
func DialWebSocket(ctx context.Context, url string, opts *WebSocketDialOptions) (Conn, error) {
	var o HTTPDialOptions
	if opts != nil {
		o = HTTPDialOptions(*opts)
	}
	o = o.withDefaults()
	if scheme, rest, ok := strings.Cut(url, "://"); ok && !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
		url = scheme + "://" + strings.TrimSuffix(rest, "/") + WebSocketPath
	}
	if _, err := peerURL(url, o.AllowInsecure); err != nil {
		return nil, err
	}
	dial := &wsconn.DialOptions{Options: webSocketOptions(o.MaxMessage, o.MaxOutput), HTTP: *o.http(), Header: o.Header}
	c, err := wsconn.Dial(ctx, url, dial)
	if e, ok := errors.AsType[*httpx.Error](err); ok && e.Status == http.StatusUnauthorized && o.TokenSource != nil {
		c, err = wsconn.Dial(ctx, url, dial) // with a new token (ALT-D46)
	}
	if err != nil {
		return nil, dialError(err)
	}
	if c.Subprotocol() != subprotocol {
		c.Close(wsconn.CodeNormal, "")
		return nil, retry.Mark(fmt.Errorf("altar: dial: the server does not speak %s", subprotocol), retry.Permanent, 0)
	}
	return &wsConn{c: c, max: o.MaxMessage, source: o.TokenSource}, nil
}

func webSocketOptions(maxMessage, maxOutput int) wsconn.Options {
	return wsconn.Options{MaxMessage: maxMessage, MaxOutput: maxOutput, Subprotocols: []string{subprotocol}, LimitHeader: limitHeader}
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
	if h.drain.isStarted.Load() { // a client dials another Host (ALT-D45)
		h.httpError(w, header{}, errDraining())
		return
	}
	id, refused := h.identify(r)
	if refused != nil {
		h.httpError(w, header{}, refused)
		return
	}
	o := &wsconn.AcceptOptions{Options: webSocketOptions(h.opts.Limits.MaxMessage, h.opts.Limits.MaxOutput), Origins: h.origins}
	o.Heartbeat, o.WriteTimeout = h.opts.Timing.Heartbeat, h.opts.Timing.WriteTimeout
	o.HandshakeTimeout = h.opts.Timing.ReadTimeout // of a request that upgrades nothing
	c, err := wsconn.Accept(w, r, o)
	if err != nil {
		h.opts.Logger.WarnContext(r.Context(), "altar: WebSocket upgrade failed", "peer", r.RemoteAddr, "err", err)
		return // Accept has answered
	}
	// The context of the request ends with the hijacking of its connection.
	_ = h.serve(context.WithoutCancel(r.Context()), &wsConn{c: c, max: h.opts.Limits.MaxMessage}, id, r.RemoteAddr)
}

type wsConn struct {
	c      *wsconn.Conn
	max    int
	recent strictjson.Strings // for Receive
	source TokenSource        // of the handshake, or nil

	isDrained bool // the Host has answered all that it took, and shut down; used by the reader
}

func (w *wsConn) Receive() (Message, error) {
	data, err := w.c.Read(context.Background())
	if err != nil {
		e, isClosed := errors.AsType[*wsconn.CloseError](err)
		switch {
		case isClosed && (e.Code == wsconn.CodeNormal || e.Code == wsconn.CodeShutdown):
			w.isDrained = e.Code == wsconn.CodeShutdown
			return nil, io.EOF
		case errors.Is(err, wsconn.ErrClosed):
			err = errors.Join(ErrClosed, err)
		}
		return nil, fmt.Errorf("altar: receive: %w", err)
	}
	return decodeMessage(data, decodeOptions{maxMessage: w.max, recent: &w.recent})
}

func (w *wsConn) Send(m Message) error { return sendFrame(w, m) }

func (w *wsConn) limit() (maxOutput int, isSeparate bool) { return w.c.MaxOutput(), true }

// Write sends one frame.
func (w *wsConn) Write(frame []byte) (int, error) {
	if err := w.c.Write(context.Background(), frame); err != nil {
		return 0, fmt.Errorf("altar: send: %w", err)
	}
	return len(frame), nil
}

// hangUp closes the connection with a code (ALT-D04).
func (w *wsConn) hangUp(why goodbye) bool {
	w.c.Close(why.code, why.reason)
	return false
}

func (w *wsConn) Close() error {
	w.c.Close(wsconn.CodeNormal, "")
	return nil
}
