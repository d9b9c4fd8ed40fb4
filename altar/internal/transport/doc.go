// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package transport moves the frames of Altar over byte streams, WebSocket and HTTP (ALT-D03 to ALT-D05). A frame is the
// JSON text of one message; the package knows no message.
package transport

import (
	"io"

	"github.com/fivewire/fivewire/internal/wsconn"
)

// DefaultMaxFrame is the default limit of a frame, in bytes (ALT-D06).
const DefaultMaxFrame = 4 << 20

// A Conn moves frames between two peers, in order in each direction. Read is for one goroutine at a time, and so is Write;
// Close may be called at any moment, more than once, and makes both return.
type Conn interface {
	// Read returns the next frame. A frame over the limit of a byte stream is lines.ErrTooLong, and one
	// without memory is the error of SetReserve. Both come with the beginning of the frame, and the next call
	// continues after it. Any other error is final; it is io.EOF if the peer closed cleanly, and wraps
	// wsconn.ErrClosed after Close.
	Read() ([]byte, error)

	// SetReserve sets a function that reserves the memory of an incomplete frame of more than 64 KiB: it is
	// called with the number of bytes before they are used, and with 0 behind the frame. The end does not
	// call it. SetReserve is called before Read.
	SetReserve(reserve func(bytes int) error)

	// Write writes one frame, or several that end with a newline each.
	io.Writer

	// Limit returns the maximum length of a frame, and whether each frame is one Write. Otherwise frames
	// end with a newline.
	Limit() (maxOutput int, isSeparate bool)

	// HangUp ends the sending direction, so that the peer gets all that was sent. It reports whether
	// Read will return the end; if not, the connection must be closed.
	HangUp(why Goodbye) bool

	// Close ends the connection at once.
	Close() error
}

// A Goodbye is the reason why this side ends a connection (ALT-D04).
type Goodbye struct {
	Code   int // of WebSocket; zero means a cut
	Reason string
}

// Refused is the end of a connection whose peer did what it may not do. Reason is a code of Altar.
func Refused(reason string) Goodbye { return Goodbye{wsconn.CodeNotAllowed, reason} }
