// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// DeadTTL is how long dead letters are kept.
const DeadTTL = 30 * 24 * time.Hour

const maxLetters = 64 // dead letters of a sender from one trim to the next

// A Letter is an item that was given up, for 30 days. Attempt is the number of attempts.
type Letter struct {
	Item
	Reason string
	Last   string    // error of an attempt
	Time   time.Time // when it was given up
}

func (o *Outbox) letterKey(stream string, seq uint64) string {
	return fmt.Sprintf("%s/%020d", o.path("dead", stream), seq)
}

// Dead iterates over the dead letters of all streams. An error comes once and last, that of an unreadable letter
// after the other letters.
func (o *Outbox) Dead(ctx context.Context) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		var unreadable error
		for e, err := range o.db.List(ctx, o.opts.Prefix+"outbox/dead/") {
			if err != nil {
				yield(Letter{}, err)
				return
			}
			l, err := readLetter(e)
			switch {
			case errors.Is(err, store.ErrNotFound):
			case err != nil:
				unreadable = fmt.Errorf("outbox: %s: %w", e.Key, err)
			case !yield(l, nil):
				return
			}
		}
		if unreadable != nil {
			yield(Letter{}, unreadable)
		}
	}
}

// readLetter returns store.ErrNotFound for a removed letter.
func readLetter(e store.Entry) (l Letter, err error) {
	e, err = store.Content(e)
	if err == nil && len(e.Value) == 0 {
		err = store.ErrNotFound
	}
	if err == nil {
		l.Data, err = state.DecodeWith(e.Value, &l)
	}
	return l, err
}

// Find returns a dead letter, or [store.ErrNotFound].
func (o *Outbox) Find(ctx context.Context, stream string, seq uint64) (Letter, error) {
	l, err := o.find(ctx, stream, seq)
	return l, wrap("find", stream, err)
}

func (o *Outbox) find(ctx context.Context, stream string, seq uint64) (l Letter, err error) {
	e, err := o.db.Get(ctx, o.letterKey(stream, seq))
	if err == nil {
		l, err = readLetter(e)
	}
	return l, err
}

// Redeliver puts the item of a dead letter into its stream again and drops the letter. Its age
// begins again. Redeliver returns [store.ErrNotFound] if the letter is absent.
func (o *Outbox) Redeliver(ctx context.Context, stream string, seq uint64) error {
	l, err := o.find(ctx, stream, seq)
	if err == nil { // repeated, it has the same id
		err = o.put(ctx, stream, "~"+strconv.FormatUint(seq, 10), state.EncodeWith(Item{ID: l.ID}, l.Data))
	}
	if err == nil {
		err = o.Drop(ctx, stream, seq)
	}
	return wrap("redeliver", stream, err)
}

// Drop removes a dead letter.
func (o *Outbox) Drop(ctx context.Context, stream string, seq uint64) error {
	return wrap("drop", stream, o.drop(ctx, o.letterKey(stream, seq)))
}

// drop leaves an empty value for a while, so that no creation in doubt lands later.
func (o *Outbox) drop(ctx context.Context, key string) error {
	_, err := store.Modify(ctx, o.db, key, state.LandTime, func(_ store.Entry, found bool) ([]byte, error) {
		if !found {
			return nil, store.ErrUnchanged
		}
		return []byte{}, nil
	})
	return err
}

// addLetter writes the dead letter of an item once.
func (o *Outbox) addLetter(ctx context.Context, s *sender, a *attempt) error {
	l := Letter{Item: a.Item, Reason: cmp.Or(a.verdict.reason, "maximum age reached"),
		Last: cmp.Or(a.verdict.last, a.rec.Last), Time: time.Now()}
	key := o.letterKey(s.stream, a.Seq)
	write := func(value []byte) error {
		_, err := store.Modify(ctx, o.db, key, DeadTTL, func(_ store.Entry, found bool) ([]byte, error) {
			if found {
				return nil, store.ErrUnchanged
			}
			return value, nil
		})
		return err
	}
	err := write(state.EncodeWith(l, l.Data))
	if errors.Is(err, store.ErrInvalid) { // longer than the item, and too long
		err = write(state.EncodeWith(l, nil))
	}
	if err == nil && s.letters%maxLetters == 0 {
		err = o.trim(ctx, s.stream)
	}
	if err == nil {
		s.letters++
		o.opts.Logger.WarnContext(ctx, "outbox: item given up", "stream", s.stream, "seq", a.Seq, "attempt", a.Attempt,
			"reason", l.Reason, "err", l.Last)
	}
	return err
}

// trim removes the oldest dead letters of a stream beyond the bounds.
func (o *Outbox) trim(ctx context.Context, stream string) error {
	var keys []string
	var sizes []int64
	total := int64(0)
	for e, err := range o.db.List(ctx, o.path("dead", stream)+"/") {
		if err != nil {
			return err
		}
		keys, sizes = append(keys, e.Key), append(sizes, size(e.Value))
		total += size(e.Value)
	}
	for i, key := range keys {
		if int64(len(keys)-i) <= o.opts.MaxLetters && total <= o.opts.MaxBytes {
			break
		}
		total -= sizes[i]
		if err := o.drop(ctx, key); err != nil {
			return err
		}
	}
	return nil
}
