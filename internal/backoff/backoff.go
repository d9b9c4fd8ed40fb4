// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff computes how long to wait between attempts.
package backoff

import (
	"context"
	"math"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
)

// A Backoff is a schedule of delays that grow exponentially. The zero value never
// waits. A Backoff may be used by several goroutines as long as none changes its
// fields.
type Backoff struct {
	// Base is the delay after the first attempt.
	Base time.Duration

	// Factor multiplies the delay with each further attempt. Zero means 2; less
	// than 1 counts as 1, a constant delay.
	Factor float64

	// Max bounds the delay before jitter. Zero means no bound.
	Max time.Duration

	// Jitter spreads each delay evenly over that fraction of it to both sides:
	// 0.2 makes 4 to 6 seconds of 5. Zero means none, for delays that a test can
	// foretell; more than 1 counts as 1.
	Jitter float64
}

// longest is what a delay without Max grows to: about 146 years, so that doubling
// it by jitter does not overflow.
const longest = time.Duration(1 << 62)

// Delay returns how long to wait after that many attempts, the first being 1. A
// number below 1 counts as 1.
func (b Backoff) Delay(attempt int) time.Duration {
	if b.Base <= 0 { // below, 0 times infinity would be NaN, and the delay unlimited
		return 0
	}
	limit := longest
	if b.Max > 0 {
		limit = min(limit, b.Max)
	}
	factor := b.Factor
	switch {
	case factor == 0:
		factor = 2
	case !(factor >= 1): // also not a number
		factor = 1
	}
	d := limit
	if f := float64(b.Base) * math.Pow(factor, float64(max(attempt, 1)-1)); f < float64(limit) {
		d = time.Duration(f)
	}
	if b.Jitter > 0 {
		d += time.Duration(min(b.Jitter, 1) * (2*randid.Rand().Float64() - 1) * float64(d))
	}
	return d
}

// Wait waits for Delay(attempt), or until ctx ends and returns why.
func (b Backoff) Wait(ctx context.Context, attempt int) error {
	return retry.Sleep(ctx, b.Delay(attempt))
}
