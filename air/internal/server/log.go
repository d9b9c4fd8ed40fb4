// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"log/slog"
	"sync"
	"time"
)

// LogLevels returns the levels of records about refusals, so that a peer cannot fill the log.
type LogLevels struct {
	mu    sync.Mutex
	next  time.Time       // end of the minute
	codes map[string]bool // logged in this minute
}

// Level returns Warn for the first refusal with a code in a minute, then Debug.
func (l *LogLevels) Level(code string) slog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); !now.Before(l.next) {
		l.next, l.codes = now.Add(time.Minute), make(map[string]bool)
	}
	if l.codes[code] {
		return slog.LevelDebug
	}
	l.codes[code] = true
	return slog.LevelWarn
}
