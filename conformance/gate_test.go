// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

func TestGatedStoreFailsWithoutEffectAfterKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		state := store.NewMemory()
		g := newGate()
		s := &gatedStore{Store: state, gate: g}
		rev, err := s.Create(ctx, "k", []byte("v"), 0)
		require.NoError(t, err)
		seq, err := s.Append(ctx, "log", "", []byte("r"), 0)
		require.NoError(t, err)
		waited := make(chan error, 1)
		go func() { waited <- s.Wait(ctx, "empty", 0) }()
		synctest.Wait()
		require.Empty(t, waited)

		g.kill()
		g.kill()
		require.ErrorIs(t, <-waited, errKilled)
		_, err = s.Get(ctx, "k")
		require.ErrorIs(t, err, errKilled)
		_, err = s.Create(ctx, "l", nil, 0)
		require.ErrorIs(t, err, errKilled)
		_, err = s.Update(ctx, "k", []byte("w"), rev, 0)
		require.ErrorIs(t, err, errKilled)
		require.ErrorIs(t, s.Delete(ctx, "k", 0), errKilled)
		for _, err := range s.List(ctx, "") {
			require.ErrorIs(t, err, errKilled)
		}
		_, err = s.Append(ctx, "log", "", []byte("t"), 0)
		require.ErrorIs(t, err, errKilled)
		_, err = s.Read(ctx, "log", 0, 0)
		require.ErrorIs(t, err, errKilled)
		require.ErrorIs(t, s.Ack(ctx, "log", seq), errKilled)
		require.ErrorIs(t, s.Expire(ctx, "log", 0), errKilled)
		require.ErrorIs(t, s.Wait(ctx, "log", 0), errKilled)

		entry, err := state.Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "v", string(entry.Value))
		records, err := state.Read(ctx, "log", 0, 0)
		require.NoError(t, err)
		require.Len(t, records, 1)
	})
}
