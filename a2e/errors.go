// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Code is an error code of the wire. Being an error itself, it serves as the target of
// [errors.Is]. Codes are compared exactly.
type Code string

// The codes of the specification (A2E-064, A2E-065).
const (
	ErrParse           Code = "parse_error"      // not UTF-8 or not JSON
	ErrRuntime         Code = "runtime_error"    // the handler failed
	ErrInvalidMessage  Code = "invalid_message"  // a valid JSON text, but not a message that can be processed in this state
	ErrVersionMismatch Code = "version_mismatch" // another protocol version
	ErrUnauthorized    Code = "unauthorized"     // no handshake, or a foreign session
	ErrSchemaViolation Code = "schema_violation" // a member is missing or does not fit
	ErrTimeout         Code = "timeout"          // the time limit of the call has expired
	ErrOutOfMemory     Code = "out_of_memory"    // the host has too little memory
	ErrSandboxCrash    Code = "sandbox_crash"    // the sandbox of the host crashed

	ErrCapabilityMissing Code = "capability_missing" // the capability was not negotiated

	ErrUnknownTool Code = "unknown_tool" // no tool has this name
	ErrToolDenied  Code = "tool_denied"  // policy forbids the tool
	ErrTool        Code = "tool_error"   // the tool failed

	ErrUnknownSkill Code = "unknown_skill" // no skill has this name
	ErrSkill        Code = "skill_error"   // the skill failed

	ErrChainCycle Code = "chain_cycle"      // the nodes run in a circle
	ErrChainNode  Code = "chain_node_error" // a node failed

	ErrMemoryFull     Code = "memory_full"      // the store is full
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

// Error returns the text of the code.
func (c Code) Error() string { return "a2e: " + string(c) }

// isRetryable reports whether errors of this code are retryable by default. Unknown codes are not.
func (c Code) isRetryable() bool {
	switch c {
	case ErrRuntime, ErrTimeout, ErrOutOfMemory, ErrSandboxCrash, ErrTool, ErrSkill, ErrChainNode,
		ErrMCPServerUnavailable, ErrMCPTransport:
		return true
	}
	return false
}

// Values of [Error.Reason] that this package sends.
const (
	reasonInvalidUTF8   = "invalid_utf8"
	reasonInvalidJSON   = "invalid_json"
	reasonTruncated     = "truncated"
	reasonNotObject     = "not_object"
	reasonDuplicateKey  = "duplicate_key"
	ReasonTooLarge      = "too_large"
	ReasonTooDeep       = "too_deep"
	ReasonRequired      = "required"
	ReasonType          = "type"
	ReasonValue         = "value"
	reasonUnknownType   = "unknown_type"
	ReasonUnsupported   = "unsupported"
	ReasonDraining      = "draining"
	reasonDuplicateID   = "duplicate_id"
	reasonNoHandshake   = "no_handshake"
	reasonNotNegotiated = "not_negotiated"
	reasonSessionID     = "session_id"
	ReasonOverloaded    = "overloaded"
	reasonInterrupted   = "interrupted"
	ReasonDeadline      = "deadline"
	ReasonShutdown      = "shutdown"
	ReasonInternal      = "internal"
)

// Local errors. None of them is sent or received.
var (
	// ErrNotConnected reports a call before the handshake.
	ErrNotConnected = errors.New("a2e: not connected")

	// ErrClosed reports use after the end of the session.
	ErrClosed = errors.New("a2e: closed")

	// ErrTooLarge matches, by [errors.Is], a message over a limit of this side or of the peer.
	ErrTooLarge = errors.New("a2e: too large")

	// ErrInvalidResponse reports an answer that violates the protocol. The
	// violation, an [*Error], is wrapped with it.
	ErrInvalidResponse = errors.New("a2e: invalid answer")

	// ErrUnexpectedResponse reports an answer of an unexpected type.
	ErrUnexpectedResponse = errors.New("a2e: answer of an unexpected type")

	// ErrUnsupported matches, by [errors.Is], every error of a peer that does not know or not serve
	// a type (A2E-D17).
	ErrUnsupported = errors.New("a2e: not supported by the peer")

	// ErrNextPlugin is returned by a handler to pass the request to the next plugin for its type
	// (A2E-D34).
	ErrNextPlugin = errors.New("a2e: passed on")

	// ErrTruncated reports a stream of bytes that ended inside a message.
	ErrTruncated = fmt.Errorf("a2e: truncated: %w", io.ErrUnexpectedEOF)
)

// An Error is a failure in the terms of the protocol: found by the decoder, returned by a handler
// to be sent unchanged, or received from the peer.
type Error struct {
	Code    Code
	Message string // for people; the peer reads it

	// Field and Reason are the members field and reason of the detail.
	Field  string
	Reason string

	// Details is the detail object that is sent, in addition to Field and Reason. In a received
	// error it is the whole object.
	Details json.RawMessage

	Retryable  bool
	Capability string // the capability concerned, or empty

	// ReqID is the id of the message concerned, or empty if unknown.
	ReqID string

	// Remote is set if the peer sent this error.
	Remote bool

	// Events are the events before the error of a call, up to QueueLimit of the client.
	Events []Event

	// Cause is for the log on this side; it is never sent.
	Cause error

	msgType string // type of the message that was refused, as far as known
	refID   string // its req_id
}

// Errorf returns an error with a formatted message, and Retryable as is the default of the code. An
// empty message becomes the code. An error among the arguments that %w names becomes the Cause, and
// several become one that wraps them all; their text is sent.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, isSeveral := err.(interface{ Unwrap() []error }); isSeveral {
		cause = err
	}
	text := strings.ToValidUTF8(err.Error(), "") // it may have the output of a program
	return &Error{Code: code, Message: cmp.Or(text, string(code)), Retryable: code.isRetryable(), Cause: cause}
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

