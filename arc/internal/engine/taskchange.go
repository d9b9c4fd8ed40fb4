// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

// A change is something that happens to a task, with the parts that are not in the record.
type change struct {
	Change
	kind     byte   // of the item; zero means none
	item     []byte // JSON of a message or an artifact
	fault    []byte // why the task failed
	expected time.Duration
	attempt  Attempt     // of the request
	request  *Request    // of another process than the owner, perhaps; nil for a change by a run
	entry    lease.Owner // has an index entry for the request; else empty
	former   lease.Owner // of the record that it replaced, or read last
	added    *addition   // of the request; nil without one
}

// applyLocked makes a change by the machine of tasks, stores it, and emits its events. Its cost does not depend on
// what happened to the task before. ctx ends when the process may not change the task any longer. t.turn must be held.
func (e *Tasks) applyLocked(ctx context.Context, t *task, c *change) error {
	n := 0
	if c.kind != 0 {
		n = len(c.item) + itemBytes
		c.Size = Room + len(c.item)
	}
	if err := e.ledger.grow(taskObject, t.id, n); err != nil {
		return err
	}
	var old, next *record
	ttl := time.Duration(0)
	if c.Action == Complete || c.Action == Fail || c.Action == Cancel {
		ttl = e.opts.TaskRetention
	}
	err := e.changeLocked(ctx, t, ttl, func(r *record) (*record, error) {
		c.former = r.Owner
		if isMade, err := e.isMade(ctx, r, c); isMade || err != nil {
			return nil, cmp.Or(err, store.ErrUnchanged)
		}
		var err error
		old = r
		next, err = e.step(ctx, t, r, c)
		return next, err
	})
	if err != nil || next == nil {
		_ = e.ledger.grow(taskObject, t.id, -n) // always succeeds
		return err
	}
	e.publishLocked(t, old, next)
	return nil
}

// encodeLocked returns the stored form of a record. t.turn must be held.
func (e *Tasks) encodeLocked(t *task, r *record) []byte {
	if e.isShared {
		return r.encode(nil)
	}
	b := r.encode(t.buf[:0])
	if t.buf = b; cap(b) > maxBuf {
		t.buf = nil
	}
	return b
}

// changeLocked replaces the record of a task. t.turn must be held.
func (e *Tasks) changeLocked(ctx context.Context, t *task, ttl time.Duration, f func(r *record) (*record, error)) error {
	var next *record
	entry, err := e.modify(ctx, t.key, ttl, func(entry store.Entry, isFound bool) ([]byte, error) {
		next = nil
		if !isFound {
			return nil, noTask(t.id)
		}
		r, err := e.decodeLocked(ctx, t, entry)
		if err == nil {
			next, err = f(r)
		}
		if err != nil {
			next = nil
			return nil, err
		}
		return e.encodeLocked(t, next), nil
	})
	if err == nil && next != nil {
		t.setLocked(next, entry.Revision)
	}
	return err
}

// isMade reports whether an earlier attempt of the request has made a change.
func (e *Tasks) isMade(ctx context.Context, r *record, c *change) (bool, error) {
	switch {
	case !c.attempt.IsRepeated:
		return false, nil
	case c.Action == Cancel:
		return r.Status == canceled, nil
	}
	list, err := e.readItems(ctx, taskItems(r.ID), 0, r.Last)
	return findItem(list, c.attempt.item("")) >= 0, err
}

// step returns the record after a change. Its item is stored before.
func (e *Tasks) step(ctx context.Context, t *task, r *record, c *change) (*record, error) {
	event := c.Change
	if c.request != nil && r.Owner != e.lease.Owner() {
		if err := e.enterIndex(ctx, r, c); err != nil {
			return nil, err
		}
		isAlive := false
		if !r.IsParked {
			var err error
			if isAlive, err = e.lease.Alive(ctx, r.Owner); err != nil {
				return nil, err
			}
		}
		if !isAlive {
			event.Claimant = c.entry
		}
	}
	state, events, err := r.Step(&event, Bounds{Bytes: maxTaskBytes, Items: e.opts.MaxItems})
	if err != nil {
		return nil, r.refusal(c.Action, err)
	}
	next := *r
	if c.added != nil {
		if err := c.added.addTo(&next, e.opts.MaxSubscriptions); err != nil {
			return nil, err
		}
	}
	next.Task = state
	if state.IsFinal() {
		next.Fault = c.fault
	}
	if c.kind != 0 {
		next.Last, err = e.appendItem(ctx, t.items, c.attempt.item(""), r.Last, newItem(c.kind, c.item), 0)
		if err != nil {
			return nil, err
		}
	}
	e.addEvents(t, r, &next, c, events)
	return &next, nil
}

// enterIndex enters a task of another process into the index of this one for a change of the record r. If the lease of this
// process has expired, another one may have removed an earlier entry. The present entry is newer than r: its removal follows
// another change of the record, so that the change of r fails.
func (e *Tasks) enterIndex(ctx context.Context, r *record, c *change) error {
	owner, err := e.startWork(ctx, r.Agent, r.ID)
	if err != nil {
		return e.unavailable(c.request.Target, err)
	}
	e.leaveIndex(r, c)
	c.entry = owner
	return nil
}

// leaveIndex removes the task of a change from the index, if enterIndex has entered it.
func (e *Tasks) leaveIndex(r *record, c *change) {
	if c.entry != "" {
		e.finishWork(e.durable(), c.entry, r.Agent, r.ID)
	}
}

// publishLocked does what follows a change. t.turn must be held.
func (e *Tasks) publishLocked(t *task, old, r *record) {
	e.emitLocked(t, old, r)
	if !r.IsFinal() {
		t.run.schedule(r)
		return
	}
	if t.run != nil {
		t.run.work.Cancel(e.overCause(r))
	} else {
		e.unparkLocked(t)
		e.dismissLocked(t)
	}
	e.ledger.end(taskObject, t.id, e.opts.TaskRetention)
	if !e.isShared { // else finishTask does it
		_ = e.expireItems(context.Background(), t, r) // a store in memory does not fail
	}
	if r.IsJournaled { // it expires without this, too
		_ = e.life.Go("journal", func(ctx context.Context) { _ = e.steps.Expire(ctx, t.id, journalRetention) })
	}
}

// expireItems gives the messages, the artifacts and the metadata of an ended task the lifetime of its record.
func (e *Tasks) expireItems(ctx context.Context, t *task, r *record) error {
	ttl := e.opts.TaskRetention
	if ttl == 0 {
		return nil
	}
	err := e.db.Expire(ctx, t.items, ttl)
	if err == nil && r.HasMetadata {
		err = e.db.Expire(ctx, taskMetadata(r.ID), ttl)
	}
	return err
}

// journalRetention is the time for which a late run of an ended task finds its journal.
const journalRetention = time.Hour
