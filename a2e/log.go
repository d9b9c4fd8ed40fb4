// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"log/slog"

	"github.com/fivewire/fivewire/internal/guard"
)

// logFailure logs a failed function of the user at a level, but a panic at Error with its stack.
func logFailure(ctx context.Context, l *slog.Logger, level slog.Level, msg string, err error, args ...any) {
	args = append(args, "err", err)
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		level = slog.LevelError
		args = append(args, "stack", string(panicked.Stack))
	}
	l.Log(ctx, level, msg, args...)
}
