// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Limits bound what one agent, and all of them, may use of a host (A2E-D40). Each
// zero value stands for the default. Where "none" is said, a negative value
// switches the limit off.
type Limits struct {
	MaxMessage           int           // 16 MiB; none
	MaxDepth             int           // 256
	MaxConcurrent        int           // running requests of a session: 4
	QueueLimit           int           // waiting requests of a session: 64; negative: no queue
	MaxCallTimeout       time.Duration // of one request: an hour
	MaxDrain             time.Duration // of a shutdown: a minute
	MaxSessions          int           // 1024; none
	MaxHandshakeAttempts int           // 3; none
	HandshakeTimeout     time.Duration // 30 seconds; none
	SessionIdle          time.Duration // of an HTTP session: 15 minutes; none
	MaxReplayEvents      int           // messages kept for HTTP readers that come back: 256
}

const defaultIdle = 15 * time.Minute

func (l Limits) withDefaults() Limits {
	set(&l.MaxMessage, defaultMaxMessage)
	set(&l.MaxDepth, defaultDepth)
	set(&l.MaxConcurrent, 4)
	set(&l.QueueLimit, 64)
	set(&l.MaxCallTimeout, time.Hour)
	set(&l.MaxDrain, time.Minute)
	set(&l.MaxSessions, 1024)
	set(&l.MaxHandshakeAttempts, 3)
	set(&l.HandshakeTimeout, 30*time.Second)
	set(&l.SessionIdle, defaultIdle)
	set(&l.MaxReplayEvents, 256)
	l.MaxConcurrent = max(l.MaxConcurrent, 1)
	l.QueueLimit = max(l.QueueLimit, 0)
	l.MaxReplayEvents = max(l.MaxReplayEvents, 1)
	if l.MaxCallTimeout < 0 {
		l.MaxCallTimeout = time.Hour
	}
	l.MaxDrain = max(l.MaxDrain, 0)
	return l
}

func set[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// ParseLimits reads the object global_limits of a configuration. Keys that this
// package does not use are returned with their values; the values of those that
// it does must be integers. A max_message_bytes of 0 switches that limit off.
func ParseLimits(object []byte) (Limits, Members, error) {
	v, err := strictjson.Check(object, strictjson.Options{})
	if err != nil || !v.IsObject() {
		return Limits{}, Members{}, fmt.Errorf("a2e: global_limits is not an object")
	}
	var l Limits
	var rest Members
	for w := v.Members(); w.Next(); {
		count, seconds := l.key(string(w.Name))
		if count == nil && seconds == nil {
			if err := rest.Set(string(w.Name), json.RawMessage(w.Value)); err != nil {
				return Limits{}, Members{}, err
			}
			continue
		}
		n, ok := w.Value.Int()
		if !ok || n < 0 || n > math.MaxInt32 {
			return Limits{}, Members{}, fmt.Errorf("a2e: global_limits.%s is not an integer in range", clip(string(w.Name), 40))
		}
		switch {
		case seconds != nil:
			*seconds = time.Duration(n) * time.Second
		case n == 0 && count == &l.MaxMessage, n == 0 && count == &l.QueueLimit:
			*count = -1
		default:
			*count = int(n)
		}
	}
	return l, rest, nil
}

func (l *Limits) key(name string) (count *int, seconds *time.Duration) {
	switch name {
	case "max_message_bytes":
		return &l.MaxMessage, nil
	case "max_depth":
		return &l.MaxDepth, nil
	case "max_parallel":
		return &l.MaxConcurrent, nil
	case "max_queue":
		return &l.QueueLimit, nil
	case "max_sessions":
		return &l.MaxSessions, nil
	case "max_handshake_attempts":
		return &l.MaxHandshakeAttempts, nil
	case "replay_events":
		return &l.MaxReplayEvents, nil
	case "max_timeout_seconds":
		return nil, &l.MaxCallTimeout
	case "max_drain_seconds":
		return nil, &l.MaxDrain
	case "handshake_timeout_seconds":
		return nil, &l.HandshakeTimeout
	case "session_idle_seconds":
		return nil, &l.SessionIdle
	}
	return nil, nil
}
