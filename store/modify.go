// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	mark      = "\x01m" // a value of Modify in format 1
	maxIDs    = 8
	headerLen = len(mark) + 8*(1+maxIDs)
	maxSince  = 1 << 32 // changes of one entry
	maxRounds = 100
)

// ErrUnchanged, returned by the function given to [Modify], ends Modify without a write and
// without an error.
var ErrUnchanged = errors.New("store: unchanged")

// Modify reads the entry of key, calls change with it, and writes the returned value unless
// the entry has changed since. Then it begins again; after 100 rounds it returns [ErrConflict].
// A nil value deletes the entry. An error of change ends Modify without a write and is
// returned; after [ErrUnchanged], Modify returns the entry as read and no error.
//
// A change is made at most once, also if answers of the store are lost. [ErrUnknown] means
// that its outcome is not known: ctx ended or the store was closed first, or more than 8
// other changes were made since. After any other error nothing was changed. As by [Persist],
// a change in doubt is repeated in the background.
//
// The stored value begins with a header of 74 bytes. So every writer of the key uses Modify,
// and every reader uses [Content]; a writer may renew the ttl by an Update with the stored
// value. The returned entry has the written value and no Expires. Its Revision is zero after
// a deletion, and if another writer has changed the entry since.
//
// A deletion ends what the header records. If another writer deletes the entry while a change
// is in doubt, Modify returns ErrUnknown, and a creation in doubt may be made again. Two
// deletions of one revision both succeed. Where this matters, change writes an empty value.
func Modify(ctx context.Context, kv KV, key string, ttl time.Duration,
	change func(old Entry, found bool) ([]byte, error)) (Entry, error) {
	m := modification{kv: kv, key: key, ttl: ttl, id: random()}
	delay := time.Millisecond
	for round := range maxRounds {
		e, isDone, err := m.round(ctx, change)
		if isDone || err != nil {
			return e, err
		}
		switch {
		case ctx.Err() != nil:
			return Entry{}, ctx.Err()
		case round < 2: // most conflicts are of two writers
		case !pause(ctx, delay):
			return Entry{}, ctx.Err()
		default:
			delay = min(2*delay, maxDelay/20)
		}
	}
	return Entry{}, fmt.Errorf("%w: in %d rounds", ErrConflict, maxRounds)
}

// Content returns e with the value that [Modify] wrote, without its header.
func Content(e Entry) (Entry, error) {
	_, e, err := split(e)
	return e, err
}

// A modification is one call of Modify.
type modification struct {
	kv  KV
	key string
	ttl time.Duration
	id  uint64
}

// round makes the change, or reports that it is certainly not made.
func (m *modification) round(ctx context.Context, change func(Entry, bool) ([]byte, error)) (Entry, bool, error) {
	base, old := header{random()}, Entry{Key: m.key}
	stored, err := m.kv.Get(ctx, m.key)
	found := err == nil
	if found {
		base, old, err = split(stored)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Entry{}, false, err
	}
	value, err := change(old, found)
	switch {
	case errors.Is(err, ErrUnchanged), err == nil && value == nil && !found:
		return old, true, nil
	case err != nil:
		return Entry{}, false, err
	}
	attempts, rev, buf := 0, Revision(0), base.join(m.id, value)
	if value != nil {
		value = buf[headerLen:]
	}
	err = Persist(ctx, func(ctx context.Context) (err error) {
		attempts++
		switch {
		case value == nil:
			err = m.kv.Delete(ctx, m.key, stored.Revision)
		case found:
			rev, err = m.kv.Update(ctx, m.key, buf, stored.Revision, m.ttl)
		default:
			rev, err = m.kv.Create(ctx, m.key, buf, m.ttl)
		}
		return err
	})
	switch {
	case err == nil:
		return Entry{Key: m.key, Value: value, Revision: rev}, true, nil
	case !isRefusal(err):
		return Entry{}, false, err
	case attempts == 1:
		return Entry{}, false, nil
	}
	return m.resolve(ctx, base, found, value)
}

// resolve finds out whether a change of base was made, after an attempt without an answer
// and a refused repetition. The refusal shows that no attempt can be made later.
func (m *modification) resolve(ctx context.Context, base header, found bool, value []byte) (Entry, bool, error) {
	var stored Entry
	var now header
	err := repeat(ctx, func(ctx context.Context) (err error) {
		stored, err = m.kv.Get(ctx, m.key)
		return err
	})
	if value == nil && errors.Is(err, ErrNotFound) {
		return Entry{Key: m.key}, true, nil
	}
	if err == nil {
		now, _, err = split(stored)
	}
	if err != nil {
		return Entry{}, false, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	since, e := now[0]-base[0], Entry{Key: m.key, Value: value}
	switch {
	case value == nil: // a far count is that of an entry created after the deletion
		return e, since > maxSince, nil
	case now[1] == m.id:
		e.Revision = stored.Revision
		return e, true, nil
	case slices.Contains(now[1:], m.id), !found && since <= maxSince: // created by this one
		return e, true, nil
	case found && since > maxIDs:
		return Entry{}, false, fmt.Errorf("%w: deleted or changed more than %d times since", ErrUnknown, maxIDs)
	}
	return Entry{}, false, nil
}

// A header is the count of the changes of a value and the ids of the last ones, newest first.
// The count begins at a random number, so that an entry created after a deletion does not seem
// to continue the deleted one.
type header [1 + maxIDs]uint64

// split returns the header of a stored value and the entry without it.
func split(e Entry) (h header, content Entry, err error) {
	v := e.Value
	if len(v) < headerLen || string(v[:len(mark)]) != mark {
		return h, Entry{}, fmt.Errorf("store: value of %d bytes begins with %q, want %q and a header of %d bytes",
			len(v), v[:min(len(v), len(mark))], mark, headerLen)
	}
	binary.Decode(v[len(mark):], binary.BigEndian, h[:])
	e.Value = v[headerLen:len(v):len(v)]
	return h, e, nil
}

// join returns value behind the header after one more change.
func (h header) join(id uint64, value []byte) []byte {
	copy(h[2:], h[1:])
	h[0], h[1] = h[0]+1, id
	b := append(make([]byte, 0, headerLen+len(value)), mark...)
	b, _ = binary.Append(b, binary.BigEndian, h[:])
	return append(b, value...)
}
