// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Code is an error code of the specification (ALT-098). As a Code is itself
// an error, it serves as the target of [errors.Is].
type Code string

// The eight codes. No other code leaves this package (ALT-D26).
const (
	ErrToolNotFound        Code = "TOOL_NOT_FOUND"       // the tool is not registered for the session
	ErrInvalidParameters   Code = "INVALID_PARAMETERS"   // the parameters, or the message, have the wrong form
	ErrRuntimeUnavailable  Code = "RUNTIME_UNAVAILABLE"  // the Runtime is disconnected or overloaded
	ErrSessionInvalid      Code = "SESSION_INVALID"      // the session does not exist, has ended, or belongs to another caller
	ErrAuthorizationFailed Code = "AUTHORIZATION_FAILED" // the caller may not do this, or is unknown
	ErrExecutionTimeout    Code = "EXECUTION_TIMEOUT"    // the tool did not finish in time
	ErrExecutionFailed     Code = "EXECUTION_FAILED"     // the tool failed
	ErrInternal            Code = "INTERNAL_ERROR"       // something else failed in Host or Runtime
)

// Error returns the code, so that it can be the target of [errors.Is].
func (c Code) Error() string { return "altar: " + string(c) }

func (c Code) isKnown() bool {
	switch c {
	case ErrToolNotFound, ErrInvalidParameters, ErrRuntimeUnavailable, ErrSessionInvalid,
		ErrAuthorizationFailed, ErrExecutionTimeout, ErrExecutionFailed, ErrInternal:
		return true
	}
	return false
}

// A Reason refines a [Code]. On the wire it is the member reason of the details of an error. A
// Reason is an error, and a target for [errors.Is].
type Reason string

// Error returns the reason, so that it can be the target of [errors.Is].
func (r Reason) Error() string { return "altar: " + string(r) }

// The reasons: a closed list on the wire. Those of the last group are for
// contracts and manifests and never travel.
const (
	reasonMalformedJSON   Reason = "malformed_json"
	reasonNotAnObject     Reason = "not_an_object"
	reasonInvalidUnicode  Reason = "invalid_unicode"
	reasonDuplicateKey    Reason = "duplicate_key"
	reasonTooDeep         Reason = "too_deep"
	reasonMessageTooLarge Reason = "message_too_large"
	reasonMissingField    Reason = "missing_field"
	reasonWrongType       Reason = "wrong_type"
	reasonInvalidValue    Reason = "invalid_value"
	reasonUnknownType     Reason = "unknown_type"

	reasonNotAnnounced       Reason = "not_announced"
	reasonAlreadyAnnounced   Reason = "already_announced"
	reasonWrongRole          Reason = "wrong_role"
	reasonWrongDirection     Reason = "wrong_direction"
	reasonWrongTransport     Reason = "wrong_transport"
	reasonReservedRuntimeID  Reason = "reserved_runtime_id"
	reasonInvalidVersion     Reason = "invalid_version"
	reasonUnsupportedVersion Reason = "unsupported_version"
	reasonCapabilityMissing  Reason = "capability_missing"

	reasonMissingRequired  Reason = "missing_required"
	reasonUnknownParameter Reason = "unknown_parameter"
	reasonNotInteger       Reason = "not_integer"
	reasonOutOfRange       Reason = "out_of_range"
	reasonInvalidBase64    Reason = "invalid_base64"

	reasonInvocationIDReused Reason = "invocation_id_reused"
	reasonInvocationIDInUse  Reason = "invocation_id_in_use"
	reasonUnknownInvocation  Reason = "unknown_invocation"

	reasonMethodNotAllowed     Reason = "method_not_allowed"
	reasonUnsupportedMediaType Reason = "unsupported_media_type"
	reasonNotAcceptable        Reason = "not_acceptable"

	ReasonUnauthenticated   Reason = "unauthenticated"
	reasonExpired           Reason = "credentials_expired"
	ReasonReplaced          Reason = "replaced"
	reasonNotARuntime       Reason = "not_a_runtime"
	reasonRuntimeIDTaken    Reason = "runtime_id_taken"
	reasonPrincipalMismatch Reason = "principal_mismatch"
	reasonTenantMismatch    Reason = "tenant_mismatch"
	reasonClaimNotGranted   Reason = "claim_not_granted"
	ReasonQuotaExceeded     Reason = "quota_exceeded"
	ReasonDenied            Reason = "denied"
	reasonForeignNamespace  Reason = "foreign_namespace"
	reasonNotPermitted      Reason = "not_permitted"

	ReasonUnknownSession   Reason = "unknown_session"
	ReasonSessionExpired   Reason = "session_expired"
	reasonSessionDestroyed Reason = "session_destroyed"

	ReasonUnknownContract Reason = "unknown_contract"
	ReasonNotFulfilled    Reason = "not_fulfilled"

	ReasonRuntimeDown  Reason = "runtime_down"
	ReasonDisconnected Reason = "disconnected"
	ReasonOverloaded   Reason = "overloaded"

	ReasonDeadline     Reason = "deadline"
	ReasonCancelled    Reason = "cancelled"
	reasonClientGone   Reason = "client_gone"
	reasonPanic        Reason = "panic"
	reasonMissingError Reason = "missing_error"

	reasonChunkGap         Reason = "chunk_gap"
	reasonUnexpectedStream Reason = "unexpected_stream"
	reasonResultAfterChunk Reason = "result_after_chunk"
	reasonInvalidResult    Reason = "invalid_result"
	reasonSlowConsumer     Reason = "slow_consumer"
	ReasonNotRetained      Reason = "not_retained"
	reasonHookPanic        Reason = "hook_panic"
	ReasonDraining         Reason = "draining"

	reasonInvalidName          Reason = "invalid_name"
	reasonDuplicateName        Reason = "duplicate_name"
	reasonInvalidType          Reason = "invalid_type"
	reasonPropertiesNotAllowed Reason = "properties_not_allowed"
	reasonUnknownField         Reason = "unknown_field"
)

