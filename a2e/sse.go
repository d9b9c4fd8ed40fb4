// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"io"
	"math"

	"github.com/fivewire/fivewire/internal/sse"
)

// An eventReader reads the messages of an HTTP event stream (A2E-D42). It is for
// one goroutine at a time.
type eventReader struct {
	r   *sse.Reader
	id  string // to resume after
	err error  // of the end
}

// minEventLimit is the part of a message that names its request (A2E-D06).
const minEventLimit = 4 << 10

// newEventReader returns an eventReader of r with the size limit of codec, but at least 4 KiB. Nil means that of the
// zero [Codec].
func newEventReader(r io.Reader, codec *Codec) *eventReader {
	if codec == nil {
		codec = &Codec{}
	}
	return &eventReader{r: sse.NewReader(r, &sse.ReaderOptions{MaxData: eventLimit(codec.maxBytes())})}
}

// next returns the data of the next message. Events of other names are skipped. At the end of the
// stream an unfinished event counts if its data are a complete object; then next returns [io.EOF]. Of a message over
// the limit, it returns the beginning, which is over the limit too, and then [sse.ErrTooLarge].
func (r *eventReader) next() ([]byte, error) {
	for r.err == nil {
		ev, err := r.r.Next()
		r.id = r.r.LastEventID() // of an event without data, too
		if err != nil {
			return r.last(err)
		}
		if isMessageEvent(ev) {
			return ev.Data, nil
		}
	}
	return nil, r.err
}

// last returns the message that the end of the stream cuts off, if it counts.
func (r *eventReader) last(err error) ([]byte, error) {
	r.err = err
	if ev, ok := r.r.Oversize(); ok && isMessageEvent(ev) {
		return ev.Data, nil
	}
	if ev, ok := r.r.Pending(); ok && isMessageEvent(ev) && complete(ev.Data) {
		r.id, r.err = ev.ID, io.EOF
		return ev.Data, nil
	}
	return nil, err
}

func isMessageEvent(ev sse.Event) bool {
	return ev.Name == "message" || ev.Name == ""
}

// lastID returns the id of the last event, to reconnect with.
func (r *eventReader) lastID() string { return r.id }

func eventLimit(maxBytes int) int {
	if maxBytes == 0 {
		return math.MaxInt
	}
	return max(maxBytes, minEventLimit)
}
