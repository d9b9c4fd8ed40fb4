// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/option"
)

// A ReceiveOutcome is the outcome of receiving a frame.
type ReceiveOutcome uint8

// The outcomes of frames that are not refused.
const (
	OutcomeDelivered ReceiveOutcome = iota + 1 // the message is for the application
	OutcomeCancelled                           // as Delivered: the message is a cancel, its chain has ended
	OutcomeDropped                             // dropped without an answer
	OutcomePending                             // a part of an incomplete message
)

// String returns the name of the outcome.
func (o ReceiveOutcome) String() string {
	switch o {
	case OutcomeDelivered:
		return "delivered"
	case OutcomeCancelled:
		return "cancelled"
	case OutcomeDropped:
		return "dropped"
	case OutcomePending:
		return "pending"
	}
	return "unknown"
}

// A ReceiveResult is the result of receiving a frame.
type ReceiveResult struct {
	Outcome       ReceiveOutcome
	Message       *Message // OutcomeDelivered, OutcomeCancelled: full keys, references resolved, defaults filled in
	Unresolved    *Message // Message with unresolved references, for the context of a model
	Reason        string   // OutcomeDropped: "ttl" or "cancelled"
	PartsReceived int      // OutcomePending: received parts
	PartsTotal    int      // OutcomePending: all parts

	// DroppedParts is the number of parts of an earlier, incomplete message that this frame ends.
	DroppedParts int

	// Checkpoint is the checkpoint that the frame triggered, or nil.
	Checkpoint *Checkpoint

	// CheckpointErr is the error of a checkpoint that was due. The message is still delivered, and
	// the next frame retries the checkpoint.
	CheckpointErr error

	mid string // of the frame
}

// Receive processes one frame: grammar, envelope, session, time to live, replay, order, parts,
// chain, schema, references, types, state, checkpoint, in this order (ACCP-D27). An [*Error] means
// that the frame is refused: only its number may be used. Answer it with [Session.SendError].
func (s *Session) Receive(ctx context.Context, frame []byte) (r *ReceiveResult, err error) {
	received, err := s.receive(ctx, frame, arrival{})
	if err != nil {
		return nil, err
	}
	return &received, nil
}

// An arrival describes how a frame arrived. The transport gives the order of the frames for a client (ACCP-D24).
type arrival struct {
	isClient bool
	chain    string                  // of the request over HTTP
	isOpen   func(chain string) bool // reports whether a chain has a call over WebSocket; nil over HTTP
}

// answers reports whether a frame answers a chain of this client.
func (a *arrival) answers(chain string) bool {
	if a.isOpen != nil {
		return a.isOpen(chain)
	}
	return a.isClient && (chain == a.chain || chain == "")
}

// receive is Receive for a frame of a transport.
func (s *Session) receive(ctx context.Context, frame []byte, a arrival) (r ReceiveResult, err error) {
	s.logFrame(ctx, "received", frame)
	err = s.entered(ctx, func() error {
		s.count(&s.stats.Received, 1)
		err := s.fit(ctx, &s.holds.memory, int64(frameFactor*len(frame)+messageBytes))
		if err == nil {
			r, err = s.process(ctx, frame, a)
		}
		if err != nil {
			s.count(&s.stats.Rejected, 1)
			if a.isClient && errors.Is(err, ErrUnknownSchema) {
				s.isBehind.Store(true)
			}
			if s.logger.Enabled(ctx, slog.LevelDebug) {
				s.logger.DebugContext(ctx, "accp: frame refused", "session", s.id, "err", err)
			}
			r = ReceiveResult{}
			return err
		}
		switch {
		case r.Outcome == OutcomeDropped && r.Reason == reasonTTL:
			s.count(&s.stats.Expired, 1)
		case r.Outcome == OutcomeDropped:
			s.count(&s.stats.Cancelled, 1)
		case r.Outcome != OutcomePending:
			s.count(&s.stats.Delivered, 1)
		}
		return nil
	})
	return r, err
}

// Reasons for dropping a frame.
const (
	reasonTTL       = "ttl"
	reasonCancelled = "cancelled"
)

