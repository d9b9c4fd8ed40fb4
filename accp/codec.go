// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"strings"
	"sync"
)

// FrameLimits bound the frames that a codec reads and writes (ACCP-D18). A frame beyond a limit is
// [ErrParse]. A zero or negative field means the default.
type FrameLimits struct {
	MaxFrame  int // bytes of a frame; zero means 65,536
	MaxDepth  int // arrays and maps around a value; zero means 5, the maximum is 100
	MaxParams int // params of a payload; zero means 256
	MaxMeta   int // metadata fields; zero means 32
	MaxValues int // values of any kind in a frame; zero means 4,096
	MaxName   int // bytes of a name or an intent; zero means 64
	MaxNumber int // characters of a number; zero means 128
}

func (l FrameLimits) withDefaults() FrameLimits {
	if l == (FrameLimits{}) {
		return FrameLimits{MaxFrame: 65536, MaxDepth: 5, MaxParams: 256, MaxMeta: 32, MaxValues: 4096,
			MaxName: maxName, MaxNumber: 128}
	}
	def := func(v *int, d, limit int) {
		if *v <= 0 {
			*v = d
		}
		*v = min(*v, limit)
	}
	def(&l.MaxFrame, 65536, 1<<30)
	def(&l.MaxDepth, 5, 100)
	def(&l.MaxParams, 256, 1<<30)
	def(&l.MaxMeta, 32, 1<<30)
	def(&l.MaxValues, 4096, 1<<30)
	def(&l.MaxName, maxName, 1<<30)
	def(&l.MaxNumber, 128, 1<<30)
	return l
}

// A Codec converts between messages and frames. The zero value is ready for use: strict, with the
// built-in schemas. A Codec is safe for concurrent use while its fields do not change.
//
// [Codec.DecodeRaw] and [Codec.AppendRaw] implement the grammar alone and keep keys as written.
// [Codec.Decode] and [Codec.Append] run the pipelines of section 7 of the draft, except the steps
// that need a session.
type Codec struct {
	// Lenient accepts the deviations from the grammar that the examples of the draft contain
	// (ACCP-D15). Output is always strict.
	Lenient bool

	// Portable writes for peers that support only the grammar of the draft: delimiters are the only
	// escapes, and _ replaces a space. A text that cannot be written so is [ErrInvalidType]; other
	// texts may lose information (ACCP-D03).
	Portable bool

	// RejectRounding rejects decimals of more than six places instead of rounding them.
	RejectRounding bool

	// WriteLongKeys writes keys unabbreviated.
	WriteLongKeys bool

	// KeepDefaults writes values that equal the default of their schema, and does not fill in
	// defaults when decoding.
	KeepDefaults bool

	// FrameLimits bound frames; the zero value means those of the draft.
	FrameLimits FrameLimits

	// Registry holds the schemas. Nil means the built-in ones.
	Registry *Registry

	anyPlaces bool // decimals keep all places, for stored values
}

// DecodeRaw reads exactly one frame. Keys are as written, defaults are absent, and the envelope may
// lack fields. Every error is an [*Error]. The message shares no memory with frame.
func (c *Codec) DecodeRaw(frame []byte) (*Message, error) {
	f := takeFrame()
	defer f.giveBack()
	if err := c.parse(frame, f); err != nil {
		return nil, err
	}
	m, _ := f.message()
	return m, nil
}

// frames holds reusable frames.
var frames = sync.Pool{New: func() any { return new(tree) }}

func takeFrame() *tree { return frames.Get().(*tree) }

// giveBack puts f into the pool unless it is large.
func (f *tree) giveBack() {
	if cap(f.nodes) <= 1024 {
		f.src = nil
		frames.Put(f)
	}
}

