// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A message is queued from its first write until it fails permanently, and again after Retry. It fails after 30 days
// in the queue, is listed for 30 days more, and counts its requests (AIR-D84).
func TestSentAgreesWithItsHistory(t *testing.T) {
	temporary := map[string]bool{"delivery_failed": true, "resolve_failed": true, "rate_limited": true, "unauthorized": true,
		"not_found": true, "unreachable": true, "bad_endpoint": true, "stale_key": true, "bad_gateway": true,
		"bad_signature": false, "conflict": false, "expired": false, "replay": false, "": false}
	codes := rapid.SampledFrom([]string{"delivery_failed", "resolve_failed", "rate_limited", "unauthorized", "not_found",
		"unreachable", "bad_endpoint", "stale_key", "bad_gateway", "bad_signature", "conflict", "expired", "replay", ""})
	rapid.Check(t, func(t *rapid.T) {
		start := time.Unix(1_000_000, 0)
		last := start.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, "last")))
		s := Sent{}.Queue(start, last)
		require.True(t, s.Queued.After(last) && !s.Queued.Before(start))
		require.True(t, s.Queued.Equal(start) || s.Queued.Equal(last.Add(1)))
		now, requests, code := s.Queued, 0, ""
		var failed time.Time // of the last permanent failure after the last Retry
		for range rapid.IntRange(0, 8).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "hours")) * time.Hour)
			seen, isKept := s.At(now)
			isOld := failed.IsZero() && now.Sub(s.Queued) >= OutboxTTL
			switch {
			case isOld:
				require.Equal(t, "expired", seen.Code)
				require.Equal(t, s.Queued.Add(OutboxTTL), seen.Failed)
				require.Equal(t, now.Before(seen.Failed.Add(OutboxTTL)), isKept)
			default:
				require.Equal(t, s, seen)
				require.Equal(t, failed.IsZero() || now.Before(failed.Add(OutboxTTL)), isKept)
			}
			switch event := rapid.SampledFrom([]string{"", "retry", "send", "end"}).Draw(t, "event"); event {
			case "":
				continue
			case "retry", "send":
				queued := s.Queued
				if now.Sub(queued) >= OutboxTTL {
					queued = now
				}
				failed = time.Time{}
				if event == "retry" {
					s = s.Retry(now)
				} else {
					s = s.Queue(now, last)
				}
				require.Equal(t, code, s.Code)
				require.True(t, s.Failed.IsZero())
				require.Equal(t, queued, s.Queued)
				continue
			}
			n := rapid.IntRange(0, 5).Draw(t, "requests")
			code, requests, failed = codes.Draw(t, "code"), requests+n, time.Time{}
			if !temporary[code] {
				failed = now
			}
			isRepeat := rapid.Bool().Draw(t, "repeat")
			s = s.End(now, isRepeat, n, code)
			require.Equal(t, Sent{Queued: s.Queued, Attempts: requests, Attempted: isRepeat || requests > 0, Failed: failed, Code: code}, s)
		}
	})
}
