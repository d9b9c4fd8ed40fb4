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

// The modes. In each, a message above the bytes or values of one frame is sent in parts (ACCP-D73). The zero value sends
// parts within the limits, or one frame above them.
const (
	BudgetEnforce BudgetMode = iota + 1 // sends parts within the limits, or fails with [ErrBudgetExceeded]
	BudgetOff                           // sends one frame
)

const maxParts = 64 // frames that a message may be split into (ACCP-D38)

const budgetID = "a0a0a0a0a0a0" // message id in token estimates (ACCP-D37)

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

// A packer distributes the params of a message over frames (ACCP-D37, ACCP-D73).
type packer struct {
	codec *Codec
	opts  *SessionOptions
	mover *mover // nil without a shared store
	p     *prepared
	seq   int64
	parts []part // nil: one frame

	budget FrameBudget // of the whole message, with the message id of estimates
	wide   Codec       // without bounds of bytes and values
}

// write sets the parts, and returns the text of the whole message with the message id of estimates, in buf if it fits.
func (k *packer) write(ctx context.Context, buf []byte) (frame []byte, at cut, err error) {
	if k.mover != nil {
		if err := k.mover.moveTexts(ctx, k.p); err != nil {
			return buf, at, err
		}
	}
	k.wide = *k.codec
	k.wide.FrameLimits.MaxFrame, k.wide.FrameLimits.MaxValues = math.MaxInt32, math.MaxInt32
	if frame, at, err = k.whole(buf); err != nil {
		return buf, at, err
	}
	k.budget = measure(frame, "", at, k.opts.TokenCounter)
	limits := k.codec.FrameLimits.withDefaults()
	limit := sizes{limits.MaxFrame, limits.MaxValues}
	if k.opts.maxOutput > 0 {
		limit.bytes = min(limit.bytes, k.opts.maxOutput)
	}
	if size := (sizes{len(frame), at.values}); !size.fits(limit) {
		if k.opts.Budget == BudgetEnforce || isUnlimited(k.p.m) {
			return frame, at, errTooLong(fmt.Sprintf("a message of %d bytes and %d values does not fit a frame", size.bytes, size.values))
		}
		if k.parts, err = k.p.cutUp(&k.wide, k.seq, limit); err == nil && k.parts == nil {
			err = fail(ErrParse, "frame too long") // without params that could be cut
		}
		return frame, at, err
	}
	if k.opts.Budget == BudgetOff || isUnlimited(k.p.m) || k.budget.isWithin() {
		return frame, at, nil
	}
	return k.packTokens(ctx, frame, at)
}

// whole returns the text of the whole message.
func (k *packer) whole(buf []byte) ([]byte, cut, error) {
	k.p.m.Meta.MID, k.p.m.Meta.Seq = budgetID, NewOptionalInt(k.seq)
	return k.wide.appendFrame(buf[:0], k.p.m, k.p.keys)
}

// errTooLong returns the error of a message that no frames can carry.
func errTooLong(text string) error {
	return &Error{Code: ErrBudgetExceeded, Message: text, Cause: ErrTooLarge}
}

// isWithin reports whether a frame satisfies the hard limits of body and total. Header and metadata
// cannot be split (ACCP-D37).
func (b *FrameBudget) isWithin() bool { return b.Body <= hardBody && b.Total <= hardTotal }

// packTokens sets the parts that are within the token limits, if there are any. Params that do not fit into a frame move
// to the shared store. It returns the text of the whole message.
func (k *packer) packTokens(ctx context.Context, frame []byte, at cut) ([]byte, cut, error) {
	isWithin := false
	var err error
	if k.p.schema == nil || k.p.schema.Code != schemaError {
		frame, at, isWithin, err = k.group(ctx, frame, at)
	}
	if err == nil && !isWithin && k.opts.Budget == BudgetEnforce {
		err = fail(ErrBudgetExceeded, "the message does not fit frames within the token limits")
	}
	return frame, at, err
}

// group is packTokens without the check of the result.
func (k *packer) group(ctx context.Context, frame []byte, at cut) ([]byte, cut, bool, error) {
	fits := func(x part) (bool, error) {
		text, at, err := k.p.estimate(&k.wide, x, k.seq, largest)
		if err != nil {
			return false, err
		}
		b := measure(text, "", at, k.opts.TokenCounter)
		return b.isWithin(), nil
	}
	all := k.p.all()
	isSplittable, err := k.moveLarge(ctx, all, fits)
	if err != nil {
		return frame, at, false, err
	}
	if frame, at, err = k.whole(frame); err == nil {
		k.budget = measure(frame, "", at, k.opts.TokenCounter)
	}
	switch {
	case err != nil:
		return frame, at, false, err
	case k.budget.isWithin():
		return frame, at, true, nil
	case !isSplittable:
		return frame, at, false, nil
	}
	parts, err := all.grouped(fits)
	switch {
	case err != nil, len(parts) > maxParts:
		return frame, at, false, err
	case len(parts) > 1: // else header and metadata exceed the limit
		k.parts = parts
	}
	return frame, at, true, nil
}

// moveLarge moves the params that do not fit into a separate frame to the shared store, and reports whether
// each then fits.
func (k *packer) moveLarge(ctx context.Context, all part, fits func(part) (bool, error)) (bool, error) {
	isSplittable := true
	for i, x := range all.params {
		ok, err := fits(part{}.with(x, all.keys[i]))
		switch {
		case err != nil:
			return false, err
		case ok:
		case k.mover == nil || x.Value.kind == KindRef:
			isSplittable = false
		default:
			if all.params[i].Value, err = k.mover.moveOut(ctx, x.Value); err != nil {
				return false, err
			}
			k.p.m.Params = k.p.m.Params.Set(x.Key, all.params[i].Value)
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
