// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/air/internal/web"
)

// ConformanceLabel returns the label that an implementation of this draft may carry
// until the conformance tests of the specification run it (13.3).
func ConformanceLabel() string { return "draft-1-candidate" }

const (
	secretHeader = web.SecretHeader
	jsonType     = web.JSONType
	maxAnswer    = 64 << 10 // of anything but documents and pulls
	maxPull      = 32 << 20 // AIR-D09
)

// defaultBodyTimeout is how long the body of a request may take to arrive where the
// options name no time.
const defaultBodyTimeout = time.Minute

// boundBody gives the body of a request its time to arrive, be it read by the
// handler or thrown away by net/http after a refusal. The ReadTimeout of a server
// that has one stands. Once a body has arrived, net/http lifts its deadline, so a
// handler may take longer. A transport without deadlines is served without.
func boundBody(w http.ResponseWriter, r *http.Request, timeout time.Duration) {
	if r.ContentLength != 0 && !hasReadTimeout(r) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout))
	}
}

func hasReadTimeout(r *http.Request) bool {
	srv, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	return ok && srv.ReadTimeout > 0
}

// readBody reads a request up to limit bytes.
func readBody(r *http.Request, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, ErrTooLarge.err("the envelope is too large")
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, int64(limit)+1)); err != nil {
		return nil, ErrInvalidJSON.because("the request could not be read", err)
	}
	if buf.Len() > limit {
		return nil, ErrTooLarge.err("the envelope is too large")
	}
	return buf.Bytes(), nil
}

// jsonContent reports whether a content type may hold an envelope (AIR-D70).
func jsonContent(contentType string) bool {
	if contentType == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return (err == nil || errors.Is(err, mime.ErrInvalidMediaParameter)) && t == jsonType
}

// secretMatches compares in constant time and tells nothing about lengths.
func secretMatches(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that has gone needs no answer
}

// writeError answers with an error of 9.3. Anything but an [*Error] is a failure of
// this side and shows nothing (AIR-124).
func writeError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: ErrRelay}
	}
	if e.Code == ErrRateLimited && e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	writeJSON(w, e.HTTPStatus(), e.HTTPBody())
}
