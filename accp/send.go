// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
)

// A SendResult is the result of sending a message.
type SendResult struct {
	// Frames are to be sent in this order. They begin with the announcements of checkpoints to
	// which the message refers (ACCP-D70). None if Dropped.
	Frames [][]byte

	// Message is the message with full keys and the envelope of its first frame. It shares the values of the
	// argument.
	Message *Message

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
	return s.sent(ctx, func() (*SendResult, error) { return s.send(ctx, m) })
}

// sent calls f in the entered session and logs the frames that it returns.
func (s *Session) sent(ctx context.Context, f func() (*SendResult, error)) (sent *SendResult, err error) {
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
	return s.sendWith(ctx, m.Intent, func(*change) (*Message, error) { return m, nil })
}

// sendWith sends the message that build returns, which adds to its change; both succeed
// or neither. The session must be entered.
func (s *Session) sendWith(ctx context.Context, intent Intent, build func(e *change) (*Message, error)) (*SendResult, error) {
	// First, since a checkpoint may load changes of other processes, which build needs.
	if err := s.reserveHot(ctx, intent); err != nil {
		return nil, err
	}
	d := departures.Get().(*departure)
	defer func() {
		d.clear()
		departures.Put(d)
	}()
	for {
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
		d.clear()
		d.Session, d.generation = s, s.generation
		m, err := build(&d.change)
		if err != nil {
			return nil, err
		}
		if m == nil {
			return &SendResult{}, nil // the caller has invalidated the record, so the state is current
		}
		sent, err := d.send(ctx, m)
		if !errors.Is(err, record.ErrConflict) {
			return sent, err
		}
	}
}

// A departure is the work for one message that is sent.
type departure struct {
	*Session
	change
	keys keyBuffer
	p    prepared
	pack packer
	buf  []byte // of a frame
	hot  tier.Message
	seq  int64 // of the first frame after the announcements
}

var departures = sync.Pool{New: func() any { return new(departure) }}

func (d *departure) clear() {
	buf := d.buf[:0]
	if cap(buf) > 16<<10 {
		buf = nil
	}
	*d = departure{buf: buf}
}

// A sentMessage is the result for a message in one frame, in one piece of memory.
type sentMessage struct {
	SendResult
	msg    Message
	meta   Meta
	frame  [1][]byte
	budget [1]FrameBudget
}

func (d *departure) send(ctx context.Context, m *Message) (*SendResult, error) {
	res := &sentMessage{msg: *m}
	out := &res.msg
	if m.Meta != nil {
		res.meta = *m.Meta
	}
	out.Meta = &res.meta
	out.From = cmp.Or(out.From, d.self)
	if err := checkUnset(out.Meta); err != nil {
		return nil, err
	}
	if d.isSilenced(out) {
		d.count(&d.stats.Cancelled, 1)
		d.logger.DebugContext(ctx, "accp: message of a cancelled chain not sent", "session", d.id, "chain", out.Meta.CID)
		return &SendResult{Dropped: true}, nil
	}
	if !out.Intent.isControl() {
		if err := d.fit(ctx, &d.holds.memory, int64(2*out.size())); err != nil {
			return nil, err
		}
	}
	seq, ok := d.core.numbers.Next(out.From)
	if !ok {
		return nil, errNoNumber()
	}
	out.Meta.TS, out.Meta.SID = NewOptionalInt(time.Now().Unix()), d.id
	if err := d.prepare(out); err != nil {
		return nil, err
	}
	announcements := d.dueAnnouncements(out.Params)
	if d.seq = seq + int64(len(announcements)); d.seq < seq {
		return nil, errNoNumber()
	}
	d.pack = packer{codec: &d.codec, opts: &d.opts, mover: d.mover(), p: &d.p, seq: d.seq}
	frame, at, err := d.pack.write(ctx, d.buf[:0])
	d.buf = frame[:0]
	switch {
	case err != nil:
		return nil, err
	case int64(max(len(d.pack.parts), 1)-1) > math.MaxInt64-d.seq:
		return nil, errNoNumber()
	}
	res.Message, res.Frames, res.Budget = out, res.frame[:0], res.budget[:0]
	for i, a := range announcements {
		if err := d.announce(&res.SendResult, a, out, seq+int64(i)); err != nil {
			return nil, err
		}
	}
	if d.pack.parts == nil {
		err = d.add(&res.SendResult, frame, at)
	} else {
		err = d.addParts(&res.SendResult)
	}
	if err != nil {
		return nil, err
	}
	return d.finish(ctx, &res.SendResult)
}

// isSilenced reports whether the chain of m was cancelled, so that only ack and cancel are sent in it.
func (s *Session) isSilenced(m *Message) bool {
	return m.Meta.CID != "" && m.Intent != IntentAck && m.Intent != IntentCancel &&
		s.core.numbers.Cancelled.Has(order.MarkOf(m.Meta.CID))
}

