// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"fmt"
	"strings"
)

// A Code is an error code of the draft, such as E1001. As a Code is itself an
// error, it serves as the target of [errors.Is].
type Code string

// The codes of the draft (ACCP-049 to ACCP-064).
const (
	ErrParse           Code = "E1001" // the frame breaks the grammar or a limit of it, or lacks what it must have
	ErrInvalidIntent   Code = "E1002" // the intent is unknown, or nobody handles it
	ErrUnknownSchema   Code = "E1003" // the schema code is not registered
	ErrInvalidType     Code = "E1004" // a value has the wrong type or form
	ErrRefNotFound     Code = "E2001" // a reference leads nowhere
	ErrRefExpired      Code = "E2002" // a reference leads to an entry whose time is over
	ErrBudgetExceeded  Code = "E2003" // the message cannot be made to fit its token limits
	ErrTimeout         Code = "E3001" // no answer came in time; retryable
	ErrDuplicate       Code = "E3002" // the msg_id was seen before
	ErrSequenceGap     Code = "E3003" // the sequence number is not the next one; retryable
	ErrToolNotFound    Code = "E4001" // no tool has this name
	ErrToolExecFailed  Code = "E4002" // the tool failed; retryable
	ErrToolSchema      Code = "E4003" // the arguments do not fit the tool
	ErrPolicyDenied    Code = "E5001" // policy forbids it
	ErrUnauthorizedRef Code = "E5002" // a reference to another session without authorization
	ErrInternal        Code = "E9999" // an error inside this side; retryable
)

// Error returns the code and its name.
func (c Code) Error() string {
	if i := c.Info(); i.Known {
		return "accp: " + string(c) + " " + i.Name
	}
	return "accp: code " + string(c)
}

// A CodeInfo says what is known about a [Code].
type CodeInfo struct {
	Code      Code
	Name      string // as in the draft, such as PARSE_ERROR; empty if unknown
	Category  string // parse, state, delivery, tool, policy, internal or unknown
	Retryable bool   // false if unknown
	Known     bool
}

// Info returns what the draft says about c. A code that the draft does not have
// keeps the category of its family (ACCP-048).
func (c Code) Info() CodeInfo {
	i := CodeInfo{Code: c, Category: "unknown", Known: true}
	switch c {
	case ErrParse:
		i.Name = "PARSE_ERROR"
	case ErrInvalidIntent:
		i.Name = "INVALID_INTENT"
	case ErrUnknownSchema:
		i.Name = "UNKNOWN_SCHEMA"
	case ErrInvalidType:
		i.Name = "INVALID_TYPE"
	case ErrRefNotFound:
		i.Name = "REF_NOT_FOUND"
	case ErrRefExpired:
		i.Name = "REF_EXPIRED"
	case ErrBudgetExceeded:
		i.Name = "BUDGET_EXCEEDED"
	case ErrTimeout:
		i.Name, i.Retryable = "TIMEOUT", true
	case ErrDuplicate:
		i.Name = "DUPLICATE"
	case ErrSequenceGap:
		i.Name, i.Retryable = "SEQUENCE_GAP", true
	case ErrToolNotFound:
		i.Name = "TOOL_NOT_FOUND"
	case ErrToolExecFailed:
		i.Name, i.Retryable = "TOOL_EXEC_FAILED", true
	case ErrToolSchema:
		i.Name = "TOOL_SCHEMA_MISMATCH"
	case ErrPolicyDenied:
		i.Name = "POLICY_DENIED"
	case ErrUnauthorizedRef:
		i.Name = "UNAUTHORIZED_REF"
	case ErrInternal:
		i.Name, i.Retryable = "INTERNAL_ERROR", true
	default:
		i.Known = false
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

// An Error is a failure in the protocol's own terms: one that this package
// found, one that a handler returns to be sent to the peer, or one that the peer
// sent. Only the code goes on the wire, and Message if the server is told to
// send details; all else stays on this side (ACCP-D52).
type Error struct {
	Code      Code
	Offset    int    // byte offset in the frame where it was found, if Located
	HasOffset bool   // whether Offset means something
	Message   string // what is wrong, for logs; from a peer: its message
	Remote    bool   // it came from the peer in an error frame
	Cause     error  // for the log on this side; never sent
}

// Error names the code, what is wrong, and where.
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

func fail(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

func errNoMessage() error { return fail(ErrInvalidType, "no message") }

func failAt(c Code, offset int, message string) *Error {
	return &Error{Code: c, Offset: offset, HasOffset: true, Message: message}
}
