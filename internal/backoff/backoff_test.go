// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const s = time.Second

func TestDelay(t *testing.T) {
	tests := []struct {
		name string
		b    Backoff
		want []time.Duration // after attempt 1, 2, ...
	}{
		{"zero", Backoff{}, []time.Duration{0, 0, 0}},
		{"doubling", Backoff{Base: s}, []time.Duration{s, 2 * s, 4 * s, 8 * s}},
		{"bounded", Backoff{Base: s / 2, Max: 8 * s}, []time.Duration{s / 2, s, 2 * s, 4 * s, 8 * s, 8 * s, 8 * s}},
		{"bound between", Backoff{Base: s, Max: 30 * s}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}},
		{"other factor", Backoff{Base: s, Factor: 1.5}, []time.Duration{s, 1500 * time.Millisecond, 2250 * time.Millisecond}},
		{"constant", Backoff{Base: s, Factor: 1}, []time.Duration{s, s, s}},
		{"factor below one", Backoff{Base: s, Factor: 0.5}, []time.Duration{s, s, s}},
		{"factor is no number", Backoff{Base: s, Factor: math.NaN()}, []time.Duration{s, s}},
		{"base above the bound", Backoff{Base: s, Max: s / 4}, []time.Duration{s / 4, s / 4}},
		{"negative base", Backoff{Base: -s}, []time.Duration{0, 0}},
		{"negative jitter", Backoff{Base: s, Jitter: -1}, []time.Duration{s, 2 * s}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, want := range tt.want {
				require.Equal(t, want, tt.b.Delay(i+1), "after attempt %d", i+1)
			}
			require.Equal(t, tt.want[0], tt.b.Delay(0))
			require.Equal(t, tt.want[0], tt.b.Delay(-5))
		})
	}
	// After some thousand attempts the factor is beyond all numbers; nothing times
	// that is still nothing.
	for _, attempt := range []int{1024, 1025, 1_000_000, math.MaxInt} {
		require.Zero(t, Backoff{}.Delay(attempt))
		require.Zero(t, Backoff{Max: s, Jitter: 1}.Delay(attempt))
		require.Zero(t, Backoff{Base: -s}.Delay(attempt))
		require.Zero(t, Backoff{Factor: math.Inf(1)}.Delay(attempt))
	}
	require.Equal(t, longest, Backoff{Base: s}.Delay(math.MaxInt))
	require.Equal(t, longest, Backoff{Base: s, Factor: math.Inf(1)}.Delay(2))
	require.Equal(t, time.Minute, Backoff{Base: s, Max: time.Minute}.Delay(math.MaxInt))
}

func TestDelayJitter(t *testing.T) {
	b := Backoff{Base: 5 * s, Factor: 1, Jitter: 0.2}
	lo, hi := b.Delay(1), b.Delay(1)
	for range 10_000 {
		d := b.Delay(1)
		lo, hi = min(lo, d), max(hi, d)
	}
	require.InDelta(t, 4*s, lo, float64(s/20))
	require.InDelta(t, 6*s, hi, float64(s/20))
	require.GreaterOrEqual(t, lo, 4*s)
	require.LessOrEqual(t, hi, 6*s)
}

func TestDelayLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Base:   time.Duration(rapid.Int64().Draw(t, "base")),
			Factor: rapid.Float64().Draw(t, "factor"),
			Max:    time.Duration(rapid.Int64().Draw(t, "max")),
			Jitter: rapid.Float64().Draw(t, "jitter"),
		}
		n := rapid.Int().Draw(t, "attempt")
		d := b.Delay(n)
		require.GreaterOrEqual(t, d, time.Duration(0))
		if b.Max > 0 && b.Max < longest {
			require.LessOrEqual(t, d, 2*b.Max)
		}
		b.Jitter = 0
		if n < math.MaxInt {
			require.LessOrEqual(t, b.Delay(n), b.Delay(n+1))
		}
	})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		require.NoError(t, Backoff{Base: s}.Wait(t.Context(), 3))
		require.Equal(t, 4*s, time.Since(begin))

		require.NoError(t, Backoff{}.Wait(t.Context(), 3))

		stop := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(s, func() { cancel(stop) })
		begin = time.Now()
		require.Equal(t, stop, Backoff{Base: 2 * s}.Wait(ctx, 1))
		require.Equal(t, s, time.Since(begin))
		require.Equal(t, stop, Backoff{Base: 2 * s}.Wait(ctx, 1))
		require.Equal(t, stop, Backoff{}.Wait(ctx, 1))
		require.Equal(t, s, time.Since(begin))
	})
}
