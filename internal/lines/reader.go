// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/fivewire/fivewire/internal/guard"
)

var (
	// ErrTooLong reports a line that is longer than the limit of its [Reader]. The Reader continues
	// with the next line.
	ErrTooLong = errors.New("lines: line too long")

	// ErrUnterminated comes with a last line that the stream ended without an LF. It wraps
	// [io.ErrUnexpectedEOF], but is distinct from a stream that fails with that error.
	ErrUnterminated = fmt.Errorf("lines: last line has no line end: %w", io.ErrUnexpectedEOF)
)

const (
	minBuffer  = 4 << 10  // what a fresh Reader holds
	keepBuffer = 64 << 10 // what a Reader keeps after a big line
	minRead    = 512      // less room than this is not worth a read call
	maxEmpty   = 100      // reads without bytes and without error in a row
	headSize   = 4 << 10  // bytes that Next returns of a line above the limit
)

var bom = []byte("\xef\xbb\xbf")

// A Reader splits a byte stream into lines. Only LF ends a line; one CR before
// it belongs to the line end, any other CR to the line. One UTF-8 byte order
// mark at the very start of the stream is dropped.
//
// A Reader holds 4 KiB at rest, grows with the line it is reading up to the
// limit, and gives a grown buffer back once the line has been consumed. It is
// for one goroutine at a time.
type Reader struct {
	r   io.Reader
	max int // longest line; 0 is no limit

	buf        []byte
	start, end int // unread bytes are buf[start:end]
	seen       int // buf[start:start+seen] holds no LF

	reserve   func(bytes int) error // of a large buffer; may be nil
	isStarted bool                  // the byte order mark has been looked for
	skip      bool                  // inside the rest of a line that was too long
	err       error                 // what the stream ended with; sticky
}

// NewReader returns a Reader of the lines of r. A line may have max bytes, not
// counting the byte order mark and the line end; zero or less means no limit.
func NewReader(r io.Reader, max int) *Reader {
	if max < 0 || max > math.MaxInt-minRead-2 { // the sums below must not overflow
		max = 0
	}
	return &Reader{r: r, max: max}
}

// SetMax replaces the longest line, like max of [NewReader], from the next call of Next.
func (r *Reader) SetMax(max int) { r.max = max }

// SetReserve sets a function that is called before the buffer grows beyond 64 KiB, with the new size, and with 0 when it
// has shrunk again. A line for which it returns an error is refused. The end of the stream does not call it.
func (r *Reader) SetReserve(reserve func(bytes int) error) { r.reserve = reserve }

// Next returns the next line without its line end. The line is a part of the
// Reader's buffer and valid until the next call; the caller may change it, and
// append to it without harm to the lines after it.
//
// A line above the limit is [ErrTooLong] with its first 4 KiB, once and as soon as
// both have arrived, and its rest is discarded without being kept; the next call
// returns the line after it. A line for which there is no memory is the error of
// the function of SetReserve, in the same way. At the end of the stream, a last line without LF is
// returned together with [ErrUnterminated], for the caller to judge; after
// it, or after a last line that was ended, comes [io.EOF]. Any other error of
// the stream ends it as well, and drops an unfinished line. Both stay.
func (r *Reader) Next() ([]byte, error) {
	r.shrink()
	for {
		if line, ok := r.cutLine(); ok {
			if r.skip {
				r.skip = false
				continue
			}
			if r.max > 0 && len(line) > r.max {
				return line[:min(len(line), headSize)], ErrTooLong
			}
			return line, nil
		}
		if r.skip {
			r.start, r.end, r.seen = 0, 0, 0
		} else if r.tooLong() {
			r.skip = true
			head := r.buf[r.start:min(r.end, r.start+headSize)]
			r.start, r.end, r.seen = 0, 0, 0
			return head, ErrTooLong
		}
		if r.err != nil {
			return r.last()
		}
		if err := r.fill(); err != nil {
			r.skip = true
			head := bytes.Clone(r.buf[r.start:min(r.end, r.start+headSize)])
			r.start, r.end, r.seen = 0, 0, 0
			r.shrink()
			return head, err
		}
		if !r.isStarted {
			r.begin()
		}
	}
}

