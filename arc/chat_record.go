// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// A chatRecord is the stored state of a chat as one turn knows it. Each change is one compare-and-set on the revision
// that the turn has read, so that of two processes with one turn only one changes the chat (ARC-D78).
type chatRecord struct {
	table *chatTable
	key   string
	id    string

	mu      objectLock // serializes the changes, and guards all that follows
	state   *chatState // nil as long as the chat does not exist
	rev     store.Revision
	saved   time.Time // when the state was written last
	isStale bool      // the stored state may be newer
	isOver  bool      // the turn has ended
}

// A chatItem is a message to be added to a chat.
type chatItem struct {
	id   string // without its position, or empty
	data []byte // behind room for the link
}

// errTurnLost reports a chat that another process has changed during the turn, as it may if the clock of the store jumps.
var errTurnLost = errors.New("arc: chat: another process had the turn")

func (r *chatRecord) current() *chatState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// load reads the chat.
func (r *chatRecord) load(ctx context.Context) (*chatState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.loadLocked(ctx)
}

func (r *chatRecord) loadLocked(ctx context.Context) error {
	entry, err := r.table.db.Get(ctx, chatKey(r.key))
	switch {
	case errors.Is(err, store.ErrNotFound):
		r.state, r.rev = nil, 0
	case err != nil:
		return err
	case r.state == nil || r.rev != entry.Revision:
		st, err := decodeChat(entry.Value)
		if err != nil {
			return err
		}
		r.state, r.rev = st, entry.Revision
	}
	r.isStale = false
	return nil
}

// saveLocked writes a changed state and renews the idle time of an open chat. r.mu must be held.
func (r *chatRecord) saveLocked(ctx context.Context, next *chatState) (err error) {
	c := r.table
	at, idle := now(), c.s.opts.Timing.ChatIdleTimeout
	ttl := idle
	switch {
	case next.status == ChatClosed:
		ttl = c.s.opts.Persistence.ChatRetention
	case r.state == nil:
		next.renewed = at
	case idle > 0 && at.Sub(next.renewed) >= idle/4:
		// Messages live longer than the chat by this quarter, so that a turn
		// costs the same however many there are.
		if err := c.db.Expire(ctx, chatItems(r.key), c.itemLife()); err != nil {
			return err
		}
		next.renewed = at
	}
	w := newReady()
	defer w.free()
	if next.write(&w.writer); w.err != nil {
		return w.err
	}
	rev := r.rev
	if r.state == nil {
		rev, err = c.db.Create(ctx, chatKey(r.key), w.b, ttl)
	} else {
		rev, err = c.db.Update(ctx, chatKey(r.key), w.b, rev, ttl)
	}
	if err != nil {
		r.isStale = true
		return err
	}
	r.state, r.rev, r.saved = next, rev, at
	if next.status == ChatClosed {
		c.s.ledger.end(chatObject, r.key, ttl)
	} else {
		c.s.ledger.renew(chatObject, r.key, ttl)
	}
	return nil
}

// itemLife is how long a message of an open chat lives.
func (c *chatTable) itemLife() time.Duration {
	return c.s.opts.Timing.ChatIdleTimeout + c.s.opts.Timing.ChatIdleTimeout/4
}

// renew restarts the idle time of an open chat during its turn.
func (r *chatRecord) renew(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	idle := r.table.s.opts.Timing.ChatIdleTimeout
	if idle == 0 || r.isOver || r.isStale || r.state == nil || r.state.status == ChatClosed || now().Sub(r.saved) <= idle/16 {
		return
	}
	next := *r.state
	if err := r.saveLocked(ctx, &next); err != nil {
		r.table.s.opts.Logger.WarnContext(ctx, "arc: chat not renewed", "chat", r.id, "err", err)
	}
}

// finish ends the turn.
func (r *chatRecord) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isOver = true
}

