// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"slices"
	"strconv"
	"strings"
)

// An Intent is the purpose of a frame. The set is closed: those of the draft, and ping and pong of
// its WebSocket binding (ACCP-D50).
type Intent string

// The intents.
const (
	IntentReq    Intent = "req"    // request an action
	IntentDone   Intent = "done"   // completion, with results
	IntentFail   Intent = "fail"   // failure, with details
	IntentWait   Intent = "wait"   // waiting for input or a dependency
	IntentEsc    Intent = "esc"    // delegate to a higher authority
	IntentComp   Intent = "comp"   // request a checkpoint
	IntentSync   Intent = "sync"   // share or request state
	IntentQry    Intent = "qry"    // look up a value
	IntentAck    Intent = "ack"    // confirm receipt
	IntentCancel Intent = "cancel" // abort a chain
	IntentStream Intent = "stream" // one chunk of a stream
	IntentEnd    Intent = "end"    // close a stream
	intentPing   Intent = "ping"   // heartbeat
	intentPong   Intent = "pong"   // answer to a heartbeat
)

// String returns the intent as frames have it.
func (i Intent) String() string { return string(i) }

// valid reports whether i is one of the intents.
func (i Intent) valid() bool {
	switch i {
	case IntentReq, IntentDone, IntentFail, IntentWait, IntentEsc, IntentComp, IntentSync,
		IntentQry, IntentAck, IntentCancel, IntentStream, IntentEnd, intentPing, intentPong:
		return true
	}
	return false
}

// description returns a short description of the intent.
func (i Intent) description() string {
	switch i {
	case IntentReq:
		return "request"
	case IntentDone:
		return "complete"
	case IntentFail:
		return "failure"
	case IntentWait:
		return "waiting"
	case IntentEsc:
		return "escalate"
	case IntentComp:
		return "compress"
	case IntentSync:
		return "synchronize"
	case IntentQry:
		return "query"
	case IntentAck:
		return "acknowledge"
	case IntentCancel:
		return "cancel"
	case IntentStream:
		return "stream chunk"
	case IntentEnd:
		return "end of stream"
	case intentPing:
		return "heartbeat"
	case intentPong:
		return "heartbeat answer"
	}
	return "unknown intent"
}

// Operations of frames with a fixed form. Those of the draft are in package profile.
const (
	opState     = "state"
	opRegistry  = "registry"
	opError     = "error"
	opHeartbeat = "heartbeat"
)

// A Message is the content of a frame. Codecs and sessions do not modify their arguments.
type Message struct {
	From   string // agent-id of the sender (ACCP-D66)
	Intent Intent
	Op     string
	Params Params
	Meta   *Meta // nil if the frame has no metadata block
}

// schema returns the text of the param schema, or "".
func (m *Message) schema() string { return m.Params.Text(keySchema) }

// Chain returns the id of the chain of m: the correlation id, or the message id if it has none
// (ACCP-D28).
func (m *Message) Chain() string {
	switch {
	case m.Meta == nil:
		return ""
	case m.Meta.CID != "":
		return m.Meta.CID
	}
	return m.Meta.MID
}

// Equal reports whether m and n are equal, regardless of the order of params.
func (m *Message) Equal(n *Message) bool {
	if m == nil || n == nil {
		return m == n
	}
	if m.From != n.From || m.Intent != n.Intent || m.Op != n.Op || !m.Params.Equal(n.Params) {
		return false
	}
	return m.Meta.equal(n.Meta)
}

func (a *Meta) equal(b *Meta) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.MID == b.MID && a.Seq == b.Seq && a.TS == b.TS && a.CID == b.CID && a.AID == b.AID &&
		a.SID == b.SID && a.TTL == b.TTL && a.Ext.Equal(b.Ext)
}

// clone returns a copy whose params and metadata may be changed.
func (m *Message) clone() *Message {
	c := *m
	c.Params = slices.Clone(m.Params)
	if m.Meta != nil {
		meta := *m.Meta
		meta.Ext = slices.Clone(m.Meta.Ext)
		c.Meta = &meta
	}
	return &c
}

// Meta is the envelope of a frame. Empty strings and unset numbers are absent.
type Meta struct {
	MID string      // message id, 12 hex digits
	Seq OptionalInt // position in the session
	TS  OptionalInt // Unix seconds
	CID string      // correlation id: the chain of the message
	AID string      // causation id: the message that caused this one
	SID string      // session id
	TTL OptionalInt // seconds to live; 0 means no expiry
	Ext Params      // other keys, preserved (ACCP-D20)
}

func (m *Meta) empty() bool {
	return m == nil || m.MID == "" && !m.Seq.Set && !m.TS.Set && m.CID == "" && m.AID == "" &&
		m.SID == "" && !m.TTL.Set && len(m.Ext) == 0
}

// An OptionalInt is an integer that may be absent. The zero value is absent.
type OptionalInt struct {
	N   int64 // 0 to 2^63-1
	Set bool
}

// NewOptionalInt returns a present number.
func NewOptionalInt(n int64) OptionalInt { return OptionalInt{N: n, Set: true} }

// parsePart parses the metadata key part, i/n, of a frame sequence (ACCP-D38).
func parsePart(v Value) (i, n int, ok bool) {
	s, _ := v.Text()
	a, b, _ := strings.Cut(s, "/")
	i, isNumber := partNumber(a)
	n, ok = partNumber(b)
	if !ok || !isNumber {
		return 0, 0, false
	}
	return i, n, i >= 1 && i <= n && n >= 2 && n <= maxParts
}

// partNumber parses a number of at most two digits.
func partNumber(s string) (n int, ok bool) {
	if len(s) > 2 || numberForm(s) != KindInt || s[0] == '0' || s[0] == '-' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}
