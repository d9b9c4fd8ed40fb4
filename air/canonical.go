// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"slices"
	"sync"
)

// maxDepth bounds the nesting of containers, including the outermost (AIR-D08).
const maxDepth = 64

// maxText bounds any text whatever the caller allows, so that offsets fit.
const maxText = 1 << 30

// Canonicalize returns the canonical form of a JSON text: members sorted by the UTF-16 code units
// of their names, no white space, the fewest escapes, string values in NFC, integers unchanged.
//
// The error is [ErrInvalidJSON], [ErrDuplicateKey] or [ErrFloatForbidden]. If several apply, the
// first of this order is returned, wherever in the text each of them occurs.
func Canonicalize(text []byte) ([]byte, error) {
	return appendCanonical(nil, text)
}

// appendCanonical is like [Canonicalize] and appends to dst, which must not overlap text. It does
// not allocate if dst has enough capacity.
func appendCanonical(dst, text []byte) ([]byte, error) {
	c := getCanon()
	defer putCanon(c)
	out, ok := c.append(dst, text)
	if err := c.refuse(ok); err != nil {
		return dst, err
	}
	return out, nil
}

// A canon is the canonicalizer with its scratch space and its findings about the last text. It
// reads the text once. A syntax error ends it. Other errors are recorded, because their order is
// fixed and a text with a float may prove to be invalid JSON further on (section f).
type canon struct {
	mem  []member // members of all open objects
	keys []byte   // texts of the escaped names in the output
	tmp  []byte
	str  []byte
	nfc  []byte

	envelope bool // remove the top-level signature and check the body
	verbatim bool // keep string values as they are, without NFC

	duplicate bool // an object has a name twice, perhaps in two spellings (AIR-D05)
	float     bool
	ambiguous bool // code point order and UTF-16 order differ (AIR-D01)
	nulls     int  // nulls, except the top-level signature and in_reply_to
	empty     int  // empty arrays
	emptyBody int  // empty arrays in the top-level member body
	replyNull bool // the top-level in_reply_to is null

	object bool     // the text is an object, with these members:
	top    []member // offsets from the beginning of the output
	body   []member // members of the body, with offsets from its beginning
	inBody bool
	sig    []byte // canonical text of the top-level signature
	sigAt  int    // its place in top; -1 if absent

	out, form []byte // space for callers
	aad       []byte
	nonce     [12]byte
	multikey  [34]byte
	key       [32]byte // wiped after use
}

// A member is one member of an object in the output: the quoted name from ks to ke, a colon, and
// the value up to ve. The text of an escaped name is keys[ts:te].
type member struct{ ks, ke, ve, ts, te int32 }

var canonPool = sync.Pool{New: func() any { return new(canon) }}

func getCanon() *canon {
	return canonPool.Get().(*canon)
}

func putCanon(c *canon) {
	c.envelope, c.verbatim = false, false
	if cap(c.tmp)+cap(c.str)+cap(c.keys)+cap(c.out)+cap(c.form) <= 1<<20 && cap(c.mem) <= 1<<14 {
		canonPool.Put(c)
	}
}

// append appends the canonical form of text and reports whether it is valid JSON.
func (c *canon) append(dst, text []byte) ([]byte, bool) {
	c.mem, c.keys, c.top, c.body, c.sig = c.mem[:0], c.keys[:0], c.top[:0], c.body[:0], c.sig[:0]
	c.duplicate, c.float, c.ambiguous, c.replyNull, c.object, c.inBody = false, false, false, false, false, false
	c.nulls, c.empty, c.emptyBody, c.sigAt = 0, 0, 0, -1
	if len(text)+len(dst) > maxText {
		return dst, false
	}
	base := len(dst)
	out, i := c.value(dst, text, 0, 0)
	if i < 0 || space(text, i) != len(text) {
		return dst, false
	}
	c.object = out[base] == '{'
	if c.envelope {
		for k, m := range c.top {
			if string(out[m.ks:m.ke]) == `"signature"` {
				c.sigAt = k
			}
		}
	}
	if base > 0 {
		for k := range c.top {
			c.top[k].ks -= int32(base)
			c.top[k].ke -= int32(base)
			c.top[k].ve -= int32(base)
		}
	}
	return out, true
}

// refuse returns the first error that applies to every text.
func (c *canon) refuse(ok bool) error {
	switch {
	case !ok:
		return ErrInvalidJSON.err("not valid JSON")
	case c.duplicate:
		return ErrDuplicateKey.err("a member name stands twice in one object")
	case c.float:
		return ErrFloatForbidden.err("a number with a fraction or an exponent")
	}
	return nil
}

func (c *canon) value(out, s []byte, i, depth int) ([]byte, int) {
	i = space(s, i)
	if i >= len(s) {
		return out, -1
	}
	switch s[i] {
	case '"':
		return c.text(out, s, i, !c.verbatim)
	case '{':
		if depth >= maxDepth {
			return out, -1
		}
		return c.members(out, s, i, depth)
	case '[':
		if depth >= maxDepth {
			return out, -1
		}
		return c.elements(out, s, i, depth)
	case 't':
		return literal(out, s, i, "true")
	case 'f':
		return literal(out, s, i, "false")
	case 'n':
		c.nulls++
		return literal(out, s, i, "null")
	}
	return c.number(out, s, i)
}

