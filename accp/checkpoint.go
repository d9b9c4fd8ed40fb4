// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/accp/internal/tier"
)

// A Fact is one statement of a message: sender, operation and key, value.
type Fact struct {
	Entity       string // sender
	Relationship string // operation.key, with the keys of nested maps
	Value        string // canonical text, references unresolved
}

// SummaryOptions is a group of [SessionOptions].
type SummaryOptions struct {
	// Summarizer refines the summaries of checkpoints. Nil means that they stay.
	Summarizer Summarizer

	// AdoptFromPeer permits the peer to refine the summary of a checkpoint of the same frames. The
	// text of a peer is untrusted (ACCP-D70).
	AdoptFromPeer bool
}

// A Summarizer refines the summary of a checkpoint, for instance with a model. It runs while
// frames continue: the checkpoint has a summary of its newest facts, and no frame waits. One call runs at a
// time for a session. Its context ends after 30 seconds and with the session. Up to 8 checkpoints
// wait for it; then the oldest one keeps its summary.
//
// A text of 1 to maxTokens tokens and at most 4,096 bytes becomes the refined summary. Any other
// result is logged (ACCP-D43).
type Summarizer interface {
	Summarize(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error)
}

// A SummarizerFunc is a function that serves as a [Summarizer].
type SummarizerFunc func(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error)

// Summarize calls f.
func (f SummarizerFunc) Summarize(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error) {
	return f(ctx, facts, frames, maxTokens)
}

// A CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	// ID is the address of the frames and the summary, such as cp6df90afe. The summary is
	// $warm.cp6df90afe, the frames are $cold.cp6df90afe, and the facts $cold.cp6df90afe_facts.
	ID            string
	Hash          string   // of the frames
	Trigger       []string // done, hot_tokens, esc, comp or phase
	Summary       string
	SummaryTokens int
	Frames        int // messages of the checkpoint

	// Refined is the summary of a [Summarizer], or one of the peer, under its own id. It replaces
	// Summary in the context of a model. Nil if there is none.
	Refined *struct {
		ID, Summary string
		Tokens      int
	}
}

// A Checkpoint is the result of [Session.Checkpoint]. Without hot messages nothing is stored, and its
// ID is empty.
type Checkpoint struct {
	CheckpointInfo
	Facts           []Fact
	HotTokensBefore int
	HotTokensAfter  int
}

// isContext reports whether a message is part of hot state (ACCP-D40).
func isContext(m *Message) bool {
	return m.Intent != IntentPing && m.Intent != IntentPong && !isUnlimited(m)
}

// makeRoom makes a checkpoint if hot state has no space for a message. The session must be entered.
func (s *Session) makeRoom(ctx context.Context, hot *tier.Message) (*Checkpoint, error) {
	t := &s.core.tiers
	if hot == nil || s.opts.DisableAutoCheckpoint || len(t.Hot) == 0 || t.Used+hot.Tokens <= tier.HotMax {
		return nil, nil
	}
	return s.checkpoint(ctx, []string{"hot_tokens"})
}

// trigger makes the checkpoint that is due after a message (ACCP-D40). The session must be entered.
func (s *Session) trigger(ctx context.Context, i Intent, cp **Checkpoint, err *error) {
	if s.opts.DisableAutoCheckpoint {
		return
	}
	due := s.core.tiers.Triggers(i == IntentDone, i == IntentEsc, i == IntentComp, s.failed)
	if due == nil {
		return
	}
	c, cerr := s.checkpoint(ctx, due)
	if cerr != nil {
		s.failed, *err = due, cerr // retried with the next frame
		return
	}
	*cp = c
}

// Checkpoint makes a checkpoint at a phase boundary: the facts and frames of hot state go to cold
// state, their summary goes to warm state, and hot state becomes a reference to the summary. If the
// store fails, hot state is unchanged and the error is [ErrInternal].
func (s *Session) Checkpoint(ctx context.Context) (cp *Checkpoint, err error) {
	err = s.entered(ctx, func() error {
		cp, err = s.checkpoint(ctx, []string{"phase"})
		return err
	})
	return cp, err
}

