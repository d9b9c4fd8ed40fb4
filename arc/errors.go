// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fivewire/fivewire/arc/internal/endpoint"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Code is an error code of the specification (section 4). As a Code is itself
// an error, it serves as the target of [errors.Is]:
//
//	if errors.Is(err, arc.ErrTaskNotFound) { // wrapped or not, local or remote
type Code int64

// The codes of the specification. The RPC codes come first, then the five
// families of ARC.
const (
	ErrParse          Code = -32700 // the body is not JSON
	ErrInvalidRequest Code = -32600 // the body is JSON, but no request
	ErrMethodNotFound Code = -32601 // the agent does not handle the method
	ErrInvalidParams  Code = -32602 // the params do not fit the method
	ErrInternal       Code = -32603 // the processor failed

	ErrAgentNotFound             Code = -41001 // no agent has this id here
	ErrAgentNotAvailable         Code = -41002 // the agent is known but takes no work now
	ErrAgentUnreachable          Code = -41003 // a gateway cannot connect to the agent
	ErrInvalidAgentID            Code = -41004 // the id breaks the rules for agent ids
	ErrAgentAuthenticationFailed Code = -41005 // the token belongs to another agent
	ErrAgentTimeout              Code = -41006 // the agent did not answer in time
	ErrDuplicateAgentID          Code = -41010 // two agents have this id
	ErrAgentCapacityExceeded     Code = -41011 // the agent is full

	ErrTaskNotFound          Code = -42001 // no task has this id, or it is not the caller's
	ErrTaskAlreadyCompleted  Code = -42002 // the task has completed
	ErrTaskAlreadyCanceled   Code = -42003 // the task was canceled
	ErrTaskExecutionFailed   Code = -42004 // the work failed
	ErrTaskTimeout           Code = -42005 // the work took too long
	ErrInvalidTaskTransition Code = -42006 // the task is not in a state for this
	ErrInvalidTaskPriority   Code = -42010 // no such priority
	ErrTaskDeadlineExceeded  Code = -42011 // the deadline has passed

	ErrChatNotFound         Code = -43001 // no chat has this id, or it is not the caller's
	ErrChatAlreadyClosed    Code = -43002 // the chat was closed
	ErrChatTimeout          Code = -43003 // the answer took too long
	ErrChatParticipantLimit Code = -43004 // too many participants
	ErrInvalidChatMessage   Code = -43005 // the agent refuses a well-formed message
	ErrChatBufferOverflow   Code = -43006 // too many messages wait in this chat

	ErrAuthenticationFailed Code = -44001 // no usable credentials
	ErrAuthorizationFailed  Code = -44002 // the caller may not do this
	ErrInsufficientScope    Code = -44003 // the token lacks a scope
	ErrTokenExpired         Code = -44004 // the token has expired
	ErrTokenInvalid         Code = -44005 // the token is not valid
	ErrPermissionDenied     Code = -44006 // a policy forbids it
	ErrRateLimitExceeded    Code = -44007 // too many requests
	ErrIPBlocked            Code = -44008 // the address is blocked

	ErrInvalidVersion     Code = -45001 // the arc member is not "1.0"
	ErrMissingField       Code = -45002 // a required member is absent
	ErrInvalidFieldFormat Code = -45003 // a member has the wrong type or form
	ErrMessageTooLarge    Code = -45004 // the body is over the limit
	ErrInvalidTrace       Code = -45005 // the traceId is malformed
	ErrCircularReference  Code = -45006 // the workflow would visit an agent again
)

type codeInfo struct {
	name, message string
	status        int
}