// ended cuts the first complete line off the buffer.
func (r *Reader) cutLine() ([]byte, bool) {
	if !r.isStarted {
		return nil, false
	}
	i := bytes.IndexByte(r.buf[r.start+r.seen:r.end], '\n')
	if i < 0 {
		r.seen = r.end - r.start
		return nil, false
	}
	line := r.buf[r.start : r.start+r.seen+i]
	r.start += r.seen + i + 1
	r.seen = 0
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line[:len(line):len(line)], true
}

// tooLong reports whether the unfinished line can no longer fit the limit and its head is complete.
// A CR just past the limit may turn out to be a part of the line end.
func (r *Reader) tooLong() bool {
	n := r.end - r.start
	if r.max == 0 || !r.isStarted || n <= r.max {
		return false
	}
	return r.err != nil || n >= headSize && (n > r.max+1 || r.buf[r.end-1] != '\r')
}

// last returns the remaining bytes before the end of the stream.
func (r *Reader) last() ([]byte, error) {
	line := r.buf[r.start:r.end]
	r.start, r.end, r.seen = 0, 0, 0
	if r.err == io.EOF && len(line) > 0 {
		return line[:len(line):len(line)], ErrUnterminated
	}
	return nil, r.err
}

// begin drops the byte order mark once enough bytes are there to tell.
func (r *Reader) begin() {
	head := r.buf[r.start:r.end]
	if len(head) < len(bom) && bytes.HasPrefix(bom, head) && r.err == nil {
		return
	}
	r.isStarted = true
	if bytes.HasPrefix(head, bom) {
		r.start += len(bom)
	}
}

// fill reads once, after making room. An error means that there is no memory for the line.
func (r *Reader) fill() error {
	if len(r.buf)-r.end < minRead {
		if r.start > 0 { // happens once a line: afterwards it starts at zero
			r.end = copy(r.buf, r.buf[r.start:r.end])
			r.start = 0
		}
		if len(r.buf)-r.end < minRead {
			if err := r.grow(); err != nil {
				return err
			}
		}
	}
	for range maxEmpty {
		n := 0
		err := guard.Call("stream", func() (err error) {
			n, err = r.r.Read(r.buf[r.end:])
			return err
		})
		if n < 0 || n > len(r.buf)-r.end {
			n, err = 0, errBadRead
		}
		r.end += n
		r.err = err
		if n > 0 || err != nil {
			return nil
		}
	}
	r.err = io.ErrNoProgress
	return nil
}

var errBadRead = errors.New("lines: reader returned an impossible count")

func (r *Reader) grow() error {
	size := max(2*len(r.buf), minBuffer)
	if r.max > 0 {
		// One CR and one LF past the limit or the head, and room for a read: with
		// a full buffer of this size the line is known to be too long.
		size = min(size, max(r.max, headSize)+2+minRead)
	}
	if r.reserve != nil && size > keepBuffer {
		if err := r.reserve(size); err != nil {
			return err
		}
	}
	buf := make([]byte, size)
	r.end = copy(buf, r.buf[:r.end])
	r.buf = buf
	return nil
}

// shrink gives the buffer of a big line back when the line has been consumed.
func (r *Reader) shrink() {
	if rest := r.end - r.start; len(r.buf) > keepBuffer && rest <= minBuffer-minRead {
		buf := make([]byte, minBuffer)
		copy(buf, r.buf[r.start:r.end])
		r.buf, r.start, r.end = buf, 0, rest
		if r.reserve != nil {
			_ = r.reserve(0)
		}
	}
}

// Blank reports whether the line holds nothing but spaces, tabs and CRs. Both
// protocols that speak NDJSON pass such lines over.
func Blank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}
