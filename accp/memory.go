// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/budget"
)

// Counted bytes, and bounds (ACCP-D76).
const (
	sessionBytes  = 4 << 10 // of an empty session in addition to its id
	messageBytes  = 512     // of a message without params
	markBytes     = 48      // of a mark in a window
	itemBytes     = 64      // of an item in addition to its length
	entryBytes    = 512     // of a stored entry in addition to its length
	frameFactor   = 4       // bytes of state that one byte of a frame may need
	maxPartBytes  = 4 << 20 // of the frames of an incomplete message
	maxSchemas    = 256
	maxSchemaText = 256 << 10 // of the canonical texts
	connBytes     = 128 << 10 // of a WebSocket connection
	queueBytes    = 256 << 10 // that wait for a slow peer
)

// Holdings are the bytes that a session holds in memory and in stores.
type holdings struct {
	memory, storage meter
	entries         map[string]heldEntry // by scope and key
	entryBytes      int64                // of entries
	moved           []heldText           // texts in SharedStore, by the times of their removal
	schemaBytes     int                  // of the schemas of the program
}

// A meter bounds bytes.
type meter struct {
	limit    int64
	size     func() int64        // of the state; the session must be entered
	resize   func(n int64) error // changes a reservation; may be nil
	reserved atomic.Int64        // size of the reservation
}

// use makes a hold of n bytes the reservation of m.
func (m *meter) use(hold budget.Hold, n int64) {
	m.reserved.Store(n)
	m.resize = func(n int64) error { return overBudget(hold.Resize(n)) }
}

// meterStep is the unit of reservations, so that few frames change one.
const meterStep = 1 << 10

// fit finds room for n bytes in addition to the state. It drops the oldest checkpoints before it
// returns an error. The session must be entered.
func (h *history) fit(ctx context.Context, m *meter, n int64) error {
	for {
		size := m.size() + n
		want := (size + meterStep - 1) / meterStep * meterStep
		var err error
		switch {
		case size > m.limit:
			err = fail(ErrBudgetExceeded, "the session needs %d bytes, its limit is %d", size, m.limit)
		case m.resize != nil && want != m.reserved.Load():
			err = m.resize(want)
		}
		if err == nil {
			m.reserved.Store(want)
			return nil
		}
		if !h.dropCheckpoint(ctx) {
			return err
		}
	}
}

// memorySize returns the number of bytes of the state in memory. The session must be entered.
func (h *history) memorySize() int64 {
	c := &h.core
	memory, contents := c.tiers.Sizes()
	n := int64(sessionBytes+len(h.id)+c.numbers.Bytes()+c.shared.bytes+h.registry.tables().bytes-h.holds.schemaBytes) + memory + h.holds.entryBytes
	if h.parts != nil {
		n += int64(h.parts.bytes)
	}
	if !h.refs.hasStore() {
		n += contents
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return n + int64(h.view.bytes)
}

// storageSize returns the number of bytes that the session has stored: its checkpoints, and the texts
// that it has moved to the shared store. The session must be entered.
func (h *history) storageSize() int64 {
	h.holds.moved = slices.DeleteFunc(h.holds.moved, func(x heldText) bool { return past(x.until) })
	n := int64(0)
	for _, x := range h.holds.moved {
		n += x.bytes
	}
	if h.refs.hasStore() {
		_, contents := h.core.tiers.Sizes()
		n += contents
	}
	return n
}

// A heldText has the bytes of texts that were moved to the shared store at about the same time.
type heldText struct {
	bytes int64
	until int64 // when the store has removed all of them, in Unix milliseconds; 0: never
}

// addMoved counts n bytes of a text that the shared store holds from now on.
func (h *history) addMoved(n int64) {
	until, step := int64(0), int64(0)
	if _, kept := expiry(h.refs.retention); kept > 0 {
		until, step = time.Now().Add(kept).UnixMilli(), kept.Milliseconds()/64
	}
	if i := len(h.holds.moved) - 1; i >= 0 && until <= h.holds.moved[i].until {
		h.holds.moved[i].bytes += n
		return
	}
	h.holds.moved = append(h.holds.moved, heldText{n, until + step})
}

// size returns the number of bytes of a message in memory.
func (m *Message) size() int {
	n := messageBytes
	for i := range m.Params {
		n += itemBytes + len(m.Params[i].Key) + m.Params[i].Value.size()
	}
	return n
}

// dropCheckpoint removes the oldest checkpoint and reports whether there was one. The session must be
// entered.
func (h *history) dropCheckpoint(ctx context.Context) bool {
	isDropped := false
	err := h.update(ctx, func() (*change, error) {
		if isDropped = len(h.core.tiers.Checkpoints) > 0; !isDropped {
			return nil, nil
		}
		return &change{Event: record.Event{Tiers: tier.Change{Drop: true}}}, nil
	})
	return isDropped && err == nil
}

// A heldEntry is an entry of [Session.Put] in memory.
type heldEntry struct {
	bytes int64
	until int64 // when the store removes it, in Unix milliseconds; 0: never
}

// put stores an entry of [Session.Put]. The session must be entered.
func (h *history) put(ctx context.Context, scope Scope, key string, v Value, ttl time.Duration) error {
	if h.refs.hasStore() {
		_, err := h.refs.private.put(ctx, h.id, scope, key, v, ttl)
		return err
	}
	need := int64(v.size() + entryBytes)
	err := h.fit(ctx, &h.holds.memory, need)
	if err != nil {
		for name, e := range h.holds.entries {
			if past(e.until) {
				h.holds.entryBytes -= e.bytes
				delete(h.holds.entries, name)
			}
		}
		err = h.fit(ctx, &h.holds.memory, need)
	}
	if err != nil {
		return err
	}
	n, err := h.refs.own().put(ctx, h.id, scope, key, v, ttl)
	if err != nil {
		return err
	}
	until := int64(0)
	if _, kept := expiry(ttl); kept > 0 {
		until = time.Now().Add(kept).UnixMilli()
	}
	name := string(scope) + "." + key
	h.holds.entryBytes += n - h.holds.entries[name].bytes
	if h.holds.entries == nil {
		h.holds.entries = map[string]heldEntry{}
	}
	h.holds.entries[name] = heldEntry{n, until}
	return nil
}
