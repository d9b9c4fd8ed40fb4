// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A Code is an error code as it stands on the wire. Being an error itself, it
// serves as the target of [errors.Is]. Codes are compared exactly.
type Code string

// The codes of the specification (A2E-064, A2E-065).
const (
	ErrParse           Code = "parse_error"      // not UTF-8 or not JSON
	ErrRuntime         Code = "runtime_error"    // the handler failed
	ErrInvalidMessage  Code = "invalid_message"  // JSON that is no usable message here and now
	ErrVersionMismatch Code = "version_mismatch" // another protocol version
	ErrUnauthorized    Code = "unauthorized"     // no handshake, or a foreign session
	ErrSchemaViolation Code = "schema_violation" // a member is missing or does not fit
	ErrTimeout         Code = "timeout"          // the time limit of the call is over
	ErrOutOfMemory     Code = "out_of_memory"    // the host has no memory left for it
	ErrSandboxCrash    Code = "sandbox_crash"    // what the host ran it in died

	ErrCapabilityMissing Code = "capability_missing" // the capability was not negotiated

	ErrUnknownTool Code = "unknown_tool" // no tool has this name
	ErrToolDenied  Code = "tool_denied"  // policy forbids the tool
	ErrTool        Code = "tool_error"   // the tool failed

	ErrUnknownSkill Code = "unknown_skill" // no skill has this name
	ErrSkill        Code = "skill_error"   // the skill failed

	ErrChainCycle Code = "chain_cycle"      // the nodes run in a circle
	ErrChainNode  Code = "chain_node_error" // a node failed

	ErrMemoryFull     Code = "memory_full"      // the store takes no more
	ErrMemoryNotFound Code = "memory_not_found" // no memory has this id

	ErrUnknownProc Code = "unknown_proc" // no process has this id
	ErrProcDead    Code = "proc_dead"    // the process has ended
	ErrProcLimit   Code = "proc_limit"   // too many processes

	ErrUnknownAction Code = "unknown_action" // the environment knows no such action
	ErrResetDenied   Code = "reset_denied"   // there is no such environment

	ErrMCPServerNotFound    Code = "mcp_server_not_found"
	ErrMCPServerUnavailable Code = "mcp_server_unavailable"
	ErrMCPToolNotFound      Code = "mcp_tool_not_found"
	ErrMCPResourceNotFound  Code = "mcp_resource_not_found"
	ErrMCPPromptNotFound    Code = "mcp_prompt_not_found"
	ErrMCPTransport         Code = "mcp_transport_error"
	ErrMCPProtocol          Code = "mcp_protocol_error"
	ErrMCPSamplingRefused   Code = "mcp_sampling_refused"
	ErrMCPCapabilityMissing Code = "mcp_capability_missing"

	// ErrUnknownType is accepted from peers and never sent.
	ErrUnknownType Code = "unknown_type"

	// ErrCancelled answers a call that its agent cancelled, between ends
	// that both announced the cancel extension.
	ErrCancelled Code = "cancelled"
)

// Error makes a Code a target of [errors.Is].
func (c Code) Error() string { return "a2e: " + string(c) }

// Known reports whether the specification lists c.
func (c Code) Known() bool {
	switch c {
	case ErrParse, ErrRuntime, ErrInvalidMessage, ErrVersionMismatch, ErrUnauthorized, ErrSchemaViolation,
		ErrTimeout, ErrOutOfMemory, ErrSandboxCrash, ErrCapabilityMissing, ErrUnknownTool, ErrToolDenied, ErrTool,
		ErrUnknownSkill, ErrSkill, ErrChainCycle, ErrChainNode, ErrMemoryFull, ErrMemoryNotFound,
		ErrUnknownProc, ErrProcDead, ErrProcLimit, ErrUnknownAction, ErrResetDenied,
		ErrMCPServerNotFound, ErrMCPServerUnavailable, ErrMCPToolNotFound, ErrMCPResourceNotFound,
		ErrMCPPromptNotFound, ErrMCPTransport, ErrMCPProtocol, ErrMCPSamplingRefused, ErrMCPCapabilityMissing,
		ErrUnknownType:
		return true
	}
	return false
}

// Retryable reports whether errors of this code may be retried unless they say
// otherwise themselves. Unknown codes may not.
func (c Code) Retryable() bool {
	switch c {
	case ErrRuntime, ErrTimeout, ErrOutOfMemory, ErrSandboxCrash, ErrTool, ErrSkill, ErrChainNode,
		ErrMCPServerUnavailable, ErrMCPTransport:
		return true
	}
	return false
}

// Values of [Error.Reason] that this package sends.
const (
	ReasonInvalidUTF8   = "invalid_utf8"
	ReasonInvalidJSON   = "invalid_json"
	ReasonTruncated     = "truncated"
	ReasonNotObject     = "not_object"
	ReasonDuplicateKey  = "duplicate_key"
	ReasonTooLarge      = "too_large"
	ReasonTooDeep       = "too_deep"
	ReasonRequired      = "required"
	ReasonType          = "type"
	ReasonValue         = "value"
	ReasonUnknownType   = "unknown_type"
	ReasonUnsupported   = "unsupported"
	ReasonDraining      = "draining"
	ReasonDuplicateID   = "duplicate_id"
	ReasonNoHandshake   = "no_handshake"
	ReasonNotNegotiated = "not_negotiated"
	ReasonSessionID     = "session_id"
	ReasonOverloaded    = "overloaded"
	ReasonDeadline      = "deadline"
	ReasonShutdown      = "shutdown"
	ReasonInternal      = "internal"
)

