// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
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
		states := newStates(t, plugin.Place{KV: store.NewMemory(), Key: "k"}, func(ctx context.Context) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = states.Keep(ctx, "p") }()
		synctest.Wait()
		second, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		require.ErrorIs(t, states.Keep(second, "p"), context.DeadlineExceeded)
		cancel()
	})
}

// A request that is canceled while it restores a state fails no other request that waits for the state.
func TestCanceledMakerFailsNoWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := plugin.Place{KV: store.NewMemory(), Key: "k"}
		require.NoError(t, place.Save(t.Context(), "p", json.RawMessage(`{}`)))
		states, opened := plugin.States[string]{Gates: &plugin.Gates{}}, 0
		get := func(ctx context.Context) (any, error) {
			return states.Get(ctx, "p", func() plugin.Hooks {
				return plugin.Hooks{Name: "p", Open: func() (any, error) { opened++; return opened, nil },
					Restore: func(ctx context.Context, state any, _ json.RawMessage) error {
						if state == 1 {
							<-ctx.Done()
						}
						return ctx.Err()
					}, Place: func() plugin.Place { return place }}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = get(ctx) }()
		synctest.Wait()
		go func() { synctest.Wait(); cancel() }()
		state, err := get(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, state)
	})
}

// The snapshot of a durable session has its state (A2E-D67). One of the agent is that of earlier sessions, too.
func TestDeleteKeepsStateOfSession(t *testing.T) {
	for _, isSession := range []bool{true, false} {
		ctx, place := t.Context(), plugin.Place{KV: store.NewMemory(), Key: "k", IsSession: isSession}
		states := newStates(t, place, func(context.Context) (json.RawMessage, error) { return json.RawMessage(`{}`), nil })
		require.NoError(t, states.Keep(ctx, "p"))
		require.NoError(t, states.Delete(ctx))
		_, err := place.Load(ctx, "p")
		require.Equal(t, !isSession, errors.Is(err, store.ErrNotFound))
		require.NoError(t, states.Keep(ctx, "p"))
		_, err = place.Load(ctx, "p")
		require.NoError(t, err)
	}
}

// The state of a session that was taken over is changed by its last owner only, also if it was empty then.
func TestEarlierOwnerChangesNothing(t *testing.T) {
	for _, hasState := range []bool{true, false} {
		ctx, kv := t.Context(), store.NewMemory()
		first := plugin.Place{KV: kv, Key: "k", IsSession: true}
		second := plugin.Place{KV: kv, Key: "k", IsSession: true, Term: 1}
		_, err := first.Load(ctx, "p")
		require.ErrorIs(t, err, store.ErrNotFound)
		if hasState {
			require.NoError(t, first.Save(ctx, "p", json.RawMessage(`{"n":1}`)))
		}
		got, err := second.Load(ctx, "p")
		if hasState {
			require.NoError(t, err)
			require.JSONEq(t, `{"n":1}`, string(got))
		} else {
			require.ErrorIs(t, err, store.ErrNotFound)
		}
		require.ErrorIs(t, first.Save(ctx, "p", json.RawMessage(`{"n":2}`)), plugin.ErrMoved)
		require.ErrorIs(t, first.Save(ctx, "p", nil), plugin.ErrMoved)
		_, err = first.Load(ctx, "p")
		require.ErrorIs(t, err, plugin.ErrMoved)
		require.NoError(t, second.Save(ctx, "p", json.RawMessage(`{"n":3}`)))
		require.ErrorIs(t, first.Save(ctx, "p", json.RawMessage(`{"n":2}`)), plugin.ErrMoved)
		got, err = second.Load(ctx, "p")
		require.NoError(t, err)
		require.JSONEq(t, `{"n":3}`, string(got))
		require.NoError(t, second.Save(ctx, "p", nil))
		_, err = second.Load(ctx, "p")
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

// A state that a request does not change costs no write, also the first request of a later owner.
func TestUnchangedStateIsNotWritten(t *testing.T) {
	ctx, kv := t.Context(), &writes{KV: store.NewMemory()}
	object := json.RawMessage(`{"n":1}`)
	for term := range 2 {
		place := plugin.Place{KV: kv, Key: "k", IsSession: true, Term: term}
		states := newStates(t, place, func(context.Context) (json.RawMessage, error) { return object, nil })
		if term == 0 {
			require.NoError(t, states.Keep(ctx, "p"))
		}
		before := kv.n
		for range 3 {
			require.NoError(t, states.Keep(ctx, "p"))
		}
		require.Equal(t, before, kv.n, term)
	}
	_, err := plugin.Place{KV: kv, Key: "k", IsSession: true}.Load(ctx, "p")
	require.ErrorIs(t, err, plugin.ErrMoved)
	got, err := plugin.Place{KV: kv, Key: "k", IsSession: true, Term: 1}.Load(ctx, "p")
	require.NoError(t, err)
	require.Equal(t, string(object), string(got))
}

// writes counts the writes to a store.
type writes struct {
	store.KV
	n int
}

func (w *writes) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	w.n++
	return w.KV.Create(ctx, key, value, ttl)
}

func (w *writes) Update(ctx context.Context, key string, value []byte, revision store.Revision, ttl time.Duration) (store.Revision, error) {
	w.n++
	return w.KV.Update(ctx, key, value, revision, ttl)
}

// newStates returns states with that of one plugin, which has a place for snapshots.
func newStates(t *testing.T, place plugin.Place, save func(ctx context.Context) (json.RawMessage, error)) *plugin.States[string] {
	t.Helper()
	states := &plugin.States[string]{Gates: &plugin.Gates{}}
	_, err := states.Get(t.Context(), "p", func() plugin.Hooks {
		return plugin.Hooks{
			Name:    "p",
			Open:    func() (any, error) { return 0, nil },
			Save:    func(ctx context.Context, _ any) (json.RawMessage, error) { return save(ctx) },
			Restore: func(context.Context, any, json.RawMessage) error { return nil },
			Place:   func() plugin.Place { return place },
		}
	})
	require.NoError(t, err)
	return states
}
