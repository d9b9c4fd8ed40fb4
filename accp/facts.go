// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/accp/internal/tier"
)

// A frozen checkpoint is not yet part of a session. The zero value has no checkpoint.
type frozen struct {
	*tier.Checkpoint
	cold   tier.Cold
	facts  []Fact
	used   int // tokens of hot state before
	tokens int // and after
	length int // bytes of the frames
}

// contents returns the checkpoint of hot messages, and of another one unless it is nil: their facts, the summary and its
// address.
func (h *history) contents(hot []tier.Message, last *tier.Message) (frozen, error) {
	w := factWriters.Get().(*factWriter)
	defer w.giveBack()
	f := frozen{Checkpoint: &tier.Checkpoint{}, cold: tier.Cold{Frames: make([]string, 0, len(hot)+1)}}
	for i := range hot {
		f.cold.Frames = append(f.cold.Frames, hot[i].Text)
	}
	if last != nil {
		f.cold.Frames = append(f.cold.Frames, last.Text)
	}
	f.Frames = len(f.cold.Frames)
	lines, n := make([]string, 0, 16), 0
	for i := range f.Frames {
		x := last
		if i < len(hot) {
			x = &hot[i]
		}
		facts := x.Facts
		if !x.HasFacts {
			facts = w.ofText(h.codec, x.Text)
		}
		lines, n, f.length = append(lines, facts), n+strings.Count(facts, "\n"), f.length+len(x.Text)
	}
	f.facts = make([]Fact, 0, n)
	for _, x := range lines {
		f.facts = tier.Facts(f.facts, x)
	}
	f.facts = tier.Newest(f.facts)
	f.cold.Facts = w.list(f.facts)
	f.Summary.Text = tier.Summarize(f.facts, h.opts.TokenCounter, &w.text)
	f.Summary.Tokens = h.opts.TokenCounter.Count(f.Summary.Text)
	f.Hash = w.hash(f.cold.Frames)
	if f.Summary.ID = h.core.tiers.Free(f.Hash, summarySum(f.Hash, f.Summary.Text), f.Summary.Text); f.Summary.ID == "" {
		return f, fail(ErrInternal, "no free checkpoint id")
	}
	w.text = append(append(w.text[:0], "$warm."...), f.Summary.ID...)
	f.tokens = countBytes(h.opts.TokenCounter, w.text)
	return f, nil
}

// facts returns the facts of a message with full keys, as lines.
func (c *Codec) facts(m *Message, schema *compiled) string {
	w := factWriters.Get().(*factWriter)
	defer w.giveBack()
	return w.lines(m, schema)
}

// A factWriter has the memory for the contents of a checkpoint.
type factWriter struct {
	frame tree
	src   []byte
	msg   Message
	meta  Meta
	slab  []Param
	path  []byte
	text  []byte
	order []int32
}

var factWriters = sync.Pool{New: func() any { return new(factWriter) }}

// giveBack puts w into the pool unless it is large.
func (w *factWriter) giveBack() {
	if cap(w.text)+cap(w.src) <= 64<<10 && cap(w.slab) <= 256 {
		clear(w.slab[:cap(w.slab)])
		w.msg, w.meta = Message{}, Meta{}
		factWriters.Put(w)
	}
}

// message returns the message in the frames of a hot message with full keys, or nil if its schema has changed. It is valid
// until the next call.
func (w *factWriter) message(c *Codec, text string) (*Message, *compiled) {
	if strings.IndexByte(text, '\n') >= 0 {
		return joined(c, text)
	}
	w.src = append(w.src[:0], text...)
	if c.parse(w.src, &w.frame) != nil {
		return nil, nil
	}
	if n := len(w.frame.nodes); cap(w.slab) < n {
		w.slab = make([]Param, n)
	}
	clear(w.slab[:len(w.frame.nodes)])
	w.msg, w.meta = Message{}, Meta{}
	b := builder{f: &w.frame, src: text, slab: w.slab[:cap(w.slab)]}
	if n := w.frame.escapedBytes(); n > 0 {
		b.text.Grow(n)
	}
	w.frame.fill(&w.msg, &w.meta, &b)
	schema, err := c.expand(&w.msg)
	if err != nil {
		return nil, nil
	}
	return &w.msg, schema
}

