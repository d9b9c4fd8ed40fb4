// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Code is a kind of failure. A Code is an error and serves as the target of [errors.Is]. The wire
// has an HTTP status and an error string; several codes can share them.
type Code string

// Codes of envelopes that are refused, in the order of the checks.
const (
	ErrTooLarge              Code = "too_large"               // longer than the limit
	ErrInvalidJSON           Code = "invalid_json"            // invalid JSON or UTF-8, lone surrogates, or nested too deep
	ErrDuplicateKey          Code = "duplicate_key"           // an object has a member name twice
	ErrFloatForbidden        Code = "float_forbidden"         // a number with a point or an exponent
	ErrNullForbidden         Code = "null_forbidden"          // a null where the profile allows none
	ErrEmptyArray            Code = "empty_array"             // an empty array in the body
	ErrInvalidEnvelope       Code = "invalid_envelope"        // a field is missing or has the wrong form
	ErrUnsupportedBody       Code = "unsupported_body"        // a body type that is not registered
	ErrWrongRecipient        Code = "wrong_recipient"         // addressed to another agent
	ErrBadSignature          Code = "bad_signature"           // the signature is missing, undecodable or wrong
	ErrNotFound              Code = "not_found"               // the agent is unknown, or its key entry is missing
	ErrBadKey                Code = "bad_key"                 // not a valid public key
	ErrBadGateway            Code = "bad_gateway"             // the registry is unreachable
	ErrUntrustedKey          Code = "untrusted_key"           // the key policy refuses the sender's key
	ErrStaleTimestamp        Code = "stale_timestamp"         // outside the clock window
	ErrReplay                Code = "replay"                  // seen before
	ErrReplayWindowExhausted Code = "replay_window_exhausted" // no room to remember another nonce of the thread
	ErrStaleKey              Code = "stale_key"               // sealed to a retired key
	ErrDecryptFailed         Code = "decrypt_failed"          // the box does not open
	ErrThreadClosed          Code = "thread_closed"           // the negotiation has ended
	ErrConflict              Code = "conflict"                // a crossing, superseded or misplaced message
	ErrNotYourMove           Code = "not_your_move"           // the other party has to act
	ErrPriceMismatch         Code = "price_mismatch"          // the accepted price is not the outstanding one
	ErrUnknownMessage        Code = "unknown_message"         // the withdrawn id is not a move of the thread
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
	ErrResolveFailed  Code = "resolve_failed"  // the recipient's document could not be fetched
)

// Codes that never go over the wire.
const (
	errBadAAD            Code = "bad_aad"             // a field that a box is bound to is empty or holds a NUL
	ErrBadAIRID          Code = "bad_air_id"          // not of the form AIR-XXXX-XXXX-XXXX
	ErrBadDID            Code = "bad_did"             // not a DID of an agent
	ErrBadEndpoint       Code = "bad_endpoint"        // an inbox address that must not be used
	ErrUnreachable       Code = "unreachable"         // the agent has no inbox
	ErrBadDocument       Code = "bad_document"        // a DID document that cannot be read
	ErrAlreadySigned     Code = "already_signed"      // the envelope carries a signature
	ErrAmbiguousKeyOrder Code = "ambiguous_key_order" // implementations would sort the names differently
	ErrHandlerFailed     Code = "handler_failed"      // the handler failed too often
	ErrOutboxFull        Code = "outbox_full"         // the outbox has no room for a message
	ErrExpired           Code = "expired"             // an Offer or a message expired before it was delivered
)

// Error makes a Code an error.
func (c Code) Error() string { return "air: " + string(c) }

func (c Code) err(detail string) *Error { return &Error{Code: c, Message: detail} }

func (c Code) because(detail string, cause error) *Error {
	return &Error{Code: c, Message: detail, Cause: cause}
}

// Errors that no peer reports.
var (
	ErrClosed    = errors.New("air: closed")
	ErrTruncated = errors.New("air: truncated") // a response that ended early
)

// Errorf returns an [*Error] with a code and a message, which is sent to the peer.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// An Error is a failure of the protocol: the response of an inbox or a relay, a refusal by a peer,
// or the reason why a message was not sent. Test it with [errors.Is] and a [Code].
type Error struct {
	Code    Code
	Message string // sent to the peer; has no internals

	// Details is any JSON value, or nil; the peer reads it. It is not sent with a stale key, an
	// exhausted replay window, and internal failures.
	Details json.RawMessage

	AIRID    string // set with a stale key
	ThreadID string // set with an exhausted replay window
	Cause    error  // for the log on this side; never sent

	Remote       bool          // a peer sent the error; a handler that returns it does not answer with it
	RemoteStatus int           // the HTTP status a peer answered with; zero if there was none
	Attempts     int           // number of attempts of a delivery
	RetryAfter   time.Duration // delay requested by a peer or a limiter
	Envelope     []byte        // the signed envelope of a failed delivery, to be sent later

	isBadRequest bool // its status is 400 whatever the code
}