// checkpoint is Checkpoint in an entered session.
func (s *Session) checkpoint(ctx context.Context, trigger []string) (*Checkpoint, error) {
	var c tier.Checkpoint
	var facts []tier.Fact
	var frames []string
	before := 0
	err := s.change(ctx, func() (e *event, err error) {
		t := &s.core.tiers
		before = t.Used
		c = tier.Checkpoint{Trigger: trigger, Frames: len(t.Hot)}
		if len(t.Hot) == 0 {
			return nil, nil
		}
		facts, frames = s.facts(t.Hot)
		c.Text = tier.Summarize(facts, s.opts.TokenCounter)
		c.Tokens = s.opts.TokenCounter.Count(c.Text)
		if c.Hash, c.ID, err = s.address(frames, c.Text); err != nil {
			return nil, err
		}
		if err := s.storeCheckpoint(ctx, &c, facts, frames); err != nil {
			return nil, inStore(err)
		}
		return &event{Checkpoint: &c, HotTokens: s.opts.TokenCounter.Count("$warm." + c.ID), Maximum: s.opts.MaxCheckpoints}, nil
	})
	if err != nil {
		return nil, err
	}
	s.failed = nil
	cp := &Checkpoint{CheckpointInfo: infoOf(&c), HotTokensBefore: before, HotTokensAfter: s.core.tiers.Used, Facts: make([]Fact, 0, len(facts))}
	for _, f := range facts {
		cp.Facts = append(cp.Facts, Fact(f))
	}
	if c.ID == "" {
		return cp, nil
	}
	s.count(&s.stats.Checkpoints, 1)
	if s.logger.Enabled(ctx, slog.LevelDebug) {
		s.logger.DebugContext(ctx, "accp: checkpoint made", "session", s.id, "id", cp.ID, "trigger", trigger,
			"before", before, "after", cp.HotTokensAfter)
	}
	if a, ok := s.core.tiers.Announced(c.Hash, c.ID); ok && s.opts.Summaries.AdoptFromPeer {
		s.refine(ctx, c.ID, a.Summary)
	} else if s.opts.Summaries.Summarizer != nil {
		s.refiner.add(s, refinement{c.ID, cp.Facts, frames})
	}
	return cp, nil
}

// address returns the hash of a list of frames and the id of the checkpoint with a summary (ACCP-D40).
func (s *Session) address(frames []string, summary string) (hash, id string, err error) {
	hash, full, err := checkpointAddress(frames, summary)
	if err != nil {
		return "", "", err
	}
	for n := firstDigit; n <= len(full); n += 4 {
		id = "cp" + full[:n]
		if s.core.tiers.IsFree(tier.Announcement{Hash: hash, ID: id, Summary: summary}) {
			return hash, id, nil
		}
	}
	return "", "", fail(ErrInternal, "no free checkpoint id")
}

const hashDigits = 16 // of the frames of a checkpoint

// checkpointAddress returns the hash of the frames of a checkpoint, and the digits with which the id of
// their summary begins after "cp".
func checkpointAddress(frames []string, summary string) (hash, digits string, err error) {
	list := make([]Value, len(frames))
	for i, f := range frames {
		list[i] = String(f)
	}
	if hash, err = digest(Array(list...)); err != nil {
		return "", "", err
	}
	hash = hash[:hashDigits]
	digits, err = digest(Array(String(hash), String(summary)))
	return hash, digits, err
}

// storeCheckpoint writes a checkpoint to the tiers. The session must be entered.
func (s *Session) storeCheckpoint(ctx context.Context, c *tier.Checkpoint, facts []tier.Fact, frames []string) error {
	list, raw := make([]Value, len(facts)), make([]Value, len(frames))
	for i, f := range facts {
		list[i] = Array(String(f.Entity), String(f.Relationship), String(f.Value))
	}
	for i, f := range frames {
		raw[i] = String(f)
	}
	c.Until, _ = expiry(s.opts.Persistence.Retention)
	values := []Value{Array(list...), Array(raw...), String(c.Text)}
	if err := s.fit(ctx, &s.storage, int64(values[0].size()+values[1].size())); err != nil {
		return err
	}
	// Warm is written last: a summary implies that its frames and facts are stored.
	for i, e := range entriesOf(c.ID) {
		n, err := s.private().put(ctx, s.id, e.scope, e.key, values[i], s.opts.Persistence.Retention)
		if err != nil {
			return err
		}
		c.Bytes += n
	}
	return nil
}

type entryName struct {
	scope Scope
	key   string
}

// entriesOf returns the names of the entries of a checkpoint.
func entriesOf(id string) []entryName {
	return []entryName{{ScopeCold, id + "_facts"}, {ScopeCold, id}, {ScopeWarm, id}}
}

// removeEntries removes the entries of a checkpoint. The session must be entered.
func (s *Session) removeEntries(ctx context.Context, c *tier.Checkpoint) {
	for _, e := range append(entriesOf(c.ID), entryName{ScopeWarm, c.Refined.ID}) {
		if e.key == "" {
			continue
		}
		if err := s.private().kv.Delete(ctx, s.private().key(s.id, e.scope, e.key), 0); err != nil {
			s.logger.WarnContext(ctx, "accp: checkpoint not removed", "session", s.id, "checkpoint", c.ID, "err", err)
		}
	}
}

// reserveHot returns [ErrInternal] if hot state is full and no checkpoint can be made. Answers,
// cancels and heartbeats may exceed the limit up to twice. The session must be entered.
func (s *Session) reserveHot(ctx context.Context, intent Intent) error {
	hot := func() int { return len(s.core.tiers.Hot) }
	if hot() < s.hotLimit {
		return nil
	}
	if !s.opts.DisableAutoCheckpoint {
		if _, err := s.checkpoint(ctx, []string{"hot_tokens"}); err == nil {
			return nil
		}
	}
	if intent.isControl() && hot() < 2*s.hotLimit || intent == IntentPing || intent == IntentPong {
		return nil
	}
	return fail(ErrInternal, "hot state is full and no checkpoint could be made")
}

