// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

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

// A save that hangs holds no later one longer than its context permits.
func TestKeepEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var states plugin.States[string]
		states.Gates = &plugin.Gates{}
		hanging := plugin.Hooks{
			Name: "p",
			Open: func() (any, error) { return 0, nil },
			Save: func(ctx context.Context, _ any) (json.RawMessage, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			},
			Restore: func(context.Context, any, json.RawMessage) error { return nil },
			Place:   func() plugin.Place { return plugin.Place{KV: store.NewMemory(), Key: "k"} },
		}
		_, err := states.Get(t.Context(), "p", func() plugin.Hooks { return hanging })
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = states.Keep(ctx, "p") }()
		synctest.Wait()
		second, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		require.ErrorIs(t, states.Keep(second, "p"), context.DeadlineExceeded)
		cancel()
	})
}
