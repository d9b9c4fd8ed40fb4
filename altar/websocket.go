// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/wsconn"
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
// bounds the handshake only. If the url has no path, it is [WebSocketPath]. The heartbeat is
// that of the Client or the Runtime (ALT-D36).
func DialWebSocket(ctx context.Context, url string, opts *WebSocketDialOptions) (Conn, error) {
	var o HTTPDialOptions
	if opts != nil {
		o = HTTPDialOptions(*opts)
	}
	o = o.withDefaults()
	if scheme, rest, ok := strings.Cut(url, "://"); ok && !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
		url = scheme + "://" + strings.TrimSuffix(rest, "/") + WebSocketPath
	}
	if _, err := transport.URL(url, o.AllowInsecure); err != nil {
		return nil, fmt.Errorf("altar: dial: %w", err)
	}
	ws := transport.WebSocketOptions(o.MaxMessage, o.MaxOutput)
	ws.Heartbeat = -1
	c, err := transport.DialWebSocket(ctx, url, &wsconn.DialOptions{Options: ws, HTTP: *o.http(), Header: o.Header})
	if err != nil {
		return nil, dialError(err)
	}
	conn := newWireConn(c, o.MaxMessage)
	conn.source = o.TokenSource
	return conn, nil
}

// serveWebSocket upgrades a connection and serves it until it ends. The upgrade is another function, because the stack of
// this one stays in memory with the connection.
func (h *Host) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	c, id, place := h.acceptWebSocket(w, r)
	defer place.Release()
	if c != nil { // the context of the request ends with the hijacking of its connection
		_ = h.serve(context.WithoutCancel(r.Context()), newWireConn(c, h.opts.Limits.MaxMessage), id, r.RemoteAddr)
	}
}

// acceptWebSocket upgrades a connection, whose place the caller releases, or responds and returns nil.
func (h *Host) acceptWebSocket(w http.ResponseWriter, r *http.Request) (*transport.WebSocket, *Principal, budget.Hold) {
	if !transport.Offers(r) {
		http.Error(w, "the subprotocol "+transport.Subprotocol+" is required", http.StatusBadRequest)
		return nil, nil, budget.Hold{}
	}
	if h.drain.isStarted.Load() { // a client dials another Host (ALT-D45)
		h.httpError(w, header{}, errDraining())
		return nil, nil, budget.Hold{}
	}
	id, refused := h.identify(r)
	if refused != nil {
		h.httpError(w, header{}, refused)
		return nil, nil, budget.Hold{}
	}
	place, refused := h.reservePlace(id, r.RemoteAddr)
	if refused != nil {
		h.httpError(w, header{}, refused)
		return nil, nil, place
	}
	o := &wsconn.AcceptOptions{Options: transport.WebSocketOptions(h.opts.Limits.MaxMessage, h.opts.Limits.MaxOutput), Origins: h.origins}
	o.Heartbeat, o.WriteTimeout = h.opts.Timing.Heartbeat, h.opts.Timing.WriteTimeout
	o.HandshakeTimeout = h.opts.Timing.ReadTimeout // of a request that upgrades nothing
	c, err := transport.AcceptWebSocket(w, r, o)
	if err != nil {
		h.opts.Logger.WarnContext(r.Context(), "altar: WebSocket upgrade failed", "peer", r.RemoteAddr, "err", err)
		return nil, nil, place
	}
	return c, id, place
}
