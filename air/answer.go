// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxAttempts is how often a delivery is tried (7.4).
const maxAttempts = 5

// An action is what a sender does after an answer.
type action string

// The actions, as the table of deliveries has them (section e).
const (
	actionDelivered action = "delivered" // nothing more to do
	actionRetry     action = "retry"     // the same again after a delay
	actionRefresh   action = "refresh"   // forget the recipient's document and try once more
	actionFail      action = "fail"      // tell the caller
)

// A verdict is what a relay's or a recipient's answer to a pushed envelope means.
type verdict struct {
	Code     Code // "" if the answer was a success
	Action   action
	Detail   string
	AIRID    string // members of the error body
	ThreadID string

	// RetryAfter is the delay that the answer asks for; HasRetryAfter tells whether
	// it asks at all.
	RetryAfter    time.Duration
	HasRetryAfter bool
}

// Judge reads an answer. The attempt counts from 1; now serves to read a
// Retry-After that is a date. The limits of the caller (how long it waits, how
// often it refreshes) are not looked at.
func Judge(status int, header http.Header, body []byte, attempt int, now time.Time) verdict {
	var v verdict
	var text string
	doc, err := strictjson.Check(body, strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		doc = nil // a body that is not JSON counts as empty
	}
	if doc.IsObject() {
		text, _ = doc.Get("error").Text()
		v.Detail, _ = doc.Get("detail").Text()
		v.AIRID, _ = doc.Get("air_id").Text()
		v.ThreadID, _ = doc.Get("thread_id").Text()
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
		v.Action = actionDelivered // the attempt before had arrived (AIR-D46)
	case transient && attempt < maxAttempts:
		v.Action = actionRetry
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			v.RetryAfter, v.HasRetryAfter = retryAfter(header, doc, now)
		}
	default:
		v.Action = actionFail
	}
	return v
}

func judgeStatus(status int, text string) (code Code, transient bool) {
	switch status {
	case http.StatusBadRequest:
		return ErrBadRequest, false
	case http.StatusUnauthorized:
		if text == "Bad Signature" {
			return ErrBadSignature, false
		}
		return ErrUnauthorized, false
	case http.StatusForbidden:
		if text == "Stale Key" {
			return ErrStaleKey, false
		}
		return ErrForbidden, false
	case http.StatusNotFound:
		return ErrNotFound, false
	case http.StatusConflict:
		switch text {
		case "Replay", "duplicate_envelope":
			return ErrReplay, false
		case "Stale Timestamp":
			return ErrStaleTimestamp, false
		case "Thread Closed":
			return ErrThreadClosed, false
		}
		return ErrConflict, false
	case http.StatusRequestEntityTooLarge:
		return ErrTooLarge, false
	case http.StatusTooManyRequests:
		if text == "Replay Window Exhausted" {
			return ErrReplayWindowExhausted, false
		}
		return ErrRateLimited, true
	case http.StatusInternalServerError:
		return ErrRelay, true
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return ErrBadGateway, true
	}
	return ErrHTTP, false
}

// retryAfter reads the delay: whole seconds or a date in the header, else the
// member that the deployed relay sends instead of it (AIR-D45).
func retryAfter(header http.Header, body strictjson.Value, now time.Time) (time.Duration, bool) {
	if h := header.Get("Retry-After"); h != "" {
		if all(h, func(c byte) bool { return c-'0' < 10 }) {
			return seconds(h), true
		}
		if at, err := http.ParseTime(h); err == nil {
			return max(0, at.Sub(now)), true
		}
	}
	if v := body.Get("retry_after_seconds"); v.Kind() == '0' {
		if n, ok := v.Int(); ok && n >= 0 {
			return seconds(strconv.FormatInt(n, 10)), true
		}
	}
	return 0, false
}

// seconds returns so many seconds, or the longest duration if they do not fit.
func seconds(digits string) time.Duration {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}
