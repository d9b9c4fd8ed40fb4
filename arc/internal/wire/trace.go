// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// W3CTraceID returns the trace id of W3C Trace Context that stands for a traceId:
// its own 32 hex digits or those of a UUID, else half of its hash (ARC-D64).
func W3CTraceID(traceID string) string {
	var array [32]byte
	return string(appendTraceID(array[:0], traceID))
}

func appendTraceID(dst []byte, traceID string) []byte {
	id := strings.ToLower(traceID)
	if len(id) == 36 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-' {
		id = id[:8] + id[9:13] + id[14:18] + id[19:23] + id[24:]
	}
	if isTraceID(id) {
		return append(dst, id...)
	}
	sum := sha256.Sum256([]byte(traceID))
	return hex.AppendEncode(dst, sum[:16])
}

func isTraceID(id string) bool {
	return len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" && strings.Trim(id, "0") != ""
}

// Traceparent returns the header that puts a request of this workflow into the
// caller's distributed trace, with a fresh id for the span.
func Traceparent(traceID string) string {
	var span [8]byte
	rand.Read(span[:])
	span[0] |= 1 // all zero is not allowed
	var array [55]byte
	b := appendTraceID(append(array[:0], "00-"...), traceID)
	b = hex.AppendEncode(append(b, '-'), span[:])
	return string(append(b, "-01"...))
}

// TraceOf returns the trace id in a traceparent header, or "".
func TraceOf(header string) string {
	if len(header) < 55 || header[2] != '-' || header[35] != '-' || header[52] != '-' ||
		strings.HasPrefix(header, "ff") || len(header) > 55 && strings.HasPrefix(header, "00") || !isTraceID(header[3:35]) {
		return ""
	}
	return header[3:35]
}
