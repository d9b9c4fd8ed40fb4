// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/guard"
)

const (
	opCheckpoint   = "checkpoint" // of sync: announce a summary (ACCP-D70)
	summaryTimeout = 30 * time.Second
	maxRefinements = 8 // that wait
)

// A refiner calls the summarizer of a session, for one checkpoint at a time (ACCP-D43).
type refiner struct {
	mu      sync.Mutex
	queue   []refinement       // guarded by mu
	cancel  context.CancelFunc // of the running goroutine, or nil; guarded by mu
	isEnded bool               // guarded by mu
}

// A refinement is the work for one checkpoint.
type refinement struct {
	id     string
	facts  []Fact
	frames []string
}

// add queues a checkpoint. Over the bound the oldest one is dropped.
func (r *refiner) add(s *Session, next refinement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isEnded {
		return
	}
	r.queue = append(r.queue, next)
	if len(r.queue) > maxRefinements {
		r.queue = r.queue[1:]
		s.logger.WarnContext(context.Background(), "accp: summary not refined", "session", s.id, "reason", "too many checkpoints wait")
	}
	if r.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer cancel()
		for next, ok := r.next(); ok; next, ok = r.next() {
			s.summarize(ctx, next)
		}
	}()
}

// next returns the next checkpoint, or false at the end of the goroutine.
func (r *refiner) next() (refinement, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 || r.isEnded {
		r.cancel = nil
		return refinement{}, false
	}
	first := r.queue[0]
	r.queue = r.queue[1:]
	return first, true
}

// stop ends the work. It does not wait for the summarizer.
func (r *refiner) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isEnded, r.queue = true, nil
	if r.cancel != nil {
		r.cancel()
	}
}

// summarize calls the summarizer for one checkpoint and keeps its text.
func (s *Session) summarize(ctx context.Context, r refinement) {
	limited, cancel := context.WithTimeout(ctx, summaryTimeout)
	defer cancel()
	var text string
	err := guard.Call("summarizer", func() (err error) {
		text, err = s.opts.Summaries.Summarizer.Summarize(limited, r.facts, r.frames, tier.SummaryMax)
		return err
	})
	if err == nil {
		err = s.entered(ctx, func() error { return s.refine(ctx, r.id, text) })
	}
	if err != nil && ctx.Err() == nil {
		s.logger.WarnContext(ctx, "accp: summary not refined", "session", s.id, "checkpoint", r.id, "err", err)
	}
}

// refine stores a refined summary of a checkpoint, under an id from the same hash. The session must be
// entered.
func (s *Session) refine(ctx context.Context, id, text string) error {
	tokens := s.opts.TokenCounter.Count(text)
	if tokens < 1 || tokens > tier.SummaryMax || len(text) > tier.MaxSummaryBytes {
		return fmt.Errorf("accp: refined summary of %d tokens and %d bytes", tokens, len(text))
	}
	return s.change(ctx, func() (*event, error) {
		own, ok := s.core.tiers.Own(id)
		if !ok || own.Summary == text {
			return nil, nil
		}
		full, err := digest(Array(String(own.Hash), String(text)))
		if err != nil {
			return nil, err
		}
		for n := firstDigit; n <= len(full); n += 4 {
			a := tier.Announcement{Hash: own.Hash, ID: "cp" + full[:n], Summary: text}
			if !s.core.tiers.IsFree(a) {
				continue
			}
			if _, err := s.private().put(ctx, s.id, ScopeWarm, a.ID, String(text), s.opts.Persistence.Retention); err != nil {
				return nil, err
			}
			return &event{Refine: id, Refined: &tier.Summary{ID: a.ID, Text: text, Tokens: tokens}}, nil
		}
		return nil, nil
	})
}

var (
	hashForm = regexp.MustCompile(`^[0-9a-f]{16}$`)
	idForm   = regexp.MustCompile(`^cp[0-9a-f]{8,64}$`)
)

