// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"io"
	"math"
	"strconv"

	"github.com/fivewire/fivewire/internal/sse"
)

// An EventReader reads the messages of an HTTP event stream (A2E-D42). It is for
// one goroutine at a time.
type EventReader struct {
	r     *sse.Reader
	ended bool
}

// NewEventReader returns an EventReader of r with the size limit of codec. Nil
// means that of the zero [Codec].
func NewEventReader(r io.Reader, codec *Codec) *EventReader {
	if codec == nil {
		codec = &Codec{}
	}
	return &EventReader{r: sse.NewReader(r, &sse.ReaderOptions{MaxData: eventLimit(codec.maxBytes())})}
}

// Next returns the data of the next message. Events of other names are passed
// over. At the end of the stream an event that was not closed counts if its
// data are a complete object; then comes [io.EOF].
func (r *EventReader) Next() ([]byte, error) {
	for !r.ended {
		ev, err := r.r.Next()
		if err != nil {
			r.ended = true
			pending, ok := r.r.Pending()
			if ok && isMessageEvent(pending) && complete(pending.Data) {
				return pending.Data, nil
			}
			return nil, err
		}
		if isMessageEvent(ev) {
			return ev.Data, nil
		}
	}
	return nil, io.EOF
}

func isMessageEvent(ev sse.Event) bool {
	return ev.Name == "message" || ev.Name == ""
}

// LastID returns the id of the last event that was completed, to reconnect with.
func (r *EventReader) LastID() string { return r.r.LastEventID() }

// AppendEvent appends a message line as one event of an HTTP event stream. An id
// of 0 is not written.
func AppendEvent(dst, line []byte, id uint64) ([]byte, error) {
	text := ""
	if id > 0 {
		text = strconv.FormatUint(id, 10)
	}
	return sse.AppendEvent(dst, "", text, line)
}

func eventLimit(maxBytes int) int {
	if maxBytes == 0 {
		return math.MaxInt
	}
	return maxBytes
}
