// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/retry"
)

// maxHostTurns bounds the attempts at one host at a time. It is half of those that a process makes, so that one slow host
// does not delay the notifications to the others. Several may.
const maxHostTurns = 32

// hostDelay is the longest delay of a stream that waits for its turn at a host. While a host is down, one stream a minute
// makes an attempt; the others wait, so that they cost no turns of the outbox.
const hostDelay = time.Hour

// hostTurns are the attempts at each host.
type hostTurns struct {
	notify   func(stream string) bool // begins a turn of a stream; false if this process does not send it
	breakers retry.Limiter

	mu    sync.Mutex
	hosts map[string]*hostQueue // those with attempts or waiting streams; guarded by mu
	swept time.Time             // guarded by mu
}

// A hostQueue has the streams that wait for an attempt at a host.
type hostQueue struct {
	running int
	waiting []string // in order; some have left since
	isIn    map[string]bool
	entered time.Time // by the last stream
	isDown  bool      // the breaker is open
	probe   time.Time // when a waiting stream comes back to make the next attempt at a host that is down
}

// A hostTurn is the turn of a stream at its host, which ends with a call of end.
type hostTurn struct {
	*hostTurns
	host, stream string
	isWaiting    bool
	isAnswered   bool
	outcome      func(error) // for the breaker; nil without an attempt
}

// enter starts an attempt, whose outcome is passed to record. Otherwise the stream waits and comes back after a delay. It
// is woken earlier if its turn comes.
func (t *hostTurn) enter() (delay time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.hosts[t.host]
	if q == nil {
		if t.hosts == nil {
			t.hosts = map[string]*hostQueue{}
		}
		q = &hostQueue{isIn: map[string]bool{}}
		t.hosts[t.host] = q
	}
	now := time.Now()
	q.entered = now
	t.sweepLocked(now)
	delay = hostDelay
	if q.running < maxHostTurns {
		t.outcome, err = t.breakers.Breaker(t.host)
		if err == nil {
			q.running++
			delete(q.isIn, t.stream)
			return 0, nil
		}
		q.isDown = true
		if !now.Before(q.probe) {
			delay = retry.After(err)
			q.probe = now.Add(delay)
		}
	}
	t.isWaiting = true
	if !q.isIn[t.stream] {
		q.isIn[t.stream] = true
		q.waiting = append(q.waiting, t.stream)
	}
	return delay, err
}

// sweepLocked removes the queues whose streams have not come back, because other processes send them. t.mu must be held.
func (t *hostTurns) sweepLocked(now time.Time) {
	if now.Sub(t.swept) < hostDelay {
		return
	}
	t.swept = now
	maps.DeleteFunc(t.hosts, func(_ string, q *hostQueue) bool { return q.running == 0 && now.Sub(q.entered) > 2*hostDelay })
}

// record passes the outcome of the attempt to the breaker, nil for an answer.
func (t *hostTurn) record(err error) {
	t.isAnswered = err == nil
	t.outcome(err)
}

// end wakes the streams whose turn comes, unless the stream waits. After an answer of a host that was down, it wakes as
// many as may make an attempt.
func (t *hostTurn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.hosts[t.host]
	if q == nil || t.isWaiting {
		return
	}
	delete(q.isIn, t.stream)
	if t.outcome != nil {
		q.running--
	}
	free := maxHostTurns - q.running
	wakes := min(1, free)
	switch {
	case q.isDown && t.isAnswered:
		q.isDown, wakes = false, free
	case q.isDown && time.Now().Before(q.probe):
		wakes = 0
	}
	for wakes > 0 && len(q.waiting) > 0 {
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		if q.isIn[next] {
			delete(q.isIn, next)
			if t.notify(next) {
				wakes--
			}
		}
	}
	if q.running == 0 && len(q.isIn) == 0 {
		delete(t.hosts, t.host)
	}
}
