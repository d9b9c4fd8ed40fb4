// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// outage is the time of one call of the store.
const outage = 10 * time.Second

// LandTime is the time in which a change without an answer may still be made. Until then, what prevents its effect stays.
const LandTime = 10 * time.Minute

// call calls op for at most 10 s.
func call(ctx context.Context, op func(ctx context.Context) error) error {
	if due, ok := ctx.Deadline(); !ok || time.Until(due) > outage {
		var cancel context.CancelFunc
		ctx, cancel = lazy.WithTimeout(ctx, outage)
		defer cancel()
	}
	return op(ctx)
}

// Change is [store.Persist] with a bound for each call of op, which uses a guarded store. The error has the cause of the end of ctx.
func Change(ctx context.Context, op func(ctx context.Context) error) error {
	err := store.Persist(ctx, func(ctx context.Context) error { return call(ctx, op) })
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// Read calls op, which uses a guarded store and changes nothing, until the store answers: with nil, [store.ErrNotFound],
// [store.ErrInvalid] or [store.ErrCorrupt]. The end of ctx and [store.ErrClosed] end it too.
func Read(ctx context.Context, op func(ctx context.Context) error) error {
	for n := 1; ; n++ {
		err := call(ctx, op)
		if err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) ||
			errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrClosed) {
			return err
		}
		if cause := retry.Sleep(ctx, retry.Delay(n, 10*time.Millisecond, time.Second)); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
}

// Append appends a value unless the stream has the id. It returns the position of the id, and whether the
// stream has this value by this call. So two values of one id must differ.
func Append(ctx context.Context, db store.Log, stream, id string, value []byte, ttl time.Duration) (
	seq uint64, isFirst bool, err error) {
	var attempts, last atomic.Uint64 // a change in doubt is repeated behind the caller
	err = Change(ctx, func(ctx context.Context) error {
		attempts.Add(1)
		seq, err := db.Append(ctx, stream, id, value, ttl)
		last.Store(seq)
		return err
	})
	seq = last.Load()
	switch {
	case err == nil:
		return seq, true, nil
	case !errors.Is(err, store.ErrDuplicate):
		return 0, false, err
	case attempts.Load() == 1:
		return seq, false, nil
	}
	page, err := Page(ctx, db, stream, seq-1, 1)
	isFirst = len(page) > 0 && page[0].Seq == seq && bytes.Equal(page[0].Value, value)
	return seq, isFirst, err
}

// Page is Read of the records after a position.
func Page(ctx context.Context, db store.Log, stream string, after uint64, limit int) (page []store.Record, err error) {
	err = Read(ctx, func(ctx context.Context) (err error) {
		page, err = db.Read(ctx, stream, after, limit)
		return err
	})
	return page, err
}
