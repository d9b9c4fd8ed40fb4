// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fivewire/fivewire/store"
)

// Budgets of the tiers, in tokens (ACCP-086, ACCP-087, ACCP-090, ACCP-095).
const (
	hotTrigger     = 400
	hotMax         = 500
	warmMax        = 200
	summaryMax     = 100
	lineMax        = 25
	summaryTimeout = 10 * time.Second
)

// A Fact is something that a message said: sender, operation and key, value.
type Fact struct {
	Entity       string // who said it
	Relationship string // operation.key, and further keys inside maps
	Value        string // canonical text, references as they are
}

// A Summarizer writes the summary of a checkpoint, for instance with a model. It
// should answer within maxTokens; if it does not, or fails, the summary is made
// without it and nothing is lost (ACCP-D43). It must return when ctx ends, after ten
// seconds at the latest; while it does not, it is not asked again. It must not send
// or receive frames of the session, which wait for it.
type Summarizer interface {
	Summarize(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error)
}

// A SummarizerFunc is a function that summarizes.
type SummarizerFunc func(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error)

// Summarize calls f.
func (f SummarizerFunc) Summarize(ctx context.Context, facts []Fact, frames []string, maxTokens int) (string, error) {
	return f(ctx, facts, frames, maxTokens)
}

// A CheckpointInfo describes a checkpoint that was made.
type CheckpointInfo struct {
	ID            string   // cp1, cp2, …; the summary is $warm.cp1, the frames $cold.cp1, the facts $cold.cp1_facts
	Trigger       []string // done, hot_tokens, esc, comp or phase
	Summary       string
	SummaryTokens int
	Frames        int // messages that it covers
}

// A Checkpoint is the result of making one (ACCP-118).
type Checkpoint struct {
	CheckpointInfo
	Facts        []Fact
	TokensBefore int   // of hot state
	TokensAfter  int   // of hot state
	SummarizeErr error // why the summary is not that of the Summarizer, if it is not
}

// A hotFrame is a message in hot state.
type hotFrame struct {
	msg    *Message // keys in full, references unresolved
	schema *compiled
	text   string // its frames, joined by line feeds
	tokens int
}

// remember adds a message to hot state and makes the checkpoints that are due
// (ACCP-D40). Heartbeats are no context.
func (s *Session) remember(ctx context.Context, f hotFrame) (*Checkpoint, error) {
	intent := f.msg.Intent
	if intent == IntentPing || intent == IntentPong {
		return nil, nil
	}
	auto := !s.opts.DisableAutoCheckpoint
	var early *Checkpoint
	if auto && len(s.hot) > 0 && s.hotUsed+f.tokens > hotMax {
		cp, err := s.checkpoint(ctx, []string{"hot_tokens"})
		if err != nil {
			s.hot = append(s.hot, f)
			s.hotUsed += f.tokens
			return nil, err
		}
		early = cp
	}
	s.hot = append(s.hot, f)
	s.hotUsed += f.tokens
	if !auto {
		return nil, nil
	}
	var due []string
	for _, t := range []struct {
		name string
		now  bool
	}{{"done", intent == IntentDone}, {"hot_tokens", s.hotUsed > hotTrigger}, {"esc", intent == IntentEsc}, {"comp", intent == IntentComp}} {
		if t.now || slices.Contains(s.owed, t.name) {
			due = append(due, t.name)
		}
	}
	if due == nil {
		return early, nil
	}
	cp, err := s.checkpoint(ctx, due)
	if err != nil {
		s.owed = due // the next frame tries again
		return early, err
	}
	return cp, nil
}

// Checkpoint makes a checkpoint at a phase boundary (ACCP-092): facts are taken
// from hot state, a summary goes to warm state, frames and facts go to cold state,
// and hot state becomes a reference to the summary. If the store fails, hot state
// stays as it was and the error is [ErrInternal].
func (s *Session) Checkpoint(ctx context.Context) (*Checkpoint, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.checkpoint(ctx, []string{"phase"})
}

