// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"sync/atomic"
	"time"
)

// Counted bytes, and bounds (ACCP-D76).
const (
	sessionBytes  = 4 << 10 // of an empty session
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

// A meter bounds the bytes that a session holds in memory or in stores.
type meter struct {
	limit    int64
	size     func() int64        // of the state; the session must be entered
	resize   func(n int64) error // changes a reservation; may be nil
	reserved atomic.Int64        // size of the reservation
}

// fit finds room for n bytes in addition to the state. It drops the oldest checkpoints before it
// returns an error. The session must be entered.
func (s *Session) fit(ctx context.Context, m *meter, n int64) error {
	for {
		want := m.size() + n
		var err error
		switch {
		case want > m.limit:
			err = fail(ErrBudgetExceeded, "the session needs %d bytes, its limit is %d", want, m.limit)
		case m.resize != nil && want != m.reserved.Load():
			err = m.resize(want)
		}
		if err == nil {
			m.reserved.Store(want)
			return nil
		}
		if !s.dropCheckpoint(ctx) {
			return err
		}
	}
}

// memorySize returns the number of bytes of the state in memory. The session must be entered.
func (s *Session) memorySize() int64 {
	c := &s.core
	n := sessionBytes + markBytes*(len(c.seen.ring)+len(c.cancelled.ring)+len(c.changes.ring)) + 2*itemBytes*len(c.last.ring) +
		c.tiers.HotBytes + c.bytes + s.registry.tables().bytes - s.schemaBytes
	if s.parts != nil {
		n += s.parts.bytes
	}
	if !s.durable() {
		n += int(c.tiers.Stored)
	}
	s.mu.Lock()
	n += s.view.bytes
	s.mu.Unlock()
	return int64(n) + c.tiers.InfoBytes + s.entryBytes
}

// storageSize returns the number of bytes that the session has stored: its checkpoints, and the texts
// that it has moved to the shared store. The session must be entered.
func (s *Session) storageSize() int64 {
	if s.durable() {
		return s.core.tiers.Stored + s.movedBytes
	}
	return s.movedBytes
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
func (s *Session) dropCheckpoint(ctx context.Context) bool {
	isDropped := false
	err := s.change(ctx, func() (*event, error) {
		if isDropped = len(s.core.tiers.Checkpoints) > 0; !isDropped {
			return nil, nil
		}
		return &event{Drop: true}, nil
	})
	return isDropped && err == nil
}

// A heldEntry is an entry of [Session.Put] in memory.
type heldEntry struct {
	bytes int64
	until int64 // when the store removes it, in Unix milliseconds; 0: never
}

// putEntry stores an entry of [Session.Put]. The session must be entered.
func (s *Session) putEntry(ctx context.Context, scope Scope, key string, v Value, ttl time.Duration) error {
	if s.durable() {
		_, err := s.private().put(ctx, s.id, scope, key, v, ttl)
		return err
	}
	need := int64(v.size() + entryBytes)
	err := s.fit(ctx, &s.memory, need)
	if err != nil {
		for name, e := range s.entries {
			if past(e.until) {
				s.entryBytes -= e.bytes
				delete(s.entries, name)
			}
		}
		err = s.fit(ctx, &s.memory, need)
	}
	if err != nil {
		return err
	}
	n, err := s.private().put(ctx, s.id, scope, key, v, ttl)
	if err != nil {
		return err
	}
	until := int64(0)
	if _, kept := expiry(ttl); kept > 0 {
		until = time.Now().Add(kept).UnixMilli()
	}
	name := string(scope) + "." + key
	s.entryBytes += n - s.entries[name].bytes
	s.entries[name] = heldEntry{n, until}
	return nil
}
