// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
	"github.com/fivewire/fivewire/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	b.Run("engine=embedded", func(b *testing.B) {
		storetest.Benchmark(b, func(b *testing.B) store.Store {
			s, err := embedded.Open(context.Background(), b.TempDir(), nil)
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, s.Close()) })
			return s
		})
	})
	b.Run("engine=cluster", func(b *testing.B) {
		c := startCluster(b)
		storetest.Benchmark(b, func(b *testing.B) store.Store {
			s, err := natsstore.Open(context.Background(), c.url(0), &natsstore.Options{StreamPrefix: newName()})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, s.Close()) })
			return s
		})
	})
}
