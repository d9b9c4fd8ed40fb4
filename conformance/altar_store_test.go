// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

// A Host that keeps its state in a store answers every script of altar like one
// that keeps it to itself.
func TestAltarWithStore(t *testing.T) {
	p := Altar()
	p.Ops["host_script"] = func(t *testing.T, in *Input) (Answer, error) {
		return Script{Start: altarStart, Open: func(t *testing.T, in *Input) (Step, error) {
			return openAltarHost(t, in, store.NewMemory())
		}}.Run(t, in)
	}
	report := Run(t, Embedded().Only("altar"), []Protocol{p}, nil)
	require.True(t, report.Passed())
}
