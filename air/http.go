// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"errors"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air/internal/server"
)

// ProtocolVersion is the version of the specification.
const ProtocolVersion = "draft-1"

// ConformanceLabel returns the permitted label of an implementation that the specification's
// conformance tests do not run (13.3).
func ConformanceLabel() string { return ProtocolVersion + "-candidate" }

const (
	maxAnswer = 64 << 10 // of all responses except documents and pulls
	maxPull   = 32 << 20 // AIR-D09
)

// readBody reads the body of a request, an envelope of at most limit bytes, which arrives within
// the timeout. The error is an [*Error].
func readBody(w http.ResponseWriter, r *http.Request, limit int, timeout time.Duration) ([]byte, error) {
	data, refusal := server.ReadBody(w, r, limit, timeout)
	if refusal != nil {
		return nil, Code(refusal.Code).because(refusal.Message, refusal.Cause)
	}
	return data, nil
}

// writeError writes an error body of 9.3. An error other than an [*Error] is internal and has no
// details (AIR-124).
func writeError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: ErrRelay}
	}
	if e.Code == ErrRateLimited {
		server.SetRetryAfter(w.Header(), e.RetryAfter)
	}
	server.WriteJSON(w, e.HTTPStatus(), e.HTTPBody())
}
