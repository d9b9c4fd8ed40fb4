// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A BudgetMode decides about messages above the token limits of the draft, 200 for a body and 240 for
// a frame (ACCP-D37).
type BudgetMode uint8

// The modes. In each, a message above the bytes or values of one frame is sent in parts (ACCP-D73).
const (
	BudgetSplit   BudgetMode = iota // sends parts within the limits, or one frame above them
	BudgetEnforce                   // as BudgetSplit, but [ErrBudgetExceeded] for messages above the limits
	BudgetOff                       // sends one frame
)

const maxParts = 64 // frames that a message may be split into (ACCP-D38)

// A part is the params of one frame of a message, besides its schema.
type part struct {
	params Params
	keys   []string // on the wire
	cont   bool     // continues the last param of the part before
}

func (x part) with(p Param, key string) part {
	return part{params: append(slices.Clip(x.params), p), keys: append(slices.Clip(x.keys), key)}
}

// A layout is the position of a part in its message.
type layout struct {
	part, of int
	cont     bool
}

// largest is the layout by which the sizes of parts are estimated.
var largest = layout{part: maxParts, of: maxParts}

// envelope returns the metadata of a frame.
func (m *Message) envelope(id string, seq int64, at layout) *Meta {
	meta := *m.Meta
	meta.MID, meta.Seq = id, NewOptionalInt(seq)
	if at.of < 2 {
		return &meta
	}
	meta.Ext = slices.Clip(meta.Ext)
	if at.cont {
		meta.Ext = append(meta.Ext, Param{"cont", Bool(true)})
	}
	meta.Ext = append(meta.Ext, Param{"part", String(strconv.Itoa(at.part) + "/" + strconv.Itoa(at.of))})
	return &meta
}

// write writes the frame of a whole message.
func (p *prepared) write(c *Codec, id string, seq int64) ([]byte, cut, error) {
	one := *p.m
	one.Meta = one.envelope(id, seq, layout{})
	return c.appendFrame(nil, &one, p.keys)
}

// writePart writes the frame of a part.
func (p *prepared) writePart(c *Codec, x part, id string, seq int64, at layout) ([]byte, cut, error) {
	one := *p.m
	one.Meta = one.envelope(id, seq, at)
	one.Params = make(Params, 0, len(x.params)+1)
	keys := make([]string, 0, len(x.keys)+1)
	if v, ok := p.m.Params.Get(keySchema); ok {
		one.Params, keys = append(one.Params, Param{keySchema, v}), append(keys, keySchema)
	}
	one.Params, keys = append(one.Params, x.params...), append(keys, x.keys...)
	return c.appendFrame(nil, &one, keys)
}

// estimate writes the frame of a part with the longest envelope.
func (p *prepared) estimate(c *Codec, x part, seq int64, at layout) ([]byte, cut, error) {
	return p.writePart(c, x, budgetID, min(seq, math.MaxInt64-maxParts+1)+maxParts-1, at)
}

// all returns the params of a message in the order of their keys on the wire.
func (p *prepared) all() part {
	var list []int
	for i := range p.m.Params {
		if p.m.Params[i].Key != keySchema && p.keys[i] != "" {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b int) int { return strings.Compare(p.keys[a], p.keys[b]) })
	x := part{}
	for _, i := range list {
		x.params, x.keys = append(x.params, p.m.Params[i]), append(x.keys, p.keys[i])
	}
	return x
}

// pack distributes the params of a message over frames (ACCP-D37, ACCP-D73). It returns nil for a message in one
// frame. The session must be entered.
func (s *Session) pack(ctx context.Context, p *prepared, seq int64) ([]part, error) {
	c := s.codec
	c.FrameLimits.MaxFrame, c.FrameLimits.MaxValues = math.MaxInt32, math.MaxInt32
	frame, at, err := p.write(&c, budgetID, seq)
	if err != nil {
		return nil, err
	}
	limits := s.codec.FrameLimits.withDefaults()
	limit := sizes{limits.MaxFrame, limits.MaxValues}
	if s.opts.maxOutput > 0 {
		limit.bytes = min(limit.bytes, s.opts.maxOutput)
	}
	if size := (sizes{len(frame), at.values}); !size.fits(limit) {
		if s.opts.Budget == BudgetEnforce || isUnlimited(p.m) {
			return nil, errTooLong(fmt.Sprintf("a message of %d bytes and %d values does not fit a frame", size.bytes, size.values))
		}
		return p.cutUp(&c, seq, limit)
	}
	if s.opts.Budget == BudgetOff || isUnlimited(p.m) || s.isWithin(frame, at) {
		return nil, nil
	}
	parts, isWithin, err := s.packTokens(ctx, p, &c, seq)
	if err == nil && !isWithin && s.opts.Budget == BudgetEnforce {
		err = fail(ErrBudgetExceeded, "the message does not fit frames within the token limits")
	}
	return parts, err
}

