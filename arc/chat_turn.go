// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

// The turn of a chat belongs to one process at a time (ARC-D78). Its record names the owner, and is empty
// between two turns. Within a process the lock of the chat gives the turn to one message.
const (
	turnTTL   = 30 * 24 * time.Hour // of a record with an owner
	freeTTL   = 10 * time.Minute    // of an empty one
	chatTopic = "chat"              // of messages to the owner of a turn whose chat was ended
)

// errTurnTaken reports that another process has the turn.
var errTurnTaken = errors.New("arc: chat: another process has the turn")

func turnKey(key string) string { return "arc/turn/" + key }

// tryClaim takes the turn of a chat for this process, unless a live process has it. An owner of this process
// is left from a change that was in doubt.
func (c *chatTable) tryClaim(ctx context.Context, key string) error {
	own := c.s.lease.Owner()
	ctx, cancel := context.WithTimeout(ctx, outage)
	defer cancel()
	_, err := store.Modify(ctx, c.db, turnKey(key), turnTTL, func(old store.Entry, _ bool) ([]byte, error) {
		holder := lease.Owner(old.Value)
		if holder != "" && holder != own {
			isAlive, err := c.s.lease.Alive(ctx, holder)
			if err != nil {
				return nil, err
			}
			if isAlive {
				return nil, errTurnTaken
			}
		}
		return []byte(own), nil
	})
	return err
}

// claim waits until this process has the turn. The message must have it within the process.
func (j *chatJob) claim(ctx context.Context) error {
	if !j.table.s.isShared {
		return nil
	}
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := j.tryClaim(ctx)
		if !errors.Is(err, errTurnTaken) {
			return err
		}
		select {
		case <-time.After(delay):
		case <-j.chat.closed:
			return idFault(ErrChatAlreadyClosed, "chatId", j.id)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claimNew takes the turn of a chat that is to begin. Another process may be beginning it.
func (j *chatJob) claimNew(ctx context.Context) error {
	if !j.table.s.isShared {
		return nil
	}
	err := j.tryClaim(ctx)
	if errors.Is(err, errTurnTaken) {
		return chatTaken()
	}
	return err
}

// tryClaim claims the turn. After a claim whose outcome is unknown it frees the turn. The new revision
// refuses a claim in transit.
func (j *chatJob) tryClaim(ctx context.Context) error {
	err := j.table.tryClaim(ctx, j.chat.key)
	if err == nil || errors.Is(err, errTurnTaken) {
		return err
	}
	j.free(ctx, true)
	return err
}

// unclaim frees the turn for other processes.
func (j *chatJob) unclaim(ctx context.Context) {
	if j.table.s.isShared && !j.stateless {
		j.free(ctx, false)
	}
}

// free frees a turn of this process. It repeats this until the store takes it, since no other process takes the turn
// from a living one, or until a shutdown or the loss of the lease. A free turn gets a new revision if isForced.
func (j *chatJob) free(ctx context.Context, isForced bool) {
	s := j.table.s
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := j.tryFree(ctx, isForced)
		if err == nil {
			return
		}
		if s.Ready() != nil {
			s.opts.Logger.WarnContext(ctx, "arc: turn not freed", "chat", j.id, "err", err)
			return
		}
		time.Sleep(delay)
	}
}

func (j *chatJob) tryFree(ctx context.Context, isForced bool) error {
	own := j.table.s.lease.Owner()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outage)
	defer cancel()
	_, err := store.Modify(ctx, j.table.db, turnKey(j.chat.key), freeTTL, func(old store.Entry, _ bool) ([]byte, error) {
		switch {
		case lease.Owner(old.Value) == own:
			return []byte{}, nil
		case isForced && len(old.Value) == 0:
			return []byte{}, nil
		}
		return nil, store.ErrUnchanged
	})
	return err
}

// cutElsewhere informs the process that has the turn of a chat about its end.
func (c *chatTable) cutElsewhere(ctx context.Context, key string) {
	if !c.s.isShared {
		return
	}
	e, err := c.db.Get(ctx, turnKey(key))
	if err == nil {
		e, err = store.Content(e)
	}
	if holder := lease.Owner(e.Value); err == nil && holder != "" && holder != c.s.lease.Owner() {
		err = c.s.lease.Tell(ctx, holder, chatTopic, []byte(key))
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		c.s.opts.Logger.WarnContext(ctx, "arc: process of chat not notified", "err", err)
	}
}

// listen cuts a turn whose chat another process has ended.
func (c *chatTable) listen(data []byte) {
	_ = c.s.life.Go("chat", func(ctx context.Context) { // not in a shutdown
		c.mu.Lock()
		lc := c.live[string(data)]
		if lc != nil {
			lc.refs++
		}
		c.mu.Unlock()
		if lc == nil {
			return
		}
		defer c.release(lc)
		r := chatRecord{table: c, key: lc.key}
		if st, err := r.load(ctx); err != nil || st == nil || st.status != ChatClosed {
			return
		}
		lc.mu.Lock()
		defer lc.mu.Unlock()
		lc.cutLocked()
	})
}

// cutLocked ends the turn and the queue of a chat that was ended. lc.mu must be held.
func (lc *liveChat) cutLocked() {
	if lc.cancel != nil {
		lc.cancel(ErrChatAlreadyClosed)
	}
	if !lc.turn.IsEnded() {
		lc.turn.End()
		close(lc.closed)
	}
}
