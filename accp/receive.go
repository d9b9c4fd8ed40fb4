// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"strings"
	"time"
)

// An ReceiveOutcome says what became of a frame that came in.
type ReceiveOutcome uint8

// The outcomes of frames that are not refused.
const (
	OutcomeDelivered ReceiveOutcome = iota + 1 // the message is for the application
	OutcomeCancelled                           // as Delivered: the message is a cancel, its chain has ended
	OutcomeDropped                             // nothing to do and nothing to answer
	OutcomePending                             // one part of a message, others are missing
)

// A ReceiveResult is what a session made of a frame.
type ReceiveResult struct {
	Outcome       ReceiveOutcome
	Message       *Message // Delivered, Cancel: keys in full, references resolved, defaults filled in
	Unresolved    *Message // the same with its references, for texts that models read
	Reason        string   // Dropped: "ttl" or "cancelled"
	PartsReceived int      // Pending: parts that came
	PartsTotal    int      // Pending: parts there are

	// DroppedParts counts the parts of an earlier message that this frame shows
	// to be incomplete for good.
	DroppedParts int

	// Checkpoint is what the frame triggered, or nil.
	Checkpoint *Checkpoint

	// CheckpointErr is why a checkpoint that was due could not be made. The
	// message is delivered all the same, and the next frame tries again.
	CheckpointErr error
}

// Receive processes one frame: grammar, envelope, session, time to live, replay,
// order, parts, chain, schema, references, types, state, checkpoint, in this order
// (ACCP-D27). An [*Error] means that the frame is refused and how to answer it (see
// [Session.SendError]); nothing of it is used then but its number.
func (s *Session) Receive(ctx context.Context, frame []byte) (*ReceiveResult, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.receive(ctx, frame)
}

func (s *Session) receive(ctx context.Context, frame []byte) (*ReceiveResult, error) {
	s.stats.Received++
	s.logFrame("in", frame)
	r, err := s.process(ctx, frame)
	if err != nil {
		s.stats.Rejected++
		s.log.Debug("accp: frame refused", "session", s.id, "err", err)
		return nil, err
	}
	switch r.Outcome {
	case OutcomeDropped:
		if r.Reason == "ttl" {
			s.stats.Expired++
		} else {
			s.stats.Cancelled++
		}
		s.log.Debug("accp: frame dropped", "session", s.id, "reason", r.Reason)
	case OutcomeDelivered, OutcomeCancelled:
		s.stats.Delivered++
	}
	return r, nil
}

func (s *Session) process(ctx context.Context, frame []byte) (*ReceiveResult, error) {
	f := takeFrame()
	defer f.giveBack()
	if err := s.codec.parse(frame, f); err != nil {
		return nil, err
	}
	m := f.Message()
	if err := s.codec.ValidateEnvelope(m); err != nil {
		return nil, err
	}
	meta := m.Meta
	if meta.SID != "" && meta.SID != s.id {
		return nil, fail(ErrPolicyDenied, "frame of another session")
	}
	now := time.Now().Unix()
	if ahead := s.opts.MaxClockSkew; ahead > 0 && meta.TS.N > now+int64(ahead/time.Second) {
		return nil, fail(ErrPolicyDenied, "ts lies too far ahead")
	}
	if drop, err := s.claim(ctx, m, now); err != nil {
		return nil, err
	} else if drop {
		return &ReceiveResult{Outcome: OutcomeDropped, Reason: "ttl"}, nil
	}
	in := incoming{m: m, text: string(frame), tokens: f.measure(s.opts.TokenCounter).Total}
	r := &ReceiveResult{}
	pending, err := s.join(&in, r)
	if pending || err != nil {
		s.stats.DroppedParts += int64(r.DroppedParts)
		return r, err
	}
	s.stats.DroppedParts += int64(r.DroppedParts)
	return s.deliver(ctx, in, r)
}