// parse reads exactly one frame into f, which refers to data until its next use.
func (c *Codec) parse(data []byte, f *tree) *Error {
	*f = tree{src: data, nodes: f.nodes[:0], lenient: c.Lenient, mid: -1, cid: -1, aid: -1, sid: -1}
	p := parser{f: f, s: data, lenient: c.Lenient, places: c.anyPlaces, name: cName, limits: c.FrameLimits.withDefaults()}
	if c.Lenient {
		p.name |= cNameExt
	}
	if !p.frame() {
		return failAt(ErrParse, p.badAt, p.bad)
	}
	if p.late != "" {
		return failAt(p.late, p.lateAt, p.lateIs)
	}
	return nil
}

// DecodeValue reads the text of one value of a payload.
func (c *Codec) DecodeValue(text []byte) (Value, error) {
	f := tree{src: text, mid: -1, cid: -1, aid: -1, sid: -1}
	limits := c.FrameLimits.withDefaults()
	p := parser{f: &f, s: text, lenient: c.Lenient, places: c.anyPlaces, name: cName, limits: limits}
	if c.Lenient {
		p.name |= cNameExt
	}
	if len(text) > limits.MaxFrame {
		return Value{}, failAt(ErrParse, limits.MaxFrame, "value too long")
	}
	p.space()
	if !p.value(alone, [2]int32{}) {
		return Value{}, failAt(ErrParse, p.badAt, p.bad)
	}
	p.space()
	if p.i != len(text) {
		return Value{}, failAt(ErrParse, p.i, "unexpected character in value")
	}
	if p.late != "" {
		return Value{}, failAt(p.late, p.lateAt, p.lateIs)
	}
	var b builder
	b.init(&f)
	b.slab = make([]Param, len(f.nodes))
	var v Value
	b.value(&v, 0)
	return v, nil
}

// A builder converts the nodes of a frame to values. All texts share one copy of the frame, all
// lists one slice.
type builder struct {
	f    *tree
	src  string          // the frame
	text strings.Builder // the frame, then the unescaped texts
	slab []Param
}

// init prepares a builder. It must not be copied then.
func (b *builder) init(f *tree) {
	b.f = f
	b.text.Grow(len(f.src) + f.escapedBytes())
	b.text.Write(f.src)
	b.src = b.text.String()
}

// escapedBytes returns the length of the texts with escapes.
func (f *tree) escapedBytes() (n int) {
	for i := range f.nodes {
		if x := &f.nodes[i]; x.form != asIs && x.kind == KindString {
			n += int(x.end - x.val)
		}
	}
	return n
}

// str returns the text between two offsets of the frame.
func (b *builder) str(from, to int32) string { return b.src[from:to] }

// unescaped returns the text of an escaped string.
func (b *builder) unescaped(n *node) string {
	start := b.text.Len()
	writeUnescaped(&b.text, b.f.src[n.val:n.end], n.form)
	return b.text.String()[start:]
}

// value stores the value of node i in v, which must be zero.
func (b *builder) value(v *Value, i int32) {
	n := &b.f.nodes[i]
	v.kind = n.kind
	switch n.kind {
	case KindNull:
	case KindBool:
		if n.end-n.val == 4 {
			v.text = "true"
		} else {
			v.text = "false"
		}
	case KindArray, KindMap:
		v.list = b.list(i+1, n.kids)
	case KindInt:
		if n.form == negZero {
			v.text = "0"
		} else {
			v.text = b.str(n.val, n.end)
		}
	case KindDecimal:
		v.text = b.str(n.val, n.end)
		if n.form == cutZeros {
			v.text = trimDecimal(v.text)
		}
	case KindString:
		if n.form != asIs {
			v.text = b.unescaped(n)
			break
		}
		fallthrough
	default:
		v.text = b.str(n.val, n.end)
	}
}

// list returns the count siblings that start at node i.
func (b *builder) list(i, count int32) []Param {
	if count == 0 {
		return nil
	}
	out := b.slab[:count:count]
	b.slab = b.slab[count:]
	for k := range out {
		n := &b.f.nodes[i]
		out[k].Key = b.str(n.key, n.keyEnd)
		b.value(&out[k].Value, i)
		i += 1 + n.span
	}
	return out
}

// Messages with few values in one piece of memory.
type (
	smallMessage struct {
		msg  Message
		meta Meta
		slab [4]Param
	}
	mediumMessage struct {
		msg  Message
		meta Meta
		slab [8]Param
	}
)

