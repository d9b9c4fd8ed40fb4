// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"sync"
	"time"
)

// A rateLimiter counts what each sender does in a minute. Minutes are counted from
// the start, for everybody alike.
type rateLimiter struct {
	limit int // below 0: none
	start time.Time

	mu     sync.Mutex
	minute int64
	counts map[string]int // guarded by mu
}

// maxSenders bounds the memory of one minute. Whoever comes beyond shares one
// count: inventing senders does not help.
const maxSenders = 100_000

// allow counts one request and returns [ErrRateLimited] if it is one too many.
func (l *rateLimiter) allow(sender string) error {
	if l.limit < 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	passed := time.Since(l.start) // under the lock, so that no minute comes twice
	minute := int64(passed / time.Minute)
	if l.counts == nil || minute != l.minute {
		l.counts, l.minute = make(map[string]int), minute
	}
	if _, known := l.counts[sender]; !known && len(l.counts) >= maxSenders {
		sender = ""
	}
	if l.counts[sender] >= l.limit {
		return &Error{Code: ErrRateLimited, Message: "too many envelopes in this minute", RetryAfter: time.Minute - passed%time.Minute}
	}
	l.counts[sender]++
	return nil
}
