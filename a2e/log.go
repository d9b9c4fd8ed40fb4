// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"log/slog"

	"github.com/fivewire/fivewire/internal/guard"
)

// logMethod logs a method of a type of the user that has panicked while a message was read.
func logMethod(ctx context.Context, l *slog.Logger, err *Error) {
	if err.Cause != nil {
		logFailure(ctx, l, slog.LevelError, "a2e: message not read", err.Cause, "type", err.msgType, "field", err.Field)
	}
}

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
