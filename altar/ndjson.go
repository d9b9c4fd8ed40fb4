// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A FrameReader splits a byte stream into the frames of NDJSON (ALT-D03). It is for
// one goroutine at a time.
type FrameReader struct {
	lines *lines.Reader
	end   error
}

// NewFrameReader returns a reader of the frames of r. Max bounds a frame in
// bytes; zero means [DefaultMaxMessage].
func NewFrameReader(r io.Reader, max int) *FrameReader {
	if max <= 0 {
		max = DefaultMaxMessage
	}
	return &FrameReader{lines: lines.NewReader(r, max)}
}

// Next returns the next frame, which is valid until the next call. A frame above the limit is a
// [*DecodeError] with reason message_too_large, and the next call continues after it. An end within
// a frame is [ErrTruncated]; the call after that returns [io.EOF].
func (f *FrameReader) Next() ([]byte, error) {
	for f.end == nil {
		line, err := f.lines.Next()
		switch {
		case err == nil:
			if !lines.Blank(line) {
				return line, nil
			}
		case errors.Is(err, lines.ErrTooLong):
			return nil, frameError(ReasonMessageTooLarge)
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

// StreamConnOptions adjusts [NewStreamConn].
type StreamConnOptions struct {
	// MaxMessage bounds a received message, in bytes. Zero means 4 MiB.
	MaxMessage int
}

// NewStreamConn returns a connection over a byte stream: TCP, TLS, a Unix socket,
// a pipe (ALT-D03). It takes the stream over and closes it.
func NewStreamConn(rwc io.ReadWriteCloser, opts *StreamConnOptions) Conn {
	c := &ndjson{rwc: rwc, max: DefaultMaxMessage}
	if opts != nil && opts.MaxMessage > 0 {
		c.max = opts.MaxMessage
	}
	c.frames = NewFrameReader(rwc, c.max)
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
	rwc    io.ReadWriteCloser
	frames *FrameReader
	max    int
	out    []byte // reused by Send
	recent recentTexts

	closing sync.Once
	closed  error
}

func (c *ndjson) Receive() (Message, error) {
	frame, err := c.frames.Next()
	if err != nil {
		return nil, err
	}
	own := make([]byte, len(frame)) // the message keeps it
	copy(own, frame)
	return DecodeMessage(own, &DecodeOptions{MaxMessage: c.max, recent: &c.recent})
}

func (c *ndjson) Send(m Message) error { return c.send(false, m) }

// sendBatch writes several messages at once, whose raw JSON is known to be
// valid.
func (c *ndjson) sendBatch(list []Message) error { return c.send(true, list...) }

func (c *ndjson) send(trusted bool, list ...Message) error {
	out := c.out[:0]
	var failed error
	for _, m := range list {
		var err error
		if out, err = appendMessage(out, m, trusted); err != nil {
			failed = err // the others go out
			continue
		}
		out = append(out, '\n')
	}
	if cap(out) <= 64<<10 {
		c.out = out
	}
	if len(out) > 0 {
		if _, err := c.rwc.Write(out); err != nil {
			return err
		}
	}
	return failed
}

// hangUp closes the sending direction, where the stream has two.
func (c *ndjson) hangUp() bool {
	half, ok := c.rwc.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// closeRefused lets a peer that is refused read why: what it still sends is
// read and thrown away for a moment, because closing over it would cost the
// answer.
func (c *ndjson) closeRefused() {
	timed, ok := c.rwc.(interface{ SetReadDeadline(time.Time) error })
	if ok && c.hangUp() && timed.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, c.rwc, 1<<20)
	}
}

func (c *ndjson) Close() error {
	c.closing.Do(func() { c.closed = c.rwc.Close() })
	return c.closed
}
