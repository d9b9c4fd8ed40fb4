// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package option

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestZeroIsTheDefaultAndNegativeIsOff(t *testing.T) {
	require.Equal(t, 7, Count(0, 7))
	require.Equal(t, 3, Count(3, 7))
	require.Equal(t, None, Count(-1, 7))
	require.Equal(t, time.Second, Duration(0, time.Second))
	require.Equal(t, time.Hour, Duration(time.Hour, time.Second), "also where an int has 32 bits")
	require.Equal(t, Off, Duration(math.MinInt64, time.Second))
	require.Equal(t, int64(5), Or[int64](-2, 9, 5))
	require.Equal(t, NoBytes, Bytes(-1, 7))
	for _, v := range []int{-1, math.MaxInt} {
		require.Positive(t, 2*Count(v, 7), "a bound that is off can be doubled")
		require.Positive(t, 2*Bytes(int64(v), 7))
		require.Positive(t, 2*Duration(time.Duration(v), time.Second))
	}
	require.Positive(t, Duration(-1, 7)+time.Hour, "a duration that is off can be added to")
	require.Positive(t, Or(time.Duration(math.MaxInt64), time.Second, 0)+time.Hour, "and so can the longest one")
}
