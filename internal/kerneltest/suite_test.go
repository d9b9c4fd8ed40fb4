// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The service keeps its promises in memory, in virtual time.
func TestServiceInMemory(t *testing.T) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := store.NewMemory()
				tt.run(t, newCluster(t, func(*testing.T) store.Store { return db }, 15*time.Second, true))
			})
		})
	}
}
