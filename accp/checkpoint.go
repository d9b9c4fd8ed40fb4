// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/fivewire/fivewire/accp/internal/record"
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
	// Summarizer refines the summary of a checkpoint, for instance with a model. It runs while
	// frames continue: the checkpoint has a summary of its newest facts, and no frame waits. One call
	// runs at a time for a session. Its context ends after 30 seconds and with the session. Up to 8
	// checkpoints wait for it; then the oldest one keeps its summary.
	//
	// A text of 1 to maxTokens tokens and at most 4,096 bytes becomes the refined summary. Any other
	// result is logged (ACCP-D43). Nil means no refinement.
	Summarizer func(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error)

	// AdoptFromPeer permits the peer to refine the summary of a checkpoint of the same frames. The
	// text of a peer is untrusted (ACCP-D70).
	AdoptFromPeer bool
}

// A Checkpoint describes a checkpoint. As the result of [Session.Checkpoint] without hot messages, which stores nothing,
// its ID is empty.
type Checkpoint struct {
	// ID is the address of the frames and the summary, such as cp6df90afe. The summary is
	// $warm.cp6df90afe, the frames are $cold.cp6df90afe, and the facts $cold.cp6df90afe_facts.
	ID            string
	Hash          string   // of the frames
	Trigger       []string // done, hot_tokens, esc, comp or phase
	Summary       string
	SummaryTokens int
	Frames        int // messages of the checkpoint

	// Facts and counts of the call or the message that made the checkpoint.
	Facts           []Fact
	HotTokensBefore int
	HotTokensAfter  int

	// Refined is the summary of [SummaryOptions].Summarizer, or one of the peer, under its own id. It replaces
	// Summary in the context of a model. Nil if there is none.
	Refined *struct {
		ID, Summary string
		Tokens      int
	}
}

// isContext reports whether a message is part of hot state (ACCP-D40).
func isContext(m *Message) bool {
	return m.Intent != intentPing && m.Intent != intentPong && !isUnlimited(m)
}

// commitMessage commits the change by a message, with the checkpoints that are due before and after it (ACCP-D40). One that
// fails leaves hot state as it is. The session must be entered.
func (h *history) commitMessage(ctx context.Context, e *change, intent Intent) (cp *Checkpoint, failure, err error) {
	t := &h.core.tiers
	hot, due := e.Tiers.Hot, []string(nil)
	if hot == nil || h.opts.DisableAutoCheckpoint {
		return nil, nil, h.commit(ctx, e)
	}
	var before, after frozen
	used, list := t.Used+hot.Tokens, t.Hot
	if t.IsFull(hot) {
		if due, before, failure = h.freeze(ctx, tier.OnlyHot, list, nil, t.Used); before.Checkpoint != nil {
			e.Tiers.Before, e.Tiers.BeforeTokens = before.Checkpoint, before.tokens
			used, list = before.tokens+hot.Tokens, nil
		}
	}
	if failure == nil {
		kinds := tier.Kinds{IsDone: intent == IntentDone, IsEsc: intent == IntentEsc, IsComp: intent == IntentComp}
		if triggers := kinds.Triggers(used, h.failed); triggers != nil {
			due, after, failure = h.freeze(ctx, triggers, list, hot, used)
		}
		if after.Checkpoint != nil {
			e.Tiers.After, e.Tiers.AfterTokens = after.Checkpoint, after.tokens
		}
	}
	e.Tiers.Maximum = h.opts.MaxCheckpoints
	if err = h.commit(ctx, e); err != nil {
		return nil, nil, err
	}
	h.failed = due // retried with the next message
	for _, f := range [2]frozen{before, after} {
		if f.Checkpoint != nil {
			cp = h.publish(ctx, f)
		}
	}
	return cp, failure, nil
}

// freeze is the beginning of a checkpoint of hot messages: it stores their contents. It returns the triggers if that
// fails.
func (h *history) freeze(ctx context.Context, trigger []string, hot []tier.Message, last *tier.Message, used int) ([]string, frozen, error) {
	f, err := h.contents(hot, last)
	if err == nil {
		f.Trigger, f.used = trigger, used
		err = h.fit(ctx, &h.holds.storage, int64(len(f.cold.Facts)+f.length))
	}
	if err == nil {
		err = h.refs.keep(ctx, f.Checkpoint, &f.cold)
	}
	if err != nil {
		return trigger, frozen{}, inStore(err)
	}
	if a, ok := h.core.tiers.Announced(f.Hash, f.Summary.ID); ok && h.opts.Summaries.AdoptFromPeer {
		f.Refined, _ = h.refined(ctx, f.Hash, a.Summary) // one that does not fit is not adopted
	}
	return nil, f, nil
}