// An Error is an error of the protocol (ALT-098 to ALT-100): received from a peer, or returned by a
// hook or a tool to be sent unchanged. Local failures, such as a lost connection, are never an
// Error.
type Error struct {
	Code    Code            // one of the eight
	Message string          // for people; the peer reads it
	Details json.RawMessage // a JSON object, or nil; the peer reads it
	Cause   error           // for the log of this side; never sent

	// Remote reports that the error was received from a peer. A handler or hook that returns such
	// an error fails with INTERNAL_ERROR. To forward it, the handler returns another Error that has
	// the received one as its Cause.
	Remote bool
}

// asError returns the *Error in err, which has one or is nil.
func asError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// remote returns an error as it was received from the peer.
func remote(e *Error) *Error {
	out := *e
	out.Remote = true
	return &out
}

// Errorf returns an error with a message formatted by [fmt.Sprintf]. Its details carry
// the reason, unless it is empty.
func Errorf(code Code, reason Reason, format string, args ...any) *Error {
	e := &Error{Code: code, Message: format}
	if len(args) > 0 {
		e.Message = fmt.Sprintf(format, args...)
	}
	if reason != "" {
		e.Details = appendDetails(nil, reason, "")
	}
	return e
}

func fault(code Code, reason Reason, path, message string) *Error {
	return &Error{Code: code, Message: message, Details: appendDetails(nil, reason, path)}
}

func formFault(reason Reason, path, message string) *Error {
	return fault(ErrInvalidParameters, reason, path, message)
}

func appendDetails(dst []byte, reason Reason, path string) []byte {
	dst = append(dst, `{"reason":`...)
	dst = strictjson.AppendString(dst, string(reason))
	if path != "" {
		dst = append(dst, `,"path":`...)
		dst = strictjson.AppendString(dst, path)
	}
	return append(dst, '}')
}