func literal(out, s []byte, i int, word string) ([]byte, int) {
	if len(s)-i < len(word) || string(s[i:i+len(word)]) != word {
		return out, -1
	}
	return append(out, word...), i + len(word)
}

// number copies a number token. Only the spelling makes it a float (AIR-D02); minus zero is an
// integer and becomes 0 (AIR-D06).
func (c *canon) number(out, s []byte, i int) ([]byte, int) {
	st := i
	if s[i] == '-' {
		i++
	}
	d := i
	for i < len(s) && s[i]-'0' < 10 {
		i++
	}
	if i == d || s[d] == '0' && i > d+1 {
		return out, -1
	}
	if i >= len(s) || s[i] != '.' && s[i]|0x20 != 'e' {
		if s[d] == '0' {
			return append(out, '0'), i
		}
		return append(out, s[st:i]...), i
	}
	c.float = true
	if i = fractionEnd(s, i); i < 0 {
		return out, -1
	}
	return append(out, s[st:i]...), i
}

// fractionEnd returns the end of the fraction and the exponent of a number, which begin at s[i], or -1.
func fractionEnd(s []byte, i int) int {
	if s[i] == '.' {
		if i = digitsEnd(s, i+1); i < 0 {
			return -1
		}
	}
	if i >= len(s) || s[i]|0x20 != 'e' {
		return i
	}
	i++
	if i < len(s) && (s[i] == '+' || s[i] == '-') {
		i++
	}
	return digitsEnd(s, i)
}

// digitsEnd returns the end of one or more digits, or -1.
func digitsEnd(s []byte, i int) int {
	first := i
	for i < len(s) && s[i]-'0' < 10 {
		i++
	}
	if i == first {
		return -1
	}
	return i
}

func (c *canon) elements(out, s []byte, i, depth int) ([]byte, int) {
	out = append(out, '[')
	i = space(s, i+1)
	if i < len(s) && s[i] == ']' {
		c.empty++
		return append(out, ']'), i + 1
	}
	for {
		if out, i = c.value(out, s, i, depth+1); i < 0 {
			return out, -1
		}
		if i = space(s, i); i >= len(s) || s[i] != ',' && s[i] != ']' {
			return out, -1
		}
		out = append(out, s[i])
		i++
		if s[i-1] == ']' {
			return out, i
		}
	}
}

func (c *canon) members(out, s []byte, i, depth int) ([]byte, int) {
	base, first, keys := len(out), len(c.mem), len(c.keys)
	out = append(out, '{')
	i = space(s, i+1)
	if i < len(s) && s[i] == '}' {
		return append(out, '}'), i + 1
	}
	sorted, high, odd := true, false, false
	for {
		if i = space(s, i); i >= len(s) || s[i] != '"' {
			return out, -1
		}
		m := member{ks: int32(len(out))}
		e, esc, wide := stringEnd(s, i+1)
		if e < 0 {
			return out, -1
		}
		var name []byte
		if !esc && !wide { // the usual case
			out = append(out, s[i:e]...)
			i, m.ke = e, int32(len(out))
			name = out[m.ks+1 : m.ke-1]
		} else {
			if out, i = c.longName(out, s, i, &m); i < 0 {
				return out, -1
			}
			name = c.name(out, &m)
			hi, safe := nameKind(name)
			high, odd = high || hi, odd || !safe
		}
		if n := len(c.mem); n > first && sorted {
			order := compareUTF16(c.name(out, &c.mem[n-1]), name)
			c.duplicate = c.duplicate || order == 0
			sorted = order <= 0
		}
		if i = space(s, i); i >= len(s) || s[i] != ':' {
			return out, -1
		}
		out = append(out, ':')
		if depth == 0 && c.envelope {
			out, i = c.envelopeMember(out, s, i+1, string(name))
		} else {
			out, i = c.value(out, s, i+1, depth+1)
		}
		if i < 0 {
			return out, -1
		}
		m.ve = int32(len(out))
		c.mem = append(c.mem, m)
		if i = space(s, i); i >= len(s) || s[i] != ',' && s[i] != '}' {
			return out, -1
		}
		out = append(out, s[i])
		i++
		if s[i-1] == '}' {
			break
		}
	}
	ms := c.mem[first:]
	if !sorted {
		out = c.sort(out, base, ms)
	}
	if odd {
		c.sameInNFC(out, ms)
	}
	if high {
		c.checkOrder(out, ms)
	}
	c.keep(ms, base, depth)
	c.mem = c.mem[:first]
	if depth > 0 {
		c.keys = c.keys[:keys]
	}
	return out, i
}

