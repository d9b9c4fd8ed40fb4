// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/store"
)

// A SendResult is what became of a message to be sent.
type SendResult struct {
	Frames  [][]byte // to be sent in this order; none if Dropped
	Message *Message // the message with its envelope; of several frames, that of the first

	// Dropped says that the chain of the message was cancelled, so that there
	// is nothing to send (ACCP-D28).
	Dropped bool

	// Budget says how many tokens each frame has (ACCP-035).
	Budget []FrameBudget

	// Checkpoint is what the message triggered, or nil.
	Checkpoint *Checkpoint

	// CheckpointErr is why a checkpoint that was due could not be made.
	CheckpointErr error

	more []string // message ids of the frames after the first
}

// Send gives a message its envelope and encodes it, as one frame or, if that is
// over the token limits, as several (ACCP-D37, ACCP-D38). It sends nothing by itself. Of
// the metadata the caller may set CID, AID, TTL and Ext, and Ext must not hold
// part; anything else is [ErrInvalidType]. A message without From is from this
// side. After an error no number is used up.
func (s *Session) Send(ctx context.Context, m *Message) (*SendResult, error) {
	if m == nil {
		return nil, errNoMessage()
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.send(ctx, m)
}

func (s *Session) send(ctx context.Context, m *Message) (*SendResult, error) {
	return s.sendWith(ctx, m.Intent, func() (*Message, func() error, error) { return m, nil, nil })
}

// sendWith sends the message with this intent that make returns, together with what
// follows for the session. Both happen or neither.
func (s *Session) sendWith(ctx context.Context, intent Intent, make func() (*Message, func() error, error)) (*SendResult, error) {
	for {
		// First, since it may bring in what others did, which make has to see.
		if err := s.room(ctx, intent); err != nil {
			return nil, err
		}
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
		m, change, err := make()
		if err != nil {
			return nil, err
		}
		if m == nil {
			return &SendResult{}, nil // as the caller saw to it that refresh looks
		}
		sent, err := s.sendOnce(ctx, m, change)
		if !errors.Is(err, store.ErrConflict) {
			return sent, err
		}
	}
}

func (s *Session) sendOnce(ctx context.Context, m *Message, change func() error) (*SendResult, error) {
	out := m.clone()
	if out.From == "" {
		out.From = s.self
	}
	if out.Meta == nil {
		out.Meta = &Meta{}
	}
	meta := out.Meta
	if meta.MID != "" || meta.Seq.Set || meta.TS.Set || meta.SID != "" {
		return nil, fail(ErrInvalidType, "mid, seq, ts and sid are set by the session")
	}
	if _, ok := meta.Ext.Get("part"); ok {
		return nil, fail(ErrInvalidType, "part is set by the session")
	}
	if meta.CID != "" && s.cancelled.has(markOf(meta.CID)) && out.Intent != IntentAck && out.Intent != IntentCancel {
		s.stats.Cancelled++
		s.log.Debug("accp: message of a cancelled chain not sent", "session", s.id, "chain", meta.CID)
		return &SendResult{Dropped: true}, nil
	}
	seq, err := s.next(out.From)
	if err != nil {
		return nil, err
	}
	meta.TS, meta.SID = NewOptionalInt(time.Now().Unix()), s.id
	p, err := s.codec.prepare(out, nil)
	if err != nil {
		return nil, err
	}
	out = p.m
	full := make(Params, 0, len(out.Params))
	for _, x := range out.Params {
		full = append(full, Param{p.schema.full(x.Key), x.Value})
	}
	if key := full.twice(); key != "" {
		return nil, fail(ErrParse, "key %s given twice", key)
	}
	named := *out
	named.Params = full
	if err := checkChain(&named); err != nil {
		return nil, err
	}
	if err := s.checkProfiles(&named); err != nil {
		return nil, err
	}
	s.warn(&named)
	named.Params, err = s.moveTexts(ctx, named.Params, p)
	if err != nil {
		return nil, err
	}
	groups, err := s.pack(ctx, &named, p, seq)
	if err != nil {
		return nil, err
	}
	if int64(len(groups)-1) > math.MaxInt64-seq {
		return nil, errNoNumber()
	}
	return s.emit(ctx, &named, p, groups, seq, change)
}

// emit writes the frames of a message whose params are packed in groups of
// indices.
func (s *Session) emit(ctx context.Context, m *Message, p prepared, groups [][]int, seq int64, change func() error) (*SendResult, error) {
	res := &SendResult{}
	text := ""
	tokens := 0
	for i, g := range groups {
		frame, at, err := s.write(&s.codec, m, p, g, s.opts.NewID(), seq+int64(i), i+1, len(groups))
		if err != nil {
			return nil, err
		}
		b := measure(frame, at, s.opts.TokenCounter)
		tokens += b.Total
		res.Frames = append(res.Frames, frame)
		res.Budget = append(res.Budget, b)
		if i > 0 {
			text += "\n"
		}
		text += string(frame)
		if i == 0 {
			sent := *m
			sent.Meta = s.envelope(m, mid(frame, at), seq, 0, 0)
			res.Message = &sent
		} else {
			res.more = append(res.more, mid(frame, at))
		}
	}
	if change != nil {
		if err := change(); err != nil {
			return nil, err
		}
	}
	s.sentSeq(m.From, seq+int64(len(groups))-1)
	if m.Intent == IntentCancel {
		s.cancelled.add(markOf(m.Meta.CID))
	}
	if err := s.commit(ctx); err != nil {
		return nil, err
	}
	if m.Intent == IntentCancel {
		s.stop(m.Meta.CID)
	}
	for _, frame := range res.Frames {
		s.logFrame("out", frame)
	}
	s.stats.Sent += int64(len(res.Frames))
	s.stats.TokensOut += int64(tokens)
	res.Checkpoint, res.CheckpointErr = s.remember(ctx, hotFrame{msg: res.Message, schema: p.schema, text: text, tokens: tokens})
	return res, nil
}

// mid reads the message id back from a frame just written.
func mid(frame []byte, at cut) string {
	const lead = len("[mid:")
	return string(frame[at.meta+lead : at.meta+lead+12])
}

func (s *Session) envelope(m *Message, id string, seq int64, part, of int) *Meta {
	meta := *m.Meta
	meta.MID, meta.Seq = id, NewOptionalInt(seq)
	if of > 1 {
		meta.Ext = append(append(Params(nil), meta.Ext...),
			Param{"part", String(strconv.Itoa(part) + "/" + strconv.Itoa(of))})
	}
	return &meta
}

// write writes one frame with the params of group, and the schema beside them.
// Params that have no key to be written under are left out.
func (s *Session) write(c *Codec, m *Message, p prepared, group []int, id string, seq int64, part, of int) ([]byte, cut, error) {
	one := *m
	one.Meta = s.envelope(m, id, seq, part, of)
	keys := p.keys
	if of > 1 || len(group) < len(m.Params) {
		one.Params = make(Params, 0, len(group)+1)
		keys = make([]string, 0, len(group)+1)
		for i := range m.Params {
			if m.Params[i].Key == keySchema {
				one.Params, keys = append(one.Params, m.Params[i]), append(keys, p.keys[i])
			}
		}
		for _, i := range group {
			one.Params, keys = append(one.Params, m.Params[i]), append(keys, p.keys[i])
		}
	}
	frame, at, err := c.appendFrame(nil, &one, keys)
	return frame, at, err
}

const (
	budgetID   = "a0a0a0a0a0a0" // stands for a message id when tokens are estimated (ACCP-D37)
	maxInline  = 50             // characters of an encoded text above which it moves to the shared store
	firstDigit = 8              // hex digits of the key of a stored value, at least
)

// fits reports whether a frame with these params keeps to the hard limits. Only
// body and total count, because the rest cannot be split (ACCP-D37).
func (s *Session) fits(m *Message, p prepared, group []int, seq int64, alone bool) (bool, error) {
	part, of := 1, 1
	if !alone {
		part, of, seq = maxParts, maxParts, min(seq, math.MaxInt64-maxParts+1)+maxParts-1
	}
	c := s.codec
	c.FrameLimits.MaxFrame = 1 << 30 // what is too long for one frame may do in several
	frame, at, err := s.write(&c, m, p, group, budgetID, seq, part, of)
	if err != nil {
		return false, err
	}
	b := measure(frame, at, s.opts.TokenCounter)
	return b.Body <= hardBody && b.Total <= hardTotal, nil
}

// pack decides which params go into which frame. It replaces those that do not
// fit any frame by references.
func (s *Session) pack(ctx context.Context, m *Message, p prepared, seq int64) ([][]int, error) {
	var all []int
	for i := range m.Params {
		if m.Params[i].Key != keySchema && p.keys[i] != "" {
			all = append(all, i)
		}
	}
	sortByKey(all, p.keys)
	one := [][]int{all}
	ok, err := s.fits(m, p, all, seq, true)
	if err != nil || ok || s.opts.DisableBudget || m.Intent == IntentSync && m.Op == OpRegistry {
		return one, err
	}
	if p.schema != nil && p.schema.Code == SchemaError {
		return nil, fail(ErrBudgetExceeded, "an error frame cannot be split")
	}
	for _, i := range all {
		ok, err := s.fits(m, p, []int{i}, seq, false)
		if err != nil {
			return nil, err
		}
		if ok || m.Params[i].Value.kind == KindRef {
			continue
		}
		if s.opts.SharedStore == nil {
			return nil, fail(ErrBudgetExceeded, "param %s does not fit a frame, and there is no shared store", m.Params[i].Key)
		}
		ref, err := s.moveOut(ctx, m.Params[i].Value)
		if err != nil {
			return nil, err
		}
		m.Params[i].Value = ref
	}
	if ok, err = s.fits(m, p, all, seq, true); err != nil || ok {
		return one, err
	}
	var groups [][]int
	var group []int
	for _, i := range all {
		ok, err := s.fits(m, p, append(group, i), seq, false)
		if err != nil {
			return nil, err
		}
		if !ok && len(group) > 0 {
			groups = append(groups, group)
			group = nil
		}
		group = append(group[:len(group):len(group)], i)
	}
	if len(group) > 0 {
		groups = append(groups, group)
	}
	switch {
	case len(groups) < 2:
		return one, nil // nothing to split: header and metadata alone are too much
	case len(groups) > maxParts:
		return nil, fail(ErrBudgetExceeded, "more than %d parts", maxParts)
	}
	return groups, nil
}

func sortByKey(list []int, keys []string) {
	// Insertion sort: params are few and mostly sorted.
	for i := 1; i < len(list); i++ {
		for j := i; j > 0 && keys[list[j]] < keys[list[j-1]]; j-- {
			list[j], list[j-1] = list[j-1], list[j]
		}
	}
}

// moveTexts replaces long strings by references (ACCP-D35, step 3).
func (s *Session) moveTexts(ctx context.Context, params Params, p prepared) (Params, error) {
	if s.opts.SharedStore == nil || p.schema != nil && p.schema.Code == SchemaError {
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
			return v, nil // not even if every byte became an escape
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

// moveOut puts a value into the shared store, under a key made of its hash, and
// returns the reference to it (ACCP-D36). Equal values share one entry.
func (s *Session) moveOut(ctx context.Context, v Value) (Value, error) {
	c := Codec{Portable: s.codec.Portable}
	c.FrameLimits = storedCodec().FrameLimits
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

// share sees to it that a value lies under a key, and reports whether it can: the
// key may be that of another value with the same first digits. Peers do the same at
// the same time, so only what has expired is written over.
func (s *Session) share(ctx context.Context, t tier, key string, v Value) (bool, error) {
	for {
		old, until, err := t.getUntil(ctx, s.id, ScopeCold, key)
		switch {
		case err == nil && !old.Equal(v):
			return false, nil
		case err == nil && (until == 0 || s.opts.Retention > 0 && until-time.Now().UnixMilli() > s.opts.Retention.Milliseconds()/2):
			return true, nil
		case err == nil, errors.Is(err, ErrRefExpired): // one that expires soon is renewed
			return true, t.put(ctx, s.id, ScopeCold, key, v, s.opts.Retention)
		case !errors.Is(err, ErrRefNotFound):
			return false, err
		}
		if err := t.create(ctx, s.id, ScopeCold, key, v, s.opts.Retention); !errors.Is(err, store.ErrExists) {
			return err == nil, err
		}
	}
}

// rounded returns v with its decimals as they would be sent.
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

// SendError returns the frames that tell the peer why a frame was refused: none
// if it was a fail frame itself, since errors are never answered to those (ACCP-D52).
// The code is that of err, or [ErrInternal]; nothing else of it is sent. The
// answer names the chain of the frame if its envelope could be read.
func (s *Session) SendError(ctx context.Context, err error, frame []byte) (*SendResult, error) {
	leave, lerr := s.enter(ctx)
	if lerr != nil {
		return nil, lerr
	}
	defer leave()
	m, perr := s.codec.DecodeRaw(frame)
	if perr == nil {
		perr = s.codec.ValidateEnvelope(m)
	}
	if perr != nil {
		return s.send(ctx, errorMessage(err, nil))
	}
	if m.Intent == IntentFail {
		return &SendResult{}, nil
	}
	return s.sendError(ctx, err, m)
}

// sendError answers m with an error. If its chain is named by so long an id that
// the answer does not fit a frame, it is not named.
func (s *Session) sendError(ctx context.Context, err error, m *Message) (*SendResult, error) {
	sent, serr := s.send(ctx, errorMessage(err, m))
	if serr != nil {
		sent, serr = s.send(ctx, errorMessage(err, nil))
	}
	return sent, serr
}