func (s *Session) checkpoint(ctx context.Context, trigger []string) (*Checkpoint, error) {
	if err := s.change(ctx, func() error { s.made++; return nil }); err != nil {
		return nil, err
	}
	cp := &Checkpoint{TokensBefore: s.hotUsed}
	cp.Trigger, cp.Frames = trigger, len(s.hot)
	cp.Facts = extractFacts(s.hot)
	frames := make([]string, len(s.hot))
	for i := range s.hot {
		frames[i] = s.hot[i].text
	}
	cp.Summary, cp.SummarizeErr = s.summarize(ctx, cp.Facts, frames)
	cp.SummaryTokens = s.opts.TokenCounter.Count(cp.Summary)

	facts := make([]Value, len(cp.Facts))
	for i, f := range cp.Facts {
		facts[i] = Array(String(f.Entity), String(f.Relationship), String(f.Value))
	}
	raw := make([]Value, len(frames))
	for i, f := range frames {
		raw[i] = String(f)
	}
	n, err := s.claimCheckpoint(ctx, Array(facts...))
	if err != nil {
		return nil, inStore(err)
	}
	cp.ID = checkpointID(n)
	until, _ := expiry(s.opts.Retention)
	t := s.private()
	if err := t.put(ctx, s.id, ScopeCold, cp.ID, Array(raw...), s.opts.Retention); err != nil {
		return nil, inStore(err)
	}
	// Warm comes last: once its summary is there, all it stands for is.
	if err := t.put(ctx, s.id, ScopeWarm, cp.ID, String(cp.Summary), s.opts.Retention); err != nil {
		return nil, inStore(err)
	}
	if err := s.saveInfo(ctx, &cp.CheckpointInfo); err != nil {
		return nil, inStore(err)
	}
	s.learn(knownCheckpoint{cp.CheckpointInfo, n, until})
	s.looked = max(s.looked, n)
	s.hot, s.owed = nil, nil
	s.refer(n)
	cp.TokensAfter = s.hotUsed
	s.stats.Checkpoints++
	s.log.Debug("accp: checkpoint", "session", s.id, "id", cp.ID, "trigger", trigger,
		"before", cp.TokensBefore, "after", cp.TokensAfter, "summaryErr", cp.SummarizeErr)
	return cp, nil
}

// room reports as [ErrInternal] that hot state is full, after trying to make a
// checkpoint. What answers, ends or keeps alive is let pass for as long again.
func (s *Session) room(ctx context.Context, intent Intent) error {
	if len(s.hot) < s.hotLimit {
		return nil
	}
	if !s.opts.DisableAutoCheckpoint {
		if _, err := s.checkpoint(ctx, []string{"hot_tokens"}); err == nil {
			return nil
		}
	}
	switch intent {
	case IntentPing, IntentPong:
		return nil
	case IntentAck, IntentFail, IntentCancel:
		if len(s.hot) < 2*s.hotLimit {
			return nil
		}
	}
	return fail(ErrInternal, "hot state is full and no checkpoint could be made")
}

const claimsBeforeList = 4 // numbers that are tried before all are listed

// claimCheckpoint writes the facts of a checkpoint under the next number that is
// free, and returns that. Another side of the session that has the same store may
// have taken some (ids are those of the session, ACCP-D40).
func (s *Session) claimCheckpoint(ctx context.Context, facts Value) (int64, error) {
	for try := 1; ; try++ {
		n := s.made
		err := s.private().create(ctx, s.id, ScopeCold, checkpointID(n)+"_facts", facts, s.opts.Retention)
		if !errors.Is(err, store.ErrExists) {
			return n, err
		}
		highest := n
		if try%claimsBeforeList == 0 { // far behind: else each checkpoint would cost a look at all
			if highest, err = s.highestCheckpoint(ctx); err != nil {
				return 0, err
			}
		}
		if err := s.change(ctx, func() error { s.made = max(s.made, highest) + 1; return nil }); err != nil {
			return 0, err
		}
	}
}

// inStore makes the error of a store, or of a value that does not go into it, an
// internal one.
func inStore(err error) error {
	var perr *Error
	if !errors.As(err, &perr) || perr.Code != ErrInternal {
		err = &Error{Code: ErrInternal, Message: "writing a checkpoint", Cause: err}
	}
	return err
}

// summarize asks the summarizer, and falls back to the facts (ACCP-D43).
func (s *Session) summarize(ctx context.Context, facts []Fact, frames []string) (summary string, err error) {
	if s.opts.Summarizer == nil {
		return DefaultSummary(facts, s.opts.TokenCounter), nil
	}
	ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
	defer cancel()
	summary, err = s.ask(ctx, facts, frames)
	if err == nil {
		if n := s.opts.TokenCounter.Count(summary); n > summaryMax {
			err = fmt.Errorf("accp: summary of %d tokens", n)
		} else if _, eerr := storedCodec().AppendValue(nil, String(summary)); eerr != nil {
			err = eerr
		}
	}
	if err != nil {
		s.log.Warn("accp: summarizer failed", "session", s.id, "err", err)
		return DefaultSummary(facts, s.opts.TokenCounter), err
	}
	return summary, nil
}

var errSummarizing = errors.New("accp: the summarizer is still busy with an earlier checkpoint")

