// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fault_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
)

// waitOutput waits until the output has a text count times.
func waitOutput(t *testing.T, p *fault.Process, text string, count int) {
	t.Helper()
	for range 600 {
		if strings.Count(string(p.Output()), text) >= count {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("output: got %q, want %q %d times", p.Output(), text, count)
}

func TestKillRestartsProcessAndItsGroup(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := fault.Command(ctx, "sh", "-c", "echo begin; sleep 1000 & wait")
	require.NoError(t, err)
	waitOutput(t, p, "begin", 1)
	require.NoError(t, p.Kill(0))
	waitOutput(t, p, "begin", 2)
	require.NoError(t, p.Kill(time.Millisecond))
	waitOutput(t, p, "begin", 5)
	cancel()
	require.Error(t, p.Kill(0), "after the end of the context")
}

func TestStopSuspendsProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := fault.Command(ctx, "sh", "-c", "while :; do echo x; sleep 0.01; done")
	require.NoError(t, err)
	waitOutput(t, p, "x", 3)
	require.NoError(t, p.Stop(100*time.Millisecond, 0))
	waitOutput(t, p, "x", strings.Count(string(p.Output()), "x")+3)
	require.NoError(t, p.Stop(time.Millisecond, time.Millisecond))
	waitOutput(t, p, "x", strings.Count(string(p.Output()), "x")+3)
}

func TestCommandReportsMissingProgram(t *testing.T) {
	_, err := fault.Command(t.Context(), "no-such-program-here")
	require.Error(t, err)
}
