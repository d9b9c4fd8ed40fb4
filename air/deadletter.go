// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// A DeadLetter is an authentic envelope that was not handled and that only a person or a changed
// configuration can help (AIR-D76).
type DeadLetter struct {
	ID         string    // SHA-256 of the canonical form
	Envelope   []byte    // as received
	From       string    // the verified sender
	EnvelopeID string    // the id of the envelope
	Code       Code      // why it was not handled
	Detail     string    // of the code
	Arrived    time.Time // when it was first received
	Attempts   int       // failed calls of the handler
	Held       time.Time // when it became a dead letter
	After      string    // EnvelopeID of a dead letter from the same sender that has to be handled first; usually ""
}

// Bounds of dead letters (AIR-D76).
const (
	maxLetters         = 10_000
	maxLetterBytes     = 64 << 20
	maxSenderLetters   = 1000
	letterTTL          = 30 * 24 * time.Hour
	letterIndexMaxAge  = time.Minute
	letterBytesMinimum = 512 // of its record
)

var errLettersFull = errors.New("air: dead letters full")

// letters are the dead letters of an inbox.
type letters struct {
	db     store.KV
	prefix string

	index[letterInfo]           // by id
	last              time.Time // Held of the last letter
}

type letterInfo struct {
	from, envelopeID, after string
	heldAt                  time.Time
	size                    int
}

func (d *DeadLetter) info() letterInfo {
	return letterInfo{d.From, d.EnvelopeID, d.After, d.Held, len(d.Envelope) + letterBytesMinimum}
}

func letterID(e *Envelope) string {
	sum := sha256.Sum256(e.Bytes())
	return hex.EncodeToString(sum[:])
}

// list returns the readable letters, oldest first, and the error of an unreadable one.
func (l *letters) list(ctx context.Context) (list []*DeadLetter, unreadable, err error) {
	list, unreadable, err = readable(ctx, l.db, l.prefix, parseLetter)
	if err != nil {
		return nil, nil, fmt.Errorf("air: reading the dead letters: %w", err)
	}
	slices.SortFunc(list, func(a, b *DeadLetter) int {
		return cmp.Or(a.Held.Compare(b.Held), strings.Compare(a.ID, b.ID))
	})
	return list, unreadable, nil
}

func parseLetter(e store.Entry) (*DeadLetter, error) {
	d := &DeadLetter{}
	if err := state.Decode(e.Value, d); err != nil {
		return nil, fmt.Errorf("air: invalid dead letter: %w", err)
	}
	return d, nil
}

// get returns a letter, or store.ErrNotFound.
func (l *letters) get(ctx context.Context, id string) (*DeadLetter, error) {
	e, err := l.db.Get(ctx, l.prefix+id)
	if err != nil {
		return nil, fmt.Errorf("air: reading a dead letter: %w", err)
	}
	return parseLetter(e)
}

// put stores a letter. If the letter exists, it gets the new code.
func (l *letters) put(ctx context.Context, d DeadLetter) error {
	if err := l.refresh(ctx, indexAge{max: letterIndexMaxAge}); err != nil {
		return err
	}
	old, err := l.get(ctx, d.ID)
	isNew := errors.Is(err, store.ErrNotFound)
	switch {
	case err == nil && old.Code == d.Code && old.Attempts == d.Attempts:
		return nil
	case err == nil:
		d.Held, d.Arrived = old.Held, old.Arrived
	case !isNew:
		return err
	}
	if err := l.reserve(&d); err != nil {
		return err
	}
	value, err := state.Encode(d)
	if err == nil {
		ctx, cancel := storeContext(ctx)
		defer cancel()
		err = overwrite(ctx, l.db, l.prefix+d.ID, value, max(time.Until(d.Held.Add(letterTTL)), time.Second))
	}
	switch {
	case err == nil:
		l.add(&d) // a read may have begun before the letter was stored
	case isNew:
		l.forget(d.ID)
	}
	return err
}

func (l *letters) add(d *DeadLetter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(d)
}

// addLocked adds a letter to the index. l.mu must be held.
func (l *letters) addLocked(d *DeadLetter) {
	l.changeLocked(d.ID)
	l.entries[d.ID] = d.info()
}

