// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/sse"
)

// The paths of a Host (ALT-D04, ALT-D05).
const (
	MessagesPath  = "/altar/v1/messages"
	WebSocketPath = "/altar/v1/ws"
)

// The media types of requests and responses (ALT-D05).
const (
	TypeJSON   = "application/json"
	TypeNDJSON = "application/x-ndjson"
	TypeSSE    = "text/event-stream"
)

// Acceptable returns the media type that a client wants by its Accept headers, or nothing.
func Acceptable(header []string) string {
	if len(header) == 0 || len(header) == 1 && strings.TrimSpace(header[0]) == "" {
		return TypeJSON
	}
	for _, line := range header {
		for item := range strings.SplitSeq(line, ",") {
			kind, _, _ := strings.Cut(item, ";")
			switch kind = strings.ToLower(strings.TrimSpace(kind)); kind {
			case TypeJSON, "*/*", "application/*":
				return TypeJSON
			case TypeNDJSON, TypeSSE:
				return kind
			}
		}
	}
	return ""
}

// A FrameWriter writes the frames of a streamed response.
type FrameWriter interface {
	// Send writes a frame, to which it may append, and which may be reused afterwards. The name and the
	// id are those of an event, whose id may be negative: none. More frames follow at once if more is set.
	Send(ctx context.Context, name string, id int64, frame []byte, more bool) error

	// Close ends the response.
	Close() error
}

// NewFrameWriter begins a response of frames as NDJSON or, if kind is [TypeSSE], as events. WriteTimeout bounds each
// write.
func NewFrameWriter(w http.ResponseWriter, kind string, writeTimeout time.Duration) FrameWriter {
	if kind == TypeSSE {
		return &eventWriter{sse.NewWriter(w, &sse.WriterOptions{WriteTimeout: writeTimeout, KeepAlive: 15 * time.Second})}
	}
	w.Header().Set("Content-Type", TypeNDJSON)
	w.Header().Set("Cache-Control", "no-store")
	w = httpx.Bounded(w, writeTimeout)
	return &lineWriter{w: w, rc: http.NewResponseController(w)}
}

type eventWriter struct{ out *sse.Writer }

func (e *eventWriter) Send(ctx context.Context, name string, id int64, frame []byte, _ bool) error {
	text := ""
	if id >= 0 {
		text = strconv.FormatInt(id, 10)
	}
	return e.out.Send(ctx, name, text, frame)
}

func (e *eventWriter) Close() error { return e.out.Close() }

type lineWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (l *lineWriter) Send(_ context.Context, _ string, _ int64, frame []byte, more bool) error {
	_, err := l.w.Write(append(frame, '\n'))
	if err == nil && !more {
		_ = l.rc.Flush()
	}
	return err
}

func (l *lineWriter) Close() error { return nil }
