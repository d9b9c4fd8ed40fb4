// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/store"
)

// A SendResult is the result of sending a message.
type SendResult struct {
	// Frames are to be sent in this order. They begin with the announcements of checkpoints to
	// which the message refers (ACCP-D70). None if Dropped.
	Frames  [][]byte
	Message *Message // the message with the envelope of its first frame

	// Dropped reports that the chain of the message was cancelled, so that nothing is sent
	// (ACCP-D28).
	Dropped bool

	// Budget has the tokens of each frame.
	Budget []FrameBudget

	// Checkpoint is the checkpoint that the message triggered, or nil.
	Checkpoint *Checkpoint

	// CheckpointErr is the error of a checkpoint that was due.
	CheckpointErr error

	more      []string // message ids of the frames after the first
	announced []string // ids of checkpoints
}

// Send gives a message its envelope and encodes it, as one frame or, if that is
// over the limits of tokens, bytes or values, as several (ACCP-D37, ACCP-D38, ACCP-D73). A message that
// frames cannot carry is [ErrBudgetExceeded]. It sends nothing by itself. Of
// the metadata the caller may set CID, AID, TTL and Ext, and Ext must not hold
// part; anything else is [ErrInvalidType]. A message without From is from this
// side. After an error no number is used up.
func (s *Session) Send(ctx context.Context, m *Message) (*SendResult, error) {
	if m == nil {
		return nil, errNoMessage()
	}
	return s.enteredToSend(ctx, func() (*SendResult, error) { return s.send(ctx, m) })
}