// Local faults. None of them is sent or received.
var (
	// ErrNotConnected reports a call before the handshake.
	ErrNotConnected = errors.New("a2e: not connected")

	// ErrClosed reports use after the end of the session.
	ErrClosed = errors.New("a2e: session closed")

	// ErrInvalidResponse reports an answer that violates the protocol. The
	// violation, an [*Error], is wrapped with it.
	ErrInvalidResponse = errors.New("a2e: invalid answer")

	// ErrUnexpectedResponse reports an answer of another type than the
	// request asks for.
	ErrUnexpectedResponse = errors.New("a2e: answer of an unexpected type")

	// ErrUnsupported is what errors.Is finds in every error by which a peer
	// says that it does not know or not serve a type (A2E-D17).
	ErrUnsupported = errors.New("a2e: not supported by the peer")

	// ErrNextPlugin is returned by a handler that leaves the request to the next
	// plugin for its type (A2E-D34).
	ErrNextPlugin = errors.New("a2e: passed on")

	// ErrTruncated reports a stream of bytes that ended inside a message.
	ErrTruncated = fmt.Errorf("a2e: stream ended inside a message: %w", io.ErrUnexpectedEOF)
)

// An Error is a failure in the terms of the protocol: found while decoding,
// returned by a handler to be sent as it stands, or received from the peer.
type Error struct {
	Code    Code
	Message string // for people; the peer reads it

	// Field and Reason are the members field and reason of the detail.
	Field  string
	Reason string

	// Details is the detail object that is sent, beside Field and Reason. Of a
	// received error it is the whole object.
	Details json.RawMessage

	Retryable  bool
	Capability string // the capability concerned, or empty

	// ReqID is the id of the message concerned, or empty if unknown.
	ReqID string

	// Remote says that the peer sent this error.
	Remote bool

	// Events are those that came before the error of a call, the first ones if
	// there were very many.
	Events []Event

	// Cause is for the log on this side; it is never sent.
	Cause error

	msgType string // type of the message that was refused, as far as known
	refID   string // its req_id
}

// NewError returns an error of that code with the code's default for
// Retryable. An empty message becomes the code.
func NewError(code Code, message string) *Error {
	if message == "" {
		message = string(code)
	}
	return &Error{Code: code, Message: message, Retryable: code.Retryable()}
}

// Errorf is like [NewError] with a formatted message. An error among the
// arguments that %w names becomes the Cause; its text is sent.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := NewError(code, err.Error())
	e.Cause = errors.Unwrap(err)
	return e
}

// violation returns the error of a member that does not fit.
func violation(field, reason string) *Error {
	text := "does not fit"
	switch reason {
	case ReasonRequired:
		text = "is required"
	case ReasonType:
		text = "has another type"
	case ReasonValue:
		text = "has a value that is not allowed"
	}
	return &Error{Code: ErrSchemaViolation, Message: clip(field, 120) + " " + text, Field: field, Reason: reason}
}

// SchemaViolation returns the schema violation of one member; field is its path and
// reason one of [ReasonRequired], [ReasonType] and [ReasonValue].
func SchemaViolation(field, reason string) *Error { return violation(field, reason) }

// reasoned returns an error that says why in its detail.
func reasoned(code Code, reason, message string) *Error {
	e := NewError(code, message)
	e.Reason = reason
	return e
}

// Error names the code and the message.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("a2e: ")
	b.WriteString(string(e.Code))
	if e.Reason != "" {
		b.WriteString(" (" + e.Reason + ")")
	}
	if e.Message != "" && e.Message != string(e.Code) {
		b.WriteString(": " + clip(e.Message, 400))
	}
	return b.String()
}

// Is reports whether target is the error's code, or [ErrUnsupported] and the
// error says so.
func (e *Error) Is(target error) bool {
	if target == ErrUnsupported {
		switch {
		case e.Code == ErrInvalidMessage:
			return e.Reason == ReasonUnknownType || e.Reason == ReasonUnsupported
		case e.Code == ErrParse: // how deployed hosts put it
			return strings.HasPrefix(e.Message, "Unknown type ")
		}
		return e.Code == ErrUnknownType
	}
	return target == e.Code
}

// Unwrap returns the cause on this side.
func (e *Error) Unwrap() error { return e.Cause }

// A HandshakeError reports that the host refused the handshake.
type HandshakeError struct {
	Reason string // auth_failed, version_mismatch, no_caps, server_error or a word of the host's own
}

// Error gives the reason, shortened: it is a peer's text.
func (e *HandshakeError) Error() string { return "a2e: handshake refused: " + clip(e.Reason, 200) }

// Reasons of a refused handshake (A2E-050).
const (
	RejectAuthFailed      = "auth_failed"
	RejectVersionMismatch = "version_mismatch"
	RejectNoCaps          = "no_caps"
	RejectServerError     = "server_error"
)

// clip bounds what is repeated of an input in a text (A2E-D51).
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
