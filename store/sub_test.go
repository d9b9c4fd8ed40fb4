// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

func TestSubOfPrefixInTheMiddleOfALetter(t *testing.T) {
	s := store.Sub(store.NewMemory(), "\xc3")
	_, err := s.Create(context.Background(), "k", nil, 0)
	require.ErrorIs(t, err, store.ErrInvalid)
	for e, err := range s.List(context.Background(), "") {
		require.Zero(t, e)
		require.ErrorIs(t, err, store.ErrInvalid)
	}
}
