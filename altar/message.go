// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"reflect"
)

// A Message is a message of the protocol: a pointer to one of the structs of this file. A message
// must not be changed after it was received or sent.
type Message interface{ header() *Header }

// typeOf returns the name of a message on the wire.
func typeOf(m Message) string {
	if name := reflect.TypeOf(m).Elem().Name(); name != "ErrorMessage" {
		return name
	}
	return "Error"
}

// A Header holds the optional members of every message.
type Header struct {
	// RequestID is echoed by the direct answer (ALT-D02).
	RequestID string `json:"request_id,omitzero"`

	// CorrelationID runs through everything that a request causes (ALT-D30).
	CorrelationID string `json:"correlation_id,omitzero"`
}

func (h *Header) header() *Header { return h }

// Capabilities of a Runtime (ALT-D17). Unknown ones are ignored.
const (
	CapStreaming     = "streaming"      // sends chunks
	CapCancellation  = "cancellation"   // understands CancelCall
	CapDeadlines     = "deadlines"      // wants timeout_ms in a ToolCall
	CapSessionEvents = "session_events" // wants SessionDestroyed
	CapHeartbeat     = "heartbeat"      // answers Ping
	CapCredit        = "credit"         // sends chunks only within its credit (ALT-D37)
	CapStanding      = "standing"       // fulfils its tools for all sessions at once (ALT-D15)
)

// AllSessions is the session id of a fulfilment for all live and future
// sessions (ALT-D15).
const AllSessions = "*"

// AnnounceRuntime is the first message of a Runtime (ALT-050).
type AnnounceRuntime struct {
	RuntimeID       string            `json:"runtime_id"`
	Language        string            `json:"language,omitzero" jsonmap:"always"`
	ProtocolVersion string            `json:"protocol_version"`
	Capabilities    []string          `json:"capabilities,omitzero" jsonmap:"always"`
	Metadata        map[string]string `json:"metadata,omitzero"`
	Header
}

// AcknowledgeRuntime accepts an announcement (ALT-055).
type AcknowledgeRuntime struct {
	HostID          string   `json:"host_id"`
	ProtocolVersion string   `json:"protocol_version"`                       // version of the Host (ALT-057)
	Capabilities    []string `json:"capabilities,omitzero" jsonmap:"always"` // those that both sides have
	Header
}

// RequestFulfillment requests the fulfilments of a Runtime in a session (ALT-111).
type RequestFulfillment struct {
	SessionID string `json:"session_id"`
	Header
}

// FulfillTools lists the contracts that a Runtime implements in a session (ALT-058).
type FulfillTools struct {
	SessionID string   `json:"session_id"` // or [AllSessions]
	ToolNames []string `json:"tool_names"`
	Replace   bool     `json:"replace,omitzero"` // the names are all that the Runtime fulfils, not more of it
	Header
}

// AcknowledgeFulfillment answers [FulfillTools] name by name.
type AcknowledgeFulfillment struct {
	SessionID string
	Fulfilled []string // the accepted ones, with the id of the Runtime
	Rejected  []RejectedTool
	Header
}

// A RejectedTool is a name that a Runtime may not fulfil.
type RejectedTool struct {
	ToolName string // as it was sent
	Error    *Error
}

// CreateSession asks for a session (ALT-090).
type CreateSession struct {
	SessionID       string            `json:"session_id,omitzero"`  // a suggestion; empty: none
	TTLSeconds      int64             `json:"ttl_seconds,omitzero"` // requested lifetime; 0: default
	SecurityContext *SecurityContext  `json:"security_context,omitzero"`
	Metadata        map[string]string `json:"metadata,omitzero"`
	Header

	emptyID bool // the suggestion was the empty text
}

// A SecurityContext restricts the operations in a session. A client requests it; it proves nothing
// (ALT-D21).
type SecurityContext struct {
	PrincipalID string            `json:"principal_id,omitzero"`
	TenantID    string            `json:"tenant_id,omitzero"`
	Claims      map[string]string `json:"claims,omitzero"`
}

