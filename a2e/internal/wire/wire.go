// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire holds what the namespaces of A2E share.
package wire

import (
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
)

// OrNew returns r, or for nil a request with the defaults of the catalogue.
func OrNew[T any](r *T) *T {
	if r == nil {
		return a2e.New[T]()
	}
	return r
}

// Clip bounds what an answer repeats of a request (A2E-D51).
func Clip(s string) string {
	if len(s) <= 200 {
		return s
	}
	return strings.ToValidUTF8(s[:200], "")
}

// Seconds is a time limit in seconds as a duration, the longest there is if it is
// longer.
func Seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(1<<62/time.Second))) * time.Second
}
