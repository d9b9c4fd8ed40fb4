// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

// A record is the sender of a stream. Without an owner it has ended and its value is empty, so
// that no creation in doubt lands later.
type record struct {
	Stream string
	Owner  lease.Owner
	Own    bool  // until Close
	Busy   bool  // the sender finds what is put without a message
	Slack  int64 // items that failed owners may have ended without counting them
	Saved  time.Time
	counts
	head
}

// The counts of a stream, or a change of them.
type counts struct {
	Puts  int64 // items put
	Sent  int64 // items that left the queue
	Bytes int64 // of the items between
}

// A head is the state of the first item in the queue.
type head struct {
	Seq     uint64
	Attempt int
	Delay   time.Duration
	Next    time.Time
	Last    string // error
}

func (c *counts) add(d counts) {
	c.Puts, c.Sent, c.Bytes = c.Puts+d.Puts, c.Sent+d.Sent, c.Bytes+d.Bytes
}

// take changes the owner. Items of an owner that was active in the last day cannot have expired.
func (r *record) take(stream string, owner lease.Owner) {
	if r.Owner != "" && time.Since(r.Saved) < spare {
		r.Slack += maxBatch
	}
	r.Stream, r.Owner, r.Saved = stream, owner, time.Now()
}

// settle adapts the counts to an empty queue and returns how many items have expired.
func (r *record) settle() (lost int64) {
	if missing := r.Puts - r.Sent; missing > r.Slack {
		lost = missing
	}
	r.Sent, r.Bytes, r.Slack = max(r.Sent, r.Puts), 0, 0
	return lost
}

// edit changes the record of a sender by compare-and-set.
func (o *Outbox) edit(ctx context.Context, key string, ttl time.Duration,
	change func(rec *record, rev store.Revision) error) (rec record, rev store.Revision, err error) {
	e, err := store.Modify(ctx, o.db, o.path("sender", key), ttl, func(old store.Entry, found bool) (value []byte, err error) {
		rec = record{}
		if len(old.Value) > 0 {
			err = json.Unmarshal(old.Value, &rec)
		}
		if err == nil {
			err = change(&rec, old.Revision)
		}
		switch {
		case err != nil:
			return nil, err
		case rec.Owner != "":
			return json.Marshal(rec)
		case o.opts.Private:
			return nil, nil
		}
		return []byte{}, nil
	})
	return rec, e.Revision, err
}

// recordTTL returns the ttl of a record. It outlives the items, so that their loss is noticed.
func (o *Outbox) recordTTL() time.Duration { return 2 * o.life }

// A header precedes the data of an item and of a dead letter.
type header struct {
	ID      string
	Reason  string    `json:",omitempty"`
	Last    string    `json:",omitempty"`
	Attempt int       `json:",omitempty"`
	First   time.Time `json:",omitzero"`
}

// encode returns a stored value: the format, the header as a line of JSON, and the data.
func (h header) encode(data []byte) []byte {
	line, _ := json.Marshal(h) // cannot fail
	return append(append(statekey.Value(string(line)), '\n'), data...)
}

func decode(value []byte) (h header, data []byte, err error) {
	value, err = statekey.Data(value)
	if err == nil {
		line, rest, _ := bytes.Cut(value, []byte{'\n'})
		data, err = rest, json.Unmarshal(line, &h)
	}
	return h, data, err
}

// size returns what a stored value counts.
func size(value []byte) int64 { return int64(len(value)) + 64 }

func cut(text string) string { return text[:min(len(text), maxText)] }
