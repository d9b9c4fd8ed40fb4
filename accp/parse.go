// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

// A node is one value of a parsed frame. The nodes of a frame form one list; the contents of a
// container follow it.
type node struct {
	key, keyEnd int32 // offsets of the key; equal without a key
	val, end    int32 // offsets of the value, brackets included
	span        int32 // number of following nodes inside this one
	kids        int32 // number of direct children
	kind        Kind
	form        form
}

// A form is the way to read the text of a node.
type form uint8

const (
	asIs      form = iota // the bytes are the text, unescaped
	escaped               // with escapes
	textMode              // with escapes, underscores are spaces (ACCP-D04)
	cutZeros              // a decimal with redundant zeros (lenient)
	negZero               // -0 (lenient)
	pairInMap             // a map made of a pair in an array (ACCP-D16)
)

// A tree is a parsed frame that refers to the memory of its source. Parsing into one that is used again does not allocate.
type tree struct {
	src            []byte
	nodes          []node
	from           [2]int32
	intent         [2]int32
	op             [2]int32
	body, meta     int32 // offsets of the body and the metadata
	params         int32 // number of params
	first          int32 // first node of the metadata
	hasMeta        bool
	lenient        bool
	seq, ts, ttl   OptionalInt
	mid, cid, aid  int32 // nodes, -1 if absent
	sid            int32
	metaCount, ext int32
}

// intentText returns the intent. It is invalid if parsing failed with [ErrInvalidIntent].
func (f *tree) intentText() []byte { return f.src[f.intent[0]:f.intent[1]] }

// add appends a node with undefined contents.
func (f *tree) add() *node {
	n := len(f.nodes)
	if n < cap(f.nodes) {
		f.nodes = f.nodes[:n+1]
	} else {
		f.nodes = append(f.nodes, node{})
	}
	return &f.nodes[n]
}

// A site is the context of a value: it determines the end of the value and the ordinary delimiters.
type site uint8

const (
	inPayload site = iota
	inArray
	inMap
	inMeta
	alone // a single value, read as in a payload
)

// parser reads one frame in one pass. An error of the grammar ends it. Other errors are recorded,
// because an error of the grammar anywhere in the frame precedes them (ACCP-D17).
type parser struct {
	f       *tree
	s       []byte
	i       int
	lenient bool
	places  bool // accept any number of decimal places; for stored values
	name    uint8
	short   uint8 // the fields given by their short names, as bits; in strict mode
	long    uint8 // by their long names; bit 0 is no field
	limits  FrameLimits
	values  int
	depth   int

	late   Code // the first unknown intent, else the first wrong type
	lateAt int
	lateIs string

	bad   string // the error of the grammar
	badAt int
}

func (p *parser) fault(at int, what string) bool {
	p.bad, p.badAt = what, at
	return false
}

func (p *parser) wrongType(at int, what string) {
	if p.late == "" {
		p.late, p.lateAt, p.lateIs = ErrInvalidType, at, what
	}
}