// A reception is the decision about one frame: the change of the session and the result. It changes nothing.
type reception struct {
	*Session
	change
	a      arrival
	isUsed bool // the frame changes the session
	parts  *partGroup
	intent Intent
	chain  string // that ends
	hot    tier.Message
	tokens int // of a delivered message
	r      ReceiveResult
}

var receptions = sync.Pool{New: func() any { return new(reception) }}

// process decides about a frame and commits the decision. The session must be entered.
func (s *Session) process(ctx context.Context, frame []byte, a arrival) (ReceiveResult, error) {
	d := receptions.Get().(*reception)
	defer func() {
		*d = reception{}
		receptions.Put(d)
	}()
	for {
		if err := s.refresh(ctx); err != nil {
			return ReceiveResult{}, err
		}
		s.warnings = nil
		*d = reception{Session: s, change: change{generation: s.generation}, a: a, parts: s.parts}
		refusal := d.decide(ctx, frame)
		if !d.isUsed {
			return d.r, refusal
		}
		cp, failure, err := s.commitMessage(ctx, &d.change, d.intent)
		if errors.Is(err, record.ErrConflict) {
			continue
		} else if err != nil {
			return ReceiveResult{}, err
		}
		s.parts = d.parts
		s.count(&s.stats.DroppedParts, d.r.DroppedParts)
		s.count(&s.stats.TokensIn, d.tokens)
		if d.chain != "" {
			s.chains.stop(d.chain)
		}
		d.r.Checkpoint, d.r.CheckpointErr = cp, failure
		return d.r, refusal
	}
}

// decide processes a frame up to its delivery. An error means that the frame is refused.
func (d *reception) decide(ctx context.Context, frame []byte) error {
	f := takeFrame()
	defer f.giveBack()
	if err := d.codec.parse(frame, f); err != nil {
		return err
	}
	m, text := f.message()
	if err := d.codec.validateEnvelope(m); err != nil {
		return err
	}
	d.intent = m.Intent
	now := time.Now().Unix()
	switch meta := m.Meta; {
	case meta.SID != "" && meta.SID != d.id:
		return fail(ErrPolicyDenied, "frame of another session")
	case m.From == d.self:
		return fail(ErrPolicyDenied, "frame in the name of its receiver")
	case meta.TTL.N > 0 && d.opts.MaxClockSkew < option.Off && meta.TS.N-now > int64(d.opts.MaxClockSkew/time.Second):
		return fail(ErrPolicyDenied, "ts is too far ahead")
	}
	if err := d.claim(m, now); err != nil || d.r.Outcome == OutcomeDropped {
		return err
	}
	in := incoming{m: m, text: strings.TrimSpace(text)}
	in.tokens = f.tokens(text, d.opts.TokenCounter)
	isPending, err := d.join(&in)
	if isPending || err != nil {
		return err
	}
	return d.deliver(ctx, in)
}

// claim uses the message id and the number of a frame, or refuses it.
func (d *reception) claim(m *Message, now int64) error {
	meta, numbers := m.Meta, &d.core.numbers
	id := order.MarkOf(meta.MID)
	isSeen := numbers.Seen.Has(id)
	ok, isUsed := numbers.Check(m.From, meta.Seq.N, d.a.isClient)
	isExact := !numbers.IsPerSender() && isGapAnswer(m) && d.a.answers(meta.CID)
	if isExact {
		ok, isUsed = true, true
	}
	if expired(meta, now) {
		d.r.Outcome, d.r.Reason = OutcomeDropped, reasonTTL
		isUsed = ok // a gap before an expired frame is not noticed
		if isSeen {
			return nil
		}
		ok = true
	} else if isSeen {
		return &Error{Code: ErrDuplicate, Message: "mid was seen before", isReplay: true}
	}
	d.isUsed, d.Seen, d.IsExact, d.r.mid = true, id, isExact, meta.MID
	if isUsed {
		d.Sender, d.Seq, d.IsStarted = m.From, meta.Seq.N, true
	}
	if !ok {
		return fail(ErrSequenceGap, "seq %d", meta.Seq.N)
	}
	return nil
}

