// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A received is one event in the history of a message: "begin", "crash", "fail" or "done".
type received struct {
	kind string
	at   time.Time
}

// attempts returns the number of failures in a history, and the time of the last one.
func attempts(h []received) (n int, last time.Time) {
	for _, e := range h {
		if e.kind == "fail" {
			n, last = n+1, e.at
		}
	}
	return n, last
}

// A message is handled by one process at a time, until it is done, after delays that double up to five
// minutes, and as a repetition once a process has crashed (AIR-D74, AIR-D75).
func TestReceivedAgreesWithItsHistory(t *testing.T) {
	delays := []time.Duration{5, 10, 20, 40, 80, 160, 300, 300, 300}
	rapid.Check(t, func(t *rapid.T) {
		maxAttempts := rapid.SampledFrom([]int{4, 100}).Draw(t, "maxAttempts")
		var h []received
		var r Received
		now := time.Unix(1_000_000, 0)
		for range rapid.IntRange(1, 25).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			a := Attempt{Now: now, Owner: Other, MaxAttempts: maxAttempts, IsForced: rapid.Bool().Draw(t, "forced")}
			n, last := attempts(h)
			state := ""
			if len(h) > 0 {
				state = h[len(h)-1].kind
			}
			if state == "crash" {
				a.Owner = Lost
			}
			next, err := r.Begin(a)
			var early *EarlyError
			switch {
			case state == "done":
				require.ErrorIs(t, err, ErrDone)
			case state == "begin":
				require.ErrorIs(t, err, ErrElsewhere)
			case state == "fail" && !a.IsForced && n >= maxAttempts:
				require.ErrorIs(t, err, ErrUsedUp)
			case state == "fail" && !a.IsForced && now.Before(last.Add(delays[min(n, len(delays))-1]*time.Second)):
				require.True(t, errors.As(err, &early))
				require.Equal(t, last.Add(delays[min(n, len(delays))-1]*time.Second), now.Add(early.Wait))
			default:
				require.NoError(t, err)
				hasCrash := slices.ContainsFunc(h, func(e received) bool { return e.kind == "crash" })
				require.Equal(t, hasCrash, next.Redelivered)
				require.Equal(t, n, next.Attempts)
				h = append(h, received{"begin", now})
			}
			if err != nil {
				require.Equal(t, r, next)
			}
			if r = next; r.Phase != Running || state == "crash" && err != nil {
				continue
			}
			switch rapid.SampledFrom([]string{"", "crash", "fail", "fail", "fail", "done"}).Draw(t, "end") {
			case "crash":
				h = append(h, received{"crash", now})
			case "fail":
				isPush, class := rapid.Bool().Draw(t, "push"), ""
				before := r
				r, class = r.Fail(now, maxAttempts, isPush)
				h = append(h, received{"fail", now})
				require.Equal(t, class == ClassHeld, !isPush && before.Attempts+1 >= maxAttempts)
			case "done":
				r.Phase = Done
				h = append(h, received{"done", now})
			}
		}
	})
}

// A process that gave its attempt up begins another one. The message is not marked as redelivered.
func TestReceivedBeginsAgain(t *testing.T) {
	r, err := Received{Phase: Running}.Begin(Attempt{Owner: Self})
	require.NoError(t, err)
	require.False(t, r.Redelivered)
}

// A message that names another one waits while that is handled, while its attempt may come, and for half an
// hour after (AIR-D77).
func TestReceivedIsOpen(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	require.False(t, Received{}.IsOpen(now, 0, Lost))
	require.False(t, Received{Phase: Done}.IsOpen(now, 0, Lost))
	running := Received{Phase: Running}
	require.True(t, running.IsOpen(now, time.Hour, Other))
	for _, o := range []Owner{Self, Lost} {
		require.True(t, running.IsOpen(now, maxDueWait-1, o))
		require.False(t, running.IsOpen(now, maxDueWait, o))
	}
	failed := Received{Phase: Failed, Next: now}
	require.True(t, failed.IsOpen(now.Add(maxDueWait-1), time.Hour, Lost))
	require.False(t, failed.IsOpen(now.Add(maxDueWait), 0, Lost))
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
			require.Empty(t, Received{Phase: Failed}.CheckClock(false, c.age, c.ahead, day))
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