// errTooLong returns the error of a message that no frames can carry.
func errTooLong(text string) error {
	return &Error{Code: ErrBudgetExceeded, Message: text, Cause: ErrTooLarge}
}

// isWithin reports whether a frame satisfies the hard limits of body and total. Header and metadata
// cannot be split (ACCP-D37).
func (s *Session) isWithin(frame []byte, at cut) bool {
	b := measure(frame, at, s.opts.TokenCounter)
	return b.Body <= hardBody && b.Total <= hardTotal
}

// packTokens returns the parts of a message that are within the token limits, nil for one frame, and
// whether there are any. Params that do not fit into a frame move to the shared store.
func (s *Session) packTokens(ctx context.Context, p *prepared, c *Codec, seq int64) (parts []part, isWithin bool, err error) {
	if p.schema != nil && p.schema.Code == SchemaError {
		return nil, false, nil
	}
	fits := func(x part) (bool, error) {
		frame, at, err := p.estimate(c, x, seq, largest)
		return err == nil && s.isWithin(frame, at), err
	}
	all := p.all()
	isSplittable, err := s.moveLarge(ctx, p, all, fits)
	if err != nil {
		return nil, false, err
	}
	frame, at, err := p.write(c, budgetID, seq)
	switch {
	case err != nil:
		return nil, false, err
	case s.isWithin(frame, at):
		return nil, true, nil
	case !isSplittable:
		return nil, false, nil
	}
	parts, err = all.grouped(fits)
	switch {
	case err != nil, len(parts) > maxParts:
		return nil, false, err
	case len(parts) == 1:
		return nil, true, nil // header and metadata exceed the limit
	}
	return parts, true, nil
}

// moveLarge moves the params that do not fit into a separate frame to the shared store, and reports whether
// each then fits.
func (s *Session) moveLarge(ctx context.Context, p *prepared, all part, fits func(part) (bool, error)) (bool, error) {
	isSplittable := true
	for i, x := range all.params {
		ok, err := fits(part{}.with(x, all.keys[i]))
		switch {
		case err != nil:
			return false, err
		case ok:
		case s.opts.Persistence.SharedStore == nil || x.Value.kind == KindRef:
			isSplittable = false
		default:
			if all.params[i].Value, err = s.moveOut(ctx, x.Value); err != nil {
				return false, err
			}
			p.m.Params = p.m.Params.Set(x.Key, all.params[i].Value)
		}
	}
	return isSplittable, nil
}

// grouped distributes the params of p over parts, each with as many as fit.
func (p part) grouped(fits func(part) (bool, error)) (parts []part, err error) {
	open := part{}
	for i, x := range p.params {
		next := open.with(x, p.keys[i])
		ok, err := fits(next)
		if err != nil {
			return nil, err
		}
		if !ok && len(open.params) > 0 {
			parts = append(parts, open)
			next = part{}.with(x, p.keys[i])
		}
		open = next
	}
	return append(parts, open), nil
}

// Sizes are the bytes of a text and the number of its values.
type sizes struct{ bytes, values int }

func (a sizes) plus(b sizes) sizes    { return sizes{a.bytes + b.bytes, a.values + b.values} }
func (a sizes) fits(limit sizes) bool { return a.bytes <= limit.bytes && a.values <= limit.values }

