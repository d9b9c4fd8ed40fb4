// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"errors"
	"io"
	"unicode/utf8"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lines"
)

// A lineReader splits a byte stream into the lines of messages. It is for one
// goroutine at a time.
type lineReader struct {
	r     *lines.Reader
	limit int
	codec *Codec
}

// setMax replaces the limit of the codec. Zero means no limit.
func (r *lineReader) setMax(limit int) {
	r.limit = limit
	r.r.SetMax(limit)
}

// newLineReader returns a lineReader of r with the limit and the mode of codec.
// Nil means those of the zero [Codec].
func newLineReader(r io.Reader, codec *Codec) *lineReader {
	if codec == nil {
		codec = &Codec{}
	}
	limit := codec.maxBytes()
	return &lineReader{r: lines.NewReader(r, limit), limit: limit, codec: codec}
}

// next returns the next line that is not blank, without its line end. It is valid until the next
// call. The check of its encoding is left to the codec.
//
// An [*Error] concerns one line and not the stream; the next call continues after that line. A last
// line without line feed is accepted if it is a complete object, which cannot be the beginning of
// another one (A2E-D05). The end of the stream is [io.EOF]; any other error ends it too.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.r.Next()
		if e := r.refused(err); e != nil {
			e.ReqID, e.msgType, e.refID = headMembers(line)
			return nil, e
		}
		switch {
		case err == nil:
			if !lines.Blank(line) {
				return line, nil
			}
		case errors.Is(err, lines.ErrUnterminated):
			if lines.Blank(line) {
				return nil, io.EOF
			}
			return r.last(line)
		default:
			return nil, err
		}
	}
}

// refused returns the error of a line that is too long, or for which there is no memory. Other errors are nil.
func (r *lineReader) refused(err error) *Error {
	if errors.Is(err, lines.ErrTooLong) {
		return tooLarge(ErrInvalidMessage, ReasonTooLarge, r.limit)
	}
	if full, ok := errors.AsType[*budget.Error](err); ok {
		return errOverloaded(full)
	}
	return nil
}

func (r *lineReader) last(line []byte) ([]byte, error) {
	if _, err := validText(line); err != nil {
		return nil, err
	}
	if !r.codec.Strict && complete(line) {
		return line, nil
	}
	return nil, reasoned(ErrParse, reasonTruncated, "the stream ended inside a message")
}

// validText returns a line of valid UTF-8, or an error.
func validText(line []byte) ([]byte, error) {
	if !utf8.Valid(line) {
		return nil, reasoned(ErrParse, reasonInvalidUTF8, "line is not valid UTF-8")
	}
	return line, nil
}

// complete reports whether text is an object by its syntax alone.
func complete(text []byte) bool {
	v, err := wire.CheckJSON(text)
	if err == nil {
		return v.IsObject()
	}
	s := scanner{text: text, maxDepth: 10000, repeats: true}
	if s.space(); s.peek() != '{' {
		return false
	}
	switch s.value(0) {
	case "":
		s.space()
		return s.at == len(text)
	case ReasonTooDeep:
		_, depth := nesting(text) // beyond the depth limit of the scanner
		return depth == 0
	}
	return false
}

// nesting returns the greatest number of open brackets in a text, and the number at its end.
func nesting(text []byte) (deepest, depth int) {
	for i := 0; i < len(text); {
		switch text[i] {
		case '"':
			i, _ = stringEnd(text, i, false)
			continue
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
		i++
	}
	return deepest, depth
}
