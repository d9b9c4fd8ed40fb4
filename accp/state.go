// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/record"
)

// Bounds of the shared state (ACCP-D76).
const (
	maxState      = 65536   // values
	maxStateBytes = 4 << 20 // in memory
)

const baseDigits = 8 // of a sent digest of the state

// A sharedState is a version of the shared state.
type sharedState struct {
	version int64
	params  Params
	digest  string
	bytes   int
}

// newState returns a version, or an error for one that is too large.
func newState(version int64, p Params) (sharedState, error) {
	v := Value{kind: KindMap, list: p}
	s := sharedState{version: version, params: p, bytes: v.size()}
	if v.count() > maxState || s.bytes > maxStateBytes {
		return s, fail(ErrBudgetExceeded, "the state is too large")
	}
	var err error
	s.digest, err = digest(v)
	return s, err
}

func emptyState() sharedState {
	s, _ := newState(0, nil)
	s.bytes = 0
	return s
}

// stateOf returns the state with a text in a record.
func stateOf(version int64, text string) (sharedState, error) {
	v, err := storedCodec.DecodeValue([]byte(text))
	if err != nil || v.kind != KindMap {
		return sharedState{}, record.ErrDamaged
	}
	s, err := newState(version, v.list)
	if err != nil {
		return s, record.ErrDamaged
	}
	return s, nil
}

// after returns the state after a delta in a record.
func (s *sharedState) after(version int64, delta string) (sharedState, error) {
	v, err := storedCodec.DecodeValue([]byte(delta))
	if err != nil || v.kind != KindMap {
		return sharedState{}, record.ErrDamaged
	}
	return newState(version, applyDelta(s.params, v.list))
}

// A stateChange is the next version of a state, and how it came about.
type stateChange struct {
	to    sharedState
	delta Value // null: to as a whole
}

// receive returns the change by a sync:state message, or nil if nothing changes (ACCP-D45, ACCP-D46).
func (s *sharedState) receive(m *Message) (*stateChange, error) {
	version, _ := m.Params.Get("version")
	delta, hasDelta := m.Params.Get("delta")
	state, hasState := m.Params.Get("state")
	base, hasBase := m.Params.Get("base")
	v, ok := version.Int()
	switch {
	case !ok || v < 0:
		return nil, fail(ErrInvalidType, "sync:state needs an integer v from 0")
	case hasDelta == hasState:
		return nil, fail(ErrInvalidType, "sync:state needs exactly one of delta and state")
	case hasDelta && delta.kind != KindMap, hasState && state.kind != KindMap:
		return nil, fail(ErrInvalidType, "delta and state must be maps")
	case hasBase && (base.kind != KindString || !validHash(base.text)):
		return nil, fail(ErrInvalidType, "base must be 6 to 64 hex digits")
	case hasDelta:
		return s.receiveDelta(v, delta.detached(), base.text)
	}
	return s.receiveWhole(v, state.detached())
}

func (s *sharedState) receiveWhole(v int64, state Value) (*stateChange, error) {
	next, err := newState(v, applyDelta(nil, state.list)) // a state holds no nulls
	switch {
	case v == s.version && next.digest == s.digest && err == nil:
		return nil, nil
	case v < s.version, v == s.version && next.digest < s.digest && next.digest != "":
		return nil, fail(ErrDuplicate, "state version %d after %d", v, s.version)
	}
	return &stateChange{to: next}, err
}

func (s *sharedState) receiveDelta(v int64, delta Value, base string) (*stateChange, error) {
	switch {
	case v <= s.version:
		return nil, fail(ErrDuplicate, "state version %d after %d", v, s.version)
	case v-1 != s.version, !strings.EqualFold(base, s.digest[:len(base)]):
		return nil, fail(ErrSequenceGap, "state version %d after %d, or another base", v, s.version)
	}
	next, err := newState(v, applyDelta(s.params, delta.list))
	return &stateChange{next, delta}, err
}

// send returns the change to the content next, and its message. Both are nil without a difference.
func (s *sharedState) send(next Params) (*stateChange, *Message, error) {
	delta := Value{kind: KindMap, list: diffStates(s.params, next)}
	switch {
	case len(delta.list) == 0:
		return nil, nil, nil
	case s.version == math.MaxInt64:
		return nil, nil, fail(ErrInternal, "the versions of the shared state are used up")
	}
	version := s.version + 1
	m := &Message{Intent: IntentSync, Op: opState, Params: Params{{"version", Int(version)}, {"delta", delta}}}
	if version > 1 {
		m.Params = append(m.Params, Param{"base", String(s.digest[:baseDigits])})
	}
	to, err := newState(version, next)
	return &stateChange{to, delta}, m, err
}

