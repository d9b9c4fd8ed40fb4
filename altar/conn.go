// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
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

// errNoConn and errNoDialer report nil of user code. Another attempt would bring the same.
var (
	errNoConn   = retry.Mark(errors.New("altar: nil Conn"), retry.Permanent, 0)
	errNoDialer = retry.Mark(errors.New("altar: missing Dialer"), retry.Permanent, 0)
)

// open makes a connection.
func (d Dialer) open(ctx context.Context) (conn Conn, err error) {
	if d == nil {
		return nil, errNoDialer
	}
	err = guard.CallApart("Dialer", func() (err error) {
		conn, err = d(ctx)
		return err
	})
	if err == nil && conn == nil {
		err = errNoConn
	}
	return conn, err
}

// A frameConn is a Conn that sends messages as frames. All Conns are, but those in one process.
type frameConn interface {
	Conn
	io.Writer
	Limit() (maxOutput int, isSeparate bool)
	HangUp(why transport.Goodbye) bool
}

var (
	goodbyeEnd      = transport.Goodbye{Code: wsconn.CodeNormal}
	goodbyeDraining = transport.Goodbye{Code: wsconn.CodeShutdown, Reason: "draining"}
	goodbyePanic    = transport.Goodbye{Code: wsconn.CodeInternal}
	goodbyeReplaced = transport.Goodbye{Code: wsconn.CodeReplaced, Reason: string(ReasonReplaced)}
)

func goodbyeRefused(code Code) transport.Goodbye { return transport.Refused(string(code)) }

// A wireConn is the Conn over a byte stream or a WebSocket.
type wireConn struct {
	transport.Conn
	decode decodeOptions
	source TokenSource // of the handshake of a WebSocket, or nil
}

func newWireConn(c transport.Conn, maxMessage int) *wireConn {
	_, isSeparate := c.Limit()
	return &wireConn{Conn: c, decode: decodeOptions{maxMessage: maxMessage, recent: new(strictjson.Strings), isBorrowed: !isSeparate}}
}

func (c *wireConn) Receive() (Message, error) {
	frame, err := c.Read()
	if full := overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err); full != nil {
		return nil, unreadFrame(frame, full)
	}
	if err != nil {
		return nil, notRead(err)
	}
	return decodeMessage(frame, c.decode)
}

// notRead returns the error of a frame that a transport did not read.
func notRead(err error) error {
	switch {
	case errors.Is(err, lines.ErrTooLong):
		return frameError(reasonMessageTooLarge)
	case errors.Is(err, lines.ErrUnterminated):
		return ErrTruncated
	case errors.Is(err, wsconn.ErrClosed):
		return errors.Join(ErrClosed, err)
	}
	return err
}

func (c *wireConn) Send(m Message) error {
	frame, err := appendFrame(nil, c, m, false)
	if err == nil {
		_, err = c.Write(frame)
	}
	return err
}

// isDrained reports, after the end, whether the Host has answered all that it took, and shut down.
func (c *wireConn) isDrained() bool {
	w, ok := c.Conn.(*transport.WebSocket)
	return ok && w.IsDrained()
}

// StreamConnOptions adjusts [NewStreamConn]. A negative value removes a bound.
type StreamConnOptions struct {
	MaxMessage int // of a received message, in bytes; zero means 4 MiB
	MaxOutput  int // of a sent message, in bytes; zero means 4 MiB
}

// NewStreamConn returns a connection over a byte stream: TCP, TLS, a Unix socket,
// a pipe (ALT-D03). It takes the stream over and closes it. For nil it returns nil,
// which a Host, a Runtime and a client refuse.
func NewStreamConn(rwc io.ReadWriteCloser, opts *StreamConnOptions) Conn {
	if rwc == nil {
		return nil
	}
	var o StreamConnOptions
	if opts != nil {
		o = *opts
	}
	o.MaxMessage, o.MaxOutput = option.Count(o.MaxMessage, defaultMaxMessage), option.Count(o.MaxOutput, defaultMaxMessage)
	return newWireConn(transport.NewStream(rwc, o.MaxMessage, o.MaxOutput), o.MaxMessage)
}

// Join joins two one-way streams, such as the standard streams of a program
// that a Host started, to one for [NewStreamConn].
func Join(in io.ReadCloser, out io.WriteCloser) io.ReadWriteCloser {
	return stdio{in, out}
}

type stdio struct {
	io.ReadCloser
	out io.WriteCloser
}

func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

func (s stdio) Close() error { return errors.Join(s.out.Close(), s.ReadCloser.Close()) }

// appendFrame appends a message as w sends it. An error is an [*Error], and nothing was appended.
func appendFrame(dst []byte, w frameConn, m Message, isTrusted bool) ([]byte, error) {
	n := len(dst)
	frame, err := appendMessage(dst, m, isTrusted)
	if err != nil {
		return dst, err
	}
	limit, isSeparate := w.Limit()
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

// NewID returns a random id for invocations and requests.
func NewID() string { return randid.UUID4() }
