// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"testing"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	for _, e := range engines {
		for name, relaxed := range map[string]bool{"": false, "-relaxed": true} {
			b.Run("engine="+e.name+name, func(b *testing.B) {
				storetest.Benchmark(b, func(b *testing.B) store.Store {
					d := e.create(b)
					d.opts.AsyncCommit = relaxed
					return d.open(b)
				})
			})
		}
	}
}
