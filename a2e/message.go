// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
	"unsafe"

	"github.com/fivewire/fivewire/internal/randid"
)

// ProtocolVersion is the protocol version that every message names.
const ProtocolVersion = "1.0"

// A Message is one message of the protocol: the envelope and what its type adds.
//
// What was decoded shares memory: strings and raw JSON in it must not be changed
// in place, only replaced.
type Message struct {
	Type string
	ID   string
	TS   json.Number // Unix seconds; the literal as it came

	// Body points to the model of the type, such as *[HandshakeRequest]. It is
	// nil for a generic message: one whose type is not registered.
	Body any

	// Extra are the members that Body does not know. In a generic message these
	// are all members in the order of the text, the envelope among them; where
	// it differs from the fields above, the fields are sent.
	Extra Members

	typ *Type // as which it was decoded
}

// NewMessage returns a message with a new id and the present time. The body is a
// pointer to a model, or nil.
func NewMessage(msgType string, body any) *Message {
	s := &stamped{}
	s.stamp(msgType, body)
	return &s.Message
}

// A stamped message holds the text of its id and its time itself, so that the
// three of them are one allocation. It must not be copied.
type stamped struct {
	Message
	id [32]byte
	ts [24]byte
}

func (s *stamped) stamp(msgType string, body any) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	hex.Encode(s.id[:], b[:])
	ts := appendTimestamp(s.ts[:0], time.Now())
	s.Message = Message{Type: msgType, ID: unsafe.String(&s.id[0], len(s.id)), TS: json.Number(unsafe.String(&ts[0], len(ts))), Body: body}
}

// Time returns the time of the message, to the precision that a [time.Time] and
// the conversion through a float leave, or the zero time.
func (m *Message) Time() time.Time {
	x, err := m.TS.Float64()
	if err != nil || x > 1<<53 || x < -(1<<53) {
		return time.Time{}
	}
	sec := int64(x)
	return time.Unix(sec, int64((x-float64(sec))*1e9))
}

// ReqID returns the member req_id of a response, event or error, or "".
func (m *Message) ReqID() string {
	if b, ok := m.Body.(interface{ RequestID() string }); ok {
		return b.RequestID()
	}
	return textMember(m, "req_id")
}

// NewID returns a message id: 32 hex digits of a random UUID.
func NewID() string { return randid.UUID4Hex() }

// appendTimestamp writes a time as seconds with at most microseconds, zeros
// trimmed (A2E-013). It does not go through a float.
func appendTimestamp(b []byte, t time.Time) []byte {
	micros := t.UnixMicro()
	b = strconv.AppendInt(b, micros/1e6, 10)
	if rest := micros % 1e6; rest > 0 {
		b = append(b, '.')
		for scale := int64(1e5); rest > 0; scale /= 10 {
			b = append(b, byte('0'+rest/scale))
			rest %= scale
		}
	}
	return b
}

// Seconds returns t as Unix seconds, as the members created_at and the like
// hold them.
func Seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// A HandshakeRequest opens a session.
type HandshakeRequest struct {
	AgentID   string   `a2e:"agent_id"`
	AgentCaps []string `a2e:"agent_caps"` // capabilities and feature flags asked for
	AuthToken string   `a2e:"auth_token"`
}

// A HandshakeResponse accepts or refuses a [HandshakeRequest].
type HandshakeResponse struct {
	ReqID        string       `a2e:"req_id"`
	SessionID    string       `a2e:"session_id"`
	AcceptedCaps []Capability `a2e:"accepted_caps"`
	MaxParallel  int64        `a2e:"max_parallel,default=4"`
	OK           bool         `a2e:"ok,default=true"`
	Reason       string       `a2e:"reason"` // why not, only if OK is false
}

// RequestID returns ReqID.
func (r *HandshakeResponse) RequestID() string { return r.ReqID }

// A Capability is one entry of the answer to a handshake.
type Capability struct {
	Capability string          `a2e:"capability,required"`
	Enabled    bool            `a2e:"enabled,default=true"`
	Metadata   json.RawMessage `a2e:"metadata,object"`
	Extra      Members
}

// Kinds of events (A2E-068). The set is open.
const (
	EventStatus   = "status"   // {message}
	EventProgress = "progress" // {pct, message}
	EventLog      = "log"      // {level, message}
	EventArtifact = "artifact" // {name, mime, chunk (base64), final}
)

// An EventBody is what every event about a request holds.
type EventBody struct {
	Kind  string          `a2e:"kind,default=status"`
	ReqID string          `a2e:"req_id"`
	Data  json.RawMessage `a2e:"data,object"`
	Seq   int64           `a2e:"seq"`
}

// RequestID returns ReqID.
func (b *EventBody) RequestID() string { return b.ReqID }

// Header returns a copy. Models of events have this method, so that all
// events can be looked at alike.
func (b *EventBody) Header() EventBody { return *b }

// Ping asks whether the other side is there.
type Ping struct{}

// Pong answers a [Ping].
type Pong struct {
	ReqID         string  `a2e:"req_id"`
	UptimeSeconds float64 `a2e:"uptime_seconds"`
}

// RequestID returns ReqID.
func (p *Pong) RequestID() string { return p.ReqID }

// Shutdown ends a session when the work in flight is done.
type Shutdown struct {
	Timeout int64 `a2e:"timeout,default=10"` // seconds to drain
}

// An ErrorBody is what an error message holds; see [Error].
type ErrorBody struct {
	ReqID          string          `a2e:"req_id"`
	Code           string          `a2e:"code,required"`
	Message        string          `a2e:"message"`
	Detail         json.RawMessage `a2e:"detail,object"`
	Retryable      bool            `a2e:"retryable"`
	CapabilityName string          `a2e:"capability_name"`
}

// RequestID returns ReqID.
func (b *ErrorBody) RequestID() string { return b.ReqID }

// Cancel asks the host to stop working on a request. It is an extension, sent
// only to hosts that announced the feature "cancel".
type Cancel struct {
	ReqID string `a2e:"req_id,required"`
}
