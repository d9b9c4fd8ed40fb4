// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// faulty returns a store whose first append has a fault.
func faulty(t *testing.T, a fault.Action) store.Store {
	plan := &fault.Plan{Rules: []fault.Rule{{Op: "append", Action: a, Limit: 1, Delay: time.Hour}}}
	t.Cleanup(plan.Close)
	return fault.Store(store.NewMemory(), plan)
}

func TestAppendFindsItsValueAfterLostAnswer(t *testing.T) {
	for _, a := range []fault.Action{fault.ErrorBefore, fault.ErrorAfter, fault.Hang} {
		synctest.Test(t, func(t *testing.T) {
			db := faulty(t, a)
			start := time.Now()
			seq, isFirst, err := state.Append(t.Context(), db, "s", "id", []byte("a"), time.Hour)
			require.NoError(t, err)
			require.True(t, isFirst, a)
			require.LessOrEqual(t, time.Since(start), time.Minute, "a call that hangs is repeated")
			repeated, isFirst, err := state.Append(t.Context(), db, "s", "id", []byte("b"), time.Hour)
			require.NoError(t, err)
			require.False(t, isFirst)
			require.Equal(t, seq, repeated)
		})
	}
}

func TestAppendReportsOtherValueAfterLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		rival := func(ctx context.Context, db store.Store) error {
			_, err := db.Append(ctx, "s", "id", []byte("b"), time.Hour)
			return err
		}
		plan := &fault.Plan{Rules: []fault.Rule{
			{Op: "append", Action: fault.ErrorBefore, Limit: 1, Delay: time.Second},
		}}
		done := make(chan error, 1)
		go func() { done <- rival(t.Context(), db) }()
		seq, isFirst, err := state.Append(t.Context(), fault.Store(db, plan), "s", "id", []byte("a"), time.Hour)
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.False(t, isFirst)
		require.Equal(t, uint64(1), seq)
	})
}

func TestChangeHasTheCauseOfItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		errStopped := errors.New("stopped")
		time.AfterFunc(time.Second, func() { cancel(errStopped) })
		seq, _, err := state.Append(ctx, faulty(t, fault.Hang), "s", "id", nil, time.Hour)
		require.ErrorIs(t, err, errStopped)
		require.ErrorIs(t, err, store.ErrUnknown)
		require.Zero(t, seq)
		time.Sleep(time.Minute) // the change continues
	})
}

// An unknown error is a call without an answer, damage is an answer, and the end of the store ends a Read.
func TestReadEndsWithAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answer := range []error{nil, store.ErrNotFound, store.ErrInvalid, store.ErrCorrupt, store.ErrClosed} {
			calls := 0
			err := state.Read(t.Context(), func(context.Context) error {
				calls++
				switch calls {
				case 1:
					return errors.New("no answer")
				case 2:
					return store.ErrUnknown
				}
				return answer
			})
			require.Equal(t, answer, err)
			require.Equal(t, 3, calls)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := state.Read(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Error(t, ctx.Err(), "each call has 10 s")
	})
}

// A value in doubt is appended after Append has returned, and changes none of its results: the race detector is the check.
func TestAppendIsRepeatedBehindItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := faulty(t, fault.ErrorBefore)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, isFirst, err := state.Append(ctx, db, "s", "id", []byte("a"), time.Hour)
		require.ErrorIs(t, err, store.ErrUnknown)
		require.False(t, isFirst)
		time.Sleep(time.Minute)
		page, err := state.Page(t.Context(), db, "s", 0, 10)
		require.NoError(t, err)
		require.Len(t, page, 1)
	})
}
