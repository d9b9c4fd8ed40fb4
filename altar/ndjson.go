// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// A frameReader splits a byte stream into the frames of NDJSON (ALT-D03). It is for
// one goroutine at a time.
type frameReader struct {
	lines *lines.Reader
	end   error
}

// newFrameReader returns a reader of the frames of r. Max bounds a frame in
// bytes; zero means 4 MiB.
func newFrameReader(r io.Reader, max int) *frameReader {
	if max <= 0 {
		max = defaultMaxMessage
	}
	return &frameReader{lines: lines.NewReader(r, max)}
}

// Next returns the next frame, which is valid until the next call. A frame above the limit is a
// [*badFrame] with reason message_too_large, and the next call continues after it. An end within
// a frame is [ErrTruncated]; the call after that returns [io.EOF].
func (f *frameReader) Next() ([]byte, error) {
	for f.end == nil {
		line, err := f.lines.Next()
		switch {
		case err == nil:
			if !lines.Blank(line) {
				return line, nil
			}
		case errors.Is(err, lines.ErrTooLong):
			return nil, frameError(reasonMessageTooLarge)
		case errors.Is(err, lines.ErrUnterminated):
			f.end = io.EOF
			if lines.Blank(line) {
				break
			}
			if !complete(line) {
				return nil, ErrTruncated
			}
			return line, nil
		default:
			f.end = err
		}
	}
	return nil, f.end
}

// complete reports whether an unterminated line is a complete JSON value.
func complete(line []byte) bool {
	_, err := strictjson.Check(line, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
	var fault *strictjson.Error
	if errors.As(err, &fault) {
		return fault.Kind == strictjson.Duplicate || fault.Kind == strictjson.Depth
	}
	return err == nil
}

// StreamConnOptions adjusts [NewStreamConn]. A negative value removes a bound.
type StreamConnOptions struct {
	MaxMessage int // of a received message, in bytes; zero means 4 MiB
	MaxOutput  int // of a sent message, in bytes; zero means 4 MiB
}

// NewStreamConn returns a connection over a byte stream: TCP, TLS, a Unix socket,
// a pipe (ALT-D03). It takes the stream over and closes it.
func NewStreamConn(rwc io.ReadWriteCloser, opts *StreamConnOptions) Conn {
	var o StreamConnOptions
	if opts != nil {
		o = *opts
	}
	c := &ndjson{rwc: rwc, max: option.Count(o.MaxMessage, defaultMaxMessage), maxOutput: option.Count(o.MaxOutput, defaultMaxMessage)}
	c.frames = newFrameReader(rwc, c.max)
	return c
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

type ndjson struct {
	rwc       io.ReadWriteCloser
	frames    *frameReader
	max       int
	maxOutput int
	recent    strictjson.Strings
	isPeer    bool // of two Hosts

	closing sync.Once
	closed  error
}

func (c *ndjson) Receive() (Message, error) {
	frame, err := c.frames.Next()
	if err != nil {
		return nil, err
	}
	return decodeMessage(frame, decodeOptions{maxMessage: c.max, recent: &c.recent, isPeer: c.isPeer, isBorrowed: true})
}

func (c *ndjson) Send(m Message) error { return sendFrame(c, m) }

func (c *ndjson) limit() (maxOutput int, isSeparate bool) { return c.maxOutput, false }

// Write writes whole frames.
func (c *ndjson) Write(frames []byte) (n int, err error) {
	err = guard.Call("stream", func() (err error) {
		n, err = c.rwc.Write(frames)
		return err
	})
	return n, err
}

// hangUp closes the sending direction, where the stream has two. A refused peer can read why:
// what it still sends is read and discarded for a moment, because closing before would cost the
// answer.
func (c *ndjson) hangUp(why goodbye) (isHalf bool) {
	_ = guard.Call("stream", func() error {
		isHalf = c.closeWrite(why)
		return nil
	})
	return isHalf
}

func (c *ndjson) closeWrite(why goodbye) bool {
	half, ok := c.rwc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return false
	}
	if why.code != wsconn.CodeNotAllowed {
		return true
	}
	timed, ok := c.rwc.(interface{ SetReadDeadline(time.Time) error })
	if ok && timed.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, c.rwc, 1<<20)
	}
	return false
}

func (c *ndjson) Close() error {
	c.closing.Do(func() { c.closed = guard.Call("stream", c.rwc.Close) })
	return c.closed
}