// message returns the message of the frame, which shares no memory with the frame, and the text of the frame in the
// memory of the message.
func (f *tree) message() (m *Message, text string) {
	values := int(f.first) // those of the metadata follow
	if f.ext > 0 {
		values = len(f.nodes)
	}
	var b builder
	b.init(f)
	var meta *Meta
	switch {
	case values > len(mediumMessage{}.slab):
		both := &struct {
			msg  Message
			meta Meta
		}{}
		m, meta, b.slab = &both.msg, &both.meta, make([]Param, values)
	case values > len(smallMessage{}.slab):
		both := &mediumMessage{}
		m, meta, b.slab = &both.msg, &both.meta, both.slab[:]
	default:
		both := &smallMessage{}
		m, meta, b.slab = &both.msg, &both.meta, both.slab[:]
	}
	f.fill(m, meta, &b)
	return m, b.src
}

// fill stores the message of the frame in m, which must be zero, and its metadata in meta.
func (f *tree) fill(m *Message, meta *Meta, b *builder) {
	m.From = b.str(f.from[0], f.from[1])
	m.Intent = intern(f.intentText())
	m.Op = b.str(f.op[0], f.op[1])
	m.Params = b.list(0, f.params)
	if !f.hasMeta {
		return
	}
	m.Meta = meta
	m.Meta.Seq, m.Meta.TS, m.Meta.TTL = f.seq, f.ts, f.ttl
	m.Meta.MID = b.metaText(f.mid)
	if hasUpper(m.Meta.MID) && isHex12(m.Meta.MID) {
		m.Meta.MID = strings.ToLower(m.Meta.MID) // ACCP-D21
	}
	m.Meta.CID = b.metaText(f.cid)
	m.Meta.AID = b.metaText(f.aid)
	m.Meta.SID = b.metaText(f.sid)
	if f.ext > 0 {
		ext := b.slab[:0:f.ext]
		b.slab = b.slab[f.ext:]
		for i, k := f.first, f.metaCount; k > 0; k-- {
			n := &f.nodes[i]
			if key := f.src[n.key:n.keyEnd]; !f.envelope(i, key) {
				ext = append(ext, Param{Key: b.str(n.key, n.keyEnd)})
				b.value(&ext[len(ext)-1].Value, i)
			}
			i += 1 + n.span
		}
		m.Meta.Ext = ext
	}
}

// envelope reports whether a metadata node is a field of the envelope.
func (f *tree) envelope(i int32, key []byte) bool {
	if i == f.mid || i == f.cid || i == f.aid || i == f.sid {
		return true
	}
	switch metaField(key, f.lenient) {
	case fieldSeq, fieldTS, fieldTTL:
		return true
	}
	return false
}

func (b *builder) metaText(i int32) string {
	if i < 0 {
		return ""
	}
	n := &b.f.nodes[i]
	if n.form != asIs {
		return b.unescaped(n)
	}
	return b.str(n.val, n.end)
}

func intern(s []byte) Intent {
	switch Intent(s) { // the defined intents need no allocation
	case IntentReq:
		return IntentReq
	case IntentDone:
		return IntentDone
	case IntentFail:
		return IntentFail
	case IntentWait:
		return IntentWait
	case IntentEsc:
		return IntentEsc
	case IntentComp:
		return IntentComp
	case IntentSync:
		return IntentSync
	case IntentQry:
		return IntentQry
	case IntentAck:
		return IntentAck
	case IntentCancel:
		return IntentCancel
	case IntentStream:
		return IntentStream
	case IntentEnd:
		return IntentEnd
	case intentPing:
		return intentPing
	case intentPong:
		return intentPong
	default:
		return Intent(s)
	}
}

func isHex12(s string) bool { return len(s) == 12 && isHex(s) }

func isHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i] | 0x20; (c < 'a' || c > 'f') && (s[i] < '0' || s[i] > '9') {
			return false
		}
	}
	return s != ""
}
