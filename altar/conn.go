// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"fmt"
	"io"
)

// A Conn moves whole messages between two peers, in order in each direction
// (ALT-002). Receive is for one goroutine at a time, and so is Send; Close may be
// called at any moment, more than once, and makes both return.
type Conn interface {
	// Receive returns the next message. A [*DecodeError] reports one invalid frame; the next call
	// continues after it. Any other error is final; it is [io.EOF] if the peer closed the
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

// ErrTruncated reports a byte stream that ended within a message.
var ErrTruncated = fmt.Errorf("altar: stream ended within a message: %w", io.ErrUnexpectedEOF)