// codes are the assigned codes.
var codes = map[Code]codeInfo{
	ErrParse:                     {"ParseError", "Parse error", 400},
	ErrInvalidRequest:            {"InvalidRequest", "Invalid request", 400},
	ErrMethodNotFound:            {"MethodNotFound", "Method not found", 404},
	ErrInvalidParams:             {"InvalidParams", "Invalid params", 400},
	ErrInternal:                  {"Internal", "Internal error", 500},
	ErrAgentNotFound:             {"AgentNotFound", "Agent not found", 404},
	ErrAgentNotAvailable:         {"AgentNotAvailable", "Agent not available", 503},
	ErrAgentUnreachable:          {"AgentUnreachable", "Agent unreachable", 502},
	ErrInvalidAgentID:            {"InvalidAgentID", "Invalid agent ID", 400},
	ErrAgentAuthenticationFailed: {"AgentAuthenticationFailed", "Agent authentication failed", 403},
	ErrAgentTimeout:              {"AgentTimeout", "Agent timeout", 504},
	ErrDuplicateAgentID:          {"DuplicateAgentID", "Multiple agents with same ID", 409},
	ErrAgentCapacityExceeded:     {"AgentCapacityExceeded", "Agent capacity exceeded", 503},
	ErrTaskNotFound:              {"TaskNotFound", "Task not found", 200},
	ErrTaskAlreadyCompleted:      {"TaskAlreadyCompleted", "Task already completed", 200},
	ErrTaskAlreadyCanceled:       {"TaskAlreadyCanceled", "Task already canceled", 200},
	ErrTaskExecutionFailed:       {"TaskExecutionFailed", "Task execution failed", 200},
	ErrTaskTimeout:               {"TaskTimeout", "Task timeout", 200},
	ErrInvalidTaskTransition:     {"InvalidTaskTransition", "Invalid task status transition", 200},
	ErrInvalidTaskPriority:       {"InvalidTaskPriority", "Task priority invalid", 200},
	ErrTaskDeadlineExceeded:      {"TaskDeadlineExceeded", "Task deadline exceeded", 200},
	ErrChatNotFound:              {"ChatNotFound", "Chat not found", 200},
	ErrChatAlreadyClosed:         {"ChatAlreadyClosed", "Chat already closed", 200},
	ErrChatTimeout:               {"ChatTimeout", "Chat timeout", 200},
	ErrChatParticipantLimit:      {"ChatParticipantLimit", "Chat participant limit exceeded", 200},
	ErrInvalidChatMessage:        {"InvalidChatMessage", "Invalid chat message", 200},
	ErrChatBufferOverflow:        {"ChatBufferOverflow", "Chat buffer overflow", 200},
	ErrAuthenticationFailed:      {"AuthenticationFailed", "Authentication failed", 401},
	ErrAuthorizationFailed:       {"AuthorizationFailed", "Authorization failed", 403},
	ErrInsufficientScope:         {"InsufficientScope", "Insufficient OAuth2 scope", 403},
	ErrTokenExpired:              {"TokenExpired", "Token expired", 401},
	ErrTokenInvalid:              {"TokenInvalid", "Token invalid", 401},
	ErrPermissionDenied:          {"PermissionDenied", "Permission denied", 403},
	ErrRateLimitExceeded:         {"RateLimitExceeded", "Rate limit exceeded", 429},
	ErrIPBlocked:                 {"IPBlocked", "IP address blocked", 403},
	ErrInvalidVersion:            {"InvalidVersion", "Invalid ARC version", 400},
	ErrMissingField:              {"MissingField", "Missing required field", 400},
	ErrInvalidFieldFormat:        {"InvalidFieldFormat", "Invalid field format", 400},
	ErrMessageTooLarge:           {"MessageTooLarge", "Message too large", 413},
	ErrInvalidTrace:              {"InvalidTrace", "Workflow trace invalid", 400},
	ErrCircularReference:         {"CircularReference", "Circular reference detected", 400},
}

// Name returns the name of an assigned code, such as TaskNotFound, and "" for
// any other.
func (c Code) Name() string { return codes[c].name }

// Message returns the text that the specification gives to an assigned code, and
// "" for any other.
func (c Code) Message() string { return codes[c].message }