// Error returns code, reason and message.
func (e *Error) Error() string {
	s := "altar: " + string(e.Code)
	if r := e.Reason(); r != "" {
		s += " (" + string(r) + ")"
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Is reports whether target is the code or the reason of e.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return t == e.Code
	case Reason:
		return t == e.Reason()
	}
	return false
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Reason returns the member reason of the details, or "".
func (e *Error) Reason() Reason { return Reason(e.StringDetail("reason")) }

// StringDetail returns a member of the details that is a string, or "".
func (e *Error) StringDetail(name string) string {
	v, err := strictjson.Check(e.Details, strictjson.Options{})
	if err != nil {
		return ""
	}
	s, _ := v.Get(name).Text()
	return s
}

// with returns a copy of e with one more member of the details, which must not
// be there yet.
func (e *Error) with(name string, value []byte) *Error {
	out := *e
	out.Details = addMember(e.Details, name, value)
	return &out
}

// addMember returns an object with a member set.
func addMember(object []byte, name string, value []byte) []byte {
	dst := []byte{'{'}
	for m := strictjson.Value(object).Members(); m.Next(); {
		if string(m.Name) == name {
			continue
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = appendText(append(append(dst, m.Key...), ':'), m.Value)
	}
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	dst = strictjson.AppendString(dst, name)
	dst = append(append(dst, ':'), value...)
	return append(dst, '}')
}

// A ContractError reports why a contract, a manifest or an imported tool definition was refused.
// Its Reason is a target for [errors.Is].
type ContractError struct {
	Reason   Reason
	Path     string // JSON Pointer to the value; empty for a defect of the JSON text
	Contract string // name of the contract, if it has one
	Line     int    // place in the text, from 1; 0 for a contract that was made in Go
	Column   int    // in code points, from 1
}

// Error includes contract, place, path and reason.
func (e *ContractError) Error() string {
	s := "altar: contract"
	if e.Contract != "" {
		s += " " + strconv.Quote(e.Contract)
	}
	if e.Line > 0 {
		s += fmt.Sprintf(": line %d, column %d", e.Line, e.Column)
	}
	if e.Path != "" {
		s += ": " + e.Path
	}
	return s + ": " + string(e.Reason)
}

// Unwrap returns the reason.
func (e *ContractError) Unwrap() error { return e.Reason }

// A ParamError is one thing that is wrong with parameters.
type ParamError struct {
	Path     string `json:"path"` // JSON Pointer, relative to the parameters
	Reason   Reason `json:"reason"`
	Expected string `json:"expected,omitzero"` // the type that the contract has at Path; empty for an unknown parameter
	Got      string `json:"got,omitzero"`      // the JSON type of the value; empty if there is none
}

// text returns path, reason and types, such as
// "/n wrong_type (expected integer, got string)".
func (f ParamError) text() string {
	s := f.Path + " " + string(f.Reason)
	switch {
	case f.Expected == "":
		return s
	case f.Got == "":
		return s + " (expected " + f.Expected + ")"
	}
	return s + " (expected " + f.Expected + ", got " + f.Got + ")"
}

// paramsError returns the error of parameters. Its text has every entry, so that a caller that
// reads nothing else can repair all of them (ALT-D13).
func paramsError(faults []ParamError) *Error {
	list, err := guard.Encode(faults)
	if err != nil {
		return formFault(faults[0].Reason, faults[0].Path, faults[0].text()) // not reached
	}
	text := make([]string, len(faults))
	for i, f := range faults {
		text[i] = f.text()
	}
	e := formFault(faults[0].Reason, faults[0].Path, strings.Join(text, "; "))
	return e.with("errors", list)
}

// ParamErrors returns all that is wrong with the parameters of a call, as the Host or the Runtime
// found it.
func (e *Error) ParamErrors() []ParamError {
	v, err := strictjson.Check(e.Details, strictjson.Options{})
	if err != nil {
		return nil
	}
	var out []ParamError
	for el := v.Get("errors").Elements(); el.Next(); {
		var f ParamError
		f.Path, _ = el.Value.Get("path").Text()
		reason, _ := el.Value.Get("reason").Text()
		f.Reason = Reason(reason)
		f.Expected, _ = el.Value.Get("expected").Text()
		f.Got, _ = el.Value.Get("got").Text()
		out = append(out, f)
	}
	return slices.Clip(out)
}
