// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
)

// ProtocolVersion is the protocol version that every message names.
const ProtocolVersion = "1.0"

// A Message is one message of the protocol: the envelope and the members of its type.
//
// The strings and raw JSON of a decoded message share memory: they must not be changed in place,
// only replaced.
type Message struct {
	Type string
	ID   string
	TS   json.Number // Unix seconds; the literal as received

	// Body points to the model of the type, such as *[HandshakeRequest]. It is nil for a generic
	// message, whose type is not registered.
	Body any

	// Extra are the members that Body does not know, and the empty strings of members with
	// a default that were received. In a generic message these are all members in the order
	// of the text, the envelope among them; where it differs from the fields above, the
	// fields are sent.
	Extra Members

	typ           *Type  // as which it was decoded
	text          []byte // of a message of an agent, until the session has taken it
	hasOldVersion bool   // an event inside a result with a member version in place of a2e (A2E-D01)
}

// NewMessage returns a message with a new id and the present time. The body is a
// pointer to a model, or nil.
func NewMessage(msgType string, body any) *Message {
	m := &Message{}
	m.stamp(msgType, body)
	return m
}

// stamp sets a new id and the present time, which share the memory of one string.
func (m *Message) stamp(msgType string, body any) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	var buf [2*len(id) + 24]byte
	b := hex.AppendEncode(buf[:0], id[:])
	text := string(appendTimestamp(b, time.Now()))
	*m = Message{Type: msgType, ID: text[:2*len(id)], TS: json.Number(text[2*len(id):]), Body: body}
}

// ReqID returns the member req_id of a response, event or error, or "".
func (m *Message) ReqID() string { return textMember(m, "req_id") }

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

// A HandshakeRequest opens a session.
type HandshakeRequest struct {
	AgentID   string   `json:"agent_id,omitzero" jsonmap:"always"`
	AgentCaps []string `json:"agent_caps,omitzero" jsonmap:"always"` // capabilities and feature flags asked for
	AuthToken string   `json:"auth_token,omitzero" jsonmap:"always"`
}

// A HandshakeResponse accepts or refuses a [HandshakeRequest].
type HandshakeResponse struct {
	ReqID        string       `json:"req_id,omitzero" jsonmap:"always"`
	SessionID    string       `json:"session_id,omitzero" jsonmap:"always"`
	AcceptedCaps []Capability `json:"accepted_caps,omitzero" jsonmap:"always"`
	MaxParallel  *int64       `json:"max_parallel,omitzero" jsonmap:"default=4"`
	OK           *bool        `json:"ok,omitzero" jsonmap:"default=true"`
	Reason       string       `json:"reason,omitzero" jsonmap:"always"` // why not, only if OK is false
}

// A Capability is one entry of the answer to a handshake.
type Capability struct {
	Capability string          `json:"capability"`
	Enabled    *bool           `json:"enabled,omitzero" jsonmap:"default=true"`
	Metadata   json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`
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
	Kind  string          `json:"kind,omitzero" jsonmap:"default=status"`
	ReqID string          `json:"req_id,omitzero" jsonmap:"always"`
	Data  json.RawMessage `json:"data,omitzero" jsonmap:"always,object"`
	Seq   int64           `json:"seq,omitzero" jsonmap:"always"`
}

// A pingBody requests a [Pong] of the peer.
type pingBody struct{}

// Pong answers a ping.
type Pong struct {
	ReqID         string  `json:"req_id,omitzero" jsonmap:"always"`
	UptimeSeconds float64 `json:"uptime_seconds,omitzero" jsonmap:"always"`
}

// A shutdownBody ends a session when the work in flight is done.
type shutdownBody struct {
	Timeout Limit `json:"timeout,omitzero" jsonmap:"default=10"` // seconds to drain
}

// An ErrorBody is what an error message holds; see [Error].
type ErrorBody struct {
	ReqID          string          `json:"req_id,omitzero" jsonmap:"always"`
	Code           string          `json:"code"`
	Message        string          `json:"message,omitzero" jsonmap:"always"`
	Detail         json.RawMessage `json:"detail,omitzero" jsonmap:"always,object"`
	Retryable      bool            `json:"retryable,omitzero" jsonmap:"always"`
	CapabilityName string          `json:"capability_name,omitzero" jsonmap:"always"`
}

// cancelBody requests the end of the work on a request. It is an extension, sent only to hosts with the
// feature "cancel".
type cancelBody struct {
	ReqID string `json:"req_id"`
}
