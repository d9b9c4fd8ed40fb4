// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"time"
)

// A clock returns the time of the servers. Expiry is judged by it alone, so that processes whose
// clocks differ agree on which entries exist. Between two comparisons with the servers it follows the
// monotonic clock of the process. That does not jump, but may stop while the machine is suspended.
type clock struct {
	read   func() (steady, wall int64) // the monotonic clock and the other one, in nanoseconds
	offset atomic.Int64                // nanoseconds from the monotonic clock to theirs
	lead   atomic.Int64                // of the other clock over the monotonic one at the last comparison
}

// maxDrift is by how many nanoseconds the two clocks of a process may drift apart between comparisons.
const maxDrift = int64(100 * time.Millisecond)

// localClock returns the clocks of the process.
func localClock() func() (steady, wall int64) {
	start := time.Now()
	return func() (steady, wall int64) {
		now := time.Now()
		return start.UnixNano() + int64(now.Sub(start)), now.UnixNano()
	}
}

// now returns the time of the servers in nanoseconds since 1970.
func (c *clock) now() int64 {
	steady, _ := c.read()
	return steady + c.offset.Load()
}

// hasJumped reports whether a clock of the process was set or has stopped since the last comparison.
func (c *clock) hasJumped() bool {
	steady, wall := c.read()
	drift := wall - steady - c.lead.Load()
	return drift > maxDrift || drift < -maxDrift
}

// offsetOf returns the offset of the remote clock and its error, all in nanoseconds. A difference
// within the error counts as zero.
func offsetOf(sent, answered, remote int64) (offset, error int64) {
	error = (answered-sent)/2 + 1
	offset = remote - (sent + error)
	if -error <= offset && offset <= error {
		offset = 0
	}
	return offset, error
}

// setClock samples the clock of the servers and keeps the sample with the smallest error.
func (s *Store) setClock(ctx context.Context, looks int) error {
	best := int64(math.MaxInt64)
	for range looks {
		sent, wall := s.clock.read()
		info, err := s.info(ctx, s.kv, "", 0)
		if err != nil {
			return err
		}
		answered, _ := s.clock.read()
		offset, maxError := offsetOf(sent, answered, info.now)
		if maxError < best {
			best = maxError
			s.clock.offset.Store(offset)
			s.clock.lead.Store(wall - sent)
		}
	}
	return nil
}

// after returns the moment ttl after at; zero means that the entry never expires. A moment beyond
// the range of the clock is the last one, in April 2262.
func after(at int64, ttl time.Duration) int64 {
	switch {
	case ttl == 0:
		return 0
	case int64(ttl) > math.MaxInt64-at:
		return math.MaxInt64
	}
	return at + int64(ttl)
}

func moment(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// serverTTL is the header that lets the servers remove what expired. They count
// in seconds and each by its own clock, so they get some more than asked.
func serverTTL(ttl time.Duration) string {
	if ttl > 10*365*24*time.Hour {
		return "never"
	}
	return strconv.FormatInt(int64((ttl+time.Second-1)/time.Second)+ttlGrace, 10)
}

// ttlGrace is how many seconds the servers keep what has expired: more than
// their clocks differ.
const ttlGrace = 10
