// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/store"
)

// Snapshots keep objects apart by plugin and key, whatever these are (A2E-148).
func TestPlacesKeepObjectsApart(t *testing.T) {
	kv, ctx := store.NewMemory(), t.Context()
	at := func(key string) plugin.Place { return plugin.Place{KV: kv, Key: key} }
	_, err := at("k").Load(ctx, "p")
	require.ErrorIs(t, err, store.ErrNotFound)
	keys := []string{"k", "../k", "a/b", "a:b", ""}
	for i, key := range keys {
		require.NoError(t, at(key).Save(ctx, "p", json.RawMessage(`{}`)))
		require.NoError(t, at(key).Save(ctx, "p", json.RawMessage(`{"n":`+string(rune('0'+i))+`.0}`)))
	}
	for i, key := range keys {
		got, err := at(key).Load(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, `{"n":`+string(rune('0'+i))+`.0}`, string(got))
	}
	require.Error(t, at("k").Save(ctx, "p", json.RawMessage(`[]`)))
	require.NoError(t, at("k").Save(ctx, "p", nil))
	_, err = at("k").Load(ctx, "p")
	require.ErrorIs(t, err, store.ErrNotFound)
}
