// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Code names a kind of failure. As a Code is itself an error, it serves as the
// target of [errors.Is]. What goes over the wire is a status and an error
// string; the code is this package's finer word for it.
type Code string

// Codes of envelopes that are refused, in the order of the checks.
const (
	ErrTooLarge              Code = "too_large"               // longer than the limit
	ErrInvalidJSON           Code = "invalid_json"            // no JSON, bad UTF-8, lone surrogates, nested too deep
	ErrDuplicateKey          Code = "duplicate_key"           // a member name stands twice in an object
	ErrFloatForbidden        Code = "float_forbidden"         // a number with a point or an exponent
	ErrNullForbidden         Code = "null_forbidden"          // a null where the profile allows none
	ErrEmptyArray            Code = "empty_array"             // an empty array in the body
	ErrInvalidEnvelope       Code = "invalid_envelope"        // a field is missing or has the wrong form
	ErrUnsupportedBody       Code = "unsupported_body"        // a body type that nobody registered
	ErrWrongRecipient        Code = "wrong_recipient"         // addressed to another agent
	ErrBadSignature          Code = "bad_signature"           // the signature is missing, undecodable or wrong
	ErrNotFound              Code = "not_found"               // the agent is unknown, or its key entry is missing
	ErrBadKey                Code = "bad_key"                 // a public key that is none
	ErrBadGateway            Code = "bad_gateway"             // the registry is out of reach
	ErrStaleTimestamp        Code = "stale_timestamp"         // outside the clock window
	ErrReplay                Code = "replay"                  // seen before
	ErrReplayWindowExhausted Code = "replay_window_exhausted" // no room to remember another nonce of the thread
	ErrStaleKey              Code = "stale_key"               // sealed to a retired key
	ErrDecryptFailed         Code = "decrypt_failed"          // the box does not open
	ErrThreadClosed          Code = "thread_closed"           // the negotiation has ended
	ErrConflict              Code = "conflict"                // a crossing, superseded or misplaced message
	ErrNotYourMove           Code = "not_your_move"           // the other party has to act
	ErrPriceMismatch         Code = "price_mismatch"          // the accepted price is not the outstanding one
	ErrUnknownMessage        Code = "unknown_message"         // withdraws something that is no message of the thread
)

// Codes of relays and of deliveries.
const (
	ErrUnauthorized   Code = "unauthorized"    // the secret is missing or wrong
	ErrRateLimited    Code = "rate_limited"    // too many requests
	ErrRelay          Code = "relay_error"     // the relay or the inbox failed
	ErrBadRequest     Code = "bad_request"     // the peer refused the envelope with 400
	ErrForbidden      Code = "forbidden"       // 403 for another reason than a stale key
	ErrHTTP           Code = "http_error"      // any other status
	ErrDeliveryFailed Code = "delivery_failed" // all attempts were used up
	ErrResolveFailed  Code = "resolve_failed"  // the recipient's document could not be had
)

// Codes that never go over the wire.
const (
	ErrBadAAD            Code = "bad_aad"             // a field that a box is bound to is empty or holds a NUL
	ErrBadAIRID          Code = "bad_air_id"          // not of the form AIR-XXXX-XXXX-XXXX
	ErrBadDID            Code = "bad_did"             // not a DID of an agent
	ErrBadEndpoint       Code = "bad_endpoint"        // an inbox address that must not be used
	ErrUnreachable       Code = "unreachable"         // the agent has no inbox
	ErrBadDocument       Code = "bad_document"        // a DID document that cannot be read
	ErrAlreadySigned     Code = "already_signed"      // the envelope carries a signature
	ErrAmbiguousKeyOrder Code = "ambiguous_key_order" // implementations would sort the names differently
	ErrBadServiceType    Code = "bad_service_type"    // an empty service type
)

// Error makes a Code an error.
func (c Code) Error() string { return "air: " + string(c) }

func (c Code) err(detail string) *Error { return &Error{Code: c, Message: detail} }

func (c Code) because(detail string, cause error) *Error {
	return &Error{Code: c, Message: detail, Cause: cause}
}

