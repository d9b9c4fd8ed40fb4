// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
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
			for r, readErr := range o.deadRecords(ctx, statekey.Join(index.Stream), 0, err) {
				l, err := decodeLetter(index.Stream, r, readErr)
				if !yield(l, err) || err != nil {
					return
				}
			}
		}
	}
}

// deadRecords iterates over the dead letters of a stream after a position, or yields err.
func (o *Outbox) deadRecords(ctx context.Context, key string, after uint64, err error) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		for {
			var records []store.Record
			if err == nil {
				records, err = o.db.Read(ctx, o.path("dead", key), after, maxLetters)
			}
			for _, r := range records {
				after = r.Seq
				if !yield(r, nil) {
					return
				}
			}
			if err != nil {
				yield(store.Record{}, err)
			}
			if err != nil || len(records) == 0 {
				return
			}
		}
	}
}

func decodeLetter(stream string, r store.Record, err error) (Letter, error) {
	if err != nil {
		return Letter{}, err
	}
	h, data, err := decode(r.Value)
	item := Item{Stream: stream, ID: h.ID, Seq: r.Seq, Attempt: h.Attempt, Data: data, First: h.First}
	return Letter{Item: item, Reason: h.Reason, Last: h.Last, Time: r.Time}, err
}

// Redeliver puts the item of a dead letter into its stream again and drops the letter. It
// returns store.ErrNotFound if the letter is absent.
func (o *Outbox) Redeliver(ctx context.Context, stream string, seq uint64) error {
	for r, err := range o.deadRecords(ctx, statekey.Join(stream), seq-1, nil) {
		l, err := decodeLetter(stream, r, err)
		if err == nil && l.Seq != seq {
			break
		}
		if err == nil { // repeated, it has the same id
			err = o.put(ctx, stream, "~"+strconv.FormatUint(seq, 10), header{ID: l.ID}.encode(l.Data))
		}
		if err == nil {
			err = o.Drop(ctx, stream, seq)
		}
		return wrap("redeliver", stream, err)
	}
	return wrap("redeliver", stream, store.ErrNotFound)
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
	h.Reason, h.Last, h.Attempt, h.First = cut(v.reason), s.head.Last, s.head.Attempt, r.Time
	if v.text != "" {
		h.Last = v.text
	}
	value := h.encode(data)
	index, err := o.editIndex(ctx, s, func(index *deadIndex) {
		index.Letters++
		index.Bytes += size(value)
	})
	if err != nil {
		return err
	}
	id := strconv.FormatUint(r.Seq, 10)
	err = o.appendLetter(ctx, s.key, id, value)
	if errors.Is(err, store.ErrInvalid) { // longer than the item, and too long
		value = h.encode(nil)
		err = o.appendLetter(ctx, s.key, id, value)
	}
	if err != nil {
		return err
	}
	o.opts.Logger.WarnContext(ctx, "outbox: item given up", "stream", s.stream, "seq", r.Seq, "attempt", h.Attempt,
		"reason", h.Reason, "err", h.Last, "bytes", len(value))
	if index.Letters > o.opts.MaxItems || index.Bytes > o.opts.MaxBytes {
		err = o.trim(ctx, s)
	}
	return err
}

func (o *Outbox) appendLetter(ctx context.Context, key, id string, value []byte) error {
	err := store.Persist(ctx, func(ctx context.Context) error {
		_, err := o.db.Append(ctx, o.path("dead", key), id, value, deadTTL)
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
		value, _ = json.Marshal(index)
		return value, err
	}
	_, err = store.Modify(ctx, o.db, o.path("dead", s.key), deadTTL+spare, change)
	return index, err
}

// trim removes the oldest dead letters beyond the bounds, and a 16th more.
func (o *Outbox) trim(ctx context.Context, s *sender) error {
	var seqs []uint64
	var sizes []int64
	total, n := int64(0), 0
	for r, err := range o.deadRecords(ctx, s.key, 0, nil) {
		if err != nil {
			return err
		}
		seqs, sizes = append(seqs, r.Seq), append(sizes, size(r.Value))
		total += size(r.Value)
	}
	maxItems, maxBytes := o.opts.MaxItems, o.opts.MaxBytes
	if int64(len(seqs)) > maxItems || total > maxBytes {
		maxItems, maxBytes = maxItems-maxItems/16, maxBytes-maxBytes/16
	}
	for ; n < len(seqs) && (int64(len(seqs)-n) > maxItems || total > maxBytes); n++ {
		total -= sizes[n]
	}
	if n > 0 {
		o.opts.Logger.WarnContext(ctx, "outbox: dead letters dropped", "stream", s.stream, "letters", n)
		if err := o.ack(ctx, "dead", s.key, seqs[:n]...); err != nil {
			return err
		}
	}
	_, err := o.editIndex(ctx, s, func(index *deadIndex) { index.Letters, index.Bytes = int64(len(seqs)-n), total })
	return err
}
