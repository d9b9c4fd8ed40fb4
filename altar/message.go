// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"reflect"
)

// A Message is a message of the protocol: a pointer to one of the structs from [AnnounceRuntime] to
// [ErrorMessage]. Each has the fields RequestID, which its response repeats (ALT-D02), and
// CorrelationID, which runs through everything that a request causes (ALT-D30). A message must not be
// changed after it was received or sent.
type Message interface{ head() *header }

// typeOf returns the name of a message on the wire.
func typeOf(m Message) string {
	switch name := reflect.TypeOf(m).Elem().Name(); name {
	case "ErrorMessage":
		return "Error"
	case "hostOffers":
		return "HostOffers"
	case "forwardedCall":
		return "ForwardedCall"
	default:
		return name
	}
}

// A header holds the optional members of every message.
type header struct {
	RequestID     string `json:"request_id,omitzero"`
	CorrelationID string `json:"correlation_id,omitzero"`
}

func (h *header) head() *header { return h }

// Capabilities of a Runtime (ALT-D17). Unknown ones are ignored.
const (
	capStreaming     = "streaming"      // sends chunks
	capCancellation  = "cancellation"   // understands CancelCall
	capDeadlines     = "deadlines"      // wants timeout_ms in a ToolCall
	capSessionEvents = "session_events" // wants SessionDestroyed
	capHeartbeat     = "heartbeat"      // answers Ping
	capCredit        = "credit"         // sends chunks only within its credit (ALT-D37)
	capStanding      = "standing"       // fulfils its tools for all sessions at once (ALT-D15)
)

// allSessions is the session id of a fulfilment for all live and future sessions (ALT-D15).
const allSessions = "*"

// AnnounceRuntime is the first message of a Runtime (ALT-050).
type AnnounceRuntime struct {
	RuntimeID       string            `json:"runtime_id"`
	Language        string            `json:"language,omitzero" jsonmap:"always"`
	ProtocolVersion string            `json:"protocol_version"`
	Capabilities    []string          `json:"capabilities,omitzero" jsonmap:"always"` // of ALT-D17; unknown ones are ignored
	Metadata        map[string]string `json:"metadata,omitzero"`
	header
}

// AcknowledgeRuntime accepts an announcement (ALT-055).
type AcknowledgeRuntime struct {
	HostID          string   `json:"host_id"`
	ProtocolVersion string   `json:"protocol_version"`                       // version of the Host (ALT-057)
	Capabilities    []string `json:"capabilities,omitzero" jsonmap:"always"` // those that both sides have
	header
}

// RequestFulfillment requests the fulfilments of a Runtime in a session (ALT-111).
type RequestFulfillment struct {
	SessionID string `json:"session_id"`
	header
}

// FulfillTools lists the contracts that a Runtime implements in a session (ALT-058).
type FulfillTools struct {
	SessionID string   `json:"session_id"` // or "*": all live and future ones (ALT-D15)
	ToolNames []string `json:"tool_names"`
	Replace   bool     `json:"replace,omitzero"` // the names are all that the Runtime fulfils, not more of it
	header
}

// AcknowledgeFulfillment answers [FulfillTools] name by name.
type AcknowledgeFulfillment struct {
	SessionID string
	Fulfilled []string // the accepted ones, with the id of the Runtime
	Rejected  []RejectedTool
	header
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
	header

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
	header
}

// DestroySession ends a session at once (ALT-096).
type DestroySession struct {
	SessionID string `json:"session_id"`
	header
}

// SessionDestroyed answers [DestroySession], and notifies Runtimes of the end of a session.
type SessionDestroyed struct {
	SessionID string `json:"session_id"`
	Reason    string `json:"reason"` // "destroyed" or "expired"
	header
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
	header
}

// ToolResult ends a call (ALT-077). It has an error or a payload.
type ToolResult struct {
	InvocationID    string
	Payload         json.RawMessage // nil: null
	Error           *Error          // nil: success
	RuntimeMetadata json.RawMessage // a JSON object, or nil
	header
}

// StreamChunk is a part of a streamed answer (ALT-083).
type StreamChunk struct {
	InvocationID string
	ChunkID      int64
	Payload      json.RawMessage // nil: absent, for a final chunk only
	Error        *Error          // ends the stream
	IsFinal      bool            // true with an error
	header
}

// StreamCredit permits the chunks of a stream with lower ids (ALT-D37). It has no response.
type StreamCredit struct {
	InvocationID string `json:"invocation_id"`
	SessionID    string `json:"session_id"`
	Credit       int64  `json:"credit"`
	header
}

// Authenticate renews the principal of a connection with another token (ALT-D40).
type Authenticate struct {
	Token string `json:"token"`
	header
}

// Authenticated answers [Authenticate].
type Authenticated struct {
	ExpiresIn *int64 `json:"expires_in,omitzero"` // in seconds; nil: never
	header
}

// ListTools asks which tools the caller may use in a session (ALT-D31).
type ListTools struct {
	SessionID string `json:"session_id"`
	header
}

// ToolList answers [ListTools].
type ToolList struct {
	SessionID string     `json:"session_id"`
	Tools     []ToolInfo `json:"tools"`
	header
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
	header
}

// Ping requests a [Pong].
type Ping struct{ header }

// Pong answers [Ping].
type Pong struct{ header }

// ErrorMessage answers a request that failed and has no better carrier.
type ErrorMessage struct {
	Err *Error
	header
}
