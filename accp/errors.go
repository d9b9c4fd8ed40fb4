// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Code is an error code of the draft, such as E1001. A Code is an error, for use as the target of
// [errors.Is].
type Code string

// The codes of the draft.
const (
	ErrParse           Code = "E1001" // the frame violates the grammar or a limit, or lacks a required field
	ErrInvalidIntent   Code = "E1002" // the intent is unknown, or has no handler
	ErrUnknownSchema   Code = "E1003" // the schema code is not registered
	ErrInvalidType     Code = "E1004" // a value has the wrong type or form
	ErrRefNotFound     Code = "E2001" // the entry of a reference does not exist
	ErrRefExpired      Code = "E2002" // the entry of a reference has expired
	ErrBudgetExceeded  Code = "E2003" // the message exceeds its token limits
	ErrTimeout         Code = "E3001" // no answer arrived in time; retryable
	ErrDuplicate       Code = "E3002" // the message id is a repetition
	ErrSequenceGap     Code = "E3003" // the sequence number is not the next one; retryable
	ErrToolNotFound    Code = "E4001" // no tool has this name
	ErrToolExecFailed  Code = "E4002" // the tool failed; retryable
	ErrToolSchema      Code = "E4003" // the arguments do not fit the tool
	ErrPolicyDenied    Code = "E5001" // policy forbids it
	ErrUnauthorizedRef Code = "E5002" // a reference to another session without permission
	ErrInternal        Code = "E9999" // an error inside this side; retryable
)

// Error returns the code and its name.
func (c Code) Error() string {
	if i := c.Info(); i.Known {
		return "accp: " + string(c) + " " + i.Name
	}
	return "accp: code " + string(c)
}

// A CodeInfo describes a [Code].
type CodeInfo struct {
	Code      Code
	Name      string // as in the draft, such as PARSE_ERROR; empty if unknown
	Category  string // parse, state, delivery, tool, policy, internal or unknown
	Retryable bool   // false if unknown
	Known     bool
}

// codes has the codes of the draft.
var codes = [...]struct {
	code        Code
	name        string
	isRetryable bool
}{
	{ErrParse, "PARSE_ERROR", false},
	{ErrInvalidIntent, "INVALID_INTENT", false},
	{ErrUnknownSchema, "UNKNOWN_SCHEMA", false},
	{ErrInvalidType, "INVALID_TYPE", false},
	{ErrRefNotFound, "REF_NOT_FOUND", false},
	{ErrRefExpired, "REF_EXPIRED", false},
	{ErrBudgetExceeded, "BUDGET_EXCEEDED", false},
	{ErrTimeout, "TIMEOUT", true},
	{ErrDuplicate, "DUPLICATE", false},
	{ErrSequenceGap, "SEQUENCE_GAP", true},
	{ErrToolNotFound, "TOOL_NOT_FOUND", false},
	{ErrToolExecFailed, "TOOL_EXEC_FAILED", true},
	{ErrToolSchema, "TOOL_SCHEMA_MISMATCH", false},
	{ErrPolicyDenied, "POLICY_DENIED", false},
	{ErrUnauthorizedRef, "UNAUTHORIZED_REF", false},
	{ErrInternal, "INTERNAL_ERROR", true},
}

// Info returns the description of c in the draft. An unknown code has the category of its family.
func (c Code) Info() CodeInfo {
	i := CodeInfo{Code: c, Category: "unknown"}
	for _, x := range codes {
		if x.code == c {
			i.Name, i.Retryable, i.Known = x.name, x.isRetryable, true
		}
	}
	if validCode(string(c)) {
		switch c[1] {
		case '1':
			i.Category = "parse"
		case '2':
			i.Category = "state"
		case '3':
			i.Category = "delivery"
		case '4':
			i.Category = "tool"
		case '5':
			i.Category = "policy"
		case '9':
			i.Category = "internal"
		}
	}
	return i
}

// validCode reports whether s has the form of a code, E and four digits.
func validCode(s string) bool {
	if len(s) != 5 || s[0] != 'E' {
		return false
	}
	for i := 1; i < 5; i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// Failures of this side, which have no code of the draft.
var (
	ErrCancelled   = errors.New("accp: the chain was cancelled") // by either side
	ErrClosed      = errors.New("accp: closed")                  // use after Close or Shutdown
	ErrTooLarge    = errors.New("accp: too large")               // a frame exceeds the limit of the peer
	ErrTruncated   = errors.New("accp: truncated")               // a stream or an answer ended early
	ErrSlowReader  = errors.New("accp: slow reader")             // answers arrived faster than they were read
	ErrUnreachable = errors.New("accp: unreachable")             // no connection, or the peer has no room
)

// An Error is a failure in terms of the protocol: detected by this package, returned by a handler,
// or received from the peer. Error frames carry the code alone; the other fields are local
// (ACCP-D52).
type Error struct {
	Code      Code
	Offset    int    // byte offset in the frame, if HasOffset
	HasOffset bool   // Offset is valid
	Message   string // description for logs; if Remote, the message of the peer
	Details   Params // if Remote, the other params of the error frame
	Remote    bool   // received from the peer in an error frame
	Cause     error  // for the local log; never sent

	isInvitation bool // the peer answers a repetition by the outcome (ACCP-D72)
	isReplay     bool // this side has received the frame before
	isApplied    bool // the peer has applied the change of the repeated frame (ACCP-D46)
}

// Error returns the code, the message and the offset.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("accp: ")
	if e.Remote {
		b.WriteString("peer answered ")
	}
	b.WriteString(string(e.Code))
	if n := e.Code.Info().Name; n != "" {
		b.WriteString(" " + n)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.HasOffset {
		fmt.Fprintf(&b, " at byte %d", e.Offset)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Is reports whether target is the code of e.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf returns an error with a code and a formatted message.
func Errorf(code Code, format string, args ...any) *Error { return fail(code, format, args...) }

func fail(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// quoted returns a name for an error, at most 80 bytes of it.
func quoted[T ~string | ~[]byte](name T) string {
	return strconv.Quote(string(name[:min(len(name), 80)]))
}

func errNoMessage() error { return fail(ErrInvalidType, "no message") }

func failAt(c Code, offset int, message string) *Error {
	return &Error{Code: c, Offset: offset, HasOffset: true, Message: message}
}