// claim uses up the message id and the number of a frame, if it may have them. It
// reports whether the time of the frame is over.
func (s *Session) claim(ctx context.Context, m *Message, now int64) (drop bool, err error) {
	meta := m.Meta
	id := markOf(meta.MID)
	var refused error
	err = s.change(ctx, func() error {
		seen := s.seen.has(id)
		drop, refused = expired(meta, now), nil
		switch {
		case drop && seen:
			return errUnchanged
		case drop:
			if s.inOrder(m.From, meta.Seq.N, false) {
				s.inOrder(m.From, meta.Seq.N, true)
			}
		case seen:
			refused = fail(ErrDuplicate, "mid was seen before")
			return errUnchanged
		case !s.inOrder(m.From, meta.Seq.N, true):
			refused = fail(ErrSequenceGap, "seq %d", meta.Seq.N)
		}
		s.seen.add(id)
		return nil
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return false, err
	}
	return drop, refused
}

// expired reports whether the time of a frame is over (ACCP-D23).
func expired(m *Meta, now int64) bool {
	return m.TTL.N > 0 && now > m.TS.N && now-m.TS.N > m.TTL.N
}

// An incoming message is one that came in, perhaps in parts.
type incoming struct {
	m      *Message
	text   string // its frames, joined by line feeds
	tokens int
}

// deliver does what follows the parts.
func (s *Session) deliver(ctx context.Context, in incoming, r *ReceiveResult) (*ReceiveResult, error) {
	m := in.m
	if m.Intent == IntentCancel && m.Meta.CID == "" {
		return nil, fail(ErrParse, "cancel without cid")
	}
	if s.cancelled.has(markOf(m.Chain())) {
		r.Outcome, r.Reason = OutcomeDropped, "cancelled"
		return r, nil
	}
	if err := s.room(ctx, m.Intent); err != nil {
		return nil, err
	}
	schema, err := s.codec.expand(m)
	if err != nil {
		return nil, err
	}
	resolved, changed, err := s.resolveAll(ctx, m.Params)
	if err != nil {
		return nil, err
	}
	wire := m
	if changed {
		c := *m
		c.Params = resolved
		m = &c
	}
	if err := s.codec.complete(m, schema); err != nil {
		return nil, err
	}
	if wire != m {
		if err := s.codec.complete(wire, schema); err != nil {
			return nil, err // cannot be: what is checked passed above, references pass
		}
	}
	if err := checkChain(m); err != nil {
		return nil, err
	}
	if err := s.checkProfiles(m); err != nil {
		return nil, err
	}
	s.warn(m)
	if m.Intent == IntentSync && m.Op == OpState {
		if err := s.change(ctx, func() error { return s.applyState(m) }); err != nil {
			return nil, err
		}
	}
	if m.Intent == IntentCancel {
		err := s.change(ctx, func() error {
			s.cancelled.add(markOf(m.Chain()))
			return nil
		})
		if err != nil {
			return nil, err
		}
		s.stop(m.Chain())
		r.Outcome = OutcomeCancelled
	} else {
		r.Outcome = OutcomeDelivered
	}
	r.Message, r.Unresolved = m, wire
	s.stats.TokensIn += int64(in.tokens)
	r.Checkpoint, r.CheckpointErr = s.remember(ctx, hotFrame{msg: wire, schema: schema, text: in.text, tokens: in.tokens})
	return r, nil
}

// warn tells about what is most likely wrong.
func (s *Session) warn(m *Message) {
	if s.opts.OnWarning == nil || m.Schema() != SchemaTransaction {
		return
	}
	if v, ok := m.Params.Get("currency"); ok {
		if t, isText := v.Text(); !isText || !currencyForm(t) {
			s.opts.OnWarning(m, "currency is not an ISO 4217 code")
		}
	}
}

// currencyForm reports whether s has the form of an ISO 4217 code. The list
// itself changes, so it is not checked (ACCP-146).
func currencyForm(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// A partGroup is a message of which parts are missing (ACCP-D38).
type partGroup struct {
	incoming
	next, of int
	seq      int64
}

// join handles the key part. It returns pending if the frame waits for others,
// and puts the whole message into in when the last one came.
func (s *Session) join(in *incoming, r *ReceiveResult) (pending bool, err error) {
	open := s.parts
	drop := func() {
		if s.parts != nil {
			r.DroppedParts = s.parts.next - 1
			s.parts = nil
		}
	}
	v, split := in.m.Meta.Ext.Get("part")
	if !split {
		drop()
		return false, nil
	}
	i, n, ok := parsePart(v)
	if !ok {
		drop()
		return false, fail(ErrParse, "malformed part")
	}
	if i == 1 {
		drop()
		m := in.m.clone()
		m.Meta.Ext = without(m.Meta.Ext, "part")
		s.parts = &partGroup{incoming: incoming{m: m, text: in.text, tokens: in.tokens}, next: 2, of: n, seq: in.m.Meta.Seq.N}
		r.Outcome, r.PartsReceived, r.PartsTotal = OutcomePending, 1, n
		return true, nil
	}
	if open == nil || i != open.next || n != open.of || !open.continues(in.m) {
		drop()
		return false, fail(ErrParse, "not the next part of the open message")
	}
	params, ok := s.addPart(open.m.Params, in.m.Params)
	if !ok {
		drop()
		return false, fail(ErrParse, "a part repeats keys, or the parts are too many values")
	}
	open.m.Params = params
	open.text += "\n" + in.text
	open.tokens += in.tokens
	open.next++
	open.seq = in.m.Meta.Seq.N
	if i < n {
		r.Outcome, r.PartsReceived, r.PartsTotal = OutcomePending, i, n
		return true, nil
	}
	*in = open.incoming
	s.parts = nil
	return false, nil
}

// continues reports whether m may be the next part of g.
func (g *partGroup) continues(m *Message) bool {
	a, b := g.m, m
	schemaA, hasA := a.Params.Get(keySchema)
	schemaB, hasB := b.Params.Get(keySchema)
	return a.From == b.From && a.Intent == b.Intent && a.Op == b.Op &&
		a.Meta.CID == b.Meta.CID && a.Meta.AID == b.Meta.AID && a.Meta.TTL == b.Meta.TTL &&
		g.seq+1 == b.Meta.Seq.N && hasA == hasB && schemaA.Equal(schemaB)
}

// addPart adds the params of a part but for its schema, none of whose keys may be
// there already. The whole keeps to the limits of a frame, but for its bytes.
func (s *Session) addPart(all, part Params) (Params, bool) {
	limits := s.opts.FrameLimits.withDefaults()
	have := indexed(all)
	for _, p := range part {
		if p.Key == keySchema {
			continue
		}
		if _, ok := have(p.Key); ok || len(all) >= limits.MaxParams {
			return nil, false
		}
		all = append(all, p)
	}
	n := 0
	for i := range all {
		n += all[i].Value.count()
	}
	return all, n <= limits.MaxValues
}

// count returns how many values v consists of.
func (v *Value) count() int {
	n := 1
	for i := range v.list {
		n += v.list[i].Value.count()
	}
	return n
}

func without(p Params, key string) Params {
	var out Params
	for _, x := range p {
		if x.Key != key {
			out = append(out, x)
		}
	}
	return out
}

// maxState is how many values the state of a session holds at most, so that
// deltas cannot fill the memory.
const maxState = 65536

// applyState takes over a sync:state message (ACCP-D45, ACCP-D46).
func (s *Session) applyState(m *Message) error {
	version, _ := m.Params.Get("version")
	delta, hasDelta := m.Params.Get("delta")
	snapshot, hasState := m.Params.Get("state")
	v, ok := version.Int()
	switch {
	case !ok:
		return fail(ErrInvalidType, "sync:state needs an integer v")
	case hasDelta == hasState:
		return fail(ErrInvalidType, "sync:state needs exactly one of delta and state")
	case hasDelta && delta.kind != KindMap, hasState && snapshot.kind != KindMap:
		return fail(ErrInvalidType, "delta and state must be maps")
	case hasState && snapshot.count() > maxState, hasDelta && delta.count()+(&Value{list: s.state}).count() > maxState:
		return fail(ErrBudgetExceeded, "the state is too large")
	case hasState:
		return s.setState(v, Apply(nil, snapshot.list)) // a state holds no nulls
	case s.versioned && v <= s.version:
		return fail(ErrDuplicate, "state version %d after %d", v, s.version)
	case s.versioned && v-1 != s.version:
		return fail(ErrSequenceGap, "state version %d after %d", v, s.version)
	}
	return s.setState(v, Apply(s.state, delta.list))
}

// State returns the shared state and its version, 0 before the first one.
func (s *Session) State() (version int64, state Params) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, Apply(s.state, nil)
}