// change changes an open chat, and adds messages to it. The change is made once, or not at all if the chat was ended,
// or changed by another turn.
func (r *chatRecord) change(ctx context.Context, edit func(next *chatState), items ...chatItem) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changeLocked(ctx, r.state, edit, items)
}

// create is change for a chat that does not exist.
func (r *chatRecord) create(ctx context.Context, fresh *chatState, edit func(next *chatState), items ...chatItem) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	base := r.state
	if base == nil {
		base = fresh
	}
	return r.changeLocked(ctx, base, edit, items)
}

func (r *chatRecord) changeLocked(ctx context.Context, base *chatState, edit func(next *chatState), items []chatItem) error {
	isNew := r.state == nil
	return r.table.s.persist(ctx, func(ctx context.Context) error {
		for {
			if r.isStale {
				isMade, err := r.settleLocked(ctx, base.last, isNew, items)
				if isMade || err != nil {
					return err
				}
			}
			next := *base
			if !isNew {
				next = *r.state
			}
			edit(&next)
			for _, item := range items {
				var err error
				next.last, err = appendItem(ctx, r.table.db, chatItems(r.key), item.id, next.last, item.data, r.table.itemLife())
				if err != nil {
					return err
				}
			}
			err := r.saveLocked(ctx, &next)
			if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
	})
}

// settleLocked reads the chat again, and reports whether an earlier attempt has added the messages. It refuses a change
// of a chat that another turn has changed or ended. r.mu must be held.
func (r *chatRecord) settleLocked(ctx context.Context, last uint64, isNew bool, items []chatItem) (isMade bool, err error) {
	if err := r.loadLocked(ctx); err != nil {
		return false, err
	}
	st, isBegun := r.state, false
	if st != nil && st.last != last && len(items) > 0 {
		list, err := readItems(ctx, r.table.db, chatItems(r.key), st.last)
		if err != nil {
			r.isStale = true
			return false, err
		}
		isBegun = findItem(list, items[0].id) >= 0
		isMade = findItem(list, items[len(items)-1].id) >= 0
	}
	switch {
	case isMade, isNew && st == nil:
		return isMade, nil
	case isNew && isBegun: // by another attempt of the request, which the next one finds
		return false, errTurnLost
	case isNew:
		return false, chatTaken()
	case st == nil:
		return false, idFault(ErrChatNotFound, "chatId", r.id) // idle for too long
	case st.status == ChatClosed:
		return false, idFault(ErrChatAlreadyClosed, "chatId", r.id)
	case st.last != last:
		return false, errTurnLost
	}
	return false, nil
}

// end closes the chat, unless an earlier attempt of the request has.
func (r *chatRecord) end(ctx context.Context, reason string, a attempt) (*chatState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, isTried := now(), false
	err := r.table.s.persist(ctx, func(ctx context.Context) error {
		for {
			if err := r.loadLocked(ctx); err != nil {
				return err
			}
			st := r.state
			if st != nil && st.status == ChatClosed && (a.isRepeated || isTried && st.closed.Equal(at)) {
				return nil
			}
			if fault := st.refuses(r.id, engine.EndChat); fault != nil {
				return fault
			}
			next := *st
			next.status, next.updated, next.closed, next.reason = ChatClosed, at, at, reason
			err := r.saveLocked(ctx, &next)
			if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
				isTried = true
				return err
			}
		}
	})
	return r.state, err
}

// history reads the messages of a chat up to the position last.
func (c *chatTable) history(ctx context.Context, key string, last uint64) ([]Message, error) {
	records, err := readItems(ctx, c.db, chatItems(key), last)
	if err != nil {
		return nil, err
	}
	list := make([]Message, 0, len(records))
	for _, rec := range records {
		m, err := saidIn(rec)
		if err != nil {
			return nil, err
		}
		if m != nil {
			list = append(list, *m)
		}
	}
	return list, nil
}

// saidIn returns the message of a record.
func saidIn(rec store.Record) (*Message, error) {
	v, err := wire.Check(rec.Value)
	if err != nil {
		return nil, err
	}
	return read[Message](v)
}
