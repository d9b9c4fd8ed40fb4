// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

func TestDamageNamesItsPlace(t *testing.T) {
	for text, err := range map[string]error{
		`store: damaged data in /a/b: stream "s": position 7`:                                       &store.CorruptError{Path: "/a/b", Stream: "s", Position: 7},
		`store: damaged data in /a/b: key "k": position 7: cause`:                                   &store.CorruptError{Path: "/a/b", Key: "k", Position: 7, Cause: errors.New("cause")},
		`store: data lost in /a/b: positions 6 to 9 are missing`:                                    &store.LossError{Path: "/a/b", Have: 5, Want: 9},
		`store: data lost in /a/b: the high-water mark is missing, and the data ends at position 5`: &store.LossError{Path: "/a/b", Have: 5},
	} {
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, store.ErrCorrupt)
	}
}

func TestPersistEndsAtDamage(t *testing.T) {
	calls := 0
	err := store.Persist(t.Context(), func(context.Context) error {
		calls++
		return &store.CorruptError{Path: "/a/b"}
	})
	require.ErrorIs(t, err, store.ErrCorrupt)
	require.NotErrorIs(t, err, store.ErrUnknown)
	require.Equal(t, 1, calls)
}