// reasoned returns an error with a reason in its detail.
func reasoned(code Code, reason, message string) *Error {
	e := Errorf(code, "%s", message)
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

// Is reports whether target is the error's code, or [ErrUnsupported] for an error of that meaning.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrTooLarge:
		return e.Reason == ReasonTooLarge
	case ErrTruncated:
		return e.Reason == reasonTruncated
	case ErrUnsupported:
		switch {
		case e.Code == ErrInvalidMessage:
			return e.Reason == reasonUnknownType || e.Reason == ReasonUnsupported
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
	Reason string // auth_failed, version_mismatch, no_caps, server_error or a reason that the host defines
}

// Error returns the reason of the peer, shortened.
func (e *HandshakeError) Error() string { return "a2e: handshake refused: " + clip(e.Reason, 200) }

// A CloseError is the reason of the end of a session. The errors of its calls wrap it, together with
// [ErrClosed] (A2E-D60).
type CloseError struct {
	// Kind is local, eof, exit, http, websocket, heartbeat, stall, slow_peer, too_large or refused.
	Kind string

	// Code is the exit status of a child, negative for a signal; the HTTP status, zero without a
	// response; or the code of a WebSocket close frame.
	Code int

	// Text is the end of the standard error of a child; the URL without query; or the reason of the peer.
	Text string

	network error // of http without a response
}

// Error returns all fields in one text.
func (e *CloseError) Error() string {
	text := "ended by the peer"
	switch e.Kind {
	case "local":
		text = "by this side"
	case "exit":
		text = fmt.Sprintf("child exited with status %d", e.Code)
	case "http", "websocket":
		text = e.Kind
		if e.Code != 0 {
			text += fmt.Sprintf(" status %d", e.Code)
		}
	case "heartbeat":
		text = "no answer to pings"
	case "stall":
		text = "no progress of a write"
	case "slow_peer":
		text = "peer takes no answers"
	case "too_large":
		text = "message too large"
	case "refused":
		text = "handshake refused"
	}
	if s := strings.TrimSpace(e.Text); s != "" {
		text += ": " + s
	}
	if e.network != nil {
		text += ": " + clip(e.network.Error(), 200)
	}
	return text
}

// A sessionError is the error of all calls of a session that has ended.
type sessionError struct {
	cause *CloseError
	err   error // may be nil
}

func (e *sessionError) Error() string { return "a2e: session closed: " + e.cause.Error() }

func (e *sessionError) Unwrap() []error {
	return slices.DeleteFunc([]error{ErrClosed, e.cause, e.err, e.cause.network}, func(err error) bool { return err == nil })
}

// Reasons of a refused handshake (A2E-050).
const (
	RejectAuthFailed      = "auth_failed"
	RejectVersionMismatch = "version_mismatch"
	RejectNoCaps          = "no_caps"
	RejectServerError     = "server_error"
)

// clip bounds input that is repeated in a text (A2E-D51).
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