// receiveAnnouncement adds an announced summary to the event of its frame (ACCP-D70). The session must
// be entered.
func (s *Session) receiveAnnouncement(ctx context.Context, m *Message, e *event) error {
	text := func(key string) string {
		v, _ := m.Params.Get(key)
		t, _ := v.Text()
		return t
	}
	a := tier.Announcement{Hash: text("hash"), ID: text("id"), Summary: text("summary")}
	if v, ok := m.Params.Get("summary"); !ok || v.kind != KindString || len(a.Summary) > tier.MaxSummaryBytes ||
		!hashForm.MatchString(a.Hash) || !idForm.MatchString(a.ID) {
		return fail(ErrInvalidType, "malformed sync:checkpoint")
	}
	full, err := digest(Array(String(a.Hash), String(a.Summary)))
	switch {
	case err != nil:
		return fail(ErrInvalidType, "malformed summary")
	case len(a.ID) > len("cp")+len(full) || a.ID != "cp"+full[:len(a.ID)-len("cp")]:
		return fail(ErrPolicyDenied, "the id of a checkpoint is not its address")
	case !s.core.tiers.IsFree(a):
		e.Void = a.ID
		return fail(ErrPolicyDenied, "the id of a checkpoint names other content")
	}
	e.Peer = &a
	s.announced[a.ID] = true
	if id := s.core.tiers.ByHash(a.Hash); s.opts.Summaries.AdoptFromPeer && id != "" {
		s.adopt(id, &a, e)
	}
	return nil
}

// adopt adds an announced summary as the refined one of an own checkpoint.
func (s *Session) adopt(id string, a *tier.Announcement, e *event) {
	tokens := s.opts.TokenCounter.Count(a.Summary)
	if own, ok := s.core.tiers.Own(id); ok && own.Summary != a.Summary && tokens > 0 && tokens <= tier.SummaryMax {
		e.Refine, e.Refined = id, &tier.Summary{ID: a.ID, Text: a.Summary, Tokens: tokens}
	}
}

// dueAnnouncements returns the own checkpoints to which params refer and which neither side has
// announced, in the order of the canonical text. The session must be entered.
func (s *Session) dueAnnouncements(params Params) (due []tier.Announcement) {
	for _, own := range s.ownReferences(params) {
		if !s.announced[own.ID] && !slices.Contains(due, own) {
			due = append(due, own)
		}
	}
	return due
}

// forgetAnnouncements lets the next message announce the own checkpoints to which params refer, and
// reports whether there are any.
func (s *Session) forgetAnnouncements(params Params) bool {
	found := false
	_ = s.entered(context.Background(), func() error {
		for _, own := range s.ownReferences(params) {
			found = true
			delete(s.announced, own.ID)
		}
		return nil
	})
	return found
}

// ownReferences returns the own checkpoints to which params refer. The session must be entered.
func (s *Session) ownReferences(params Params) (list []tier.Announcement) {
	var walk func(v Value)
	walk = func(v Value) {
		if ref, ok := v.Ref(); ok {
			id, isWarm := strings.CutPrefix(ref, "warm.")
			id = strings.TrimPrefix(id, s.id+".") // a session that names itself (ACCP-D59)
			if own, isOwn := s.core.tiers.Own(id); isWarm && isOwn && id != "" {
				list = append(list, own)
			}
		}
		inner := Params(v.list)
		if v.kind == KindMap {
			inner = inner.sorted()
		}
		for _, p := range inner {
			walk(p.Value)
		}
	}
	walk(Map(params...))
	return list
}

// announce adds the frame that announces a to a result. The session must be entered.
func (s *Session) announce(res *SendResult, a tier.Announcement, m *Message, seq int64) error {
	out := &Message{From: m.From, Intent: IntentSync, Op: opCheckpoint, Params: Params{
		{"hash", String(a.Hash)}, {"id", String(a.ID)}, {"summary", String(a.Summary)}},
		Meta: &Meta{MID: s.opts.newID(), Seq: NewOptionalInt(seq), TS: m.Meta.TS, SID: m.Meta.SID}}
	p, err := s.codec.prepare(out, new(keyBuffer))
	if err != nil {
		return err
	}
	frame, at, err := s.codec.appendFrame(nil, p.m, p.keys)
	if err != nil {
		return err
	}
	res.announced = append(res.announced, a.ID)
	_, err = s.addFrame(res, frame, at)
	return err
}

// Announce returns the frame with the summary of an own checkpoint for the peer, by the id of the
// summary or of its refined one. Frames that refer to one are preceded by it anyway. Another id is
// [ErrRefNotFound].
func (s *Session) Announce(ctx context.Context, id string) (*SendResult, error) {
	return s.enteredToSend(ctx, func() (*SendResult, error) {
		return s.sendWith(ctx, IntentSync, func() (*Message, *event, error) {
			a, ok := s.core.tiers.Own(id)
			if !ok || id == "" {
				return nil, nil, fail(ErrRefNotFound, "checkpoint %.80q", id)
			}
			s.announced[id] = true
			return &Message{Intent: IntentSync, Op: opCheckpoint, Params: Params{
				{"hash", String(a.Hash)}, {"id", String(a.ID)}, {"summary", String(a.Summary)}}}, nil, nil
		})
	})
}
