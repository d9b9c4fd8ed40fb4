// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// Subprotocol is the WebSocket subprotocol of this package: one message of the
// protocol, or several lines, in each text message.
const Subprotocol = "a2e.v1"

// WebSocketOptions configures [NewWebSocketHandler]. The zero value is right for production.
type WebSocketOptions struct {
	// AllowedOrigins are the origins of web pages that may connect, such as "https://app.example",
	// in addition to the origin of the host.
	AllowedOrigins []string

	// AllowedHosts are further names of the host that are accepted on a loopback connection. Names
	// other than these, localhost and loopback addresses are refused there, which stops DNS
	// rebinding.
	AllowedHosts []string

	// MaxMessage bounds a received message in bytes, in addition to the limit of the host. Zero means the limit of the
	// host; a negative value removes the bound.
	MaxMessage int

	// WriteTimeout is the time limit of a write without progress. Zero means 30 s; a negative value
	// disables it.
	WriteTimeout time.Duration

	// Heartbeat is the interval of pings. Zero means 15 s; a negative value disables them.
	Heartbeat time.Duration
}

// NewWebSocketHandler returns a handler that serves each WebSocket connection as one session of h.
func NewWebSocketHandler(h *Host, opts *WebSocketOptions) (http.Handler, error) {
	if h == nil {
		return nil, errors.New("a2e: new websocket handler: no host")
	}
	var o WebSocketOptions
	if opts != nil {
		o = *opts
	}
	limit := cmp.Or(o.MaxMessage, h.opts.Limits.MaxMessage)
	accept := wsconn.AcceptOptions{Options: wsconn.Options{MaxMessage: lineLimit(limit),
		MaxOutput: -1, Heartbeat: o.Heartbeat, WriteTimeout: o.WriteTimeout, Subprotocols: []string{Subprotocol}, Parts: true},
		Origins: httpx.Origins{AllowedOrigins: o.AllowedOrigins, AllowedHosts: o.AllowedHosts}, RefuseOthers: true}
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("a2e: new websocket handler: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.ready(); err != nil {
			refused := unavailable(w, err, "Too many sessions")
			h.recordRefusal(r, refused.Status, refused)
			writeDetail(w, refused.Status, refused.Message)
			return
		}
		status := &statusWriter{ResponseWriter: w}
		conn, err := wsconn.Accept(status, r, &accept)
		if err != nil {
			h.recordRefusal(r, status.status, err) // Accept has answered
			return
		}
		if err := h.serve(r.Context(), newSocket(conn, limit), r.RemoteAddr); err != nil {
			h.log.InfoContext(r.Context(), "a2e: websocket failed", "peer", r.RemoteAddr, "err", err)
		}
	}), nil
}

// A statusWriter records the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader writes the header of the response.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the wrapped writer, for [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// lineLimit is the limit of the transport for a limit of the codec: a line slightly above the limit
// gets an error, and the connection continues.
func lineLimit(maxMessage int) int {
	if maxMessage < 0 {
		return -1
	}
	return cmp.Or(maxMessage, defaultMaxMessage) + 64<<10
}

// WebSocketDialOptions adjusts [DialWebSocket]. The zero value is right for production.
type WebSocketDialOptions struct {
	// HTTPClient sends the handshake. Nil means a client that follows no redirect.
	HTTPClient *http.Client

	// Header is added to the handshake, for authorization by a proxy of the host.
	Header http.Header

	// AllowInsecure permits ws to hosts other than this machine. The token of the handshake is then
	// sent unencrypted (A2E-154).
	AllowInsecure bool

	// MaxMessage bounds a message of the host in bytes, in addition to the bound of the client. Zero means 16 MiB; a
	// negative value removes the bound.
	MaxMessage int

	// WriteTimeout is the time limit of a write without progress. Zero means 30 s; a negative value
	// disables it.
	WriteTimeout time.Duration

	// Heartbeat is the interval of pings. Zero means 15 s; a negative value disables them.
	Heartbeat time.Duration

	// Logger receives failures of the connection. Nil means slog.Default().
	Logger *slog.Logger
}

