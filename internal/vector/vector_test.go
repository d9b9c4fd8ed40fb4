// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package vector_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/vector"
)

var errOdd = errors.New("odd")

var ops = vector.Ops{
	"half": vector.New(func(in struct{ N int }) (any, error) {
		if in.N%2 != 0 {
			return nil, errOdd
		}
		return in.N / 2, nil
	}),
	"list": vector.New(func(in []string) (any, error) { return len(in), nil }),
	"nan":  vector.New(func(struct{}) (any, error) { return math.NaN(), nil }),
}

func TestCallReturnsResultOfOperation(t *testing.T) {
	n, err := vector.Call[int](ops.Run, "half", map[string]any{"n": 8})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	n, err = vector.Call[int](ops.Run, "list", []string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func TestCallReturnsErrors(t *testing.T) {
	for _, tt := range []struct {
		op   string
		in   any
		want string
	}{
		{"half", map[string]any{"n": 7}, errOdd.Error()},
		{"third", map[string]any{}, `unknown operation "third"`},
		{"half", map[string]any{"n": 8, "m": 1}, "unknown field"},
		{"half", "8", "cannot unmarshal"},
		{"half", math.NaN(), "unsupported value"},
		{"nan", map[string]any{}, "unsupported value"},
	} {
		_, err := vector.Call[int](ops.Run, tt.op, tt.in)
		require.ErrorContains(t, err, tt.want)
	}
	_, err := vector.Call[int](ops.Run, "half", map[string]any{"n": 7})
	require.ErrorIs(t, err, errOdd, "the error of the operation, unwrapped")
	_, err = vector.Call[string](ops.Run, "half", map[string]any{"n": 8})
	require.ErrorContains(t, err, "cannot unmarshal", "a result of another type")
}