// isControl reports whether a message with this intent may exceed the bounds of a session.
func (i Intent) isControl() bool {
	switch i {
	case IntentAck, IntentFail, IntentCancel, IntentPing, IntentPong:
		return true
	}
	return false
}

// inStore returns the error of a store, or of a value that cannot be stored, as [ErrInternal].
func inStore(err error) error {
	var perr *Error
	if !errors.As(err, &perr) || perr.Code != ErrInternal && perr.Code != ErrBudgetExceeded {
		err = &Error{Code: ErrInternal, Message: "writing a checkpoint", Cause: err}
	}
	return err
}

// facts returns the facts of hot messages, and their frames. The session must be entered.
func (s *Session) facts(hot []tier.Message) (facts []tier.Fact, frames []string) {
	for _, h := range hot {
		frames = append(frames, h.Text)
		if m, schema := s.joined(h.Text); m != nil {
			facts = append(facts, factsOf(m, schema)...)
		}
	}
	return tier.Newest(facts), frames
}

// joined returns the message in the frames of a hot message, with full keys, or nil if its schema has
// changed.
func (s *Session) joined(text string) (*Message, *compiled) {
	var all *Message
	var params joiner
	for frame := range strings.SplitSeq(text, "\n") {
		m, err := s.codec.DecodeRaw([]byte(frame))
		if err != nil {
			return nil, nil
		}
		if all == nil {
			all, params = m, newJoiner(m.Params)
			continue
		}
		isCont, _ := continues(m.Meta)
		if next, ok := params.add(m.Params, isCont, math.MaxInt); ok {
			params = next
		}
	}
	all.Params = params.result()
	schema, err := s.codec.expand(all)
	if err != nil {
		return nil, nil
	}
	return all, schema
}

// factsOf returns the facts of a message (ACCP-D41).
func factsOf(m *Message, schema *compiled) (facts []tier.Fact) {
	c := storedCodec
	c.anyPlaces = false
	var walk func(path string, list Params)
	walk = func(path string, list Params) {
		for _, p := range list.sorted() {
			sub := path + "." + p.Key
			if p.Value.kind == KindMap && len(p.Value.list) > 0 {
				walk(sub, p.Value.list)
				continue
			}
			text, err := c.AppendValue(nil, p.Value)
			if err != nil {
				continue // unreachable: the value was in a frame
			}
			facts = append(facts, tier.Fact{Entity: m.From, Relationship: sub, Value: string(text)})
		}
	}
	if m.Intent == IntentAck {
		return nil
	}
	isState := m.Intent == IntentSync && m.Op == OpState
	var list Params
	for _, p := range m.Params {
		if p.Key == keySchema || isState && p.Key == "base" {
			continue
		}
		if schema != nil {
			if d, ok := schema.Defaults.Get(p.Key); ok && d.Equal(p.Value) {
				continue
			}
		}
		list = append(list, p)
	}
	walk(m.Op, list)
	return facts
}

// A TokenBudget is the use of the tiers.
type TokenBudget struct {
	Hot  struct{ Used, Trigger, Max int } // tokens of hot state
	Warm []struct {
		ID        string // of a checkpoint
		Used, Max int    // tokens of its summary
	}
	Cold struct{ Entries, Max int } // Max is 0, because no context contains them
}

// Budget returns the use of the tiers.
func (s *Session) Budget(ctx context.Context) (*TokenBudget, error) {
	if s.isEnded.Load() {
		return nil, errEnded()
	}
	s.mu.Lock()
	b := &TokenBudget{}
	b.Hot.Used, b.Hot.Trigger, b.Hot.Max = s.core.tiers.Used, tier.HotTrigger, tier.HotMax
	for _, cp := range s.checkpointsLocked() {
		b.Warm = append(b.Warm, struct {
			ID        string
			Used, Max int
		}{cp.ID, cp.Tokens, tier.WarmMax})
	}
	s.mu.Unlock()
	n, err := s.private().count(ctx, s.id, ScopeCold)
	if err == nil && s.opts.Persistence.SharedStore != nil {
		var k int
		k, err = s.shared().count(ctx, s.id, ScopeCold)
		n += k
	}
	b.Cold.Entries = n
	return b, err
}

// Checkpoints returns the checkpoints that have not expired.
func (s *Session) Checkpoints() (list []CheckpointInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.checkpointsLocked() {
		list = append(list, infoOf(&c))
	}
	return list
}

// checkpointsLocked returns the checkpoints that have not expired. s.mu must be held.
func (s *Session) checkpointsLocked() []tier.Checkpoint {
	return slices.DeleteFunc(slices.Clone(s.core.tiers.Checkpoints), func(c tier.Checkpoint) bool { return past(c.Until) })
}

func infoOf(c *tier.Checkpoint) CheckpointInfo {
	info := CheckpointInfo{ID: c.ID, Hash: c.Hash, Trigger: c.Trigger, Summary: c.Text, SummaryTokens: c.Tokens, Frames: c.Frames}
	if r := c.Refined; r.ID != "" {
		info.Refined = &struct {
			ID, Summary string
			Tokens      int
		}{r.ID, r.Text, r.Tokens}
	}
	return info
}
