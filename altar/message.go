// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "encoding/json"

// A Message is a message of the protocol: a pointer to one of the structs of this file. A message
// must not be changed after it was received or sent.
type Message interface {
	// Type returns the name of the message on the wire, such as "ToolCall".
	Type() string

	header() *Header
}

// A Header holds the optional members of every message.
type Header struct {
	// RequestID is echoed by the direct answer (ALT-D02).
	RequestID string

	// CorrelationID runs through everything that a request causes (ALT-D30).
	CorrelationID string
}

func (h *Header) header() *Header { return h }

// Capabilities of a Runtime (ALT-D17). Unknown ones are ignored.
const (
	CapStreaming     = "streaming"      // sends chunks
	CapCancellation  = "cancellation"   // understands CancelCall
	CapDeadlines     = "deadlines"      // wants timeout_ms in a ToolCall
	CapSessionEvents = "session_events" // wants SessionDestroyed
	CapHeartbeat     = "heartbeat"      // answers Ping
)

// AllSessions is the session id of a fulfilment for all live and future
// sessions (ALT-D15).
const AllSessions = "*"

// AnnounceRuntime is the first message of a Runtime (ALT-050).
type AnnounceRuntime struct {
	RuntimeID       string
	Language        string
	ProtocolVersion string
	Capabilities    []string
	Metadata        map[string]string
	Header
}

// AcknowledgeRuntime accepts an announcement (ALT-055).
type AcknowledgeRuntime struct {
	HostID          string
	ProtocolVersion string   // version of the Host (ALT-057)
	Capabilities    []string // those that both sides have
	Header
}

// RequestFulfillment requests the fulfilments of a Runtime in a session (ALT-111).
type RequestFulfillment struct {
	SessionID string
	Header
}

// FulfillTools lists the contracts that a Runtime implements in a session (ALT-058).
type FulfillTools struct {
	SessionID string // or [AllSessions]
	ToolNames []string
	Replace   bool // the names are all that the Runtime fulfils, not more of it
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
	SessionID       string // a suggestion; empty: none
	TTLSeconds      int64  // requested lifetime; 0: default
	SecurityContext *SecurityContext
	Metadata        map[string]string
	Header

	emptyID bool // the suggestion was the empty text
}

// A SecurityContext restricts the operations in a session. A client requests it; it proves nothing
// (ALT-D21).
type SecurityContext struct {
	PrincipalID string
	TenantID    string
	Claims      map[string]string
}

// SessionCreated answers [CreateSession] with the effective properties of the session.
type SessionCreated struct {
	SessionID  string
	TTLSeconds int64
	Header
}

// DestroySession ends a session at once (ALT-096).
type DestroySession struct {
	SessionID string
	Header
}

// SessionDestroyed answers [DestroySession], and notifies Runtimes of the end of a session.
type SessionDestroyed struct {
	SessionID string
	Reason    string // "destroyed" or "expired"
	Header
}

// ToolCall asks for a tool to be run (ALT-070).
type ToolCall struct {
	InvocationID  string
	SessionID     string
	ToolName      string
	Parameters    json.RawMessage // a JSON object; nil: {}
	Metadata      map[string]string
	TimeoutMS     int64 // 0: none
	CollectChunks bool  // accept_stream is false: chunks come as one result (ALT-D29)
	ResumeFrom    int64 // replay chunks from this one (ALT-D22)
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

// ListTools asks which tools the caller may use in a session (ALT-D31).
type ListTools struct {
	SessionID string
	Header
}

// ToolList answers [ListTools].
type ToolList struct {
	SessionID string
	Tools     []ToolInfo
	Header
}

// A ToolInfo is a tool that can be called now.
type ToolInfo struct {
	Name        string
	Description string
	Parameters  []Parameter
	Streaming   bool
	Runtimes    []string // connected Runtimes that fulfil it, in order
}

// CancelCall ends a call (ALT-D32). It has no response.
type CancelCall struct {
	InvocationID string
	SessionID    string
	Reason       string
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

// Type returns "AnnounceRuntime".
func (*AnnounceRuntime) Type() string { return "AnnounceRuntime" }

// Type returns "AcknowledgeRuntime".
func (*AcknowledgeRuntime) Type() string { return "AcknowledgeRuntime" }

// Type returns "RequestFulfillment".
func (*RequestFulfillment) Type() string { return "RequestFulfillment" }

// Type returns "FulfillTools".
func (*FulfillTools) Type() string { return "FulfillTools" }

// Type returns "AcknowledgeFulfillment".
func (*AcknowledgeFulfillment) Type() string { return "AcknowledgeFulfillment" }

// Type returns "CreateSession".
func (*CreateSession) Type() string { return "CreateSession" }

// Type returns "SessionCreated".
func (*SessionCreated) Type() string { return "SessionCreated" }

// Type returns "DestroySession".
func (*DestroySession) Type() string { return "DestroySession" }

// Type returns "SessionDestroyed".
func (*SessionDestroyed) Type() string { return "SessionDestroyed" }

// Type returns "ToolCall".
func (*ToolCall) Type() string { return "ToolCall" }

// Type returns "ToolResult".
func (*ToolResult) Type() string { return "ToolResult" }

// Type returns "StreamChunk".
func (*StreamChunk) Type() string { return "StreamChunk" }

// Type returns "ListTools".
func (*ListTools) Type() string { return "ListTools" }

// Type returns "ToolList".
func (*ToolList) Type() string { return "ToolList" }

// Type returns "CancelCall".
func (*CancelCall) Type() string { return "CancelCall" }

// Type returns "Ping".
func (*Ping) Type() string { return "Ping" }

// Type returns "Pong".
func (*Pong) Type() string { return "Pong" }

// Type returns "Error".
func (*ErrorMessage) Type() string { return "Error" }

// Error returns the text of the error inside, so that the message can travel
// as an error too.
func (m *ErrorMessage) Error() string { return m.Err.Error() }

// Unwrap returns the error inside.
func (m *ErrorMessage) Unwrap() error { return m.Err }