func errNoNumber() error {
	return fail(ErrInternal, "the sequence numbers of the session are used up")
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

// prepare gives a message full keys and the checks of profiles.
func (d *departure) prepare(m *Message) (err error) {
	if d.p, err = d.codec.prepare(m, &d.keys); err != nil {
		return err
	}
	isShared := d.p.m == m
	*m = *d.p.m
	d.p.m = m
	for i := range m.Params {
		if m.Params[i].Key != d.p.fulls[i] {
			if isShared {
				m.Params, isShared = slices.Clone(m.Params), false
			}
			m.Params[i].Key = d.p.fulls[i]
		}
	}
	if isShared && d.opts.Persistence.SharedStore != nil {
		m.Params = slices.Clone(m.Params) // texts become references
	}
	if key := twice(d.p.fulls); key != "" {
		return fail(ErrParse, "key %s given twice", quoted(key))
	}
	return d.checkMessage(m)
}

// add adds the frame of a whole message, which has the message id of estimates.
func (d *departure) add(res *SendResult, frame []byte, at cut) error {
	out := slices.Clone(frame)
	mid := out[at.meta+len("[mid:"):][:len(budgetID)]
	d.newID(mid)
	d.hot.Text = string(out)
	res.Message.Meta.MID = d.hot.Text[at.meta+len("[mid:"):][:len(budgetID)]
	b := d.pack.budget
	b.Metadata = d.opts.TokenCounter.Count(d.hot.Text[at.meta:])
	b.sum()
	d.hot.Tokens = b.Total
	return d.addFrame(res, out, b)
}

// newID writes a message id.
func (d *departure) newID(mid []byte) {
	if d.opts.newID != nil {
		copy(mid, d.opts.newID())
		return
	}
	var b [6]byte
	rand.Read(b[:])
	hex.Encode(mid, b[:])
}

// addParts adds the frames of a message in parts.
func (d *departure) addParts(res *SendResult) error {
	n := len(d.pack.parts)
	ids, texts := make([]string, n), make([]string, n)
	for i, x := range d.pack.parts {
		id := []byte(budgetID)
		d.newID(id)
		ids[i] = string(id)
		frame, at, err := d.p.writePart(&d.codec, x, ids[i], d.seq+int64(i), layout{i + 1, n, x.cont})
		if err != nil {
			return err
		}
		texts[i] = string(frame)
		b := measure(frame, texts[i], at, d.opts.TokenCounter)
		if err := d.addFrame(res, frame, b); err != nil {
			return err
		}
		d.hot.Tokens += b.Total
	}
	res.Message.Meta.MID, res.Message.Meta.Seq, res.more = ids[0], NewOptionalInt(d.seq), ids[1:]
	d.hot.Text = strings.Join(texts, "\n")
	d.seq += int64(n) - 1
	return nil
}

// finish commits the change by the frames.
func (d *departure) finish(ctx context.Context, res *SendResult) (*SendResult, error) {
	m := res.Message
	d.Sender, d.Seq = m.From, d.seq
	if m.Intent == IntentCancel {
		d.Cancelled = order.MarkOf(m.Meta.CID)
	}
	if isContext(m) {
		if !d.codec.Portable { // whose texts differ from those of the message
			d.hot.Facts, d.hot.HasFacts = d.codec.facts(m, d.p.schema), true
		}
		d.Tiers.Hot = &d.hot
	}
	var err error
	if res.Checkpoint, res.CheckpointErr, err = d.commitMessage(ctx, &d.change, m.Intent); err != nil {
		return nil, err
	}
	if m.Intent == IntentCancel {
		d.chains.stop(m.Meta.CID)
	}
	for _, id := range res.announced {
		d.noteAnnounced(id)
	}
	d.reportBudget(ctx, res)
	d.count(&d.stats.Sent, len(res.Frames))
	for _, b := range res.Budget {
		d.count(&d.stats.TokensOut, b.Total)
	}
	return res, nil
}

// addFrame adds a frame to a result.
func (d *departure) addFrame(res *SendResult, frame []byte, b FrameBudget) error {
	if d.opts.maxOutput > 0 && len(frame) > d.opts.maxOutput {
		return errTooLong(fmt.Sprintf("frame of %d bytes, the peer accepts %d", len(frame), d.opts.maxOutput))
	}
	res.Frames = append(res.Frames, frame)
	res.Budget = append(res.Budget, b)
	return nil
}

// reportBudget counts the frames above the token limits. The first excess is logged (ACCP-D37).
func (d *departure) reportBudget(ctx context.Context, res *SendResult) {
	count, largest := 0, 0
	for _, b := range res.Budget {
		if !isUnlimited(res.Message) && !b.isWithin() {
			count, largest = count+1, max(largest, b.Total)
		}
	}
	if count == 0 {
		return
	}
	d.count(&d.stats.OverBudget, count)
	if !d.hasWarned {
		d.hasWarned = true
		d.logger.WarnContext(ctx, "accp: frame above the token limit sent", "session", d.id,
			"operation", string(res.Message.Intent)+":"+res.Message.Op, "tokens", largest, "limit", hardTotal)
	}
}

// isUnlimited reports whether m has no token limits (ACCP-D37).
func isUnlimited(m *Message) bool {
	return m.Intent == IntentSync && (m.Op == opRegistry || m.Op == opCheckpoint)
}

// SendError returns the frames that report a refused frame to the peer, or none if it was a fail
// frame (ACCP-D52). The peer receives the code of err, or [ErrInternal], and nothing else. The
// answer is in the chain of the frame if its envelope is valid.
func (s *Session) SendError(ctx context.Context, err error, frame []byte) (*SendResult, error) {
	m, perr := s.codec.decodeRawEnvelope(frame)
	if perr == nil && m.Intent == IntentFail {
		return &SendResult{}, nil
	}
	return s.sent(ctx, func() (*SendResult, error) {
		if perr == nil {
			if sent, serr := s.send(ctx, errorMessage(err, m)); serr == nil {
				return sent, nil // else the id of the chain is too long for the frame
			}
		}
		return s.send(ctx, errorMessage(err, nil))
	})
}