// ask calls the summarizer and stops waiting when ctx ends, even if the
// summarizer does not; until it does, it is not called again, so that at most one
// call is left behind. Its panic is an error. Meanwhile other frames wait (e.5), but
// everything else that the session offers can be used.
func (s *Session) ask(ctx context.Context, facts []Fact, frames []string) (string, error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-s.summing:
	default:
		return "", errSummarizing
	}
	type answer struct {
		text string
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("accp: summarizer panicked: %v", p)
			}
			s.summing <- struct{}{}
			done <- a
		}()
		a.text, a.err = s.opts.Summarizer.Summarize(ctx, slices.Clone(facts), slices.Clone(frames), summaryMax)
	}()
	select {
	case a := <-done:
		return a.text, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// extractFacts takes the facts out of messages (ACCP-D41). A later fact with the same
// entity and relationship takes the place of the earlier one at the end.
func extractFacts(hot []hotFrame) []Fact {
	c := storedCodec()
	c.anyPlaces = false
	var facts []Fact
	type id struct{ entity, relationship string }
	at := map[id]int{}
	add := func(f Fact) {
		key := id{f.Entity, f.Relationship}
		if i, ok := at[key]; ok {
			facts[i].Entity = "" // replaced
		}
		at[key] = len(facts)
		facts = append(facts, f)
	}
	var walk func(entity, path string, list Params)
	walk = func(entity, path string, list Params) {
		for _, p := range list.sorted() {
			sub := path + "." + p.Key
			if p.Value.kind == KindMap && len(p.Value.list) > 0 {
				walk(entity, sub, p.Value.list)
				continue
			}
			text, err := c.AppendValue(nil, p.Value)
			if err != nil {
				continue // cannot be: the value was in a frame
			}
			add(Fact{entity, sub, string(text)})
		}
	}
	for _, f := range hot {
		m := f.msg
		if m.Intent == IntentPing || m.Intent == IntentPong || m.Intent == IntentAck {
			continue
		}
		var list Params
		for _, p := range m.Params {
			if p.Key == keySchema {
				continue
			}
			if f.schema != nil {
				if d, ok := f.schema.Defaults.Get(p.Key); ok && d.Equal(p.Value) {
					continue
				}
			}
			list = append(list, p)
		}
		walk(m.From, m.Op, list)
	}
	return slices.DeleteFunc(facts, func(f Fact) bool { return f.Entity == "" })
}

// DefaultSummary returns the newest facts that together have at most 100 tokens,
// long values cut (ACCP-D42). It is what a session uses without a [Summarizer]. A nil
// counter is [ApproxCounter].
func DefaultSummary(facts []Fact, counter TokenCounter) string {
	if counter == nil {
		counter = ApproxCounter{}
	}
	kept := ""
	for i := len(facts) - 1; i >= 0; i-- {
		line := factLine(facts[i], counter)
		if kept != "" {
			line += ";" + kept
		}
		if counter.Count(line) <= summaryMax {
			kept = line
		}
	}
	return kept
}

func factLine(f Fact, counter TokenCounter) string {
	head := f.Entity + ":" + f.Relationship + "="
	if line := head + f.Value; counter.Count(line) <= lineMax {
		return line
	}
	// The longest prefix of the value that fits. A longer prefix never has fewer
	// tokens, so halving finds it.
	var ends []int
	for i := range f.Value {
		ends = append(ends, i)
	}
	lo, hi := 0, len(ends) // ends[lo] fits, or nothing does
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if counter.Count(head+f.Value[:ends[mid]]+"..") <= lineMax {
			lo = mid
		} else {
			hi = mid
		}
	}
	if len(ends) == 0 {
		return head + ".."
	}
	return head + f.Value[:ends[lo]] + ".."
}

// A TokenBudget says what the tiers hold (ACCP-119).
type TokenBudget struct {
	Hot  HotBudget
	Warm []WarmBudget
	Cold ColdBudget
}

// A HotBudget is that of hot state, in tokens.
type HotBudget struct{ Used, Trigger, Max int }

// A WarmBudget is that of one checkpoint, in tokens.
type WarmBudget struct {
	ID        string
	Used, Max int
}

// A ColdBudget says how many entries cold state has. None of their tokens are
// ever in a context, so Max is 0.
type ColdBudget struct{ Entries, Max int }

// Budget returns how much of their budgets the tiers use.
func (s *Session) Budget(ctx context.Context) (*TokenBudget, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Load() {
		return nil, errEnded()
	}
	b := &TokenBudget{Hot: HotBudget{Used: s.hotUsed, Trigger: hotTrigger, Max: hotMax}}
	for _, cp := range s.infos() {
		b.Warm = append(b.Warm, WarmBudget{ID: cp.ID, Used: cp.SummaryTokens, Max: warmMax})
	}
	n, err := s.private().count(ctx, s.id, ScopeCold)
	if err == nil && s.opts.SharedStore != nil {
		var k int
		k, err = s.shared().count(ctx, s.id, ScopeCold)
		n += k
	}
	b.Cold.Entries = n
	return b, err
}

// Checkpoints returns the checkpoints made so far that have not expired.
func (s *Session) Checkpoints() []CheckpointInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infos()
}