// asError returns the first [*Error] in the chain of err, or else an [ErrRelay] with err as its cause.
func asError(err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = ErrRelay.because("", err)
	}
	return e
}

// Error returns the code, the message and the cause.
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

// Is reports whether target is the code of e, or [ErrTruncated] and its cause is an early end.
func (e *Error) Is(target error) bool {
	return target == e.Code || target == ErrTruncated && errors.Is(e.Cause, io.ErrUnexpectedEOF)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// HTTPStatus returns the HTTP status of this error on the wire.
func (e *Error) HTTPStatus() int { s, _ := e.wire(); return s }

func (e *Error) wire() (status int, text string) {
	if e.isBadRequest {
		return ErrBadRequest.wire()
	}
	return e.Code.wire()
}

// wire returns the status and the error string of a code (9.1, 9.2, section f). Codes of local
// failures are sent as an internal failure.
func (c Code) wire() (status int, text string) {
	if w, ok := wireForms[c]; ok {
		return w.status, w.text
	}
	return http.StatusInternalServerError, "Relay Error"
}

// A wireForm is the status and the error string of an answer (9.1, 9.2).
type wireForm struct {
	status int
	text   string
}

var badRequest = wireForm{http.StatusBadRequest, "Bad Request"}

// wireForms are the forms of all codes that are not a failure of the relay.
var wireForms = map[Code]wireForm{
	ErrInvalidJSON: badRequest, ErrDuplicateKey: badRequest, ErrFloatForbidden: badRequest, ErrNullForbidden: badRequest,
	ErrEmptyArray: badRequest, ErrInvalidEnvelope: badRequest, ErrUnsupportedBody: badRequest, ErrWrongRecipient: badRequest,
	ErrDecryptFailed: badRequest, ErrNotYourMove: badRequest, ErrPriceMismatch: badRequest, ErrUnknownMessage: badRequest,
	ErrBadRequest:            badRequest,
	ErrTooLarge:              {http.StatusRequestEntityTooLarge, "Bad Request"}, // AIR-D67
	errMethodCode:            {http.StatusMethodNotAllowed, "Bad Request"},
	ErrBadSignature:          {http.StatusUnauthorized, "Bad Signature"},
	ErrUntrustedKey:          {http.StatusUnauthorized, "Bad Signature"},
	ErrUnauthorized:          {http.StatusUnauthorized, "Unauthorized"},
	ErrStaleKey:              {http.StatusForbidden, "Stale Key"},
	ErrForbidden:             {http.StatusForbidden, "Forbidden"},
	ErrNotFound:              {http.StatusNotFound, "Not Found"},
	ErrBadKey:                {http.StatusNotFound, "Not Found"},
	ErrStaleTimestamp:        {http.StatusConflict, "Stale Timestamp"},
	ErrReplay:                {http.StatusConflict, "Replay"},
	ErrThreadClosed:          {http.StatusConflict, "Thread Closed"},
	ErrConflict:              {http.StatusConflict, "Conflict"}, // AIR-D55
	ErrReplayWindowExhausted: {http.StatusTooManyRequests, "Replay Window Exhausted"},
	ErrRateLimited:           {http.StatusTooManyRequests, "Rate Limited"},
	ErrBadGateway:            {http.StatusBadGateway, "Bad Gateway"},
	ErrBadDocument:           {http.StatusBadGateway, "Bad Gateway"},
}

// HTTPBody returns the error body of 9.3, with Details as the member details. Stale keys and exhausted windows have exactly the two
// members of 9.2. Internal failures have no details.
func (e *Error) HTTPBody() []byte {
	status, text := e.wire()
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
	case e.Code == ErrReplayWindowExhausted && !e.isBadRequest:
		add("thread_id", e.ThreadID)
	default:
		if status != http.StatusInternalServerError || e.Code == ErrRelay {
			add("detail", e.Message)
		}
		add("air_id", e.AIRID)
		add("thread_id", e.ThreadID)
		_, err := strictjson.Check(e.Details, strictjson.Options{})
		if err == nil && status != http.StatusInternalServerError {
			b = append(append(b, `,"details":`...), e.Details...)
		}
	}
	return append(b, '}')
}
