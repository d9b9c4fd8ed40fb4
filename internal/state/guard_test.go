// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// Each method of a guarded store returns a panic as its error, and else what the store returns.
func TestGuardReturnsPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db, hook := testkit.PanickingStore(store.NewMemory(), 0)
		s := state.Guard(db)
		require.Equal(t, s, state.Guard(s))
		require.Equal(t, s, state.GuardKV(s))
		require.Equal(t, s, state.GuardLog(s))
		var rev store.Revision
		var pos uint64
		for name, call := range map[string]func(kv store.KV, log store.Log) error{
			"Create": func(kv store.KV, _ store.Log) (err error) { rev, err = kv.Create(ctx, "k", []byte("v"), 0); return err },
			"Get": func(kv store.KV, _ store.Log) error {
				e, err := kv.Get(ctx, "k")
				require.Equal(t, err == nil, string(e.Value) == "v")
				return err
			},
			"Update": func(kv store.KV, _ store.Log) error { _, err := kv.Update(ctx, "other", nil, rev, 0); return err },
			"Delete": func(kv store.KV, _ store.Log) error { return kv.Delete(ctx, "other", 0) },
			"List": func(kv store.KV, _ store.Log) (err error) {
				for _, err = range kv.List(ctx, "k") {
				}
				return err
			},
			"Append": func(_ store.KV, log store.Log) (err error) {
				pos, err = log.Append(ctx, "s", "", []byte("v"), 0)
				return err
			},
			"Read":   func(_ store.KV, log store.Log) error { _, err := log.Read(ctx, "s", 0, 1); return err },
			"Ack":    func(_ store.KV, log store.Log) error { return log.Ack(ctx, "s", pos) },
			"Expire": func(_ store.KV, log store.Log) error { return log.Expire(ctx, "s", time.Hour) },
		} {
			hook.Skip.Store(0)
			hook.Left.Store(1)
			var p *guard.PanicError
			require.ErrorAs(t, call(s, s), &p, name)
			hook.Left.Store(1)
			require.ErrorAs(t, call(state.GuardKV(db), state.GuardLog(db)), &p, name)
			err := call(s, s)
			require.True(t, err == nil || errors.Is(err, store.ErrNotFound), "%s: %v", name, err)
		}
		require.Nil(t, state.Guard(nil))
		require.Nil(t, state.GuardKV(nil))
		require.Nil(t, state.GuardLog(nil))
	})
}
