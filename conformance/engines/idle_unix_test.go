// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package engines

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// The memory of an idle caller, with its connection and its session, is bounded. The long form has 10,000 callers on
// connections in memory, and each side of all of them uses a twentieth of a processor at most.
func TestIdleCallersAreSmall(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	isLong := os.Getenv("FIVEWIRE_LONG") != ""
	for _, p := range endToEnd {
		t.Run(p.name, func(t *testing.T) {
			e, callers := environment{Store: store.NewMemory()}, 200
			if isLong {
				e.network, e.sessions, callers = &pipes{listeners: map[string]*pipeListener{}}, -1, 10_000
			}
			connect := p.serve(t, e)
			call := connect(t)
			require.NoError(t, call(t.Context()))
			before := kit.HeapAndStacks()
			calls := make([]func(context.Context) error, callers)
			for i := range calls {
				calls[i] = connect(t)
				require.NoError(t, calls[i](t.Context()))
			}
			each := (kit.HeapAndStacks() - before) / int64(callers)
			t.Logf("%s: %d bytes for an idle caller, both sides", p.name, each)
			require.Less(t, each, p.idle)
			if isLong {
				const idle = 30 * time.Second
				used := processorTime(t)
				time.Sleep(idle)
				share := (processorTime(t) - used).Seconds() / idle.Seconds()
				t.Logf("%s: %.1f %% of a processor for %d idle callers", p.name, 100*share, callers)
				require.Less(t, share, 0.1)
			}
			runtime.KeepAlive(calls)
		})
	}
}

// processorTime returns the processor time of the program until now.
func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
