// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/race"
)

// allocs is how many allocations an operation makes, in all goroutines.
func allocs(t *testing.T, runs int, op func() error) float64 {
	t.Helper()
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for range 20 { // connections and pools
		require.NoError(t, op())
	}
	minimum := math.Inf(1) // goroutines of the runtime and emptied pools only add to the number
	for range 3 {
		minimum = min(minimum, testing.AllocsPerRun(runs, func() {
			if err := op(); err != nil {
				t.Fatal(err)
			}
		}))
	}
	return minimum
}

func serveMessage(s *arc.Server, method, params string) func() error {
	in := &arc.ServerRequest{Data: []byte(call(method, "a-01", params))}
	return func() error {
		if a := s.ServeMessage(context.Background(), in, nil); a.Error != nil {
			return a.Error
		}
		return nil
	}
}

// A whole call with typed params that reads a task: client, server, and the allocations of net/http
// for both, which are 76 without any protocol.
func TestHTTPUnaryAllocations(t *testing.T) {
	op := taskInfo(benchServer(t))
	require.LessOrEqual(t, allocs(t, 200, func() error { return op(0) }), 95.0)
}

// One allocation for each of the 100 events, and those of the call and its two ends.
func TestHTTPStreamAllocations(t *testing.T) {
	client, _ := benchServer(t)
	op := streamChat(client)
	require.LessOrEqual(t, allocs(t, 100, func() error { return op(0) }), 275.0)
}

func TestTaskInfoAllocations(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
	id := createTask(t, s, "a-01", "x")
	for messages, most := range map[bool]float64{false: 2, true: 3} {
		params := fmt.Sprintf(`{"taskId":%q,"includeMessages":%v,"includeArtifacts":%v}`, id, messages, messages)
		require.LessOrEqual(t, allocs(t, 200, serveMessage(s, "task.info", params)), most, "messages: %v", messages)
	}
}

// A task from its creation to its end, with four changes that are kept.
func TestTaskCreateAllocations(t *testing.T) {
	s := newServer(t, nil)
	done := make(chan struct{})
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
		done <- struct{}{}
		return nil
	}))
	op := serveMessage(s, "task.create", `{"initialMessage":`+hello("x")+`}`)
	require.LessOrEqual(t, allocs(t, 200, func() error {
		err := op()
		<-done
		return err
	}), 37.0)
}

// The cost of an event does not depend on how many there were before.
func TestEventAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	costOf := func(events int) (allocs, bytes float64) {
		op := eventsOp(t, events)
		for range 20 {
			require.NoError(t, op())
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			require.NoError(t, op())
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
	}
	allocs1, bytes1 := costOf(100)
	allocs2, bytes2 := costOf(200)
	require.LessOrEqual(t, allocs2, 2.05*allocs1)
	require.LessOrEqual(t, bytes2, 2.05*bytes1)
}
