// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
)

const (
	maxDelay  = time.Second // between repetitions
	maxPeriod = time.Minute // of a repetition without a caller
	maxBehind = 1024        // repetitions without a caller
)

// ErrUnknown reports a change that may have been made, may not, or may still be made. It
// wraps the last error of the store.
var ErrUnknown = errors.New("store: outcome unknown")

// behind holds an element for each repetition without a caller. It bounds the process,
// because a function given to Persist does not name its store.
var behind = make(chan struct{}, maxBehind)

// Persist calls op until the store answers: with nil, [ErrNotFound], [ErrExists],
// [ErrConflict], [ErrDuplicate], [ErrInvalid] or [ErrCorrupt], which it returns. After any other error the
// change may still be made. So op is one change that the store makes once, however often it
// is repeated: with the same revision or the same id.
//
// If ctx ends first, Persist returns [ErrUnknown] with the error of ctx and repeats op in the
// background until the store answers, is closed, or a minute has passed; so what op assigns
// may be read only after another result. The process repeats 1,024 changes there; beyond, a
// change stays in doubt, as if its process had ended. [ErrClosed] ends Persist with ErrUnknown
// too. If ctx has ended before the call, Persist returns its error alone and makes no change.
func Persist(ctx context.Context, op func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := repeat(ctx, op)
	if isAnswer(err) {
		return err
	}
	isClosed := errors.Is(err, ErrClosed)
	err = fmt.Errorf("%w: %w", ErrUnknown, err)
	if isClosed {
		return err
	}
	select {
	case behind <- struct{}{}:
		go repeatBehind(context.WithoutCancel(ctx), op)
		return err
	default:
		return fmt.Errorf("%w (not repeated: %d other changes are in doubt)", err, maxBehind)
	}
}

func repeatBehind(ctx context.Context, op func(ctx context.Context) error) {
	defer func() { <-behind }()
	ctx, cancel := context.WithTimeout(ctx, maxPeriod)
	defer cancel()
	err := guard.Call("store", func() error { return repeat(ctx, op) })
	if p, ok := errors.AsType[*guard.PanicError](err); ok {
		slog.ErrorContext(ctx, "store: repetition failed", "err", p, "stack", string(p.Stack))
	}
}

// repeat calls op until the store answers, is closed, or ctx ends.
func repeat(ctx context.Context, op func(ctx context.Context) error) error {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, maxDelay) {
		err := op(ctx)
		if isAnswer(err) || errors.Is(err, ErrClosed) {
			return err
		}
		if !pause(ctx, delay) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

func isAnswer(err error) bool {
	return err == nil || isRefusal(err) || errors.Is(err, ErrDuplicate) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrCorrupt)
}

func isRefusal(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists) || errors.Is(err, ErrConflict)
}

// pause waits for a random part of limit and reports whether ctx has not ended. The
// randomness is that of crypto/rand, which a test can make repeatable.
func pause(ctx context.Context, limit time.Duration) bool {
	t := time.NewTimer(time.Duration(random() % uint64(limit)))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func random() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}