// find returns the ids of the letters of a sender that match.
func (l *letters) find(ctx context.Context, from string, match func(letterInfo) bool) (ids []string, err error) {
	if err := l.refresh(ctx, indexAge{max: time.Second}); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, info := range l.entries {
		if info.from == from && match(info) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// refresh reads the index if it is too old.
func (l *letters) refresh(ctx context.Context, age indexAge) error {
	return l.index.refresh(ctx, age, func() (map[string]letterInfo, error) {
		list, _, err := l.list(ctx)
		found := make(map[string]letterInfo, len(list))
		for _, d := range list {
			found[d.ID] = d.info()
		}
		return found, err
	}, func(found map[string]letterInfo) {
		for _, info := range found {
			l.last = later(l.last, info.heldAt)
		}
	})
}

// reserve counts a letter, or returns errLettersFull, and sets when it was held.
func (l *letters) reserve(d *DeadLetter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.entries[d.ID]; ok && !d.Held.IsZero() {
		return nil
	}
	if l.isFullLocked(d.From, len(d.Envelope)+letterBytesMinimum) {
		return errLettersFull
	}
	if d.Held.IsZero() {
		d.Held = later(time.Now(), l.last.Add(1))
		l.last = d.Held
	}
	l.addLocked(d)
	return nil
}

// isFullLocked reports whether a letter of a sender has no room. l.mu must be held.
func (l *letters) isFullLocked(from string, size int) bool {
	fromSender := 0
	for _, info := range l.entries {
		size += info.size
		if info.from == from {
			fromSender++
		}
	}
	return len(l.entries) >= maxLetters || size > maxLetterBytes || fromSender >= maxSenderLetters
}

func (l *letters) isFull(from string, size int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isFullLocked(from, size)
}

func (l *letters) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changeLocked(id)
	delete(l.entries, id)
}

func (l *letters) remove(ctx context.Context, id string) error {
	if err := l.db.Delete(ctx, l.prefix+id, 0); err != nil {
		return fmt.Errorf("air: removing a dead letter: %w", err)
	}
	l.forget(id)
	return nil
}

// DeadLetters returns the dead letters, oldest first. An error comes once and last, that of a letter which this version
// cannot read after all others.
func (in *Inbox) DeadLetters(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		list, unreadable, err := in.receiver.letters.list(ctx)
		for _, d := range list {
			if !yield(*d, nil) {
				return
			}
		}
		if err = cmp.Or(err, unreadable); err != nil {
			yield(DeadLetter{}, err)
		}
	}
}

// Redeliver receives the envelope of a dead letter again, with all checks but the clock. The letter is
// removed if the class of the result is done or refused, and the letters that wait for it are received, too;
// otherwise it has the new code. The error is [store.ErrNotFound] if the letter is absent.
func (in *Inbox) Redeliver(ctx context.Context, id string) (*ReceiveResult, error) {
	d, err := in.receiver.letters.get(ctx, id)
	if err != nil {
		return nil, err
	}
	r := AuditRecord{Time: time.Now(), Operation: "redeliver", Bytes: int64(len(d.Envelope))}
	a := &arrival{data: d.Envelope, via: viaLetter, arrived: d.Arrived, pulled: time.Now(), record: r}
	o := in.receiver.receive(ctx, a)
	switch {
	case o.Class == ClassDone || o.Class == ClassRefused:
		return o, errors.Join(in.receiver.letters.remove(ctx, id), in.redeliverAfter(ctx, d))
	case o.Class == ClassLater && !errors.Is(o.Err, core.ErrElsewhere):
		d.Code, d.Detail, d.Attempts = o.Err.Code, o.Err.Message, d.Attempts+a.failures
		return o, in.receiver.letters.put(ctx, *d)
	}
	return o, nil
}

// redeliverAfter receives the letters again that wait for the message of a letter (AIR-D77).
func (in *Inbox) redeliverAfter(ctx context.Context, d *DeadLetter) error {
	ids, err := in.receiver.letters.find(ctx, d.From, func(l letterInfo) bool { return l.after == d.EnvelopeID })
	for _, id := range ids {
		_, failed := in.Redeliver(ctx, id)
		err = errors.Join(err, failed)
	}
	return err
}

// Discard removes a dead letter. A further copy of its envelope is a replay.
func (in *Inbox) Discard(ctx context.Context, id string) error {
	d, err := in.receiver.letters.get(ctx, id)
	if err != nil {
		return err
	}
	// The options may be stricter since.
	env, err := DecodeEnvelope(d.Envelope, &DecodeOptions{Profile: ProfileDeployed, BodyTypes: anyBodyTypes, MaxMessage: -1})
	if err != nil {
		return err
	}
	if err := in.receiver.ledger.discard(ctx, env, time.Now().Add(in.opts.Timing.MaxPullAge)); err != nil {
		return err
	}
	return in.receiver.letters.remove(ctx, id)
}
