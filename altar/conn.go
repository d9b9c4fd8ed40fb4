// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"fmt"
	"io"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// A Conn moves whole messages between two peers, in order in each direction
// (ALT-002). Receive is for one goroutine at a time, and so is Send; Close may be
// called at any moment, more than once, and makes both return.
type Conn interface {
	// Receive returns the next message. An error of [DecodeMessage] reports one invalid frame; the
	// next call continues after it. Any other error is final; it is [io.EOF] if the peer closed the
	// connection cleanly.
	Receive() (Message, error)

	// Send hands a message to the transport. It may block while the peer does
	// not read.
	Send(m Message) error

	// Close ends the connection at once.
	Close() error
}

// ErrClosed reports use of something that was closed on this side.
var ErrClosed = errors.New("altar: closed")

// ErrTooLarge reports a message over MaxOutput or the limit of the receiver. It was not sent.
var ErrTooLarge = errors.New("altar: too large")

// ErrTruncated reports a byte stream that ended within a message.
var ErrTruncated = fmt.Errorf("altar: truncated: %w", io.ErrUnexpectedEOF)

// A frameConn is a Conn that sends messages as text. All Conns of this package are, but those in one
// process and over HTTP.
type frameConn interface {
	Conn
	io.Writer // of frames

	// limit returns the maximum length of a frame, and whether each frame is one Write. Otherwise
	// frames end with a newline.
	limit() (maxOutput int, isSeparate bool)

	// hangUp ends the sending direction, so that the peer gets all that was sent. It reports whether
	// the reader will receive the end; if not, the connection must be closed.
	hangUp(why goodbye) bool
}

// A goodbye is the reason why this side ends a connection (ALT-D04).
type goodbye struct {
	code   int // of WebSocket; zero means a cut
	reason string
}

var (
	goodbyeEnd      = goodbye{wsconn.CodeNormal, ""}
	goodbyeDraining = goodbye{wsconn.CodeShutdown, "draining"}
	goodbyePanic    = goodbye{wsconn.CodeInternal, ""}
	goodbyeReplaced = goodbye{wsconn.CodeReplaced, string(ReasonReplaced)}
)

func goodbyeRefused(code Code) goodbye { return goodbye{wsconn.CodeNotAllowed, string(code)} }

// appendFrame appends a message as w sends it. An error is an [*Error], and nothing was appended.
func appendFrame(dst []byte, w frameConn, m Message, isTrusted bool) ([]byte, error) {
	n := len(dst)
	frame, err := appendMessage(dst, m, isTrusted)
	if err != nil {
		return dst, err
	}
	limit, isSeparate := w.limit()
	if len(frame)-n > limit {
		return dst, errTooLarge(len(frame)-n, limit)
	}
	if !isSeparate {
		frame = append(frame, '\n')
	}
	return frame, nil
}

func errTooLarge(n, limit int) *Error {
	e := Errorf(ErrInvalidParameters, reasonMessageTooLarge, "the message has %d bytes, the limit is %d (MaxOutput, or MaxMessage of the peer)", n, limit)
	e.Cause = ErrTooLarge
	return e
}

func sendFrame(w frameConn, m Message) error {
	frame, err := appendFrame(nil, w, m, false)
	if err == nil {
		_, err = w.Write(frame)
	}
	return err
}

// NewID returns a random id for invocations and requests.
func NewID() string { return randid.UUID4() }
