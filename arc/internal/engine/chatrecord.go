// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/store"
)

// A chatRecord is the stored state of a chat as one turn knows it. Each change is one compare-and-set on the state that
// the turn has read, so that of two processes with one turn only one changes the chat (ARC-D78).
type chatRecord struct {
	c   *Chats
	key string
	id  string

	mu     objectLock // serializes the changes, and guards all that follows
	state  *chatState // nil as long as the chat does not exist
	saved  Moment     // when the state was written last
	isOver bool       // the turn has ended
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
	e, err := r.c.read(ctx, chatKey(r.key))
	switch {
	case errors.Is(err, store.ErrNotFound):
		r.state = nil
		return nil, nil
	case err != nil:
		return nil, err
	}
	st, err := decodeChat(e)
	if err == nil {
		r.state = st
	}
	return st, err
}

func decodeChat(e store.Entry) (*chatState, error) {
	st := new(chatState)
	if err := wire.DecodeStored(e.Value, st); err != nil {
		return nil, fmt.Errorf("arc: stored chat: %w", err)
	}
	return st, nil
}

// itemLife is how long a message of an open chat lives: longer than the chat by a quarter, so that a turn costs the
// same however many there are.
func (c *Chats) itemLife() time.Duration { return c.opts.ChatIdle + c.opts.ChatIdle/4 }

// modifyLocked replaces the state, or creates the chat, and renews the idle time of an open chat. r.mu must be held.
func (r *chatRecord) modifyLocked(isClosing bool, f func(st *chatState) (*chatState, error)) error {
	c, at := r.c, Now()
	ttl := c.opts.ChatIdle
	if isClosing {
		ttl = c.opts.ChatRetention
	}
	var next *chatState
	_, err := c.modify(c.durable(), chatKey(r.key), ttl, func(old store.Entry, isFound bool) ([]byte, error) {
		next = nil
		var st *chatState
		var err error
		if isFound {
			st, err = decodeChat(old)
		}
		if err == nil {
			next, err = f(st)
		}
		if err == nil {
			err = c.renewItems(r.key, st, next, at)
		}
		if err != nil {
			next = nil
			return nil, err
		}
		return jsonmap.Append(nil, next)
	})
	if err != nil || next == nil {
		return err
	}
	r.state, r.saved = next, at
	if isClosing {
		c.ledger.end(chatObject, r.key, ttl)
	} else {
		c.ledger.renew(chatObject, r.key, ttl)
	}
	return nil
}

// renewItems extends the life of the messages of a chat that is written, at most once in a quarter of the idle time.
func (c *Chats) renewItems(key string, old, next *chatState, at Moment) error {
	idle := c.opts.ChatIdle
	switch {
	case next.Status == closed:
	case old == nil:
		next.Renewed = at
	case idle > 0 && at.isPast(next.Renewed, idle/4):
		next.Renewed = at
		return c.db.Expire(c.durable(), chatItems(key), c.itemLife())
	}
	return nil
}

// renew restarts the idle time of an open chat during its turn.
func (r *chatRecord) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	idle := r.c.opts.ChatIdle
	if idle == 0 || r.isOver || r.state == nil || r.state.Status == closed || !Now().isPast(r.saved, idle/16) {
		return
	}
	err := r.modifyLocked(false, func(st *chatState) (*chatState, error) {
		if st == nil || st.Status == closed {
			return nil, store.ErrUnchanged
		}
		next := *st
		return &next, nil
	})
	if err != nil {
		r.c.log.WarnContext(r.c.durable(), "arc: chat not renewed", "chat", r.id, "err", err)
	}
}

// finish ends the turn.
func (r *chatRecord) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isOver = true
}

// change changes an open chat, or the fresh one, and adds messages to it. The change is made once, or not at all if the
// chat was ended, or changed by another turn.
func (r *chatRecord) change(fresh *chatState, edit func(next *chatState), items ...chatItem) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	base := r.state
	return r.modifyLocked(false, func(st *chatState) (*chatState, error) {
		switch {
		case base == nil && st != nil: // another attempt of the request may have begun it
			return nil, r.begunBy(st, items)
		case base == nil:
			st = fresh
		case st == nil:
			return nil, noChat(wire.ChatNotFound, r.id) // idle for too long
		case st.Status == closed:
			return nil, noChat(wire.ChatAlreadyClosed, r.id)
		case st.Last != base.Last:
			return nil, errTurnLost
		}
		next := *st
		edit(&next)
		for _, item := range items {
			var err error
			next.Last, err = r.c.appendItem(r.c.durable(), chatItems(r.key), item.id, next.Last, item.data, r.c.itemLife())
			if err != nil {
				return nil, err
			}
		}
		return &next, nil
	})
}

// begunBy returns the error of a chat that another turn has begun.
func (r *chatRecord) begunBy(st *chatState, items []chatItem) error {
	if len(items) == 0 {
		return errChatTaken
	}
	list, err := r.c.readItems(r.c.durable(), chatItems(r.key), 0, st.Last)
	if err != nil {
		return err
	}
	if findItem(list, items[0].id) >= 0 {
		return errTurnLost // the next attempt finds it
	}
	return errChatTaken
}

// end closes the chat, unless an earlier attempt of the request has.
func (r *chatRecord) end(reason string, a Attempt) (*chatState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.modifyLocked(true, func(st *chatState) (*chatState, error) {
		r.state = st
		if st != nil && st.Status == closed && a.IsRepeated {
			return nil, store.ErrUnchanged
		}
		if err := st.refuses(r.id, EndChat); err != nil {
			return nil, err
		}
		next := *st
		next.Status, next.Updated, next.Reason = closed, Now(), reason
		next.Closed = next.Updated
		return &next, nil
	})
	return r.state, err
}
