// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

const (
	deadTTL    = 30 * 24 * time.Hour
	maxLetters = 16 // to read at once
)

// A Letter is an item that was given up, for 30 days. Its Seq is its position among the dead
// letters of the stream, and Attempt is the number of attempts.
type Letter struct {
	Item
	Reason string
	Last   string    // error of an attempt
	Time   time.Time // when it was given up
	bytes  int64
}

// A deadIndex leads to the dead letters of a stream. The counts include expired and removed ones.
type deadIndex struct {
	Stream         string
	Letters, Bytes int64
}

// Dead iterates over the dead letters of all streams. An error comes once and last.
func (o *Outbox) Dead(ctx context.Context) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		for e, err := range o.db.List(ctx, o.path("dead", "")) {
			var index deadIndex
			if err == nil {
				e, err = store.Content(e)
			}
			if err == nil {
				err = json.Unmarshal(e.Value, &index)
			}
			if err != nil {
				yield(Letter{}, err)
				return
			}
			for l, err := range o.letters(ctx, index.Stream, 0) {
				if !yield(l, err) || err != nil {
					return
				}
			}
		}
	}
}

// letters iterates over the dead letters of a stream after a position.
func (o *Outbox) letters(ctx context.Context, stream string, after uint64) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		for {
			records, err := o.db.Read(ctx, o.path("dead", statekey.Join(stream)), after, maxLetters)
			for _, r := range records {
				after = r.Seq
				h, data, err := decode(r.Value)
				item := Item{Stream: stream, ID: h.ID, Seq: r.Seq, Attempt: h.Attempt, Data: data, First: h.First}
				if !yield(Letter{Item: item, Reason: h.Reason, Last: h.Last, Time: r.Time, bytes: size(r.Value)}, err) {
					return
				}
			}
			if err != nil {
				yield(Letter{}, err)
			}
			if err != nil || len(records) == 0 {
				return
			}
		}
	}
}

// Redeliver puts the item of a dead letter into its stream again and drops the letter. Its age
// begins again. Redeliver returns [store.ErrNotFound] if the letter is absent.
func (o *Outbox) Redeliver(ctx context.Context, stream string, seq uint64) error {
	err := store.ErrNotFound
	for l, readErr := range o.letters(ctx, stream, seq-1) {
		if readErr != nil || l.Seq != seq {
			err = cmp.Or(readErr, err)
			break
		}
		// Repeated, it has the same id.
		err = o.put(ctx, stream, "~"+strconv.FormatUint(seq, 10), header{ID: l.ID}.encode(l.Data))
		if err == nil {
			err = o.Drop(ctx, stream, seq)
		}
		break
	}
	return wrap("redeliver", stream, err)
}

// Drop removes a dead letter.
func (o *Outbox) Drop(ctx context.Context, stream string, seq uint64) error {
	return wrap("drop", stream, o.ack(ctx, "dead", statekey.Join(stream), seq))
}

func (o *Outbox) ack(ctx context.Context, name, key string, seqs ...uint64) error {
	return store.Persist(ctx, func(ctx context.Context) error { return o.db.Ack(ctx, o.path(name, key), seqs...) })
}

// bury writes the dead letter of the head.
func (o *Outbox) bury(ctx context.Context, s *sender, r store.Record, v Verdict) error {
	h, data, err := decode(r.Value)
	if err != nil {
		data = r.Value
	}
	h.Reason, h.Last, h.Attempt, h.First = cut(v.reason), cmp.Or(v.text, s.head.Last), s.head.Attempt, r.Time
	value := h.encode(data)
	index, err := o.editIndex(ctx, s, func(index *deadIndex) {
		index.Letters++
		index.Bytes += size(value)
	})
	if err == nil {
		err = o.appendLetter(ctx, s.key, r.Seq, value)
	}
	if errors.Is(err, store.ErrInvalid) { // longer than the item, and too long
		err = o.appendLetter(ctx, s.key, r.Seq, h.encode(nil))
	}
	if err != nil {
		return err
	}
	o.opts.Logger.WarnContext(ctx, "outbox: item given up", "stream", s.stream, "seq", r.Seq, "attempt", h.Attempt,
		"reason", h.Reason, "err", h.Last, "bytes", len(data))
	if index.Letters > o.opts.MaxItems || index.Bytes > o.opts.MaxBytes {
		err = o.trim(ctx, s)
	}
	return err
}

// appendLetter appends a dead letter once for each position in the queue.
func (o *Outbox) appendLetter(ctx context.Context, key string, seq uint64, value []byte) error {
	err := store.Persist(ctx, func(ctx context.Context) error {
		_, err := o.db.Append(ctx, o.path("dead", key), strconv.FormatUint(seq, 10), value, deadTTL)
		return err
	})
	if errors.Is(err, store.ErrDuplicate) {
		return nil
	}
	return err
}

// editIndex changes the index of the dead letters, which outlives them.
func (o *Outbox) editIndex(ctx context.Context, s *sender, edit func(index *deadIndex)) (index deadIndex, err error) {
	change := func(old store.Entry, found bool) (value []byte, err error) {
		index = deadIndex{}
		if found {
			err = json.Unmarshal(old.Value, &index)
		}
		index.Stream = s.stream
		edit(&index)
		value, _ = json.Marshal(index) // cannot fail
		return value, err
	}
	_, err = store.Modify(ctx, o.db, o.path("dead", s.key), deadTTL+spare, change)
	return index, err
}

// trim removes the oldest dead letters beyond the bounds, and a 16th more.
func (o *Outbox) trim(ctx context.Context, s *sender) error {
	var seqs []uint64
	var sizes []int64
	left := deadIndex{}
	for l, err := range o.letters(ctx, s.stream, 0) {
		if l.Seq == 0 {
			return err
		}
		seqs, sizes = append(seqs, l.Seq), append(sizes, l.bytes)
		left.Letters++
		left.Bytes += l.bytes
	}
	maxItems, maxBytes, n := o.opts.MaxItems, o.opts.MaxBytes, 0
	if left.Letters > maxItems || left.Bytes > maxBytes {
		maxItems, maxBytes = maxItems-maxItems/16, maxBytes-maxBytes/16
	}
	for ; left.Letters > maxItems || left.Bytes > maxBytes; n++ {
		left.Letters--
		left.Bytes -= sizes[n]
	}
	if n > 0 {
		o.opts.Logger.WarnContext(ctx, "outbox: dead letters dropped", "stream", s.stream, "letters", n)
		if err := o.ack(ctx, "dead", s.key, seqs[:n]...); err != nil {
			return err
		}
	}
	_, err := o.editIndex(ctx, s, func(index *deadIndex) { index.Letters, index.Bytes = left.Letters, left.Bytes })
	return err
}