// publish reports a committed checkpoint and refines its summary.
func (h *history) publish(ctx context.Context, f frozen) *Checkpoint {
	cp := infoOf(f.Checkpoint)
	cp.Facts, cp.HotTokensBefore, cp.HotTokensAfter = f.facts, f.used, f.tokens
	h.count(&h.stats.Checkpoints, 1)
	if h.logger.Enabled(ctx, slog.LevelDebug) {
		h.logger.DebugContext(ctx, "accp: checkpoint made", "session", h.id, "id", cp.ID, "trigger", cp.Trigger,
			"before", cp.HotTokensBefore, "after", cp.HotTokensAfter)
	}
	if h.opts.Summaries.Summarizer != nil && f.Refined.ID == "" {
		h.refiner.add(h, refinement{cp.ID, f.facts, f.cold.Frames})
	}
	return &cp
}

// Checkpoint makes a checkpoint at a phase boundary: the facts and frames of hot state go to cold
// state, their summary goes to warm state, and hot state becomes a reference to the summary. If the
// store fails, hot state is unchanged and the error is [ErrInternal].
func (s *Session) Checkpoint(ctx context.Context) (cp *Checkpoint, err error) {
	err = s.entered(ctx, func() error {
		if s.record != nil {
			s.record.Invalidate() // hot state is that of all processes
		}
		cp, err = s.checkpoint(ctx, "phase")
		return err
	})
	return cp, err
}

// checkpoint is Checkpoint in an entered session.
func (h *history) checkpoint(ctx context.Context, trigger string) (*Checkpoint, error) {
	var f frozen
	err := h.update(ctx, func() (e *change, err error) {
		t := &h.core.tiers
		if f = (frozen{}); len(t.Hot) == 0 {
			return nil, nil
		}
		if _, f, err = h.freeze(ctx, []string{trigger}, t.Hot, nil, t.Used); err != nil {
			return nil, err
		}
		return &change{Event: record.Event{Tiers: tier.Change{After: f.Checkpoint, AfterTokens: f.tokens, Maximum: h.opts.MaxCheckpoints}}}, nil
	})
	if err != nil {
		return nil, err
	}
	h.failed = nil
	if f.Checkpoint == nil {
		used := h.core.tiers.Used
		return &Checkpoint{Trigger: []string{trigger}, Facts: []Fact{}, HotTokensBefore: used, HotTokensAfter: used}, nil
	}
	return h.publish(ctx, f), nil
}

// reserveHot returns [ErrInternal] if hot state is full and no checkpoint can be made. Answers,
// cancels and heartbeats may exceed the limit up to twice. The session must be entered.
func (h *history) reserveHot(ctx context.Context, intent Intent) error {
	hot := func() int { return len(h.core.tiers.Hot) }
	if hot() < h.hotLimit {
		return nil
	}
	if !h.opts.DisableAutoCheckpoint {
		if _, err := h.checkpoint(ctx, tier.TriggerHot); err == nil {
			return nil
		}
	}
	if intent.isControl() && hot() < 2*h.hotLimit || intent == intentPing || intent == intentPong {
		return nil
	}
	return fail(ErrInternal, "hot state is full and no checkpoint could be made")
}

// isControl reports whether a message with this intent may exceed the bounds of a session.
func (i Intent) isControl() bool {
	switch i {
	case IntentAck, IntentFail, IntentCancel, intentPing, intentPong:
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
		}{cp.Summary.ID, cp.Summary.Tokens, tier.WarmMax})
	}
	s.mu.Unlock()
	var err error
	b.Cold.Entries, err = s.refs.count(ctx, len(b.Warm))
	return b, err
}

// Checkpoints returns the checkpoints that have not expired.
func (s *Session) Checkpoints() (list []Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.checkpointsLocked() {
		list = append(list, infoOf(c))
	}
	return list
}

// checkpointsLocked returns the checkpoints that have not expired. s.mu must be held.
func (h *history) checkpointsLocked() []*tier.Checkpoint {
	return slices.DeleteFunc(slices.Clone(h.core.tiers.Checkpoints), func(c *tier.Checkpoint) bool { return past(c.Until) })
}

func infoOf(c *tier.Checkpoint) Checkpoint {
	info := Checkpoint{ID: c.Summary.ID, Hash: c.Hash, Trigger: c.Trigger, Summary: c.Summary.Text, SummaryTokens: c.Summary.Tokens, Frames: c.Frames}
	if r := c.Refined; r.ID != "" {
		info.Refined = &struct {
			ID, Summary string
			Tokens      int
		}{r.ID, r.Text, r.Tokens}
	}
	return info
}
