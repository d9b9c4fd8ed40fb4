// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bufio"
	"errors"
	"io"
	"iter"
)

// ScanFrames yields the frames of a stream, such as the body of a streamed HTTP response, without decoding them. Each has
// at most maxFrame bytes, or 65,536 if that is zero, and is valid until the next one. Frames may be on separate lines, with
// LF or CRLF and blank lines between them, or adjacent (ACCP-D54). The last item is an error if the stream cannot be read:
// [ErrParse] for malformed text and for a truncated frame, which is [io.ErrUnexpectedEOF] as well.
func ScanFrames(r io.Reader, maxFrame int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for s := newScanner(r, maxFrame); ; {
			frame, err := s.Next()
			if err == io.EOF || !yield(frame, err) || err != nil {
				return
			}
		}
	}
}

// A scanner reads the frames of a stream.
type scanner struct {
	r   bufio.Reader
	max int
	buf []byte
	pos int // bytes read

	first [512]byte // memory of buf
}

func newScanner(r io.Reader, maxFrame int) *scanner {
	if maxFrame <= 0 {
		maxFrame = FrameLimits{}.withDefaults().MaxFrame
	}
	s := &scanner{max: maxFrame}
	s.buf = s.first[:0]
	s.r.Reset(r)
	return s
}

// Next returns the next frame, valid until the next call, or io.EOF after the last one.
func (s *scanner) Next() ([]byte, error) {
	s.buf = s.buf[:0]
	for { // between frames
		c, err := s.read()
		if err != nil {
			return nil, err // io.EOF: a clean end
		}
		if c == '\r' {
			if c, err = s.read(); err != nil || c != '\n' {
				return nil, s.broken(err, "carriage return without line feed")
			}
		}
		if c == '\n' {
			continue
		}
		if c != '@' {
			return nil, failAt(ErrParse, s.pos-1, "expected a frame")
		}
		s.buf = append(s.buf, c)
		break
	}
	if err := s.block('{', '}'); err != nil {
		return nil, err
	}
	if next, err := s.r.Peek(1); err == nil && next[0] == '[' {
		if err := s.block('[', ']'); err != nil {
			return nil, err
		}
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s.buf, nil
}

// block reads up to the bracket that closes the first open bracket. Brackets inside the values of a
// strict frame are escaped, so counting suffices.
func (s *scanner) block(open, end byte) error {
	depth := 0
	for {
		c, err := s.read()
		if err != nil {
			return s.broken(err, "frame is cut off")
		}
		if len(s.buf) >= s.max {
			return failAt(ErrParse, s.pos-1, "frame too long")
		}
		s.buf = append(s.buf, c)
		switch {
		case c == '\n' || c == '\r':
			return failAt(ErrParse, s.pos-1, "line end inside a frame")
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		case c == open:
			depth++
		case c == end:
			if depth--; depth <= 0 {
				if depth < 0 {
					return failAt(ErrParse, s.pos-1, "unbalanced bracket")
				}
				return nil
			}
		}
	}
}

// escape reads the rest of an escape.
func (s *scanner) escape() error {
	c, err := s.read()
	if err != nil {
		return s.broken(err, "frame is cut off")
	}
	if c == '\n' || c == '\r' {
		return failAt(ErrParse, s.pos-1, "line end inside a frame")
	}
	s.buf = append(s.buf, c)
	if c == 'u' { // \u{…} contains brackets
		return s.codePoint()
	}
	return nil
}

func (s *scanner) codePoint() error {
	for range len("{10FFFF}") {
		c, err := s.read()
		if err != nil {
			return s.broken(err, "frame is cut off")
		}
		s.buf = append(s.buf, c)
		if c == '}' {
			return nil
		}
		if c == '\n' || c == '\r' {
			break
		}
	}
	return failAt(ErrParse, s.pos-1, `malformed \u{}`)
}

func (s *scanner) read() (byte, error) {
	c, err := s.r.ReadByte()
	if err == nil {
		s.pos++
	}
	return c, err
}

// broken returns the error for a frame that ends early: ErrParse and io.ErrUnexpectedEOF.
func (s *scanner) broken(err error, what string) error {
	e := failAt(ErrParse, s.pos, what)
	if err != nil {
		e.Cause = err
		if errors.Is(err, io.EOF) {
			e.Cause = io.ErrUnexpectedEOF
		}
	}
	return e
}
