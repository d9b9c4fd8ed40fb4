// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A Breaker agrees with its whole history: it is open for the pause after a failure that tripped it, and then
// while one trial runs; any success ends that.
func TestBreakerAgreesWithHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pause = time.Minute
		after := rapid.IntRange(1, 4).Draw(t, "after")
		var b Breaker
		now := time.Unix(0, 0)
		var running []bool // whether each call is a trial
		failures, trials, tripped := 0, 0, time.Time{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				isTrial := b.Begin()
				require.Equal(t, !tripped.IsZero() && trials == 0, isTrial)
				if running = append(running, isTrial); isTrial {
					trials++
				}
			case 1:
				if len(running) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "call")
				isTrial := running[i]
				running = append(running[:i], running[i+1:]...)
				if isTrial {
					trials--
				}
				o := rapid.SampledFrom([]Outcome{Neutral, Success, Failure}).Draw(t, "outcome")
				b.End(o, isTrial, after, pause, now)
				if o == Success {
					failures, tripped = 0, time.Time{}
				}
				if o == Failure {
					failures++
					if failures >= after || isTrial {
						tripped = now
					}
				}
			case 2:
				now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			}
			require.LessOrEqual(t, trials, 1)
			require.Equal(t, !tripped.IsZero(), b.IsTripped())
			require.Equal(t, !tripped.IsZero() && (trials > 0 || now.Sub(tripped) < pause), b.IsOpen(now))
		}
	})
}
