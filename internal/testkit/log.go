// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"log/slog"
	"sync"
)

// A Log keeps the lines of a logger. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all lines.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger returns a logger that writes all levels to l.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
