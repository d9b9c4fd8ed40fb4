// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A received is one event in the history of a message: "cut" or "fail".
type received struct {
	kind string
	at   time.Time
}

// A message is handled after delays that double up to five minutes, until its attempts are used up, and as a
// repetition once an attempt was cut off (AIR-D74, AIR-D75).
func TestReceivedAgreesWithItsHistory(t *testing.T) {
	delays := []time.Duration{5, 10, 20, 40, 80, 160, 300, 300, 300}
	rapid.Check(t, func(t *rapid.T) {
		maxAttempts := rapid.SampledFrom([]int{4, 100}).Draw(t, "maxAttempts")
		var h []received
		var r Received
		now := time.Unix(1_000_000, 0)
		for range rapid.IntRange(1, 25).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			a := Attempt{Now: now, MaxAttempts: maxAttempts, IsForced: rapid.Bool().Draw(t, "forced")}
			n, due, hasCut := 0, time.Time{}, false
			for _, e := range h {
				due = time.Time{}
				if e.kind == "fail" {
					n++
					due = e.at.Add(delays[min(n, len(delays))-1] * time.Second)
				}
				hasCut = hasCut || e.kind == "cut"
			}
			require.Equal(t, Received{len(h) > 0, n, due, hasCut}, r)
			err := r.Begin(a)
			var early *EarlyError
			switch {
			case a.IsForced:
				require.NoError(t, err)
			case n >= maxAttempts:
				require.ErrorIs(t, err, ErrUsedUp)
			case now.Before(due):
				require.ErrorAs(t, err, &early)
				require.Equal(t, due, now.Add(early.Wait))
			default:
				require.NoError(t, err)
			}
			if err != nil {
				continue
			}
			kind := rapid.SampledFrom([]string{"cut", "fail", "fail"}).Draw(t, "end")
			h = append(h, received{kind, now})
			if kind == "cut" {
				r = r.Cut()
				continue
			}
			isPush, class := rapid.Bool().Draw(t, "push"), ""
			r, class = r.Fail(now, maxAttempts, isPush)
			require.Equal(t, class == ClassHeld, !isPush && n+1 >= maxAttempts)
		}
	})
}

// A due time that a wrong clock has stored, or the own clock before it was set back, is not waited for.
func TestReceivedDoesNotWaitForWrongClock(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	failed, _ := Received{}.Fail(now, 10, false)
	failed, _ = failed.Fail(now, 10, false)
	var early *EarlyError
	require.ErrorAs(t, failed.Begin(Attempt{Now: now, MaxAttempts: 10}), &early)
	require.Equal(t, 10*time.Second, early.Wait)
	require.ErrorAs(t, failed.Begin(Attempt{Now: now.Add(-10 * time.Second), MaxAttempts: 10}), &early, "clocks of two processes differ a little")
	require.NoError(t, failed.Begin(Attempt{Now: now.Add(-10*time.Second - 1), MaxAttempts: 10}))
	require.NoError(t, failed.Begin(Attempt{Now: now.Add(-24 * time.Hour), MaxAttempts: 10}))
}

// A message that names another one waits while that is handled, while its attempt may come, and for half an
// hour after (AIR-D77).
func TestReceivedIsOpen(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	require.False(t, Received{}.IsOpen(now, 0, Free))
	require.True(t, Received{}.IsOpen(now, time.Hour, Running))
	for _, c := range []struct {
		Received
		Claim
	}{{Received{}, Lost}, {Received{IsKnown: true}, Free}, {Received{IsKnown: true, Attempts: 2}, Lost}} {
		require.True(t, c.IsOpen(now, maxDueWait-1, c.Claim), "%+v", c)
		require.False(t, c.IsOpen(now, maxDueWait, c.Claim), "%+v", c)
	}
	failed := Received{IsKnown: true, Attempts: 1, Next: now}
	require.True(t, failed.IsOpen(now.Add(maxDueWait-1), time.Hour, Free))
	require.False(t, failed.IsOpen(now.Add(maxDueWait), 0, Free))
}

// The bounds of the clock are inclusive. An accepted message is not judged again, and pulled mail outside of
// the window is kept (AIR-037, AIR-D68).
func TestReceivedClock(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		isPush     bool
		age, ahead time.Duration
		want       string
	}{
		{true, MaxAge, -MaxAge, ""},
		{true, MaxAge + 1, -MaxAge, ClassRefused},
		{true, -MaxSkew, MaxSkew, ""},
		{true, -MaxSkew, MaxSkew + 1, ClassRefused},
		{false, day, -day, ""},
		{false, day + 1, -day, ClassHeld},
		{false, 0, MaxSkew, ""},
		{false, 0, MaxSkew + 1, ClassLater},
		{false, 0, time.Hour, ClassLater},
		{false, 0, time.Hour + 1, ClassHeld},
	} {
		require.Equal(t, c.want, Received{}.CheckClock(c.isPush, c.age, c.ahead, day), "%+v", c)
		if !c.isPush {
			require.Empty(t, Received{IsKnown: true}.CheckClock(false, c.age, c.ahead, day))
		}
	}
}

// Every code has one class: final for a good reason only (AIR-D73).
func TestClassOf(t *testing.T) {
	require.Equal(t, ClassDone, ClassOf("replay", "", false))
	for _, code := range []string{"bad_gateway", "relay_error", "replay_window_exhausted", "stale_key"} {
		require.Equal(t, ClassLater, ClassOf(code, "", false))
	}
	require.Equal(t, ClassRefused, ClassOf("bad_signature", "", false))
	require.Equal(t, ClassHeld, ClassOf("bad_signature", ClassHeld, false))
	require.Equal(t, ClassRefused, ClassOf("stale_timestamp", ClassHeld, true))
	require.Equal(t, ClassLater, ClassOf("stale_timestamp", ClassLater, true))
}
