// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/accp/internal/record"
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
	run func(ctx context.Context, r refinement)

	mu      sync.Mutex
	queue   []refinement       // guarded by mu
	cancel  context.CancelFunc // of the running goroutine, or nil; guarded by mu
	isEnded bool               // guarded by mu
}

// A refinement is the work of the summarizer for one checkpoint.
type refinement struct {
	id     string
	facts  []Fact
	frames []string
}

// add queues a checkpoint. Over the bound the oldest one is dropped.
func (r *refiner) add(h *history, next refinement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isEnded {
		return
	}
	r.queue = append(r.queue, next)
	if len(r.queue) > maxRefinements {
		r.queue = r.queue[1:]
		h.logger.WarnContext(context.Background(), "accp: summary not refined", "session", h.id, "reason", "too many checkpoints wait")
	}
	if r.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer cancel()
		for next, ok := r.next(); ok; next, ok = r.next() {
			r.run(ctx, next)
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
	err := guard.CallApart("summarizer", func() (err error) {
		text, err = s.opts.Summaries.Summarizer(limited, r.facts, r.frames, tier.SummaryMax)
		return err
	})
	if err == nil {
		err = s.entered(ctx, func() error { return s.refine(ctx, r.id, text) })
	}
	if err != nil && ctx.Err() == nil {
		s.logger.WarnContext(ctx, "accp: summary not refined", "session", s.id, "checkpoint", r.id, "err", err)
	}
}

// refine sets the refined summary of a checkpoint. The session must be entered.
func (h *history) refine(ctx context.Context, id, text string) error {
	return h.update(ctx, func() (*change, error) {
		own, c := h.core.tiers.Own(id)
		if c == nil || own.Summary == text {
			return nil, nil
		}
		refined, err := h.refined(ctx, own.Hash, text)
		if err != nil || refined.ID == "" {
			return nil, err
		}
		return &change{Event: record.Event{Tiers: tier.Change{Refine: id, Refined: &refined}}}, nil
	})
}

// refined returns a refined summary under an id from the hash of its checkpoint, after it was stored. The id is empty if
// none is free.
func (h *history) refined(ctx context.Context, hash, text string) (out tier.Summary, err error) {
	tokens := h.opts.TokenCounter.Count(text)
	if tokens < 1 || tokens > tier.SummaryMax || len(text) > tier.MaxSummaryBytes || !utf8.ValidString(text) {
		return out, fmt.Errorf("accp: refined summary of %d tokens and %d bytes, valid text: %v", tokens, len(text), utf8.ValidString(text))
	}
	out = tier.Summary{ID: h.core.tiers.Free(hash, summarySum(hash, text), text), Text: text, Tokens: tokens}
	if out.ID != "" && h.refs.hasStore() {
		_, err = h.refs.private.put(ctx, h.id, ScopeWarm, out.ID, String(text), h.refs.retention)
	}
	return out, err
}

// announced adds an announced summary to the change of its frame (ACCP-D70).
func (d *reception) announced(m *Message) error {
	text := func(key string) string {
		v, _ := m.Params.Get(key)
		t, _ := v.Text()
		return strings.Clone(t) // releases the memory of the frame
	}
	a := tier.Announcement{Hash: text("hash"), ID: text("id"), Summary: text("summary")}
	if v, ok := m.Params.Get("summary"); !ok || v.kind != KindString || len(a.Summary) > tier.MaxSummaryBytes ||
		!hashForm.MatchString(a.Hash) || !idForm.MatchString(a.ID) {
		return fail(ErrInvalidType, "malformed sync:checkpoint")
	}
	sum := summarySum(a.Hash, a.Summary)
	switch digits := a.ID[len("cp"):]; {
	case !strings.HasPrefix(hex.EncodeToString(sum[:]), digits):
		return fail(ErrPolicyDenied, "the id of a checkpoint is not its address")
	case !d.core.tiers.IsFree(a):
		d.Tiers.Void = a.ID
		return fail(ErrPolicyDenied, "the id of a checkpoint names other content")
	}
	d.Tiers.Peer = &a
	d.noteAnnounced(a.ID)
	id := d.core.tiers.ByHash(a.Hash)
	tokens := d.opts.TokenCounter.Count(a.Summary)
	if own, _ := d.core.tiers.Own(id); d.opts.Summaries.AdoptFromPeer && id != "" && own.Summary != a.Summary && tokens > 0 && tokens <= tier.SummaryMax {
		d.Tiers.Refine, d.Tiers.Refined = id, &tier.Summary{ID: a.ID, Text: a.Summary, Tokens: tokens}
	}
	return nil
}

// dueAnnouncements returns the own checkpoints to which params refer and which neither side has
// announced, in the order of the canonical text.
func (d *departure) dueAnnouncements(params Params) (due []tier.Announcement) {
	for _, own := range d.core.tiers.References(params.references(nil), d.id) {
		if !d.isAnnounced[own.ID] && !slices.Contains(due, own) {
			due = append(due, own)
		}
	}
	return due
}

const maxAnnounced = 512 // noted ids

// noteAnnounced notes that either side has announced an id. A full note is cleared: references then are announced again. The
// session must be entered.
func (s *Session) noteAnnounced(id string) {
	if len(s.isAnnounced) >= maxAnnounced {
		clear(s.isAnnounced)
	}
	s.isAnnounced[id] = true
}

// announceAgain lets the next message announce the own checkpoints to which params refer, and
// reports whether there are any.
func (s *Session) announceAgain(params Params) bool {
	isFound := false
	_ = s.entered(context.Background(), func() error {
		for _, own := range s.core.tiers.References(params.references(nil), s.id) {
			isFound = true
			delete(s.isAnnounced, own.ID)
		}
		return nil
	})
	return isFound
}

// references appends the references in p to list, in the order of the canonical text.
func (p Params) references(list []string) []string {
	if !hasReference(p) {
		return list
	}
	for i := range p {
		switch v := &p[i].Value; v.kind {
		case KindRef:
			list = append(list, v.text)
		case KindMap:
			list = Params(v.list).sorted().references(list)
		default:
			list = Params(v.list).references(list)
		}
	}
	return list
}

// announce adds the frame that announces a to a result.
func (d *departure) announce(res *SendResult, a tier.Announcement, m *Message, seq int64) error {
	out, id := announcement(a), []byte(budgetID)
	d.newID(id)
	out.From, out.Meta = m.From, &Meta{MID: string(id), Seq: NewOptionalInt(seq), TS: m.Meta.TS, SID: m.Meta.SID}
	p, err := d.codec.prepare(out, new(keyBuffer))
	if err != nil {
		return err
	}
	frame, at, err := d.codec.appendFrame(nil, p.m, p.keys)
	if err != nil {
		return err
	}
	res.announced = append(res.announced, a.ID)
	return d.addFrame(res, frame, measure(frame, "", at, d.opts.TokenCounter))
}

func announcement(a tier.Announcement) *Message {
	return &Message{Intent: IntentSync, Op: opCheckpoint, Params: Params{
		{"hash", String(a.Hash)}, {"id", String(a.ID)}, {"summary", String(a.Summary)}}}
}

// Announce returns the frame with the summary of an own checkpoint for the peer, by the id of the
// summary or of its refined one. Frames that refer to one are preceded by it anyway. Another id is
// [ErrRefNotFound].
func (s *Session) Announce(ctx context.Context, id string) (*SendResult, error) {
	return s.sent(ctx, func() (*SendResult, error) {
		return s.sendWith(ctx, IntentSync, func(*change) (*Message, error) {
			a, c := s.core.tiers.Own(id)
			if c == nil {
				return nil, fail(ErrRefNotFound, "checkpoint %s", quoted(id))
			}
			s.noteAnnounced(id)
			return announcement(a), nil
		})
	})
}
