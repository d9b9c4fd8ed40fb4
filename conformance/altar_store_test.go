// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

// TestAltarWithStore requires the same answers of a Host on a store as of one
// that keeps its state in the process.
func TestAltarWithStore(t *testing.T) {
	p := Altar()
	p.Ops["host_script"] = func(t T, in *Input) (Answer, error) {
		return Script{Start: altarStart, Open: func(t *testing.T, in *Input) (Step, error) {
			return openAltarHost(t, in, store.NewMemory())
		}}.Run(t, in)
	}
	failures, err := KnownFailures()
	require.NoError(t, err)
	failures = slices.DeleteFunc(failures, func(k KnownFailure) bool { return !strings.HasPrefix(k.ID, "altar-") })
	report := Run(t, Embedded().Filter(func(c *Case) bool { return c.Protocol == "altar" }), []Protocol{p}, &Options{KnownFailures: failures})
	require.True(t, report.Passed())
}