// isGapAnswer reports whether m is an E3003, which has the number of the other side.
func isGapAnswer(m *Message) bool {
	return m.Intent == IntentFail && m.Op == opError && Code(m.Params.Text("code")) == ErrSequenceGap
}

// expired reports whether the time to live of a frame is exceeded (ACCP-D23).
func expired(m *Meta, now int64) bool {
	return m.TTL.N > 0 && now > m.TS.N && now-m.TS.N > m.TTL.N
}

// An incoming message was received in one frame or in parts.
type incoming struct {
	m      *Message
	text   string // its frames, joined by line feeds
	tokens int
}

// deliver performs the steps after the parts.
func (d *reception) deliver(ctx context.Context, in incoming) error {
	m := in.m
	if m.Intent == IntentCancel && m.Meta.CID == "" {
		return fail(ErrParse, "cancel without cid")
	}
	if d.core.numbers.Cancelled.Has(order.MarkOf(m.Chain())) {
		d.r.Outcome, d.r.Reason = OutcomeDropped, reasonCancelled
		return nil
	}
	if err := d.reserveHot(ctx, m.Intent); err != nil {
		return err
	}
	m, wire, err := d.resolve(ctx, m)
	if err == nil {
		err = d.checkMessage(m)
	}
	if err == nil {
		err = d.decideState(m)
	}
	if err != nil {
		return err
	}
	d.r.Outcome = OutcomeDelivered
	if m.Intent == IntentCancel {
		d.chain = m.Chain()
		d.Cancelled = order.MarkOf(d.chain)
		d.r.Outcome = OutcomeCancelled
	}
	d.r.Message, d.r.Unresolved = m, wire
	d.tokens = in.tokens
	if isContext(m) {
		d.hot.Text, d.hot.Tokens = in.text, in.tokens
		d.Tiers.Hot = &d.hot
	}
	return nil
}

// resolve returns a message with full keys, references resolved and defaults filled in, and the same message with its
// references.
func (d *reception) resolve(ctx context.Context, m *Message) (resolved, wire *Message, err error) {
	schema, err := d.codec.expand(m)
	if err != nil {
		return nil, nil, err
	}
	if isContext(m) {
		d.hot.Facts, d.hot.HasFacts = d.codec.facts(m, schema), true
	}
	params, changed, err := d.refs.all(ctx, m.Params)
	if err != nil {
		return nil, nil, err
	}
	resolved, wire = m, m
	if changed {
		c := *m
		c.Params = params
		resolved = &c
	}
	err = d.codec.complete(resolved, schema)
	if err == nil && wire != resolved {
		err = d.codec.complete(wire, schema) // succeeds: the resolved message is valid, and references are accepted
	}
	return resolved, wire, err
}

// checkMessage checks a message with full keys, and records a probable mistake.
func (s *Session) checkMessage(m *Message) error {
	if err := checkChain(m); err != nil {
		return err
	}
	s.mu.Lock()
	profiles := s.profiles // only appended to
	s.mu.Unlock()
	if err := profiles.check(m); err != nil {
		return err
	}
	if v, ok := m.Params.Get("currency"); ok && s.opts.OnWarning != nil && m.schema() == schemaTransaction {
		if t, isText := v.Text(); !isText || !currencyForm(t) {
			s.warnings = append(s.warnings, warning{m, "currency is not an ISO 4217 code"})
		}
	}
	return nil
}

// A warning is a call of OnWarning.
type warning struct {
	message *Message
	text    string
}

// currencyForm reports whether s has the form of an ISO 4217 code. The list of codes changes, so it
// is not checked.
func currencyForm(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// decideState adds the changes of the shared state and of announced summaries by m to the change.
func (d *reception) decideState(m *Message) error {
	switch {
	case m.Intent == IntentSync && m.Op == opState:
		c, err := d.core.shared.receive(m)
		if err != nil || c == nil {
			return err
		}
		d.IsChange = c.delta.kind == KindMap
		return d.setState(c, d.record != nil)
	case m.Intent == IntentSync && m.Op == opCheckpoint:
		return d.announced(m)
	case d.synced.of(m, &d.core.shared):
		err := d.setState(&stateChange{to: d.synced.before}, d.record != nil)
		d.synced = nil
		return err
	}
	return nil
}