// SessionCreated answers [CreateSession] with the effective properties of the session.
type SessionCreated struct {
	SessionID  string `json:"session_id"`
	TTLSeconds int64  `json:"ttl_seconds"`
	Header
}

// DestroySession ends a session at once (ALT-096).
type DestroySession struct {
	SessionID string `json:"session_id"`
	Header
}

// SessionDestroyed answers [DestroySession], and notifies Runtimes of the end of a session.
type SessionDestroyed struct {
	SessionID string `json:"session_id"`
	Reason    string `json:"reason"` // "destroyed" or "expired"
	Header
}

// ToolCall asks for a tool to be run (ALT-070).
type ToolCall struct {
	InvocationID  string            `json:"invocation_id"`
	SessionID     string            `json:"session_id"`
	ToolName      string            `json:"tool_name"`
	Parameters    json.RawMessage   `json:"parameters,omitzero"` // a JSON object; nil: {}
	Metadata      map[string]string `json:"metadata,omitzero"`
	TimeoutMS     int64             `json:"timeout_ms,omitzero"`                  // 0: none
	CollectChunks bool              `json:"accept_stream,omitzero" jsonmap:"not"` // accept_stream is false: chunks come as one result (ALT-D29)
	Credit        *int64            `json:"credit,omitzero"`                      // chunks with lower ids may be sent (ALT-D37); nil: all
	ResumeFrom    int64             `json:"resume_from,omitzero"`                 // replay chunks from this one (ALT-D22)
	Header
}

// ToolResult ends a call (ALT-077). It has an error or a payload.
type ToolResult struct {
	InvocationID    string
	Payload         json.RawMessage // nil: null
	Error           *Error          // nil: success
	RuntimeMetadata json.RawMessage // a JSON object, or nil
	Header
}

// StreamChunk is a part of a streamed answer (ALT-083).
type StreamChunk struct {
	InvocationID string
	ChunkID      int64
	Payload      json.RawMessage // nil: absent, for a final chunk only
	Error        *Error          // ends the stream
	IsFinal      bool            // true with an error
	Header
}

// StreamCredit permits the chunks of a stream with lower ids (ALT-D37). It has no response.
type StreamCredit struct {
	InvocationID string `json:"invocation_id"`
	SessionID    string `json:"session_id"`
	Credit       int64  `json:"credit"`
	Header
}

// Authenticate renews the principal of a connection with another token (ALT-D40).
type Authenticate struct {
	Token string `json:"token"`
	Header
}

// Authenticated answers [Authenticate].
type Authenticated struct {
	ExpiresIn *int64 `json:"expires_in,omitzero"` // in seconds; nil: never
	Header
}

// ListTools asks which tools the caller may use in a session (ALT-D31).
type ListTools struct {
	SessionID string `json:"session_id"`
	Header
}

// ToolList answers [ListTools].
type ToolList struct {
	SessionID string     `json:"session_id"`
	Tools     []ToolInfo `json:"tools"`
	Header
}

// A ToolInfo is a tool that can be called now.
type ToolInfo struct {
	Name        string      `json:"name"`
	Description string      `json:"description,omitzero" jsonmap:"always"`
	Parameters  []Parameter `json:"parameters,omitzero" jsonmap:"always"`
	Streaming   bool        `json:"streaming,omitzero" jsonmap:"always"`
	Runtimes    []string    `json:"runtimes,omitzero" jsonmap:"always"` // connected Runtimes that fulfil it, in order
}

// CancelCall ends a call (ALT-D32). It has no response.
type CancelCall struct {
	InvocationID string `json:"invocation_id"`
	SessionID    string `json:"session_id"`
	Reason       string `json:"reason,omitzero"`
	Header
}

// Ping requests a [Pong].
type Ping struct{ Header }

// Pong answers [Ping].
type Pong struct{ Header }

// ErrorMessage answers a request that failed and has no better carrier.
type ErrorMessage struct {
	Err *Error
	Header
}

// Error returns the text of the error inside, so that the message can travel
// as an error too.
func (m *ErrorMessage) Error() string { return m.Err.Error() }

// Unwrap returns the error inside.
func (m *ErrorMessage) Unwrap() error { return m.Err }