// cutUp distributes the params of a message over frames by bytes and values. A string or an array that
// does not fit into a frame is cut into pieces (ACCP-D73).
func (p *prepared) cutUp(c *Codec, seq int64, limit sizes) (parts []part, err error) {
	at := largest
	at.cont = true
	frame, written, err := p.estimate(c, part{}, seq, at)
	if err != nil {
		return nil, err
	}
	empty := sizes{len(frame), written.values}
	if p.schema == nil {
		empty.bytes -= len("|") // the first param has none
	}
	total, all := 0, p.all()
	open, used := part{}, empty
	closePart := func() {
		if len(open.params) > 0 {
			parts, total = append(parts, open), total+used.bytes
		}
		open, used = part{}, empty
	}
	for i, x := range all.params {
		key := all.keys[i]
		text, err := c.AppendValue(nil, x.Value)
		if err != nil {
			return nil, err
		}
		size := sizes{len(key) + len("|:") + len(text), x.Value.count()}
		if !used.plus(size).fits(limit) {
			closePart()
		}
		if used.plus(size).fits(limit) {
			open, used = open.with(x, key), used.plus(size)
			continue
		}
		limits := sizes{limit.bytes - empty.bytes - len(key) - len("|:"), limit.values - empty.values}
		for rest, isFirst := x.Value, true; ; isFirst = false {
			piece, more, n := c.cutValue(rest, limits)
			if n == 0 || len(parts) >= maxParts {
				return nil, errTooLong("param " + key + " cannot be cut into parts")
			}
			parts = append(parts, part{params: Params{{x.Key, piece}}, keys: []string{key}, cont: !isFirst})
			total += empty.bytes + n
			if more == nil {
				break
			}
			rest = *more
		}
	}
	closePart()
	if len(parts) > maxParts || total > maxPartBytes {
		return nil, errTooLong(fmt.Sprintf("%d parts of %d bytes, at most %d of %d", len(parts), total, maxParts, maxPartBytes))
	}
	return parts, nil
}

// cutValue returns the longest beginning of a string or an array whose text fits into the limits, the rest,
// which is nil if there is none, and the length of the text. The length is 0 if nothing fits.
func (c *Codec) cutValue(v Value, limits sizes) (piece Value, rest *Value, length int) {
	switch {
	case v.kind == KindString && !c.Portable: // in the portable form a piece may look like a number
		n, length := cutText(v.text, limits.bytes)
		if n < len(v.text) {
			more := String(v.text[n:])
			rest = &more
		}
		return String(v.text[:n]), rest, length
	case v.kind == KindArray:
		n, size := 0, sizes{len("[]"), 1}
		var buf []byte
		for n < len(v.list) {
			text, err := c.AppendValue(buf[:0], v.list[n].Value)
			if err != nil {
				return Value{}, nil, 0
			}
			next := size.plus(sizes{len(text), v.list[n].Value.count()})
			if n > 0 {
				next.bytes += len(",")
			}
			if !next.fits(limits) {
				break
			}
			buf, size = text, next
			n++
		}
		if n == 0 {
			return Value{}, nil, 0
		}
		if n < len(v.list) {
			rest = &Value{kind: KindArray, list: v.list[n:]}
		}
		return Value{kind: KindArray, list: v.list[:n:n]}, rest, size.bytes
	}
	return Value{}, nil, 0
}

// cutText returns the length of the longest beginning of s of whole characters whose canonical text has
// at most maximum bytes, and the length of that text.
func cutText(s string, maximum int) (n, length int) {
	var e encoder
	var buf [16]byte
	isPlain, hasSpace := true, false
	bare, inText := 0, len(`\_`) // lengths without and with the text mode
	for i, r := range s {
		end := i + utf8.RuneLen(r)
		size := 1
		switch {
		case r == ' ':
			isPlain, hasSpace = false, true
		case r == '_':
			inText++
		case r >= utf8.RuneSelf || class[r]&cPlain == 0:
			isPlain, size = false, len(e.escaped(buf[:0], s[i:end], 0))
		}
		bare, inText = bare+size, inText+size
		now := bare
		if hasSpace {
			now = inText
		}
		if now > maximum {
			break
		}
		if isPlain && now+len(`\e`) > maximum && looksTyped(s[:end]) {
			continue // the mark of a string does not fit, and the next character may make it unnecessary
		}
		n, length = end, now
	}
	return n, length
}
