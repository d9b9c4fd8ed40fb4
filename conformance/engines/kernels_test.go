// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"testing"

	"github.com/fivewire/fivewire/internal/kerneltest"
	"github.com/fivewire/fivewire/store"
)

// The kernels of state keep their promises on every engine. The suite takes about a
// minute of real time on each: the short form has SQLite only.
func TestKernels(t *testing.T) {
	eachShared(t, func(t *testing.T, p *place) {
		if os.Getenv("FIVEWIRE_LONG") == "" && t.Name() != "TestKernels/SQLite" {
			t.Skip("long form only: set FIVEWIRE_LONG")
		}
		kerneltest.Run(t, func(t *testing.T) store.Store { return p.open(t) })
	})
}