// family returns agent, task, chat, security or protocol for the ranges of the
// specification, rpc for -32768 to -32000, and custom for all other codes.
func (c Code) family() string {
	switch {
	case c >= -32768 && c <= -32000:
		return "rpc"
	case c >= -41099 && c <= -41000:
		return "agent"
	case c >= -42099 && c <= -42000:
		return "task"
	case c >= -43099 && c <= -43000:
		return "chat"
	case c >= -44099 && c <= -44000:
		return "security"
	case c >= -45099 && c <= -45000:
		return "protocol"
	}
	return "custom"
}

// HTTPStatus returns the HTTP status that a server answers with by default
// (ARC-D12): 200 where an agent's own logic speaks, a mapped status where HTTP
// intermediaries must see the failure. Unassigned codes go by their family.
func (c Code) HTTPStatus() int {
	if s := codes[c].status; s != 0 {
		return s
	}
	switch c.family() {
	case "rpc", "agent":
		return http.StatusInternalServerError
	case "security":
		return http.StatusForbidden
	case "protocol":
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// Error makes a Code a target of [errors.Is].
func (c Code) Error() string {
	if m := c.Message(); m != "" {
		return fmt.Sprintf("arc: %s (%d)", m, int64(c))
	}
	return fmt.Sprintf("arc: error %d", int64(c))
}

// An Error is a failure on the wire (section 4). An Error returned by a handler is
// sent unchanged, unless it is Remote; a client returns the Error of the peer. Match it with [errors.Is]
// against a [Code], or with [errors.As].
type Error struct {
	Code    Code
	Message string          // for people; the peer reads it
	Details json.RawMessage // any JSON value, or nil; the peer reads it
	Cause   error           // for the log on this side; never sent
	Remote  bool            // received from another server; a handler's caller gets an internal error instead
}

// Errorf returns an Error whose message is formatted. If an argument is an error
// formatted by %w, it becomes the Cause; several become one Cause that wraps them all.
// Their text stays in the message, so use that only for causes that the peer may read.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, isSeveral := err.(interface{ Unwrap() []error }); isSeveral {
		cause = err
	}
	return &Error{Code: code, Message: err.Error(), Cause: cause}
}

// Error returns the message and the code.
func (e *Error) Error() string {
	m := e.Message
	if m == "" {
		m = e.Code.Message()
	}
	text := fmt.Sprintf("arc: %s (%d)", m, int64(e.Code))
	details, err := wire.Check(e.Details)
	if err != nil {
		return text
	}
	if field, _ := details.Get("field").Text(); field != "" { // from the peer
		text += fmt.Sprintf(" at %.100q", field)
	}
	if issue, _ := details.Get("issue").Text(); issue != "" {
		text += fmt.Sprintf(": %.100q", issue)
	}
	if scopes := details.Get("required_scopes"); scopes != nil && e.Code == ErrInsufficientScope {
		text += fmt.Sprintf(": requires %.200s", scopes)
	}
	return text
}

// Is reports whether target is the code of e. [ErrInvalidRequest] also stands for
// the three codes that refine it: [ErrInvalidVersion], [ErrMissingField] and
// [ErrInvalidFieldFormat] (ARC-D06).
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	if !ok {
		return false
	}
	return c == e.Code || c == ErrInvalidRequest && e.Code <= ErrInvalidVersion && e.Code >= ErrInvalidFieldFormat
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Field returns the member that a refused request got wrong, as a path like
// initialMessage.parts[0].type, or "" if the error does not say.
func (e *Error) Field() string {
	d, err := wire.Check(e.Details)
	if err != nil {
		return ""
	}
	f, _ := d.Get("field").Text()
	return f
}

// MarshalJSON writes code, message and details (section 4).
func (e *Error) MarshalJSON() ([]byte, error) {
	if e.Details != nil {
		if _, err := wire.Check(e.Details); err != nil {
			return nil, fmt.Errorf("arc: details: %w", err)
		}
	}
	return e.append(nil), nil
}

