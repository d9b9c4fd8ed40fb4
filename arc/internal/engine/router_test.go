// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// requireCode requires that an error is a fault with a code.
func requireCode(t *testing.T, err error, code int64) {
	t.Helper()
	require.True(t, isCode(err, code), "%v", err)
}

func TestRouterKeys(t *testing.T) {
	ctx := t.Context()
	db := store.NewMemory()
	one, two := NewRouter(db), NewRouter(db)
	for _, r := range []*Router{one, two} {
		for _, id := range []string{"g-01", "g-02"} {
			require.NoError(t, r.Add(id, "g", 1))
		}
	}
	q := &Request{Target: "g"}
	id, err := one.Take("g", "", true)
	require.NoError(t, err)
	require.Equal(t, "g-01", id)
	q.Agent = id
	require.NoError(t, one.BindWork(ctx, q, "taskId", "k"))
	// Routers that share a store agree, whatever their turn.
	bound, err := two.OwnerOf(ctx, q, "taskId", "k")
	require.NoError(t, err)
	require.Equal(t, "g-01", bound)
	id, err = two.Take("g", bound, true)
	require.NoError(t, err)
	require.Equal(t, "g-01", id)
	_, err = two.Take("g", bound, true)
	requireCode(t, err, wire.AgentCapacityExceeded)
	require.True(t, two.Remove("g-01"))
	require.False(t, two.Remove("g-01"))
	_, err = two.Take("g", bound, true)
	requireCode(t, err, wire.AgentNotAvailable) // never silently elsewhere
	require.False(t, two.SetHealthy("g-01", true))
	_, err = two.Take("nobody", "", true)
	requireCode(t, err, wire.AgentNotFound)
	require.True(t, two.Remove("g-02"))
	_, err = two.Take("g", "", true)
	requireCode(t, err, wire.AgentNotFound)
}
