// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/coder/websocket"
)

// Subprotocol is the WebSocket subprotocol of this package: one message of the
// protocol, or several lines, in each text message.
const Subprotocol = "a2e.v1"

// WebSocketHandler serves each WebSocket connection as one session of h. Pages
// of other origins are refused unless one of the patterns allows them; see
// [websocket.AcceptOptions]. On loopback connections so are pages that ask
// under a name that is not this machine's, unless a pattern fits that name: this
// stops DNS rebinding.
func WebSocketHandler(h *Host, originPatterns ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		boundBody(w, r, defaultBodyTimeout) // of what is no handshake; a connection that is taken over has no deadline
		if name, foreign := foreignHost(r); foreign && r.Header.Get("Origin") != "" && !fitsHost(originPatterns, name, r.Host) {
			writeDetail(w, http.StatusForbidden, "Host not allowed")
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}, OriginPatterns: originPatterns})
		if err != nil {
			return // Accept has answered
		}
		if err := h.Serve(r.Context(), newSocket(conn, h.codec.maxBytes())); err != nil {
			h.log.Info("a2e: websocket failed", "err", err)
		}
	})
}

// fitsHost reports whether one of the patterns, their schemes left aside, fits one of
// the names.
func fitsHost(patterns []string, names ...string) bool {
	for _, pattern := range patterns {
		if _, host, ok := strings.Cut(pattern, "://"); ok {
			pattern = host
		}
		for _, name := range names {
			if fits, err := path.Match(strings.ToLower(pattern), strings.ToLower(name)); err == nil && fits {
				return true
			}
		}
	}
	return false
}

// DialWebSocket connects to a host over WebSocket, for [NewClient]. Nil options
// mean those of the library; the subprotocol is added to them.
func DialWebSocket(ctx context.Context, url string, opts *websocket.DialOptions) (io.ReadWriteCloser, error) {
	var o websocket.DialOptions
	if opts != nil {
		o = *opts
	}
	o.Subprotocols = append([]string{Subprotocol}, o.Subprotocols...)
	conn, _, err := websocket.Dial(ctx, url, &o)
	if err != nil {
		return nil, fmt.Errorf("a2e: dial websocket: %w", err)
	}
	return newSocket(conn, defaultMaxMessage), nil
}

// A socket is a WebSocket connection as a stream of lines. Its context ends only
// with Close, because a context that ends breaks the connection.
type socket struct {
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once

	message io.Reader // the message that is being read
}

func newSocket(conn *websocket.Conn, maxBytes int) *socket {
	s := &socket{conn: conn}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	limit := int64(-1)
	if maxBytes > 0 {
		limit = int64(maxBytes) + 64<<10 // so that a line somewhat too long gets its answer
	}
	conn.SetReadLimit(limit)
	return s
}

func (s *socket) Read(b []byte) (int, error) {
	for {
		if s.message == nil {
			_, r, err := s.conn.Reader(s.ctx)
			if err != nil {
				return 0, s.readError(err)
			}
			s.message = io.MultiReader(r, bytes.NewReader([]byte{'\n'}))
		}
		n, err := s.message.Read(b)
		switch {
		case err == nil || n > 0:
			return n, nil
		case errors.Is(err, io.EOF):
			s.message = nil
		default:
			return 0, s.readError(err)
		}
	}
}

func (s *socket) readError(err error) error {
	if s.ctx.Err() != nil {
		return io.ErrClosedPipe
	}
	switch websocket.CloseStatus(err) {
	case websocket.StatusNormalClosure, websocket.StatusGoingAway:
		return io.EOF
	}
	// Nobody said goodbye, and there is no half of a connection left to answer on.
	return fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, err)
}

func (s *socket) Write(b []byte) (int, error) {
	n := 0
	for line := range bytes.Lines(b) {
		if err := s.conn.Write(s.ctx, websocket.MessageText, bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
			return n, err
		}
		n += len(line)
	}
	return n, nil
}

// abandon ends the connection without a word, for a peer that does not read.
func (s *socket) abandon() {
	s.once.Do(func() {
		_ = s.conn.CloseNow()
		s.cancel()
	})
}

// Close sends a close frame if it can and waits a little for the answer to it.
func (s *socket) Close() error {
	var err error
	s.once.Do(func() {
		err = s.conn.Close(websocket.StatusNormalClosure, "")
		s.cancel()
	})
	return err
}