// space skips white space between tokens, which only the lenient reader accepts.
func (p *parser) space() {
	if p.lenient {
		for p.i < len(p.s) && isSpace(p.s[p.i]) {
			p.i++
		}
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func (p *parser) peek() byte {
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

// word reads a name up to the byte stop and skips that byte.
func (p *parser) word(mask, stop uint8, at *[2]int32, what string) bool {
	start := p.i
	i := start
	for i < len(p.s) && class[p.s[i]]&mask != 0 {
		i++
	}
	switch {
	case i == start:
		return p.fault(i, "expected "+what)
	case i-start > p.limits.MaxName:
		return p.fault(start, what+" too long")
	case i == len(p.s) || p.s[i] != stop:
		return p.fault(i, "expected '"+string(rune(stop))+"' after "+what)
	}
	at[0], at[1] = int32(start), int32(i)
	p.i = i + 1
	return true
}

// frame reads a whole frame.
func (p *parser) frame() bool {
	f := p.f
	if len(p.s) > p.limits.MaxFrame {
		return p.fault(p.limits.MaxFrame, "frame too long")
	}
	p.space()
	if p.peek() != '@' {
		return p.fault(p.i, "expected '@'")
	}
	p.i++
	if !p.word(p.name, '>', &f.from, "agent-id") ||
		!p.word(cAlpha, ':', &f.intent, "intent") ||
		!p.word(p.name, '{', &f.op, "operation") {
		return false
	}
	f.body = f.intent[1]
	if !Intent(f.intentText()).valid() {
		p.late, p.lateAt, p.lateIs = ErrInvalidIntent, int(f.intent[0]), "unknown intent "+quoted(f.intentText())
	}
	p.space()
	if p.peek() == '}' {
		p.i++
	} else {
		n, ok := p.pairs(inPayload, '|', '}', p.limits.MaxParams)
		if !ok {
			return false
		}
		f.params = n
	}
	f.meta = int32(p.i)
	p.space()
	f.first = int32(len(f.nodes))
	if p.peek() == '[' && p.i < len(p.s) {
		f.hasMeta = true
		p.i++
		p.space()
		n, ok := p.pairs(inMeta, ',', ']', p.limits.MaxMeta)
		if !ok {
			return false
		}
		f.metaCount = n
		p.space()
	}
	if p.i != len(p.s) {
		return p.fault(p.i, "bytes after the frame")
	}
	return true
}

// pairs reads key:value pairs up to and including the byte end.
func (p *parser) pairs(in site, sep, end byte, limit int) (count int32, ok bool) {
	first := len(p.f.nodes)
	ordered := true
	last := -1
	for {
		start := p.i
		at, ok := p.key()
		if !ok {
			return 0, false
		}
		count++
		if int(count) > limit {
			return 0, p.fault(start, "too many pairs")
		}
		me := len(p.f.nodes)
		// metaField detects duplicate fields of the envelope.
		counts := true
		if in == inMeta {
			ext := p.f.ext
			ok = p.metaField(at)
			counts = p.f.ext != ext
		} else {
			ok = p.value(in, at)
		}
		if !ok {
			return 0, false
		}
		if counts {
			if ordered && last >= 0 {
				a, b := &p.f.nodes[last], &p.f.nodes[me]
				ordered = string(p.s[a.key:a.keyEnd]) < string(p.s[b.key:b.keyEnd])
			}
			last = me
		}
		p.space()
		switch {
		case p.i >= len(p.s):
			return 0, p.fault(p.i, "frame ends early")
		case p.s[p.i] == end:
			p.i++
			if !ordered {
				if at := p.duplicate(first, count); at >= 0 {
					return 0, p.fault(at, "key "+quoted(p.wordAt(at))+" given twice")
				}
			}
			return count, true
		case p.s[p.i] != sep:
			return 0, p.fault(p.i, "unexpected character in value")
		}
		p.i++
		p.space()
	}
}

// wordAt returns the name at an offset.
func (p *parser) wordAt(start int) []byte {
	i := start
	for i < len(p.s) && class[p.s[i]]&p.name != 0 {
		i++
	}
	return p.s[start:i]
}

// key reads a key and the colon after it.
func (p *parser) key() (at [2]int32, ok bool) {
	start := p.i
	i := start
	for i < len(p.s) && class[p.s[i]]&p.name != 0 {
		i++
	}
	p.i = i
	p.space()
	switch {
	case i == start:
		return at, p.fault(i, "expected a key")
	case i-start > p.limits.MaxName:
		return at, p.fault(start, "key too long")
	case p.i >= len(p.s) || p.s[p.i] != ':':
		return at, p.fault(p.i, "expected ':' after the key")
	}
	p.i++
	p.space()
	return [2]int32{int32(start), int32(i)}, true
}

// duplicate returns the first duplicate key among count siblings (ACCP-D13). Short lists are
// compared pairwise, long ones through a map, so the time is linear.
func (p *parser) duplicate(first int, count int32) int {
	nodes := p.f.nodes
	if count <= 12 {
		var seen [12][]byte
		i := first
		for k := range int(count) {
			key := p.s[nodes[i].key:nodes[i].keyEnd]
			for _, o := range seen[:k] {
				if string(o) == string(key) {
					return int(nodes[i].key)
				}
			}
			seen[k] = key
			i += 1 + int(nodes[i].span)
		}
		return -1
	}
	seen := make(map[string]struct{}, count)
	i := first
	for range count {
		key := string(p.s[nodes[i].key:nodes[i].keyEnd])
		if _, ok := seen[key]; ok {
			return int(nodes[i].key)
		}
		seen[key] = struct{}{}
		i += 1 + int(nodes[i].span)
	}
	return -1
}

// value reads one value and appends its nodes.
func (p *parser) value(in site, key [2]int32) bool {
	if p.values++; p.values > p.limits.MaxValues {
		return p.fault(p.i, "too many values")
	}
	if p.depth > p.limits.MaxDepth {
		return p.fault(p.i, "nested too deep")
	}
	c := p.peek()
	if c == '[' || c == '{' {
		return p.container(c, key)
	}
	return p.scalar(in, key, false)
}

func (p *parser) container(open byte, key [2]int32) bool {
	me := len(p.f.nodes)
	start := p.i
	*p.f.add() = node{key: key[0], keyEnd: key[1], val: int32(start)}
	p.i++
	p.depth++
	p.space()
	kind, kids := KindMap, int32(0)
	if open == '{' {
		if p.peek() == '}' {
			p.i++
		} else {
			n, ok := p.pairs(inMap, ',', '}', p.limits.MaxValues)
			if !ok {
				return false
			}
			kids = n
		}
	} else {
		kind = KindArray
		if p.peek() == ']' {
			p.i++
		} else {
			n, ok := p.elements()
			if !ok {
				return false
			}
			kids = n
		}
	}
	p.depth--
	nd := &p.f.nodes[me]
	nd.kind, nd.kids = kind, kids
	nd.end = int32(p.i)
	nd.span = int32(len(p.f.nodes) - me - 1)
	return true
}

func (p *parser) elements() (count int32, ok bool) {
	for {
		count++
		if p.lenient && p.pairAhead() {
			ok = p.pair()
		} else {
			ok = p.value(inArray, [2]int32{})
		}
		if !ok {
			return 0, false
		}
		p.space()
		switch {
		case p.i >= len(p.s):
			return 0, p.fault(p.i, "frame ends early")
		case p.s[p.i] == ']':
			p.i++
			return count, true
		case p.s[p.i] != ',':
			return 0, p.fault(p.i, "unexpected character in array")
		}
		p.i++
		p.space()
	}
}

// pairAhead reports whether an array element starts like key:value rather than like a time or an
// address (ACCP-D16).
func (p *parser) pairAhead() bool {
	i := p.i
	if i >= len(p.s) || p.s[i] != '_' && class[p.s[i]]&cAlpha == 0 {
		return false
	}
	for i < len(p.s) && class[p.s[i]]&(cName|cNameExt) != 0 {
		i++
	}
	return i < len(p.s) && p.s[i] == ':' && !(i+2 < len(p.s) && p.s[i+1] == '/' && p.s[i+2] == '/')
}

// pair reads key:value as a map of one entry.
func (p *parser) pair() bool {
	if p.values++; p.values > p.limits.MaxValues {
		return p.fault(p.i, "too many values")
	}
	if p.depth > p.limits.MaxDepth {
		return p.fault(p.i, "nested too deep")
	}
	me := len(p.f.nodes)
	start := p.i
	for p.s[p.i] != ':' {
		p.i++
	}
	key := [2]int32{int32(start), int32(p.i)}
	if p.i-start > p.limits.MaxName {
		return p.fault(start, "key too long")
	}
	p.i++
	p.space()
	*p.f.add() = node{val: int32(start), kind: KindMap, kids: 1, form: pairInMap}
	p.depth++
	if !p.value(inArray, key) {
		return false
	}
	p.depth--
	p.f.nodes[me].end = int32(p.i)
	p.f.nodes[me].span = int32(len(p.f.nodes) - me - 1)
	return true
}
