// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"math"
	"strings"
)

// Bounds of the shared state (ACCP-D76).
const (
	maxState      = 65536   // values
	maxStateBytes = 4 << 20 // in memory
)

const baseDigits = 8 // of a sent digest of the state

// decideState adds the change of the shared state by a sync:state message to its event (ACCP-D45,
// ACCP-D46).
func (c *core) decideState(m *Message, e *event) error {
	version, _ := m.Params.Get("version")
	delta, hasDelta := m.Params.Get("delta")
	state, hasState := m.Params.Get("state")
	base, hasBase := m.Params.Get("base")
	v, ok := version.Int()
	switch {
	case !ok || v < 0:
		return fail(ErrInvalidType, "sync:state needs an integer v from 0")
	case hasDelta == hasState:
		return fail(ErrInvalidType, "sync:state needs exactly one of delta and state")
	case hasDelta && delta.kind != KindMap, hasState && state.kind != KindMap:
		return fail(ErrInvalidType, "delta and state must be maps")
	case hasBase && (base.kind != KindString || !validHash(base.text)):
		return fail(ErrInvalidType, "base must be 6 to 64 hex digits")
	}
	if hasDelta {
		return c.decideDelta(v, delta, base.text, e)
	}
	return c.decideSnapshot(v, state, e)
}

func (c *core) decideDelta(v int64, delta Value, base string, e *event) error {
	switch {
	case v <= c.version:
		return fail(ErrDuplicate, "state version %d after %d", v, c.version)
	case v-1 != c.version, !strings.EqualFold(base, c.digest[:len(base)]):
		return fail(ErrSequenceGap, "state version %d after %d, or another base", v, c.version)
	}
	if err := checkState(Apply(c.state, delta.list)); err != nil {
		return err
	}
	e.Version, e.Delta = v, &delta
	return nil
}

func (c *core) decideSnapshot(v int64, state Value, e *event) error {
	next := Apply(nil, state.list) // a state holds no nulls
	d, err := digest(Value{kind: KindMap, list: next})
	switch {
	case err != nil:
		return err
	case v == c.version && d == c.digest:
		return nil
	case v < c.version, v == c.version && d < c.digest:
		return fail(ErrDuplicate, "state version %d after %d", v, c.version)
	}
	if err := checkState(next); err != nil {
		return err
	}
	whole := Map(next...)
	e.Version, e.State = v, &whole
	return nil
}

func checkState(p Params) error {
	v := Value{kind: KindMap, list: p}
	if v.count() > maxState || v.size() > maxStateBytes {
		return fail(ErrBudgetExceeded, "the state is too large")
	}
	_, err := digest(v)
	return err
}

// State returns the shared state and its version, which is 0 before the first state.
func (s *Session) State() (version int64, state Params) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.version, Apply(s.core.state, nil)
}

// A stateUndo is a sent change of the shared state. If the peer refuses it with E3002, the earlier
// state returns.
type stateUndo struct {
	chain   string
	version int64
	before  Value
}

// Sync sets the shared state and returns the frame with the difference to the last state, or no
// frame without a difference. Nulls in state count as absent.
func (s *Session) Sync(ctx context.Context, state Params) (*SendResult, error) {
	next := Apply(nil, state)
	return s.enteredToSend(ctx, func() (*SendResult, error) {
		s.dirty = true // the difference is to the current state of all processes
		var undo *stateUndo
		sent, err := s.sendWith(ctx, IntentSync, func() (*Message, *event, error) {
			delta := Value{kind: KindMap, list: Diff(s.core.state, next)}
			switch {
			case delta.Len() == 0:
				return nil, nil, nil
			case s.core.version == math.MaxInt64:
				return nil, nil, fail(ErrInternal, "the versions of the shared state are used up")
			}
			version := s.core.version + 1
			m := &Message{Intent: IntentSync, Op: OpState, Params: Params{{"version", Int(version)}, {"delta", delta}}}
			if version > 1 {
				m.Params = append(m.Params, Param{"base", String(s.core.digest[:baseDigits])})
			}
			undo = &stateUndo{version: version, before: Map(s.core.state...)}
			return m, &event{Version: version, Delta: &delta}, checkState(next)
		})
		if err == nil && undo != nil && !sent.Dropped {
			undo.chain = sent.Message.Chain()
			s.synced = undo
		}
		return sent, err
	})
}

// hasApplied reports whether the message with this id has changed the shared state.
func (s *Session) hasApplied(mid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.changes.has(markOf(mid))
}

// hasMark reports whether the metadata of m has a key with the value true.
func hasMark(m *Message, key string) bool {
	if m.Meta == nil {
		return false
	}
	v, _ := m.Meta.Ext.Get(key)
	isSet, _ := v.Bool()
	return isSet
}

// takeBack undoes the change by Sync in a chain, unless another one followed.
func (s *Session) takeBack(ctx context.Context, chain string) error {
	return s.entered(ctx, func() error {
		return s.change(ctx, func() (*event, error) {
			u := s.synced
			if u == nil || u.chain != chain || u.version != s.core.version {
				return nil, nil
			}
			s.synced = nil
			return &event{Version: u.version - 1, State: &u.before}, nil
		})
	})
}

// Snapshot returns the frame with the whole state, the answer to qry:state (ACCP-D46).
func (s *Session) Snapshot(ctx context.Context) (*SendResult, error) {
	return s.enteredToSend(ctx, func() (*SendResult, error) {
		return s.sendWith(ctx, IntentSync, func() (*Message, *event, error) { return s.core.stateMessage(), nil, nil })
	})
}

// stateMessage returns the message with the whole state.
func (c *core) stateMessage() *Message {
	return &Message{Intent: IntentSync, Op: OpState, Params: Params{
		{"version", Int(c.version)},
		{"state", Value{kind: KindMap, list: c.state}},
	}}
}
