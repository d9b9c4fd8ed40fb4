// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"math"
	"slices"
	"strings"
)

// A partGroup is an incomplete message (ACCP-D38).
type partGroup struct {
	incoming // the message of the first part
	texts    []string
	params   joiner
	next, of int
	seq      int64
	bytes    int // in memory
	length   int // of the frames
}

// join processes the metadata keys part and cont. It reports whether parts are missing, and stores the
// joined message in in after the last part.
func (d *reception) join(in *incoming) (isPending bool, err error) {
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
	if i == 1 {
		drop()
		d.parts = newPartGroup(in, n)
		d.r.Outcome, d.r.PartsReceived, d.r.PartsTotal = OutcomePending, 1, n
		return true, nil
	}
	if open == nil || i != open.next || n != open.of || !open.continues(in.m) {
		drop()
		return false, fail(ErrParse, "not the next part of the open message")
	}
	g, err := open.with(in, isCont, d.opts.FrameLimits.withDefaults().MaxParams)
	switch {
	case err != nil:
		drop()
		return false, err
	case i < n:
		d.parts = g
		d.r.Outcome, d.r.PartsReceived, d.r.PartsTotal = OutcomePending, i, n
		return true, nil
	}
	*in = g.incoming
	in.m = g.m.clone()
	in.m.Params = g.params.result()
	in.text = strings.Join(g.texts, "\n")
	return false, nil
}

// newPartGroup returns the group of a first part.
func newPartGroup(in *incoming, of int) *partGroup {
	m := in.m.clone()
	m.Meta.Ext = without(without(m.Meta.Ext, "part"), "cont")
	return &partGroup{incoming: incoming{m: m, tokens: in.tokens}, texts: []string{in.text}, params: newJoiner(m.Params),
		next: 2, of: of, seq: in.m.Meta.Seq.N, bytes: len(in.text) + m.size(), length: len(in.text)}
}

// with returns the group with another part. It does not change g, since the frame may be decided again.
func (g *partGroup) with(in *incoming, isCont bool, maxParams int) (*partGroup, error) {
	size := len(in.text)
	if g.length+size > maxPartBytes {
		return nil, fail(ErrBudgetExceeded, "the parts of the message are too large")
	}
	params, ok := g.params.add(in.m.Params, isCont, maxParams)
	if !ok {
		return nil, fail(ErrParse, "a part repeats keys, or continues another value")
	}
	out := *g
	out.params = params
	out.texts = append(slices.Clip(g.texts), in.text)
	out.tokens += in.tokens
	out.bytes += size + in.m.size()
	out.length += size
	out.next++
	out.seq = in.m.Meta.Seq.N
	return &out, nil
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
