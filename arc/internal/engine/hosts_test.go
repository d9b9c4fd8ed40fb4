// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/retry"
)

// A turnQueue is one host and the streams that were woken for it.
type turnQueue struct {
	hostTurns
	woken []string
}

func newTurnQueue(isSender func(stream string) bool) *turnQueue {
	q := &turnQueue{}
	q.notify = func(stream string) bool {
		if isSender(stream) {
			q.woken = append(q.woken, stream)
			return true
		}
		return false
	}
	return q
}

func always(string) bool { return true }

func (q *turnQueue) turn(stream string) *hostTurn {
	return &hostTurn{hostTurns: &q.hostTurns, host: "one.test", stream: stream}
}

// enter returns a turn with an attempt, or without one and its delay.
func (q *turnQueue) enter(t *testing.T, stream string) (turn *hostTurn, delay time.Duration) {
	t.Helper()
	turn = q.turn(stream)
	delay, err := turn.enter()
	require.Equal(t, turn.isWaiting, delay > 0)
	if err != nil {
		require.ErrorIs(t, err, retry.ErrOpen)
	}
	return turn, delay
}

// fail makes attempts that fail until the host is down.
func (q *turnQueue) fail(t *testing.T) {
	t.Helper()
	for range 5 {
		turn, _ := q.enter(t, "failed")
		turn.record(retry.Mark(errors.New("down"), retry.Unknown, 0))
		turn.end()
	}
}

// While a host is down, one waiting stream comes back after a minute. Another one is woken if that stream makes no attempt.
func TestOneStreamComesBackToDownHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurnQueue(always)
		q.fail(t)
		for i, want := range []time.Duration{time.Minute, hostDelay, hostDelay} {
			turn, delay := q.enter(t, fmt.Sprint("s", i))
			require.Equal(t, want, delay)
			turn.end()
		}
		q.turn("s1").end()
		require.Empty(t, q.woken, "s0 is to come")
		time.Sleep(time.Minute)
		q.turn("s0").end()
		require.Equal(t, []string{"s2"}, q.woken, "s0 and s1 do not wait any more")
		turn, _ := q.enter(t, "s2")
		require.False(t, turn.isWaiting)
		turn.record(nil)
		turn.end()
		require.Empty(t, q.hosts)
	})
}

// The queue of a host ends when none of its streams comes back, since other processes send them.
func TestQueueOfLeftStreamsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurnQueue(always)
		answered := func() {
			turn := &hostTurn{hostTurns: &q.hostTurns, host: "two.test", stream: "other"}
			_, err := turn.enter()
			require.NoError(t, err)
			turn.record(nil)
			turn.end()
		}
		q.fail(t)
		for range 4 {
			probe, _ := q.enter(t, "s0") // an attempt of the first stream that comes back
			if !probe.isWaiting {
				probe.record(retry.Mark(errors.New("down"), retry.Unknown, 0))
			}
			probe.end()
			turn, _ := q.enter(t, "s1")
			require.True(t, turn.isWaiting)
			turn.end()
			time.Sleep(hostDelay)
			answered()
			require.Len(t, q.hosts, 1)
		}
		time.Sleep(2 * hostDelay)
		answered()
		require.Empty(t, q.hosts)
	})
}

// A stream that makes an attempt is not woken for its own place in the order.
func TestRunningStreamIsNotWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurnQueue(always)
		q.fail(t)
		for i := range 2 {
			q.enter(t, fmt.Sprint("s", i))
		}
		time.Sleep(time.Minute)
		probe, _ := q.enter(t, "s0")
		q.turn("other").end()
		require.Equal(t, []string{"s1"}, q.woken)
		probe.record(nil)
		probe.end()
	})
}

// After an answer, a host that was down gets as many attempts as it may have, of streams that this process sends.
func TestAnswerWakesStreamsOfDownHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurnQueue(func(stream string) bool { return stream != "s1" })
		q.fail(t)
		for i := range 100 {
			q.enter(t, fmt.Sprint("s", i))
		}
		time.Sleep(time.Minute)
		probe, _ := q.enter(t, "s0")
		late, delay := q.enter(t, "late")
		require.Equal(t, time.Minute, delay)
		late.end()
		probe.record(nil)
		probe.end()
		require.Len(t, q.woken, maxHostTurns)
		require.Equal(t, "s2", q.woken[0])
		turns := make([]*hostTurn, maxHostTurns)
		for i := range turns {
			turns[i], _ = q.enter(t, q.woken[i])
			require.False(t, turns[i].isWaiting)
		}
		full, delay := q.enter(t, "full")
		require.Equal(t, hostDelay, delay)
		full.end()
		for _, turn := range turns {
			turn.record(nil)
			turn.end()
		}
		require.Len(t, q.woken, 2*maxHostTurns)
	})
}
