// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// maxDepth is how deep an unterminated line is examined.
const maxDepth = 64

// A Reader splits a byte stream into the frames of NDJSON (ALT-D03). It is for one goroutine at a time.
type Reader struct {
	lines *lines.Reader
	end   error
}

// NewReader returns a reader of the frames of r. MaxFrame bounds a frame in bytes; zero means
// [DefaultMaxFrame].
func NewReader(r io.Reader, maxFrame int) *Reader {
	if maxFrame <= 0 {
		maxFrame = DefaultMaxFrame
	}
	return &Reader{lines: lines.NewReader(r, maxFrame)}
}

// Read returns the next frame, which is valid until the next call. A frame above the limit is
// [lines.ErrTooLong] with its beginning, and the next call continues after it. An end within a frame is [lines.ErrUnterminated];
// the call after that returns [io.EOF].
func (f *Reader) Read() ([]byte, error) {
	for f.end == nil {
		line, err := f.lines.Next()
		switch {
		case err == nil:
			if !lines.Blank(line) {
				return line, nil
			}
		case errors.Is(err, lines.ErrUnterminated):
			f.end = io.EOF
			if lines.Blank(line) {
				break
			}
			if !isComplete(line) {
				return nil, err
			}
			return line, nil
		case line != nil: // the beginning of a refused frame
			return line, err
		default:
			f.end = err
		}
	}
	return nil, f.end
}

// SetReserve implements [Conn].
func (f *Reader) SetReserve(reserve func(bytes int) error) { f.lines.SetReserve(reserve) }

// isComplete reports whether an unterminated line is a complete JSON value.
func isComplete(line []byte) bool {
	_, err := strictjson.Check(line, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
	var fault *strictjson.Error
	if errors.As(err, &fault) {
		return fault.Kind == strictjson.Duplicate || fault.Kind == strictjson.Depth
	}
	return err == nil
}

// A Stream is a [Conn] over a byte stream: TCP, TLS, a Unix socket, a pipe (ALT-D03).
type Stream struct {
	*Reader
	rwc       io.ReadWriteCloser
	maxOutput int

	closing sync.Once
	closed  error
}

// NewStream returns a connection over a byte stream, which it takes over and closes.
func NewStream(rwc io.ReadWriteCloser, maxFrame, maxOutput int) *Stream {
	return &Stream{Reader: NewReader(rwc, maxFrame), rwc: rwc, maxOutput: maxOutput}
}

// Limit implements [Conn].
func (c *Stream) Limit() (maxOutput int, isSeparate bool) { return c.maxOutput, false }

// Write writes whole frames.
func (c *Stream) Write(frames []byte) (n int, err error) { return c.rwc.Write(frames) }

// HangUp closes the sending direction, where the stream has two. A refused peer can read why: what it still
// sends is read and discarded for a moment, because closing before would cost the answer.
func (c *Stream) HangUp(why Goodbye) (isHalf bool) {
	_ = guard.Call("stream", func() error {
		isHalf = c.closeWrite(why)
		return nil
	})
	return isHalf
}

func (c *Stream) closeWrite(why Goodbye) bool {
	half, ok := c.rwc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return false
	}
	if why.Code != wsconn.CodeNotAllowed {
		return true
	}
	timed, ok := c.rwc.(interface{ SetReadDeadline(time.Time) error })
	if ok && timed.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, c.rwc, 1<<20)
	}
	return false
}

// Close implements [Conn].
func (c *Stream) Close() error {
	c.closing.Do(func() { c.closed = guard.Call("stream", c.rwc.Close) })
	return c.closed
}
