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

// A clock tells the time of the servers. Expiry is judged by it alone, so that
// processes whose own clocks differ agree on what is there.
type clock struct {
	offset atomic.Int64 // nanoseconds from the clock of this process to theirs
}

// now returns the time of the servers in nanoseconds since 1970.
func (c *clock) now() int64 { return time.Now().UnixNano() + c.offset.Load() }

// sample takes one look at their clock. Where the answer took too long to tell
// a difference, the clocks count as equal.
func offsetOf(asked, answered time.Time, theirs int64) (offset, error int64) {
	error = int64(answered.Sub(asked))/2 + 1
	offset = theirs - (asked.UnixNano() + error)
	if -error <= offset && offset <= error {
		offset = 0
	}
	return offset, error
}

// setClock compares the clocks and takes the best of a few looks.
func (s *Store) setClock(ctx context.Context, looks int) error {
	best := int64(math.MaxInt64)
	for range looks {
		asked := time.Now()
		info, err := s.info(ctx, s.kv, "", 0)
		if err != nil {
			return err
		}
		offset, fault := offsetOf(asked, time.Now(), info.now)
		if fault < best {
			best = fault
			s.clock.offset.Store(offset)
		}
	}
	return nil
}

// after returns the moment ttl after at; zero for never. What lies beyond the
// range of the clock is as good as that.
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
