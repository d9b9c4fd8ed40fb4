// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"errors"
	"io"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A LineReader splits a byte stream into the lines of messages. It is for one
// goroutine at a time.
type LineReader struct {
	r     *lines.Reader
	codec *Codec
}

// NewLineReader returns a LineReader of r with the limit and the mode of codec.
// Nil means those of the zero [Codec].
func NewLineReader(r io.Reader, codec *Codec) *LineReader {
	if codec == nil {
		codec = &Codec{}
	}
	return &LineReader{r: lines.NewReader(r, codec.maxBytes()), codec: codec}
}

// Next returns the next line that is not blank, without its line end. It is
// valid until the next call.
//
// An [*Error] is a fault of one line and not of the stream; the next call goes
// on behind it. A last line without line feed is accepted if it is a complete
// object, which cannot be the beginning of another one (A2E-D05). The end of the
// stream is [io.EOF]; any other error ends it too.
func (r *LineReader) Next() ([]byte, error) {
	line, err := r.next()
	if err == nil && !utf8.Valid(line) {
		return nil, reasoned(ErrParse, ReasonInvalidUTF8, "line is not valid UTF-8")
	}
	return line, err
}

// next is Next without the look at the encoding.
func (r *LineReader) next() ([]byte, error) {
	for {
		line, err := r.r.Next()
		switch {
		case err == nil:
			if !lines.Blank(line) {
				return line, nil
			}
		case errors.Is(err, lines.ErrTooLong):
			return nil, reasoned(ErrInvalidMessage, ReasonTooLarge, "message is too long")
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

func (r *LineReader) last(line []byte) ([]byte, error) {
	if !utf8.Valid(line) {
		return nil, reasoned(ErrParse, ReasonInvalidUTF8, "line is not valid UTF-8")
	}
	if !r.codec.Strict && complete(line) {
		return line, nil
	}
	return nil, reasoned(ErrParse, ReasonTruncated, "the stream ended inside a message")
}

// complete reports whether text is an object by its syntax alone; what else may
// be wrong with it the codec says.
func complete(text []byte) bool {
	v, err := strictjson.Check(text, strictjson.Options{MaxDepth: 10000})
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
		return balanced(text)
	}
	return false
}

// balanced reports whether the brackets of a text close, for texts that are nested
// too deep to be looked at in any other way.
func balanced(text []byte) bool {
	depth := 0
	for i := 0; i < len(text); {
		switch text[i] {
		case '"':
			i, _ = stringEnd(text, i, false)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		i++
	}
	return depth == 0
}

// A Reader reads messages from a byte stream. It is for one goroutine at a time.
type Reader struct {
	lines *LineReader
}

// NewReader returns a Reader of r. Nil codec means the zero [Codec].
func NewReader(r io.Reader, codec *Codec) *Reader {
	return &Reader{lines: NewLineReader(r, codec)}
}

// Next returns the next message. Errors are those of [LineReader.Next] and
// [Codec.Decode].
func (r *Reader) Next() (*Message, error) {
	line, err := r.lines.next()
	if err != nil {
		return nil, err
	}
	return r.lines.codec.Decode(line)
}

// A Writer writes messages to a byte stream, each with one line feed and in one
// write call. It may be used by several goroutines at a time.
type Writer struct {
	w     *lines.Writer
	codec *Codec
}

// NewWriter returns a Writer to w. Nil codec means the zero [Codec].
func NewWriter(w io.Writer, codec *Codec) *Writer {
	if codec == nil {
		codec = &Codec{}
	}
	return &Writer{w: lines.NewWriter(w, 0), codec: codec}
}

// Write writes one message and returns when the stream has taken it.
func (w *Writer) Write(m *Message) error {
	line, err := w.codec.Append(nil, m)
	if err != nil {
		return err
	}
	return w.w.WriteLine(line)
}
