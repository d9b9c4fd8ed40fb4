// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transport

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
	"github.com/fivewire/fivewire/internal/wsconn"
)

// Subprotocol is the WebSocket subprotocol, which is required (ALT-D04).
const Subprotocol = "altar.v1"

const limitHeader = "Altar-Max-Message" // of the response to a handshake (ALT-D04)

// A WebSocket is a [Conn] over WebSocket (ALT-D04).
type WebSocket struct {
	c *wsconn.Conn

	// Used by the reader.
	reserve    func(bytes int) error
	isReserved bool
	isDrained  bool
}

// WebSocketOptions returns the options of a connection with these limits of frames.
func WebSocketOptions(maxFrame, maxOutput int) wsconn.Options {
	return wsconn.Options{MaxMessage: maxFrame, MaxOutput: maxOutput, Subprotocols: []string{Subprotocol}, LimitHeader: limitHeader, Parts: true}
}

// DialWebSocket connects to a Host. The context bounds the handshake only. A refused token is replaced by a new one, once
// (ALT-D46), if opts has Secrets. It returns a [*httpx.Error] if the Host refused.
func DialWebSocket(ctx context.Context, url string, opts *wsconn.DialOptions) (*WebSocket, error) {
	c, err := wsconn.Dial(ctx, url, opts)
	if e, ok := errors.AsType[*httpx.Error](err); ok && e.Status == http.StatusUnauthorized && opts.HTTP.Secrets != nil {
		c, err = wsconn.Dial(ctx, url, opts)
	}
	if err != nil {
		return nil, err
	}
	if c.Subprotocol() != Subprotocol {
		c.Close(wsconn.CodeNormal, "")
		return nil, retry.Mark(fmt.Errorf("the server does not speak %s", Subprotocol), retry.Permanent, 0)
	}
	return newWebSocket(c), nil
}

func newWebSocket(c *wsconn.Conn) *WebSocket {
	return &WebSocket{c: c, reserve: func(int) error { return nil }}
}

// Offers reports whether a client offers the subprotocol.
func Offers(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Sec-WebSocket-Protocol"), func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(s string) bool { return strings.TrimSpace(s) == Subprotocol })
	})
}

// AcceptWebSocket upgrades a connection. With an error it has answered.
func AcceptWebSocket(w http.ResponseWriter, r *http.Request, opts *wsconn.AcceptOptions) (*WebSocket, error) {
	c, err := wsconn.Accept(w, r, opts)
	if err != nil {
		return nil, err
	}
	return newWebSocket(c), nil
}

// SetReserve implements [Conn].
func (w *WebSocket) SetReserve(reserve func(bytes int) error) { w.reserve = reserve }

// headSize is the length of the beginning of a refused frame.
const headSize = 4 << 10

// Read implements [Conn].
func (w *WebSocket) Read() ([]byte, error) {
	if w.isReserved {
		_, w.isReserved = w.reserve(0), false
	}
	frame, isLast, err := w.c.ReadPart(context.Background())
	var refusal error
	for err == nil && !isLast {
		var part []byte
		part, isLast, err = w.c.ReadPart(context.Background())
		switch size := len(frame) + len(part); {
		case refusal != nil || err != nil:
		case size <= cap(frame):
			frame = append(frame, part...)
		default:
			frame, refusal = w.grow(frame, max(size, 2*cap(frame)), part)
		}
	}
	if err != nil {
		return nil, w.endError(err)
	}
	return frame, refusal
}

// grow appends a part to a frame, whose memory then has size bytes. Without memory it returns the beginning of the frame.
func (w *WebSocket) grow(frame []byte, size int, part []byte) ([]byte, error) {
	if err := w.reserve(size); err != nil {
		return slices.Clone(frame[:min(len(frame), headSize)]), err
	}
	w.isReserved = true
	grown := make([]byte, len(frame), size)
	copy(grown, frame)
	return append(grown, part...), nil
}

// endError returns the error of a connection that has ended.
func (w *WebSocket) endError(err error) error {
	e, isClosed := errors.AsType[*wsconn.CloseError](err)
	if isClosed && (e.Code == wsconn.CodeNormal || e.Code == wsconn.CodeShutdown) {
		w.isDrained = e.Code == wsconn.CodeShutdown
		return io.EOF
	}
	return fmt.Errorf("altar: receive: %w", err)
}

// IsDrained reports, after the end, whether the Host has answered all that it took, and shut down. It is for the reader.
func (w *WebSocket) IsDrained() bool { return w.isDrained }

// Limit implements [Conn].
func (w *WebSocket) Limit() (maxOutput int, isSeparate bool) { return w.c.MaxOutput(), true }

// Write writes one frame.
func (w *WebSocket) Write(frame []byte) (int, error) {
	if err := w.c.Write(context.Background(), frame); err != nil {
		return 0, fmt.Errorf("altar: send: %w", err)
	}
	return len(frame), nil
}

// HangUp closes the connection with a code (ALT-D04).
func (w *WebSocket) HangUp(why Goodbye) bool {
	w.c.Close(why.Code, why.Reason)
	return false
}

// Close implements [Conn].
func (w *WebSocket) Close() error {
	w.c.Close(wsconn.CodeNormal, "")
	return nil
}