// enteredToSend calls f in the entered session and logs the frames that it returns.
func (s *Session) enteredToSend(ctx context.Context, f func() (*SendResult, error)) (sent *SendResult, err error) {
	err = s.entered(ctx, func() error {
		sent, err = f()
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, frame := range sent.Frames {
		s.logFrame(ctx, "sent", frame)
	}
	return sent, nil
}

// send is Send in an entered session.
func (s *Session) send(ctx context.Context, m *Message) (*SendResult, error) {
	return s.sendWith(ctx, m.Intent, func() (*Message, *event, error) { return m, nil, nil })
}

// sendWith sends the message that build returns and records its event, which may be nil; both succeed
// or neither. The session must be entered.
func (s *Session) sendWith(
	ctx context.Context, intent Intent, build func() (*Message, *event, error),
) (*SendResult, error) {
	// First, since a checkpoint may load changes of other processes, which build needs.
	if err := s.reserveHot(ctx, intent); err != nil {
		return nil, err
	}
	for {
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
		basis := s.loads
		m, e, err := build()
		if err != nil {
			return nil, err
		}
		if m == nil {
			return &SendResult{}, nil // the caller has set s.dirty, so the state is current
		}
		if e == nil {
			e = &event{}
		}
		e.basis = basis
		sent, err := s.sendOnce(ctx, m, e)
		if !errors.Is(err, record.ErrConflict) {
			return sent, err
		}
	}
}

func (s *Session) sendOnce(ctx context.Context, m *Message, e *event) (*SendResult, error) {
	out := m.clone()
	out.From = cmp.Or(out.From, s.self)
	if out.Meta == nil {
		out.Meta = &Meta{}
	}
	meta := out.Meta
	if err := checkUnset(meta); err != nil {
		return nil, err
	}
	if s.isSilenced(out) {
		s.count(&s.stats.Cancelled, 1)
		s.logger.DebugContext(ctx, "accp: message of a cancelled chain not sent", "session", s.id, "chain", meta.CID)
		return &SendResult{Dropped: true}, nil
	}
	if !out.Intent.isControl() {
		if err := s.fit(ctx, &s.memory, int64(2*out.size())); err != nil {
			return nil, err
		}
	}
	seq, err := s.core.next(out.From, s.opts.SeqPerSender)
	if err != nil {
		return nil, err
	}
	meta.TS, meta.SID = NewOptionalInt(time.Now().Unix()), s.id
	p, err := s.prepare(out)
	if err != nil {
		return nil, err
	}
	announcements := s.dueAnnouncements(p.m.Params)
	p.m.Params, err = s.moveTexts(ctx, p.m.Params, p)
	if err != nil {
		return nil, err
	}
	first := seq + int64(len(announcements))
	parts, err := s.pack(ctx, &p, first)
	if err != nil {
		return nil, err
	}
	if int64(len(announcements)+max(len(parts), 1)-1) > math.MaxInt64-seq {
		return nil, errNoNumber()
	}
	res := &SendResult{}
	for i, a := range announcements {
		if err := s.announce(res, a, p.m, seq+int64(i)); err != nil {
			return nil, err
		}
	}
	return s.emit(ctx, res, p, parts, first, e)
}

// isSilenced reports whether the chain of m was cancelled, so that only ack and cancel are sent in it.
func (s *Session) isSilenced(m *Message) bool {
	return m.Meta.CID != "" && m.Intent != IntentAck && m.Intent != IntentCancel && s.core.cancelled.has(markOf(m.Meta.CID))
}

// checkUnset checks that metadata has none of the fields that the session sets.
func checkUnset(meta *Meta) error {
	if meta.MID != "" || meta.Seq.Set || meta.TS.Set || meta.SID != "" {
		return fail(ErrInvalidType, "mid, seq, ts and sid are set by the session")
	}
	for _, key := range []string{"part", "cont"} {
		if _, ok := meta.Ext.Get(key); ok {
			return fail(ErrInvalidType, "%s is set by the session", key)
		}
	}
	return nil
}

// prepare returns a message with full keys after the checks of profiles.
func (s *Session) prepare(m *Message) (prepared, error) {
	p, err := s.codec.prepare(m, new(keyBuffer))
	if err != nil {
		return p, err
	}
	named := *p.m
	named.Params = make(Params, 0, len(p.m.Params))
	for i, x := range p.m.Params {
		named.Params = append(named.Params, Param{p.fulls[i], x.Value})
	}
	if key := named.Params.twice(); key != "" {
		return p, fail(ErrParse, "key %s given twice", key)
	}
	p.m = &named
	return p, s.checkMessage(&named)
}

// emit writes the frames of a message: one, or those of its parts. The session must be entered.
func (s *Session) emit(
	ctx context.Context, res *SendResult, p prepared, parts []part, seq int64, e *event,
) (*SendResult, error) {
	m := p.m
	hot := tier.Message{}
	n := max(1, len(parts))
	for i := range n {
		var frame []byte
		var at cut
		var err error
		if parts == nil {
			frame, at, err = p.write(&s.codec, s.opts.newID(), seq)
		} else {
			frame, at, err = p.writePart(&s.codec, parts[i], s.opts.newID(), seq+int64(i), layout{i + 1, n, parts[i].cont})
		}
		if err != nil {
			return nil, err
		}
		b, err := s.addFrame(res, frame, at)
		if err != nil {
			return nil, err
		}
		hot.Tokens += b.Total
		if i == 0 {
			sent := *m
			sent.Meta = m.envelope(mid(frame, at), seq, layout{})
			res.Message = &sent
		} else {
			hot.Text += "\n"
			res.more = append(res.more, mid(frame, at))
		}
		hot.Text += string(frame)
	}
	e.Sender, e.Seq = m.From, seq+int64(n)-1
	if m.Intent == IntentCancel {
		e.Cancelled = markOf(m.Meta.CID).text()
	}
	var err error
	if isContext(m) {
		e.Hot = &hot
		res.Checkpoint, res.CheckpointErr = s.makeRoom(ctx, &hot)
	}
	if err = s.append(ctx, e); err != nil {
		return nil, err
	}
	if m.Intent == IntentCancel {
		s.stop(m.Meta.CID)
	}
	for _, id := range res.announced {
		s.announced[id] = true
	}
	s.reportBudget(ctx, m, res)
	s.count(&s.stats.Sent, len(res.Frames))
	s.count(&s.stats.TokensOut, hot.Tokens)
	if e.Hot != nil && res.CheckpointErr == nil {
		s.trigger(ctx, m.Intent, &res.Checkpoint, &res.CheckpointErr)
	}
	return res, nil
}

// addFrame adds a frame to a result.
func (s *Session) addFrame(res *SendResult, frame []byte, at cut) (FrameBudget, error) {
	if s.opts.maxOutput > 0 && len(frame) > s.opts.maxOutput {
		return FrameBudget{}, errTooLong(fmt.Sprintf("frame of %d bytes, the peer accepts %d", len(frame), s.opts.maxOutput))
	}
	b := measure(frame, at, s.opts.TokenCounter)
	res.Frames = append(res.Frames, frame)
	res.Budget = append(res.Budget, b)
	return b, nil
}

// mid returns the message id of a written frame.
func mid(frame []byte, at cut) string {
	const lead = len("[mid:")
	return string(frame[at.meta+lead : at.meta+lead+12])
}

// reportBudget counts the frames above the token limits. The first excess is logged (ACCP-D37).
func (s *Session) reportBudget(ctx context.Context, m *Message, res *SendResult) {
	count, largest := 0, 0
	for _, b := range res.Budget {
		if !isUnlimited(m) && (b.Body > hardBody || b.Total > hardTotal) {
			count, largest = count+1, max(largest, b.Total)
		}
	}
	if count == 0 {
		return
	}
	s.count(&s.stats.OverBudget, count)
	if !s.hasWarned {
		s.hasWarned = true
		s.logger.WarnContext(ctx, "accp: frame above the token limit sent", "session", s.id,
			"operation", string(m.Intent)+":"+m.Op, "tokens", largest, "limit", hardTotal)
	}
}

const (
	budgetID   = "a0a0a0a0a0a0" // message id in token estimates (ACCP-D37)
	maxInline  = 50             // longest encoded text that is not moved to the shared store, in characters
	firstDigit = 8              // minimum hex digits in the key of a stored value
)

// isUnlimited reports whether m has no token limits (ACCP-D37).
func isUnlimited(m *Message) bool {
	return m.Intent == IntentSync && (m.Op == OpRegistry || m.Op == opCheckpoint)
}

// moveTexts replaces long strings by references (ACCP-D35).
func (s *Session) moveTexts(ctx context.Context, params Params, p prepared) (Params, error) {
	if s.opts.Persistence.SharedStore == nil || p.schema != nil && p.schema.Code == SchemaError {
		return params, nil
	}
	for i := range params {
		if params[i].Key == keySchema || p.keys[i] == "" {
			continue
		}
		v, err := s.moveText(ctx, params[i].Value)
		if err != nil {
			return nil, err
		}
		params[i].Value = v
	}
	return params, nil
}

func (s *Session) moveText(ctx context.Context, v Value) (Value, error) {
	switch v.kind {
	case KindString:
		if len(v.text) <= maxInline/len(`\u{10FFFF}`) {
			return v, nil // short even if every byte is escaped
		}
		text, err := s.codec.AppendValue(nil, v)
		if err != nil || utf8.RuneCount(text) <= maxInline {
			return v, err
		}
		return s.moveOut(ctx, v)
	case KindArray, KindMap:
		list := append([]Param(nil), v.list...)
		for i := range list {
			x, err := s.moveText(ctx, list[i].Value)
			if err != nil {
				return Value{}, err
			}
			list[i].Value = x
		}
		v.list = list
	}
	return v, nil
}

// moveOut stores a value in the shared store under a key derived from its hash, and returns the
// reference (ACCP-D36). Equal values share one entry.
func (s *Session) moveOut(ctx context.Context, v Value) (Value, error) {
	c := Codec{Portable: s.codec.Portable}
	c.FrameLimits = storedCodec.FrameLimits
	if _, err := c.AppendValue(nil, v); err != nil {
		return Value{}, err
	}
	v = rounded(v)
	d, err := digest(v)
	if err != nil {
		return Value{}, err
	}
	t := s.shared()
	for n := firstDigit; n <= len(d); n += 4 {
		key := "h" + d[:n]
		mine, err := s.share(ctx, t, key, v)
		if err != nil {
			return Value{}, err
		}
		if mine {
			return Ref("cold." + key), nil
		}
	}
	return Value{}, fail(ErrInternal, "no free key in the shared store")
}

// share stores a value under a key. It returns false if another value with the same first digits
// has the key. Peers may do the same concurrently, so only expired entries are overwritten.
func (s *Session) share(ctx context.Context, t entries, key string, v Value) (bool, error) {
	for {
		old, until, err := t.getUntil(ctx, s.id, ScopeCold, key)
		switch {
		case err == nil && !old.Equal(v):
			return false, nil
		case err == nil && (until == 0 || s.opts.Persistence.Retention > 0 &&
			until-time.Now().UnixMilli() > s.opts.Persistence.Retention.Milliseconds()/2):
			return true, nil
		case err == nil, errors.Is(err, ErrRefExpired): // an entry that expires soon is renewed
			_, err = t.put(ctx, s.id, ScopeCold, key, v, s.opts.Persistence.Retention)
			return true, err
		case !errors.Is(err, ErrRefNotFound):
			return false, err
		}
		if err := s.fit(ctx, &s.storage, int64(v.size()+entryBytes)); err != nil {
			return false, err
		}
		n, err := t.create(ctx, s.id, ScopeCold, key, v, s.opts.Persistence.Retention)
		if !errors.Is(err, store.ErrExists) {
			s.movedBytes += n
			return err == nil, err
		}
	}
}

// rounded returns v with its decimals as sent.
func rounded(v Value) Value {
	switch v.kind {
	case KindDecimal:
		v.text, _ = roundDecimal(v.text)
	case KindArray, KindMap:
		list := append([]Param(nil), v.list...)
		for i := range list {
			list[i].Value = rounded(list[i].Value)
		}
		v.list = list
	}
	return v
}

// SendError returns the frames that report a refused frame to the peer, or none if it was a fail
// frame (ACCP-D52). The peer receives the code of err, or [ErrInternal], and nothing else. The
// answer is in the chain of the frame if its envelope is valid.
func (s *Session) SendError(ctx context.Context, err error, frame []byte) (*SendResult, error) {
	m, perr := s.codec.decodeRawEnvelope(frame)
	if perr == nil && m.Intent == IntentFail {
		return &SendResult{}, nil
	}
	return s.enteredToSend(ctx, func() (*SendResult, error) {
		if perr == nil {
			if sent, serr := s.send(ctx, errorMessage(err, m)); serr == nil {
				return sent, nil // else the id of the chain is too long for the frame
			}
		}
		return s.send(ctx, errorMessage(err, nil))
	})
}
