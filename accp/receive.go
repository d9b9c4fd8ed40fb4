// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
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
}

// Receive processes one frame: grammar, envelope, session, time to live, replay, order, parts,
// chain, schema, references, types, state, checkpoint, in this order (ACCP-D27). An [*Error] means
// that the frame is refused: only its number may be used. Answer it with [Session.SendError].
func (s *Session) Receive(ctx context.Context, frame []byte) (r *ReceiveResult, err error) {
	return s.receive(ctx, frame, arrival{})
}

// An arrival describes how a frame arrived.
type arrival struct {
	// answers reports whether the frame answers a chain of this client. It is nil on a server. The transport
	// gives the order of the frames for a client (ACCP-D24).
	answers func(chain string) bool
}

// receive is Receive for a frame of a transport.
func (s *Session) receive(ctx context.Context, frame []byte, a arrival) (r *ReceiveResult, err error) {
	s.logFrame(ctx, "received", frame)
	err = s.entered(ctx, func() error {
		s.count(&s.stats.Received, 1)
		err := s.fit(ctx, &s.memory, int64(frameFactor*len(frame)+messageBytes))
		if err == nil {
			r, err = s.process(ctx, frame, a)
		}
		if err != nil {
			s.count(&s.stats.Rejected, 1)
			s.logger.DebugContext(ctx, "accp: frame refused", "session", s.id, "err", err)
			r = nil
			return err
		}
		switch {
		case r.Outcome == OutcomeDropped && r.Reason == "ttl":
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

// A decision is what one frame does to the session.
type decision struct {
	event  *event // nil: no change
	parts  *partGroup
	intent Intent
	chain  string // that ends
	tokens int    // of a delivered message
	r      *ReceiveResult
}

// process decides about a frame and records the decision. The session must be entered.
func (s *Session) process(ctx context.Context, frame []byte, a arrival) (*ReceiveResult, error) {
	early, earlyErr := (*Checkpoint)(nil), error(nil)
	for {
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
		s.warnings = nil
		d := &decision{parts: s.parts, r: &ReceiveResult{}}
		err := s.decide(ctx, frame, a, d)
		if d.event == nil {
			return d.r, err
		}
		if early == nil && earlyErr == nil {
			early, earlyErr = s.makeRoom(ctx, d.event.Hot)
		}
		if rerr := s.append(ctx, d.event); errors.Is(rerr, record.ErrConflict) {
			continue
		} else if rerr != nil {
			return nil, rerr
		}
		s.parts = d.parts
		s.count(&s.stats.DroppedParts, d.r.DroppedParts)
		s.count(&s.stats.TokensIn, d.tokens)
		if d.chain != "" {
			s.stop(d.chain)
		}
		if err == nil {
			d.r.Checkpoint, d.r.CheckpointErr = early, earlyErr
			if d.event.Hot != nil && earlyErr == nil {
				s.trigger(ctx, d.intent, &d.r.Checkpoint, &d.r.CheckpointErr)
			}
		}
		return d.r, err
	}
}

// decide processes a frame up to its delivery. An error with an event means that the frame is refused
// and its number used. The session must be entered.
func (s *Session) decide(ctx context.Context, frame []byte, a arrival, d *decision) error {
	f := takeFrame()
	defer f.giveBack()
	if err := s.codec.parse(frame, f); err != nil {
		return err
	}
	m := f.Message()
	if err := s.codec.ValidateEnvelope(m); err != nil {
		return err
	}
	d.intent = m.Intent
	now := time.Now().Unix()
	switch meta := m.Meta; {
	case meta.SID != "" && meta.SID != s.id:
		return fail(ErrPolicyDenied, "frame of another session")
	case m.From == s.self:
		return fail(ErrPolicyDenied, "frame in the name of its receiver")
	case meta.TTL.N > 0 && meta.TS.N-now > int64(s.opts.MaxClockSkew/time.Second):
		return fail(ErrPolicyDenied, "ts is too far ahead")
	}
	if err := s.claimFrame(m, now, a, d); err != nil || d.r.Outcome == OutcomeDropped {
		return err
	}
	in := incoming{m: m, texts: []string{string(bytes.TrimSpace(frame))}, tokens: f.measure(s.opts.TokenCounter).Total}
	pending, err := s.joinParts(&in, d)
	if pending || err != nil {
		return err
	}
	return s.deliver(ctx, in, d)
}

// claimFrame uses the message id and the number of a frame, or refuses it. The session must be
// entered.
func (s *Session) claimFrame(m *Message, now int64, a arrival, d *decision) error {
	meta := m.Meta
	id := markOf(meta.MID)
	e := &event{Seen: id.text(), basis: s.loads}
	seen := s.core.seen.has(id)
	ok, isUsed := s.core.order(m.From, meta.Seq.N, s.opts.SeqPerSender, a.answers != nil)
	if !s.opts.SeqPerSender && a.answers != nil && isGapAnswer(m) && a.answers(meta.CID) {
		ok, isUsed, e.Exact = true, true, true
	}
	if expired(meta, now) {
		d.r.Outcome, d.r.Reason = OutcomeDropped, "ttl"
		isUsed = ok // a gap before an expired frame is not noticed
		if seen {
			return nil
		}
		ok = true
	} else if seen {
		return &Error{Code: ErrDuplicate, Message: "mid was seen before", isReplay: true}
	}
	d.event = e
	if isUsed {
		e.Sender, e.Seq, e.Started = strings.Clone(m.From), meta.Seq.N, true
	}
	if !ok {
		return fail(ErrSequenceGap, "seq %d", meta.Seq.N)
	}
	return nil
}

// isGapAnswer reports whether m is an E3003, which has the number of the other side.
func isGapAnswer(m *Message) bool {
	return m.Intent == IntentFail && m.Op == OpError && Code(m.Params.Text("code")) == ErrSequenceGap
}

// expired reports whether the time to live of a frame is exceeded (ACCP-D23).
func expired(m *Meta, now int64) bool {
	return m.TTL.N > 0 && now > m.TS.N && now-m.TS.N > m.TTL.N
}

// An incoming message was received in one frame or in parts.
type incoming struct {
	m      *Message
	texts  []string // its frames
	tokens int
}

// deliver performs the steps after the parts. The session must be entered.
func (s *Session) deliver(ctx context.Context, in incoming, d *decision) error {
	m, r := in.m, d.r
	if m.Intent == IntentCancel && m.Meta.CID == "" {
		return fail(ErrParse, "cancel without cid")
	}
	if s.core.cancelled.has(markOf(m.Chain())) {
		r.Outcome, r.Reason = OutcomeDropped, "cancelled"
		return nil
	}
	if err := s.reserveHot(ctx, m.Intent); err != nil {
		return err
	}
	schema, err := s.codec.expand(m)
	if err != nil {
		return err
	}
	resolved, changed, err := s.resolveAll(ctx, m.Params)
	if err != nil {
		return err
	}
	wire := m
	if changed {
		c := *m
		c.Params = resolved
		m = &c
	}
	err = s.codec.complete(m, schema)
	if err == nil && wire != m {
		err = s.codec.complete(wire, schema) // succeeds: the resolved message is valid, and references are accepted
	}
	if err == nil {
		err = s.checkMessage(m)
	}
	if err != nil {
		return err
	}
	if err := s.decideState(ctx, m, d.event); err != nil {
		return err
	}
	r.Outcome = OutcomeDelivered
	if m.Intent == IntentCancel {
		d.chain = m.Chain()
		d.event.Cancelled = markOf(d.chain).text()
		r.Outcome = OutcomeCancelled
	}
	r.Message, r.Unresolved = m, wire
	d.tokens = in.tokens
	if isContext(m) {
		d.event.Hot = &tier.Message{Text: strings.Join(in.texts, "\n"), Tokens: in.tokens}
	}
	return nil
}

// checkMessage checks a message with full keys, and records a probable mistake.
func (s *Session) checkMessage(m *Message) error {
	if err := checkChain(m); err != nil {
		return err
	}
	if err := s.checkProfiles(m); err != nil {
		return err
	}
	s.warn(m)
	return nil
}

// decideState adds the changes of the shared state and of announced summaries by m to its event.
func (s *Session) decideState(ctx context.Context, m *Message, e *event) error {
	switch {
	case m.Intent == IntentSync && m.Op == OpState:
		return s.core.decideState(m, e)
	case m.Intent == IntentSync && m.Op == opCheckpoint:
		return s.receiveAnnouncement(ctx, m, e)
	case m.Intent == IntentFail && Code(m.Params.Text("code")) == ErrDuplicate && s.synced != nil &&
		s.synced.chain == m.Meta.CID && s.synced.version == s.core.version && !hasMark(m, "applied"):
		e.Version, e.State = s.synced.version-1, &s.synced.before // the peer has another state (ACCP-D45)
		s.synced = nil
	}
	return nil
}

// A warning is a call of OnWarning.
type warning struct {
	message *Message
	text    string
}

// warn records a probable mistake for OnWarning. The session must be entered.
func (s *Session) warn(m *Message) {
	if s.opts.OnWarning == nil || m.Schema() != SchemaTransaction {
		return
	}
	if v, ok := m.Params.Get("currency"); ok {
		if t, isText := v.Text(); !isText || !currencyForm(t) {
			s.warnings = append(s.warnings, warning{m, "currency is not an ISO 4217 code"})
		}
	}
}

// currencyForm reports whether s has the form of an ISO 4217 code. The list of codes changes, so it
// is not checked.
func currencyForm(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// A partGroup is an incomplete message (ACCP-D38).
type partGroup struct {
	incoming // the message of the first part
	params   joiner
	next, of int
	seq      int64
	bytes    int // in memory
	length   int // of the frames
}

// joinParts processes the metadata keys part and cont. It reports whether parts are missing, and stores the
// joined message in in after the last part. The session must be entered.
func (s *Session) joinParts(in *incoming, d *decision) (pending bool, err error) {
	open := d.parts
	d.parts = nil
	drop := func() {
		if open != nil {
			d.r.DroppedParts = open.next - 1
		}
	}
	v, isPart := in.m.Meta.Ext.Get("part")
	if !isPart {
		drop()
		return false, nil
	}
	i, n, ok := parsePart(v)
	isCont, contOK := continues(in.m.Meta)
	if !ok || !contOK || i == 1 && isCont {
		drop()
		return false, fail(ErrParse, "malformed part")
	}
	size := len(in.texts[0])
	if i == 1 {
		drop()
		m := in.m.clone()
		m.Meta.Ext = without(without(m.Meta.Ext, "part"), "cont")
		d.parts = &partGroup{incoming: incoming{m: m, texts: in.texts, tokens: in.tokens}, params: newJoiner(m.Params),
			next: 2, of: n, seq: in.m.Meta.Seq.N, bytes: size + m.size(), length: size}
		d.r.Outcome, d.r.PartsReceived, d.r.PartsTotal = OutcomePending, 1, n
		return true, nil
	}
	if open == nil || i != open.next || n != open.of || !open.continues(in.m) {
		drop()
		return false, fail(ErrParse, "not the next part of the open message")
	}
	if open.length+size > maxPartBytes {
		drop()
		return false, fail(ErrBudgetExceeded, "the parts of the message are too large")
	}
	params, ok := open.params.add(in.m.Params, isCont, s.opts.FrameLimits.withDefaults().MaxParams)
	if !ok {
		drop()
		return false, fail(ErrParse, "a part repeats keys, or continues another value")
	}
	g := *open // the frame may be decided again
	g.params = params
	g.texts = append(slices.Clip(open.texts), in.texts[0])
	g.tokens += in.tokens
	g.bytes += size + in.m.size()
	g.length += size
	g.next++
	g.seq = in.m.Meta.Seq.N
	if i < n {
		d.parts = &g
		d.r.Outcome, d.r.PartsReceived, d.r.PartsTotal = OutcomePending, i, n
		return true, nil
	}
	g.m = g.m.clone()
	g.m.Params = params.result()
	*in = g.incoming
	return false, nil
}

// continues reports whether m is the next part of g.
func (g *partGroup) continues(m *Message) bool {
	a, b := g.m, m
	schemaA, hasA := a.Params.Get(keySchema)
	schemaB, hasB := b.Params.Get(keySchema)
	return a.From == b.From && a.Intent == b.Intent && a.Op == b.Op &&
		a.Meta.CID == b.Meta.CID && a.Meta.AID == b.Meta.AID && a.Meta.TTL == b.Meta.TTL &&
		g.seq+1 == b.Meta.Seq.N && hasA == hasB && schemaA.Equal(schemaB)
}

// continues reports whether the frame of m continues the last param of the part before (ACCP-D73), and
// whether its metadata key cont is valid.
func continues(m *Meta) (isCont, ok bool) {
	v, found := m.Ext.Get("cont")
	if !found {
		return false, true
	}
	isCont, _ = v.Bool()
	return isCont, isCont
}

// A joiner joins the params of the parts of a message. It is a value: add returns another one.
type joiner struct {
	schema Params // that of the first part
	params Params
	last   string  // key of the last param of the last part, or ""
	pieces []Value // after the value of the last param
}

func newJoiner(part Params) joiner {
	j, _ := joiner{}.add(part, false, math.MaxInt)
	if v, ok := part.Get(keySchema); ok {
		j.schema = Params{{keySchema, v}}
	}
	return j
}

// add adds the params of a part except its schema. It returns false for a repeated key, for too many
// params, and for a continuation of another value.
func (j joiner) add(part Params, isCont bool, maximum int) (joiner, bool) {
	part = without(part, keySchema)
	if isCont {
		if len(part) != 1 || part[0].Key != j.last {
			return j, false
		}
		kind := part[0].Value.kind
		if kind != j.params[len(j.params)-1].Value.kind || kind != KindString && kind != KindArray {
			return j, false
		}
		j.pieces = append(slices.Clip(j.pieces), part[0].Value)
		return j, true
	}
	have := indexed(j.params)
	for _, p := range part {
		if _, ok := have(p.Key); ok {
			return j, false
		}
	}
	j.params, j.pieces, j.last = append(slices.Clip(j.joined()), part...), nil, ""
	if len(part) > 0 {
		j.last = part[len(part)-1].Key
	}
	return j, len(j.params) <= maximum
}

// result returns the params of the message.
func (j joiner) result() Params { return append(slices.Clip(j.schema), j.joined()...) }

// joined returns the params with the value of the last one as a whole.
func (j joiner) joined() Params {
	if len(j.pieces) == 0 {
		return j.params
	}
	out := slices.Clone(j.params)
	v := &out[len(out)-1].Value
	if v.kind == KindArray {
		v.list = slices.Clip(v.list)
		for _, p := range j.pieces {
			v.list = append(v.list, p.list...)
		}
		return out
	}
	var b strings.Builder
	b.WriteString(v.text)
	for _, p := range j.pieces {
		b.WriteString(p.text)
	}
	v.text = b.String()
	return out
}

// count returns the number of values in v, including v.
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
