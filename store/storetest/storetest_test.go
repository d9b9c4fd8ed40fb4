// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"testing"

	"github.com/fivewire/fivewire/store"
)

func memory(*testing.T) store.Store { return store.NewMemory() }

func TestVirtual(t *testing.T) { Suite{Virtual: true}.Run(t, memory) }
func TestReal(t *testing.T)    { Run(t, memory) }
