// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"
)

// ErrTooLarge reports the data of an event, or a line of another kind, above the
// limits of the [Reader].
var ErrTooLarge = errors.New("sse: event too large")

// Limits that hold where [ReaderOptions] names none.
const (
	DefaultMaxData = 16 << 20
	DefaultMaxLine = 64 << 10
)

const (
	bufferSize = 4 << 10  // as large as the buffers of net/http below it
	keepData   = 64 << 10 // data space that is kept from one event to the next
	maxEmpty   = 100      // reads without bytes and without error in a row
	maxNames   = 8        // event names that are remembered
	maxName    = 64       // and the longest of them
)

// ReaderOptions adjusts a [Reader]. The zero value is right for production.
type ReaderOptions struct {
	// MaxData bounds the data of one event, that is len(Event.Data), in bytes:
	// as many pass, one more does not. Zero means DefaultMaxData.
	MaxData int

	// MaxLine bounds the length in bytes of every line that carries no data:
	// names, ids, comments and unknown fields. Zero means DefaultMaxLine.
	MaxLine int
}

// An Event is one dispatched event.
type Event struct {
	// Name is the event's type; empty if the event named none, which a browser
	// calls "message".
	Name string

	// Data is the event's data, its lines joined by LF. It belongs to the
	// Reader and is valid until the next call of Next.
	Data []byte

	// ID is the current last event id: that of the event, or of an earlier one.
	ID string

	// Retry is the current reconnection time, zero if the stream set none.
	Retry time.Duration
}

// A Reader reads events from a stream. It is for one goroutine at a time, with
// the exception of Comments.
type Reader struct {
	r    io.Reader
	opts ReaderOptions

	buf        []byte
	start, end int // unread bytes are buf[start:end]
	lf, cr     int // first LF and first CR among them; end if there is none

	state  state  // what the line being read is
	line   []byte // its beginning, in stateField
	length int    // its length so far, in stateComment
	first  bool   // a byte order mark may still come
	skipLF bool   // the last line ended with CR: an LF now belongs to it

	name    string
	data    []byte // of the event being read, with an LF after each finished line
	hasData bool
	excess  []byte // data over the limit
	id      string // takes effect at the end of the event
	lastID  string // in effect
	retry   time.Duration
	retried bool

	names    [maxNames]string // seen before, so that they need no allocation
	nextName int
	comments atomic.Uint64

	err      error // what the stream ended with
	finished bool  // Next has returned err
}

// state is the kind of the line being read.
type state uint8

const (
	stateField   state = iota // not known yet, or a field that is kept whole
	stateData                 // a data field: its value goes to Reader.data
	stateComment              // a comment, which is counted only
)

// NewReader returns a Reader of the stream r. It reads ahead, but never waits
// for more than the empty line that ends an event.
func NewReader(r io.Reader, opts *ReaderOptions) *Reader {
	rd := &Reader{r: r, first: true}
	if opts != nil {
		rd.opts = *opts
	}
	if rd.opts.MaxData <= 0 {
		rd.opts.MaxData = DefaultMaxData
	}
	if rd.opts.MaxLine <= 0 {
		rd.opts.MaxLine = DefaultMaxLine
	}
	return rd
}

// Next returns the next event as soon as the empty line after it has arrived, even if that line
// ends with a CR that an LF may follow. It skips comments and events without data.
//
// At the end of the stream it returns [io.EOF], and drops an event without its empty line, as the
// standard requires; see [Reader.Pending]. Exceeding a limit is [ErrTooLarge]. Every error is
// permanent.
func (r *Reader) Next() (Event, error) {
	if r.finished {
		return Event{}, r.err
	}
	if cap(r.data) > keepData {
		r.data = nil
	}
	r.data = r.data[:0] // a new event begins: Next returns at the end of one only
	for {
		if r.start == r.end {
			if r.err != nil {
				r.finish()
				return Event{}, r.err
			}
			r.fill()
			continue
		}
		if r.skipLF {
			r.skipLF = false
			if r.buf[r.start] == '\n' {
				r.start++
				r.lf = r.index('\n')
				continue
			}
		}
		at := min(r.lf, r.cr)
		err := r.take(r.buf[r.start:at])
		r.start = at
		if err == nil && at < r.end {
			r.start++
			if r.buf[at] == '\r' {
				r.skipLF = true
				r.cr = r.index('\r')
			} else {
				r.lf = r.index('\n')
			}
			var done bool
			if done, err = r.endLine(); done {
				ev := r.event()
				r.name, r.hasData = "", false
				return ev, nil
			}
		}
		if err != nil {
			r.err, r.start, r.end = err, 0, 0
			r.finish()
			return Event{}, err
		}
	}
}

// Pending returns the event during which the stream ended: its fields so far, including a last line
// without a line end. It reports whether the event has data. Before Next has returned an error, and
// after [ErrTooLarge], no event is pending. The event stays valid.
//
// The standard drops such an event. A protocol whose data prove their own completeness, as a JSON
// object does, may use it.
func (r *Reader) Pending() (Event, bool) {
	if !r.finished || !r.hasData {
		return Event{}, false
	}
	return r.event(), true
}

// Oversize returns the event whose data were [ErrTooLarge]: its fields so far, and more than MaxData bytes of the data.
// It reports false if the stream ended in another way.
func (r *Reader) Oversize() (Event, bool) {
	if r.excess == nil || !errors.Is(r.err, ErrTooLarge) {
		return Event{}, false
	}
	return Event{Name: r.name, Data: r.excess, ID: r.id, Retry: r.retry}, true
}

