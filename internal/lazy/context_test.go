// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type key struct{}

var errParent = errors.New("parent")

// A context of this package answers like one of the standard library, whatever happens to it and to its parent.
func TestWithTimeoutIsThatOfContext(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		at := func(name string) time.Duration {
			return time.Duration(rapid.IntRange(1, 6).Draw(r, name)) * time.Second
		}
		timeout, cancelAt, parentAt, parentTimeout := at("timeout"), at("cancel"), at("parent"), at("timeout of the parent")
		asks := rapid.SliceOfN(rapid.SampledFrom([]string{"", "err", "done", "cause", "value", "child"}), 7, 7).Draw(r, "asks")
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			parent, end := context.WithTimeoutCause(context.WithValue(context.Background(), key{}, 1), parentTimeout+time.Millisecond, errParent)
			defer end()
			time.AfterFunc(parentAt+2*time.Millisecond, end)
			want, stopWant := context.WithTimeout(parent, timeout)
			defer stopWant()
			got, stop := WithTimeout(parent, timeout)
			defer stop()
			time.AfterFunc(cancelAt+3*time.Millisecond, func() { stop(); stopWant() })
			for i, ask := range asks {
				time.Sleep(time.Duration(i)*time.Second + 500*time.Millisecond - time.Since(start))
				synctest.Wait()
				if parent.Err() != nil && time.Since(start) > timeout { // what came first is unknown unless something asked
					require.Equal(t, want.Err() != nil, got.Err() != nil)
					continue
				}
				switch ask {
				case "err":
					require.Equal(t, want.Err(), got.Err())
				case "done":
					require.Equal(t, isClosed(want.Done()), isClosed(got.Done()))
				case "cause":
					require.Equal(t, context.Cause(want), context.Cause(got))
				case "value":
					require.Equal(t, 1, got.Value(key{}))
				case "child":
					child, cancel := context.WithCancel(got)
					require.Equal(t, want.Err(), child.Err())
					cancel()
				}
			}
			first, _ := want.Deadline()
			second, ok := got.Deadline()
			require.True(t, ok)
			require.Equal(t, first, second)
		})
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A deadline closes the channel of Done, also with another cause.
func TestDoneIsClosedAtDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, stop := WithTimeout(t.Context(), time.Minute)
		<-ctx.Done()
		require.Equal(t, time.Minute, time.Since(begin))
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
		stop()
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		ctx, stop = WithTimeout(t.Context(), time.Minute)
		stop()
		<-ctx.Done()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		for _, isWatched := range []bool{true, false} {
			var own Context
			own.Begin(t.Context(), time.Minute, errParent)
			if isWatched {
				own.Done()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			require.ErrorIs(t, own.Err(), context.DeadlineExceeded)
			require.Equal(t, errParent, context.Cause(&own))
			<-own.Done()
			own.Cancel(context.Canceled)
			require.ErrorIs(t, own.Err(), context.DeadlineExceeded)
		}
	})
}

// A context whose Done is not called has no timer, and its parent does not know it.
func TestWithTimeoutAllocatesLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	parent, end := context.WithCancel(t.Context())
	defer end()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		ctx, stop := WithTimeout(parent, time.Minute)
		if ctx.Err() != nil {
			t.Error(ctx.Err())
		}
		stop()
	}), 2.0)
}