// DialWebSocket connects to a host over WebSocket, for [NewClient].
func DialWebSocket(ctx context.Context, url string, opts *WebSocketDialOptions) (io.ReadWriteCloser, error) {
	var o WebSocketDialOptions
	if opts != nil {
		o = *opts
	}
	conn, err := wsconn.Dial(ctx, url, &wsconn.DialOptions{Header: o.Header,
		HTTP: httpx.ClientOptions{HTTPClient: o.HTTPClient, AllowInsecure: o.AllowInsecure},
		Options: wsconn.Options{MaxMessage: lineLimit(o.MaxMessage), MaxOutput: -1, Heartbeat: o.Heartbeat,
			WriteTimeout: o.WriteTimeout, Subprotocols: []string{Subprotocol}, Parts: true}})
	if err != nil {
		return nil, fmt.Errorf("a2e: dial websocket: %w", err)
	}
	return newSocket(conn, o.MaxMessage), nil
}

// A socket is a WebSocket connection as a stream of lines.
type socket struct {
	conn   *wsconn.Conn
	limit  int             // of a received line
	ctx    context.Context // of reads
	cancel context.CancelFunc
	part   []byte // the rest of the part of a message that is being read
	out    lineSplitter
	end    atomic.Pointer[CloseError]  // of the peer
	reason atomic.Pointer[closeReason] // of the own close frame; nil for an end in good order
}

func newSocket(conn *wsconn.Conn, limit int) *socket {
	s := &socket{conn: conn, limit: limit}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *socket) Read(b []byte) (int, error) {
	for len(s.part) == 0 {
		part, isLast, err := s.conn.ReadPart(s.ctx)
		if err != nil {
			s.end.CompareAndSwap(nil, closeError(err))
			return 0, readError(err)
		}
		if s.part = part; isLast {
			s.part = append(part, '\n')
		}
	}
	n := copy(b, s.part)
	s.part = s.part[n:]
	return n, nil
}

// closeError returns the reason of the end of a connection, or nil for one of the network.
func closeError(err error) *CloseError {
	var closed *wsconn.CloseError
	switch {
	case errors.As(err, &closed):
		return &CloseError{Kind: "websocket", Code: closed.Code, Text: closed.Reason}
	case errors.Is(err, wsconn.ErrSilent):
		return &CloseError{Kind: "heartbeat"}
	case errors.Is(err, wsconn.ErrSlowReader):
		return &CloseError{Kind: "stall"}
	case errors.Is(err, wsconn.ErrTooLarge):
		return &CloseError{Kind: "too_large"}
	}
	return nil
}

func (s *socket) maxMessage() int { return s.limit }

func (s *socket) cause() *CloseError { return s.end.Load() }

// readError is the end of a stream, or the failure of a connection without a close frame.
func readError(err error) error {
	var closed *wsconn.CloseError
	switch {
	case errors.Is(err, wsconn.ErrClosed), errors.Is(err, context.Canceled):
		return io.ErrClosedPipe
	case errors.As(err, &closed) && (closed.Code == wsconn.CodeNormal || closed.Code == wsconn.CodeShutdown):
		return io.EOF
	}
	return fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, err) // err may wrap io.EOF, which is an end in good order
}

func (s *socket) Write(b []byte) (int, error) {
	return s.out.write(b, func(line []byte) error { return s.conn.Write(context.Background(), line) })
}

// Close sends a close frame and waits at most 1 s for that of the peer.
func (s *socket) Close() error {
	reason := s.reason.Load()
	if reason == nil {
		reason = &closeReason{code: wsconn.CodeNormal}
	}
	s.conn.Close(reason.code, reason.text)
	s.cancel()
	return nil
}

// A closeReason is that of a close frame.
type closeReason struct {
	code int
	text string
}

// setEnd sets the close frame of an ended session (A2E-D59).
func (s *socket) setEnd(end session.End) {
	switch end {
	case session.EndHost:
		s.reason.Store(&closeReason{wsconn.CodeShutdown, "shutdown"})
	case session.EndRefused:
		s.reason.Store(&closeReason{wsconn.CodeNotAllowed, RejectAuthFailed})
	case session.EndHandshake:
		s.reason.Store(&closeReason{wsconn.CodeNotAllowed, reasonNoHandshake})
	case session.EndExpired:
		s.reason.Store(&closeReason{wsconn.CodeNotAllowed, "expired"})
	case session.EndEvicted:
		s.reason.Store(&closeReason{wsconn.CodeOverloaded, ReasonOverloaded})
	case session.EndCut:
		s.reason.Store(&closeReason{wsconn.CodeInternal, ""})
	}
}