// longName copies a name with escapes or characters beyond ASCII.
func (c *canon) longName(out, s []byte, i int, m *member) ([]byte, int) {
	if out, i = c.text(out, s, i, false); i < 0 {
		return out, -1
	}
	m.ke = int32(len(out))
	if name := out[m.ks+1 : m.ke-1]; bytes.IndexByte(name, '\\') >= 0 {
		m.ts = int32(len(c.keys))
		c.keys = unescape(c.keys, name)
		m.te = int32(len(c.keys))
	}
	return out, i
}

// keep stores the members of the object that begins at base, if it is the text or its body.
func (c *canon) keep(ms []member, base, depth int) {
	if depth == 0 {
		c.top = append(c.top[:0], ms...)
	} else if depth == 1 && c.inBody {
		c.body = append(c.body[:0], ms...)
		for k := range c.body {
			c.body[k].ks -= int32(base)
			c.body[k].ke -= int32(base)
			c.body[k].ve -= int32(base)
		}
	}
}

// envelopeMember reads the value of a top-level member of an envelope. It stores the signature and
// writes null in its place, which is the signed form (5.3).
func (c *canon) envelopeMember(out, s []byte, i int, name string) ([]byte, int) {
	st, nulls, empty := len(out), c.nulls, c.empty
	switch name {
	case "signature":
		out, i = c.value(out, s, i, 1)
		if i < 0 {
			return out, -1
		}
		c.sig = append(c.sig[:0], out[st:]...)
		if string(c.sig) == "null" {
			c.nulls = nulls
		}
		return append(out[:st], "null"...), i
	case "in_reply_to":
		out, i = c.value(out, s, i, 1)
		if i >= 0 && string(out[st:]) == "null" {
			c.nulls, c.replyNull = nulls, true
		}
		return out, i
	case "body":
		c.inBody = true
		out, i = c.value(out, s, i, 1)
		c.inBody = false
		c.emptyBody += c.empty - empty
		return out, i
	}
	return c.value(out, s, i, 1)
}

func (c *canon) name(out []byte, m *member) []byte {
	if m.te > 0 {
		return c.keys[m.ts:m.te]
	}
	return out[m.ks+1 : m.ke-1]
}

// sort sorts the members of the object that begins at base.
func (c *canon) sort(out []byte, base int, ms []member) []byte {
	if len(ms) <= 12 {
		for a := 1; a < len(ms); a++ {
			for b := a; b > 0; b-- {
				r := compareUTF16(c.name(out, &ms[b-1]), c.name(out, &ms[b]))
				if r == 0 {
					c.duplicate = true
				}
				if r <= 0 {
					break
				}
				ms[b-1], ms[b] = ms[b], ms[b-1]
			}
		}
	} else {
		slices.SortStableFunc(ms, func(a, b member) int {
			return compareUTF16(c.name(out, &a), c.name(out, &b))
		})
		for k := 1; k < len(ms); k++ {
			if bytes.Equal(c.name(out, &ms[k-1]), c.name(out, &ms[k])) {
				c.duplicate = true
			}
		}
	}
	c.tmp = append(c.tmp[:0], out[base:]...)
	out = out[:base+1]
	for k := range ms {
		m := &ms[k]
		if k > 0 {
			out = append(out, ',')
		}
		st := int32(len(out))
		out = append(out, c.tmp[int(m.ks)-base:int(m.ve)-base]...)
		m.ke, m.ve = m.ke-m.ks+st, m.ve-m.ks+st
		m.ks = st
	}
	return append(out, '}')
}

// sameInNFC reports two spellings of one name, of which two readers could pick different members
// (AIR-D05).
func (c *canon) sameInNFC(out []byte, ms []member) {
	seen := make(map[string]struct{}, len(ms))
	for k := range ms {
		n := string(appendNFC(nil, c.name(out, &ms[k])))
		if _, twice := seen[n]; twice {
			c.duplicate = true
		}
		seen[n] = struct{}{}
	}
}

// checkOrder records an object whose order by code points differs. If the orders of any two members
// differ, those of two neighbors do.
func (c *canon) checkOrder(out []byte, ms []member) {
	for k := 1; k < len(ms); k++ {
		if bytes.Compare(c.name(out, &ms[k-1]), c.name(out, &ms[k])) > 0 {
			c.ambiguous = true
		}
	}
}

// nameKind reports whether a name has a character from U+E000 on, and whether it is certainly NFC.
func nameKind(name []byte) (high, safe bool) {
	for i, b := range name {
		if b >= 0x80 {
			for _, b := range name[i:] {
				high = high || b >= 0xee
			}
			return high, quickNFC(name)
		}
	}
	return false, true
}

// compareUTF16 orders two texts in UTF-8 by their UTF-16 code units. That is the
// order of their bytes, except that U+E000 to U+FFFF come after everything
// beyond U+FFFF, which UTF-16 writes with surrogates. At the first difference
// both bytes begin a character or neither does.
func compareUTF16(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xee && y >= 0xee {
			x, y = rank16(x), rank16(y)
		}
		if x < y {
			return -1
		}
		return 1
	}
	switch {
	case len(a) < len(b):
		return -1
	case len(a) > len(b):
		return 1
	}
	return 0
}

func rank16(lead byte) byte {
	if lead < 0xf0 {
		return lead + 0x10
	}
	return lead
}