// append appends the error, whose details are valid, as JSON.
func (e *Error) append(b []byte) []byte {
	o := wire.Open(b)
	o.Int("code", int64(e.Code))
	o.Text("message", e.Message)
	if e.Details != nil {
		o.Key("details")
		o.B = strictjson.AppendCompact(o.B, strictjson.Value(e.Details))
	}
	return o.Close()
}

// UnmarshalJSON reads the error of a response.
func (e *Error) UnmarshalJSON(b []byte) error {
	v, err := wire.Check(b)
	if err != nil {
		return err
	}
	got, ok := decodeError(v)
	if !ok {
		return errShape
	}
	*e = *got
	return nil
}

// A taskEnd is the cause of the context of a handler whose task has ended.
type taskEnd struct {
	code Code
	text string
}

// Error names the task, because other calls of the handler return the error, too.
func (e *taskEnd) Error() string { return "arc: the task of the handler " + e.text }

// Is reports whether target is the code of the end.
func (e *taskEnd) Is(target error) bool { return target == e.code }

// errorOfCall returns the error of a call to a server. If that is the end of the task of the calling handler, the code is no
// answer about the task of the call.
func errorOfCall(err error) error {
	_, isAnswer := errors.AsType[*Error](err)
	end, isEnd := errors.AsType[*taskEnd](err)
	if isEnd && !isAnswer {
		return fmt.Errorf("%v: %w", end, context.Canceled)
	}
	return err
}

// fieldError is an error that names a member of the request (ARC-D06).
func fieldError(code Code, field, issue string) *Error {
	return asError(wire.FieldFault(int64(code), field, issue))
}

// asError returns the error that a caller reads for err.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if f, ok := errors.AsType[*wire.Fault](err); ok {
		return &Error{Code: Code(f.Code), Message: cmp.Or(f.Message, Code(f.Code).Message()), Details: f.Details, Cause: f.Cause}
	}
	return &Error{Code: ErrInternal, Message: ErrInternal.Message(), Cause: err}
}

// Errors of this side. They are never sent.
var (
	// ErrClosed reports the use of a closed object.
	ErrClosed = errors.New("arc: closed")

	// ErrSlowReader reports a stream whose reader took nothing for Timing.WriteTimeout.
	ErrSlowReader = errors.New("arc: slow reader")

	// ErrTruncated reports a stream that ended before its done event. The text
	// received until then is all there is.
	ErrTruncated = fmt.Errorf("arc: truncated: %w", io.ErrUnexpectedEOF)

	// ErrMalformedEvent reports a stream event that cannot be read.
	ErrMalformedEvent = errors.New("arc: malformed stream event")

	// ErrTooLarge reports a response or a stream event over the limit.
	ErrTooLarge = errors.New("arc: too large")

	// ErrInvalidResponse reports a body that is not an ARC response.
	ErrInvalidResponse = errors.New("arc: invalid response")

	// ErrVersionMismatch reports a response of another ARC version.
	ErrVersionMismatch = errors.New("arc: response of another version")

	// ErrIDMismatch reports a response that belongs to another request.
	ErrIDMismatch = errors.New("arc: response to another request")

	// ErrInvalidResult reports a response whose result does not fit the method.
	ErrInvalidResult = errors.New("arc: invalid result")

	// ErrNotAcknowledged reports an acknowledgment that says success: false. It
	// wraps [ErrInvalidResult].
	ErrNotAcknowledged = fmt.Errorf("%w: the peer did not succeed", ErrInvalidResult)

	// ErrRedirect reports a redirect that a client must not follow (ARC-D14).
	ErrRedirect = endpoint.ErrRedirect
)

// An HTTPError is a response with an HTTP error status and without an ARC
// response in its body.
type HTTPError struct {
	Status int
	Body   string // the first 4 KiB, untrusted
}

// Error names the status only: the body is untrusted text.
func (e *HTTPError) Error() string {
	return fmt.Sprintf("arc: HTTP status %d %s", e.Status, http.StatusText(e.Status))
}