// An Error is a failure in the terms of the protocol: what an inbox or a relay
// answers, what a peer answered, or why something was not sent at all. It is
// tested with [errors.Is] and a [Code].
type Error struct {
	Code     Code
	Message  string // for people; the peer reads it, so it holds no internals
	AIRID    string // beside a stale key
	ThreadID string // beside an exhausted replay window
	Cause    error  // for the log on this side; never sent

	RemoteStatus int           // the HTTP status a peer answered with; zero if there was none
	Attempts     int           // how often a delivery was tried
	RetryAfter   time.Duration // the delay a peer or a limiter asked for
	Envelope     []byte        // the signed envelope of a failed delivery, to be sent later
}

// Error names the code and the detail.
func (e *Error) Error() string {
	text := "air: " + string(e.Code)
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Is reports whether target is the code of e.
func (e *Error) Is(target error) bool { return target == e.Code }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// HTTPStatus returns the HTTP status that says this error on the wire.
func (e *Error) HTTPStatus() int { s, _ := e.Code.wire(); return s }

// wire returns how a code is told to a peer (9.1, 9.2, section f). What only
// concerns this side is an internal failure to everybody else.
func (c Code) wire() (status int, text string) {
	switch c {
	case ErrInvalidJSON, ErrDuplicateKey, ErrFloatForbidden, ErrNullForbidden, ErrEmptyArray, ErrInvalidEnvelope,
		ErrUnsupportedBody, ErrWrongRecipient, ErrDecryptFailed, ErrNotYourMove, ErrPriceMismatch, ErrUnknownMessage,
		ErrBadRequest:
		return http.StatusBadRequest, "Bad Request"
	case ErrTooLarge:
		return http.StatusRequestEntityTooLarge, "Bad Request" // AIR-D67
	case errMethodCode:
		return http.StatusMethodNotAllowed, "Bad Request"
	case ErrBadSignature:
		return http.StatusUnauthorized, "Bad Signature"
	case ErrUnauthorized:
		return http.StatusUnauthorized, "Unauthorized"
	case ErrStaleKey:
		return http.StatusForbidden, "Stale Key"
	case ErrForbidden:
		return http.StatusForbidden, "Forbidden"
	case ErrNotFound, ErrBadKey:
		return http.StatusNotFound, "Not Found"
	case ErrStaleTimestamp:
		return http.StatusConflict, "Stale Timestamp"
	case ErrReplay:
		return http.StatusConflict, "Replay"
	case ErrThreadClosed:
		return http.StatusConflict, "Thread Closed"
	case ErrConflict:
		return http.StatusConflict, "Conflict" // AIR-D55
	case ErrReplayWindowExhausted:
		return http.StatusTooManyRequests, "Replay Window Exhausted"
	case ErrRateLimited:
		return http.StatusTooManyRequests, "Rate Limited"
	case ErrBadGateway, ErrBadDocument:
		return http.StatusBadGateway, "Bad Gateway"
	}
	return http.StatusInternalServerError, "Relay Error"
}

// HTTPBody returns the error body of 9.3. Stale keys and exhausted windows have
// exactly the two members that 9.2 gives them; internal failures tell nothing.
func (e *Error) HTTPBody() []byte {
	status, text := e.Code.wire()
	b := strictjson.AppendString([]byte(`{"error":`), text)
	add := func(name, value string) {
		if value == "" {
			return
		}
		b = append(b, ',', '"')
		b = append(b, name...)
		b = append(b, '"', ':')
		b = strictjson.AppendString(b, value)
	}
	switch {
	case e.Code == ErrStaleKey:
		add("air_id", e.AIRID)
	case e.Code == ErrReplayWindowExhausted:
		add("thread_id", e.ThreadID)
	default:
		if status != http.StatusInternalServerError || e.Code == ErrRelay {
			add("detail", e.Message)
		}
		add("air_id", e.AIRID)
		add("thread_id", e.ThreadID)
	}
	return append(b, '}')
}