// message returns the message with the whole state.
func (s *sharedState) message() *Message {
	return &Message{Intent: IntentSync, Op: opState, Params: Params{
		{"version", Int(s.version)},
		{"state", Value{kind: KindMap, list: s.params}},
	}}
}

// setState adds a change of the shared state. Its text is for a record.
func (e *change) setState(c *stateChange, hasRecord bool) error {
	e.Version, e.shared = c.to.version, &c.to
	if !hasRecord {
		return nil
	}
	if c.delta.kind == KindNull {
		text, err := storedCodec.AppendValue(nil, Value{kind: KindMap, list: c.to.params})
		e.State = string(text)
		return err
	}
	text, err := storedCodec.AppendValue(nil, c.delta)
	e.Delta = string(text)
	return err
}

// State returns the shared state and its version, which is 0 before the first state.
func (s *Session) State() (version int64, state Params) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.shared.version, applyDelta(s.core.shared.params, nil)
}

// A stateUndo is a sent change of the shared state. If the peer refuses it with E3002, the earlier
// state returns.
type stateUndo struct {
	chain   string
	version int64
	before  sharedState
}

// of reports whether m refuses the change, which the peer does not have (ACCP-D45).
func (u *stateUndo) of(m *Message, current *sharedState) bool {
	return u != nil && m.Intent == IntentFail && Code(m.Params.Text("code")) == ErrDuplicate &&
		u.chain == m.Meta.CID && u.version == current.version && !hasMark(m, "applied")
}

// change returns the change that takes the state back.
func (u *stateUndo) change(hasRecord bool) (*change, error) {
	e := &change{}
	return e, e.setState(&stateChange{to: u.before}, hasRecord)
}

// Sync sets the shared state and returns the frame with the difference to the last state, or no
// frame without a difference. Nulls in state count as absent. A duplicate key is [ErrParse].
func (s *Session) Sync(ctx context.Context, state Params) (*SendResult, error) {
	return syncAfter(ctx, s, nil, state)
}

// errStateChanged reports a change of an earlier state.
var errStateChanged = errors.New("accp: the shared state has changed")

// current returns the shared state, which does not change.
func (h *history) current() *sharedState {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.core.shared
	return &now
}

// syncAfter is Sync for a state that was made from another one. If that is not nil and not the present one, the error
// is errStateChanged.
func syncAfter(ctx context.Context, s *Session, before *sharedState, state Params) (*SendResult, error) {
	if key := duplicateKey(state); key != "" {
		return nil, fail(ErrParse, "key %s given twice", quoted(key))
	}
	next := applyDelta(nil, state)
	return s.sent(ctx, func() (*SendResult, error) {
		if s.record != nil {
			s.record.Invalidate() // the difference is to the current state of all processes
		}
		var undo *stateUndo
		sent, err := s.sendWith(ctx, IntentSync, func(e *change) (*Message, error) {
			if now := &s.core.shared; before != nil && (before.version != now.version || before.digest != now.digest) {
				return nil, errStateChanged
			}
			c, m, err := s.core.shared.send(next)
			if err == nil && c != nil {
				err = e.setState(c, s.record != nil)
				undo = &stateUndo{version: c.to.version, before: s.core.shared}
			}
			return m, err
		})
		if err == nil && undo != nil && !sent.Dropped {
			undo.chain = sent.Message.Chain()
			s.synced = undo
		}
		return sent, err
	})
}

// duplicateKey returns a key that p, or a map in it, has twice, or "". Encoding detects those in arrays.
func duplicateKey(p Params) string {
	key := p.twice()
	for i := 0; i < len(p) && key == ""; i++ {
		if v := &p[i].Value; v.kind == KindMap {
			key = duplicateKey(v.list)
		}
	}
	return key
}

// hasApplied reports whether the message with this id has changed the shared state.
func (h *history) hasApplied(mid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.numbers.Changes.Has(order.MarkOf(mid))
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
		return s.update(ctx, func() (*change, error) {
			u := s.synced
			if u == nil || u.chain != chain || u.version != s.core.shared.version {
				return nil, nil
			}
			s.synced = nil
			return u.change(s.record != nil)
		})
	})
}

// Snapshot returns the frame with the whole state, the answer to qry:state (ACCP-D46).
func (s *Session) Snapshot(ctx context.Context) (*SendResult, error) {
	return s.sent(ctx, func() (*SendResult, error) {
		return s.sendWith(ctx, IntentSync, func(*change) (*Message, error) { return s.core.shared.message(), nil })
	})
}
