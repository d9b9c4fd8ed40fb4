// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package server has what an inbox and a relay share: the admission of requests, and answers.
package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/internal/httpx"
)

// MaxMessage is the default bound of an envelope in bytes (AIR-D09).
const MaxMessage = 65536

// CodeMethod is the code of a method that is not allowed (AIR-D67).
const CodeMethod = "method_not_allowed"

// writeTimeout bounds the time in which a caller takes 64 KiB of a response.
const writeTimeout = 30 * time.Second

// CheckHeaders refuses a request with an ambiguous header. The message is for the peer.
func CheckHeaders(r *http.Request) (message string, ok bool) {
	_, err := httpx.CheckRequest(r, nil, exchange.SecretHeader, exchange.VersionHeader)
	var he *httpx.Error
	if errors.As(err, &he) {
		return he.Message, false
	}
	return "", err == nil
}

// A BodyError is a body that was not read. Code and Message are for the peer.
type BodyError struct {
	Code, Message string
	Cause         error
}

// ReadBody reads the body of a request, at most limit bytes, which arrives within the timeout.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int, timeout time.Duration) ([]byte, *BodyError) {
	data, err := httpx.Body(w, r, int64(limit), timeout)
	var he *httpx.Error
	switch {
	case err == nil:
		return data, nil
	case errors.As(err, &he) && he.Status == http.StatusRequestEntityTooLarge:
		return nil, &BodyError{Code: "too_large", Message: "the envelope is too large"}
	}
	return nil, &BodyError{"invalid_json", "the request could not be read", err}
}

// JSONContent reports whether envelopes may have a content type (AIR-D70).
func JSONContent(contentType string) bool {
	if contentType == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return (err == nil || errors.Is(err, mime.ErrInvalidMediaParameter)) && t == exchange.JSONType
}

// SecretMatches compares in constant time, independent of the lengths. An empty secret matches
// nothing.
func SecretMatches(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return want != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// WriteJSON writes a response. A caller that has disconnected or is slow is not reported.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	_ = httpx.Respond(w, status, exchange.JSONType, body, writeTimeout)
}

// SetRetryAfter sets the header of a delay, in whole seconds.
func SetRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10))
	}
}
