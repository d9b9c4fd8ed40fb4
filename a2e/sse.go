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
	r       *sse.Reader
	id      string // to resume after
	isEnded bool
}

// newEventReader returns an eventReader of r with the size limit of codec. Nil
// means that of the zero [Codec].
func newEventReader(r io.Reader, codec *Codec) *eventReader {
	if codec == nil {
		codec = &Codec{}
	}
	return &eventReader{r: sse.NewReader(r, &sse.ReaderOptions{MaxData: eventLimit(codec.maxBytes())})}
}

// next returns the data of the next message. Events of other names are skipped. At the end of the
// stream an unfinished event counts if its data are a complete object; then next returns [io.EOF].
func (r *eventReader) next() ([]byte, error) {
	for !r.isEnded {
		ev, err := r.r.Next()
		r.id = r.r.LastEventID() // of an event without data, too
		if err != nil {
			r.isEnded = true
			pending, ok := r.r.Pending()
			if ok && isMessageEvent(pending) && complete(pending.Data) {
				r.id = pending.ID
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

// lastID returns the id of the last event, to reconnect with.
func (r *eventReader) lastID() string { return r.id }

func eventLimit(maxBytes int) int {
	if maxBytes == 0 {
		return math.MaxInt
	}
	return maxBytes
}
