// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air/internal/canon"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// defaultAttempts is the default maximum number of attempts of a delivery (7.4).
const defaultAttempts = 5

// An action is the next step of a sender after a response.
type action string

// The actions of the table of deliveries (section e).
const (
	actionDelivered action = "delivered" // nothing more to do
	actionRetry     action = "retry"     // send the same bytes after a delay
	actionRefresh   action = "refresh"   // drop the recipient's document and retry once
	actionFail      action = "fail"      // return the error to the caller
)

// A verdict is the meaning of a response to a pushed envelope.
type verdict struct {
	Code     Code // "" for a success
	Action   action
	Detail   string
	AIRID    string // members of the error body
	ThreadID string
	Details  strictjson.Value

	// RetryAfter is the delay that the response requests. HasRetryAfter reports whether it has one.
	RetryAfter    time.Duration
	HasRetryAfter bool
}

// classifyResponse classifies a response to a push. The first attempt is 1; now resolves a Retry-After date.
// The limits of the caller on delays and refreshes are not applied.
func classifyResponse(status int, header http.Header, body []byte, attempt, maxAttempts int, now time.Time) verdict {
	var v verdict
	var text string
	doc, err := strictjson.Check(body, strictjson.Options{MaxDepth: canon.MaxDepth})
	if err != nil {
		doc = nil // a body that is not JSON counts as empty
	}
	if doc.IsObject() {
		text, _ = doc.Get("error").Text()
		v.Detail, _ = doc.Get("detail").Text()
		v.AIRID, _ = doc.Get("air_id").Text()
		v.ThreadID, _ = doc.Get("thread_id").Text()
		v.Details = doc.Get("details")
	}
	if status >= 200 && status <= 299 {
		v.Action = actionDelivered
		return v
	}
	transient := false
	v.Code, transient = judgeStatus(status, text)
	switch {
	case v.Code == ErrStaleKey:
		v.Action = actionRefresh
	case v.Code == ErrReplay && attempt >= 2:
		v.Action = actionDelivered // an earlier attempt arrived (AIR-D46)
	case transient && attempt < maxAttempts:
		v.Action = actionRetry
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			v.RetryAfter, v.HasRetryAfter = exchange.RetryAfter(header, doc, now)
		}
	default:
		v.Action = actionFail
	}
	return v
}

func judgeStatus(status int, text string) (code Code, transient bool) {
	if c, ok := answerCodes[answerForm{status, text}]; ok {
		return c, false
	}
	switch status {
	case http.StatusTooManyRequests:
		return ErrRateLimited, true
	case http.StatusInternalServerError:
		return ErrRelay, true
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return ErrBadGateway, true
	}
	return cmp.Or(answerCodes[answerForm{status: status}], ErrHTTP), false
}

type answerForm struct {
	status int
	text   string
}

// answerCodes are the codes of permanent refusals. An empty text is any other one.
var answerCodes = map[answerForm]Code{
	{http.StatusBadRequest, ""}:                             ErrBadRequest,
	{http.StatusUnauthorized, ""}:                           ErrUnauthorized,
	{http.StatusUnauthorized, "Bad Signature"}:              ErrBadSignature,
	{http.StatusForbidden, ""}:                              ErrForbidden,
	{http.StatusForbidden, "Stale Key"}:                     ErrStaleKey,
	{http.StatusNotFound, ""}:                               ErrNotFound,
	{http.StatusConflict, ""}:                               ErrConflict,
	{http.StatusConflict, "Replay"}:                         ErrReplay,
	{http.StatusConflict, "duplicate_envelope"}:             ErrReplay,
	{http.StatusConflict, "Stale Timestamp"}:                ErrStaleTimestamp,
	{http.StatusConflict, "Thread Closed"}:                  ErrThreadClosed,
	{http.StatusRequestEntityTooLarge, ""}:                  ErrTooLarge,
	{http.StatusTooManyRequests, "Replay Window Exhausted"}: ErrReplayWindowExhausted,
}
