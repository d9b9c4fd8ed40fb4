// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import "math"

// Names of the envelope fields on the wire, and the long forms that the lenient reader accepts.
const (
	fieldMID = 1 + iota
	fieldSeq
	fieldTS
	fieldCID
	fieldAID
	fieldSID
	fieldTTL
)

func metaField(name []byte, lenient bool) int {
	switch string(name) {
	case "mid":
		return fieldMID
	case "seq":
		return fieldSeq
	case "ts":
		return fieldTS
	case "cid":
		return fieldCID
	case "aid":
		return fieldAID
	case "sid":
		return fieldSID
	case "ttl":
		return fieldTTL
	}
	if lenient {
		switch string(name) {
		case "msg_id":
			return fieldMID
		case "sequence":
			return fieldSeq
		case "timestamp":
			return fieldTS
		case "correlation_id":
			return fieldCID
		case "causation_id":
			return fieldAID
		case "session_id":
			return fieldSID
		}
	}
	return 0
}

// isSet reports whether the message has a field.
func (m *Meta) isSet(field int) bool {
	switch field {
	case fieldMID:
		return m.MID != ""
	case fieldSeq:
		return m.Seq.Set
	case fieldTS:
		return m.TS.Set
	case fieldCID:
		return m.CID != ""
	case fieldAID:
		return m.AID != ""
	case fieldSID:
		return m.SID != ""
	}
	return false
}

// metaField reads the value of one metadata pair. The name of a field of the envelope, not the form
// of the value, determines its type (ACCP-D20).
func (p *parser) metaField(key [2]int32) bool {
	f := p.f
	me := int32(len(f.nodes))
	name := p.s[key[0]:key[1]]
	field := metaField(name, p.lenient)
	if !p.spelledOnce(name, field) {
		return p.fault(int(key[0]), "metadata field "+quoted(name)+" given twice")
	}
	c := p.peek()
	if field == 0 || c == '[' || c == '{' {
		if !p.value(inMeta, key) {
			return false
		}
	} else {
		if p.values++; p.values > p.limits.MaxValues {
			return p.fault(p.i, "too many values")
		}
		if !p.scalar(inMeta, key, true) {
			return false
		}
	}
	nd := &f.nodes[me]
	text := p.s[nd.val:nd.end]
	switch field {
	case 0:
		f.ext++
		return true
	case fieldMID:
		return p.metaText(&f.mid, me, nd)
	case fieldCID:
		return p.metaText(&f.cid, me, nd)
	case fieldAID:
		return p.metaText(&f.aid, me, nd)
	case fieldSID:
		return p.metaText(&f.sid, me, nd)
	case fieldSeq:
		return p.metaNumber(&f.seq, text, nd)
	case fieldTS:
		return p.metaNumber(&f.ts, text, nd)
	}
	return p.metaNumber(&f.ttl, text, nd)
}

// spelledOnce reports whether a field is not given by its short and its long name, which is otherwise an
// extension in strict mode (ACCP-D13).
func (p *parser) spelledOnce(name []byte, field int) bool {
	switch {
	case p.lenient: // metaText and metaNumber report both
		return true
	case field != 0:
		p.short |= 1 << field
	default:
		p.long |= 1 << metaField(name, true)
	}
	return p.short&p.long == 0
}

func (p *parser) metaText(at *int32, me int32, nd *node) bool {
	if *at >= 0 {
		return p.twice(nd) // two spellings (ACCP-D13)
	}
	*at = me
	if nd.kind != KindString || nd.form != asIs && p.emptyText(nd) {
		p.wrongType(int(nd.val), "metadata field "+quoted(p.s[nd.key:nd.keyEnd])+" must be a string that is not empty")
	}
	return true
}

// twice reports a repeated metadata field.
func (p *parser) twice(nd *node) bool {
	return p.fault(int(nd.key), "metadata field "+quoted(p.s[nd.key:nd.keyEnd])+" given twice")
}

// emptyText reports whether an escaped string is empty: \e or \_ alone.
func (p *parser) emptyText(nd *node) bool {
	return nd.end-nd.val == 2 && (p.s[nd.val+1] == 'e' || p.s[nd.val+1] == '_')
}

func (p *parser) metaNumber(at *OptionalInt, text []byte, nd *node) bool {
	if at.Set {
		return p.twice(nd)
	}
	at.Set = true
	if nd.kind != KindString || nd.form != asIs || numberForm(text) != KindInt {
		if numberForm(text) == KindDecimal && nd.form == asIs && len(text) > p.limits.MaxNumber {
			return p.fault(int(nd.val), "number too long")
		}
		p.wrongType(int(nd.val), "metadata field "+quoted(p.s[nd.key:nd.keyEnd])+" must be an integer")
		return true
	}
	if len(text) > p.limits.MaxNumber {
		return p.fault(int(nd.val), "number too long")
	}
	n, ok := natural(text)
	if !ok || text[0] == '0' && len(text) > 1 && !p.lenient {
		p.wrongType(int(nd.val), "metadata field "+quoted(p.s[nd.key:nd.keyEnd])+" must be an integer from 0 to 2^63-1")
		return true
	}
	at.N = n
	return true
}

// natural returns the number of an integer from 0 to 2^63-1.
func natural(digits []byte) (n int64, ok bool) {
	if digits[0] == '-' {
		return 0, false
	}
	for _, c := range digits {
		d := int64(c - '0')
		if n > (math.MaxInt64-d)/10 {
			return 0, false
		}
		n = 10*n + d
	}
	return n, true
}