// joined returns the message in the frames of a hot message, with full keys, or nil if its schema has
// changed.
func joined(c *Codec, text string) (*Message, *compiled) {
	var all *Message
	var params joiner
	for frame := range strings.SplitSeq(text, "\n") {
		m, err := c.DecodeRaw([]byte(frame))
		if err != nil {
			return nil, nil
		}
		if all == nil {
			all, params = m, newJoiner(m.Params)
			continue
		}
		isCont, _ := continues(m.Meta)
		if next, ok := params.add(m.Params, isCont, math.MaxInt); ok {
			params = next
		}
	}
	all.Params = params.result()
	schema, err := c.expand(all)
	if err != nil {
		return nil, nil
	}
	return all, schema
}

// ofText returns the facts in the frames of a hot message.
func (w *factWriter) ofText(c *Codec, text string) string {
	m, schema := w.message(c, text)
	if m == nil {
		return ""
	}
	return w.lines(m, schema)
}

// lines returns the facts of a message with full keys: lines of the form entity:relationship=value (ACCP-D41).
func (w *factWriter) lines(m *Message, schema *compiled) string {
	if m.Intent == IntentAck {
		return ""
	}
	isState := m.Intent == IntentSync && m.Op == opState
	w.path, w.text = append(w.path[:0], m.Op...), w.text[:0]
	w.addList(m.From, m.Params, func(p *Param) bool {
		if p.Key == keySchema || isState && p.Key == "base" {
			return false
		}
		if schema == nil {
			return true
		}
		i := schema.Defaults.index(p.Key)
		return i < 0 || !schema.Defaults[i].Value.equal(&p.Value)
	})
	return string(w.text)
}

var factCodec = Codec{FrameLimits: storedCodec.FrameLimits}

// addList adds the facts of params or of a map.
func (w *factWriter) addList(from string, list Params, isFact func(*Param) bool) {
	base := len(w.order)
	w.order = ascendingOrder(w.order, len(list), func(i int32) string { return list[i].Key })
	for n := range list {
		p := &list[w.order[base+n]]
		if isFact != nil && !isFact(p) {
			continue
		}
		path := len(w.path)
		w.path = append(append(w.path, '.'), p.Key...)
		if p.Value.kind == KindMap && len(p.Value.list) > 0 {
			w.addList(from, p.Value.list, nil)
		} else {
			w.text = append(append(w.text, from...), ':')
			w.text = append(append(w.text, w.path...), '=')
			e := encoder{c: &factCodec, limits: factCodec.FrameLimits}
			w.text = append(e.value(w.text, &p.Value, 0), '\n') // without a fault: the value was in a frame
		}
		w.path = w.path[:path]
	}
	w.order = w.order[:base]
}

// list returns the canonical text of the list of facts.
func (w *factWriter) list(facts []Fact) string {
	b := append(w.text[:0], '[')
	for i, f := range facts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(append(b, '['), f.Entity), ',')
		b = append(appendText(b, f.Relationship), ',')
		b = append(appendText(b, f.Value), ']')
	}
	w.text = append(b, ']')
	return string(w.text)
}

// appendText appends the canonical text of a string.
func appendText(dst []byte, s string) []byte {
	e := encoder{c: &factCodec}
	return e.text(dst, s, true)
}

// appendTexts appends the canonical text of a list of strings.
func appendTexts(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, s)
	}
	return append(dst, ']')
}

const hashDigits = 16 // of the frames of a checkpoint

// hash returns the hash of the frames of a checkpoint (ACCP-D40).
func (w *factWriter) hash(frames []string) string {
	w.text = appendTexts(w.text[:0], frames)
	sum := sha256.Sum256(w.text)
	return hex.EncodeToString(sum[:hashDigits/2])
}

// summarySum returns the sum whose digits the id of a summary begins with after "cp" (ACCP-D40).
func summarySum(hash, text string) [sha256.Size]byte {
	var buf [1024]byte
	b := append(appendText(append(buf[:0], '['), hash), ',')
	return sha256.Sum256(append(appendText(b, text), ']'))
}

// checkpointAddress returns the hash of frames, and the digits of the id of a summary.
func checkpointAddress(frames []string, summary string) (hash, digits string) {
	hash = new(factWriter).hash(frames)
	sum := summarySum(hash, summary)
	return hash, hex.EncodeToString(sum[:])
}