// LastEventID returns the id to resume after: the last id that took effect at the end of an event,
// with or without data.
func (r *Reader) LastEventID() string { return r.lastID }

// Retry returns the reconnection time that the stream named last, and whether it
// named one.
func (r *Reader) Retry() (d time.Duration, ok bool) { return r.retry, r.retried }

// Comments counts the comment lines so far, which servers send as keep-alives. It may be called
// from any goroutine.
func (r *Reader) Comments() uint64 { return r.comments.Load() }

// finish leaves behind what Pending shows.
func (r *Reader) finish() {
	r.finished = true
	r.buf = nil
	if errors.Is(r.err, ErrTooLarge) {
		r.data, r.hasData = nil, false
		return
	}
	// The unterminated last line counts, with two exceptions: a reconnection time may lack its last
	// digits, and an empty line would end the event.
	if r.state == stateField && (len(r.line) == 0 || bytes.HasPrefix(r.line, []byte("retry"))) {
		return
	}
	if _, err := r.endLine(); err != nil {
		r.data, r.hasData = nil, false
	}
}

// fill reads once into the empty buffer.
func (r *Reader) fill() {
	if r.buf == nil {
		r.buf = make([]byte, bufferSize)
	}
	for range maxEmpty {
		n, err := r.r.Read(r.buf)
		if n < 0 || n > len(r.buf) {
			n, err = 0, errBadRead
		}
		r.start, r.end, r.err = 0, n, err
		if n > 0 {
			r.lf, r.cr = r.index('\n'), r.index('\r')
		}
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

var (
	errBadRead = errors.New("sse: reader returned an impossible count")
	bom        = []byte("\xef\xbb\xbf")
)

func (r *Reader) index(c byte) int {
	if i := bytes.IndexByte(r.buf[r.start:r.end], c); i >= 0 {
		return r.start + i
	}
	return r.end
}

// take adds a piece to the line being read. Data are appended to the event at once, so that a long
// line needs no second buffer.
func (r *Reader) take(p []byte) error {
	switch r.state {
	case stateData:
		return r.addData(p)
	case stateComment:
		r.length += len(p)
		return r.checkLine(r.length)
	}
	if len(r.line) > 0 {
		r.line = append(r.line, p...)
		p = r.line
	}
	if r.first && len(p) > 0 && (len(p) >= len(bom) || !bytes.HasPrefix(bom, p)) {
		r.first = false
		p = bytes.TrimPrefix(p, bom)
	}
	switch {
	case len(p) > 0 && p[0] == ':':
		r.state, r.length, r.line = stateComment, len(p), r.line[:0]
		return r.checkLine(r.length)
	case len(p) > len("data:") && string(p[:len("data:")]) == "data:":
		r.state, r.line = stateData, r.line[:0]
		return r.addData(trimBlank(p[len("data:"):]))
	}
	r.line = append(r.line[:0], p...)
	return r.checkLine(len(r.line))
}

func (r *Reader) checkLine(n int) error {
	if n > r.opts.MaxLine {
		return fmt.Errorf("%w: a line exceeds %d bytes", ErrTooLarge, r.opts.MaxLine)
	}
	return nil
}

// addData adds to the data of the event, which already end with an LF after each earlier line.
func (r *Reader) addData(p []byte) error {
	if len(p) > r.opts.MaxData-len(r.data) {
		r.excess = append(r.data, p...)
		return fmt.Errorf("%w: the data exceed %d bytes", ErrTooLarge, r.opts.MaxData)
	}
	r.data = append(r.data, p...)
	return nil
}

// endLine interprets the line that has been read. It reports whether an event is
// complete.
func (r *Reader) endLine() (done bool, err error) {
	line, st := r.line, r.state
	r.line, r.state, r.first = r.line[:0], stateField, false
	switch {
	case st == stateData:
		r.endData()
		return false, nil
	case st == stateComment:
		r.comments.Add(1)
		return false, nil
	case len(line) == 0:
		r.lastID = r.id
		if !r.hasData {
			r.name = ""
		}
		return r.hasData, nil
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = trimBlank(value)
	switch string(field) {
	case "data": // an empty value; others went through stateData
		err = r.addData(value)
		r.endData()
	case "event":
		r.name = r.intern(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 && string(value) != r.id {
			r.id = string(value)
		}
	case "retry":
		r.setRetry(value)
	}
	return false, err
}

func (r *Reader) endData() {
	r.data = append(r.data, '\n')
	r.hasData = true
}

// event returns the event from the fields read since the last blank line. r.hasData must be true.
func (r *Reader) event() Event {
	n := len(r.data) - 1 // without the last LF
	return Event{Name: r.name, Data: r.data[:n:n], ID: r.id, Retry: r.retry}
}

// setRetry takes a value of digits only; any other is ignored.
func (r *Reader) setRetry(value []byte) {
	const maxRetry = math.MaxInt64 / int64(time.Millisecond)
	var ms int64
	for _, c := range value {
		if c < '0' || c > '9' {
			return
		}
		ms = min(ms*10+int64(c-'0'), maxRetry/10)
	}
	if len(value) > 0 {
		r.retry, r.retried = time.Duration(ms)*time.Millisecond, true
	}
}

func (r *Reader) intern(name []byte) string {
	if len(name) == 0 {
		return ""
	}
	for _, known := range r.names {
		if known == string(name) {
			return known
		}
	}
	s := string(name)
	if len(s) <= maxName {
		r.names[r.nextName] = s
		r.nextName = (r.nextName + 1) % maxNames
	}
	return s
}

func trimBlank(value []byte) []byte {
	if len(value) > 0 && value[0] == ' ' {
		return value[1:]
	}
	return value
}
