// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/store"
)

// The cost of tasks in process: message in, message out, without HTTP. A task that
// is created also runs, to its end.
func BenchmarkTaskCreate(b *testing.B) {
	b.Run("lib=sdk", func(b *testing.B) { times(b, createOp(b)) })
	b.Run("lib=map", func(b *testing.B) { times(b, newMapFloor().create) })
}

func BenchmarkTaskInfo(b *testing.B) {
	for _, messages := range []bool{false, true} {
		b.Run(fmt.Sprintf("lib=sdk/messages=%v", messages), func(b *testing.B) { times(b, infoOp(b, messages)) })
	}
	b.Run("lib=map", func(b *testing.B) { times(b, newMapFloor().existing()) })
}

func BenchmarkPairTaskCreate(b *testing.B) {
	b.Run("lib=sdk", func(b *testing.B) { pair.Ratio(b, loop(b, createOp(b)), loop(b, newMapFloor().create)) })
}

func BenchmarkPairTaskInfo(b *testing.B) {
	for _, messages := range []bool{false, true} {
		b.Run(fmt.Sprintf("lib=sdk/messages=%v", messages), func(b *testing.B) {
			pair.Ratio(b, loop(b, infoOp(b, messages)), loop(b, newMapFloor().existing()))
		})
	}
}

func createOp(b *testing.B) func() error {
	// Finished tasks go soon, so that the memory stays what it is.
	s := newServer(b, &arc.ServerOptions{Persistence: arc.Persistence{TaskRetention: 100 * time.Millisecond}})
	s.HandleTasks("a-01", arctest.ScriptedTask())
	return serveMessage(s, "task.create", `{"initialMessage":`+hello("x")+`}`)
}

func infoOp(b *testing.B, messages bool) func() error {
	s := newServer(b, nil)
	s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
	id := createTask(b, s, "a-01", "x")
	return serveMessage(s, "task.info", fmt.Sprintf(`{"taskId":%q,"includeMessages":%v,"includeArtifacts":%v}`, id, messages, messages))
}

func times(b *testing.B, op func() error) {
	b.ReportAllocs()
	for b.Loop() {
		if err := op(); err != nil {
			b.Fatal(err)
		}
	}
}

func loop(b *testing.B, op func() error) func(int) {
	return pair.Loop(func() {
		if err := op(); err != nil {
			b.Fatal(err)
		}
	})
}

// A mapFloor does what a table of keys with times of expiry does at the least.
type mapFloor struct {
	mu   sync.Mutex
	keys map[string]int64
	ring []string
	n    int
}

func newMapFloor() *mapFloor { return &mapFloor{keys: map[string]int64{}} }

func (m *mapFloor) create() error {
	m.n++
	if !m.put(fmt.Sprintf("k%d-%024d", int64(1763697022000000000), m.n)) {
		return errors.New("the key was present")
	}
	return nil
}

// existing returns an operation that puts an existing key.
func (m *mapFloor) existing() func() error {
	m.put("k")
	return func() error {
		if m.put("k") {
			return errors.New("the key was absent")
		}
		return nil
	}
}

// put reports whether it stored the key: false if the key exists and has not expired.
func (m *mapFloor) put(key string) bool {
	now := time.Now().UnixNano()
	m.mu.Lock()
	defer m.mu.Unlock()
	if expires, ok := m.keys[key]; ok && expires > now {
		return false
	}
	m.keys[key] = now + int64(5*time.Minute)
	if m.ring = append(m.ring, key); len(m.ring) > 100_000 {
		delete(m.keys, m.ring[0])
		m.ring = m.ring[1:]
	}
	return true
}

// BenchmarkTaskEvents adds that many messages to one task: the cost of an event
// must not grow with the task.
func BenchmarkTaskEvents(b *testing.B) {
	for _, n := range []int{100, 200} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			times(b, eventsOp(b, n))
		})
	}
}

// eventsOp makes a task of n messages.
func eventsOp(tb testing.TB, n int) func() error {
	s := newServer(tb, nil)
	done := make(chan struct{})
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		m := arc.AgentText("progress")
		for range n {
			if err := run.AddMessage(ctx, m); err != nil {
				return err
			}
		}
		done <- struct{}{}
		return nil
	}))
	op := serveMessage(s, "task.create", `{"initialMessage":`+hello("x")+`}`)
	return func() error {
		err := op()
		<-done
		return err
	}
}

// BenchmarkRoute chooses among the instances of a group.
func BenchmarkRoute(b *testing.B) {
	r := engine.NewRouter(store.NewMemory())
	for i := range 10 {
		if err := r.Add(fmt.Sprintf("g-%02d", i), "g", 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		id, err := r.Take("g", "", true)
		if err != nil {
			b.Fatal(err)
		}
		r.Done(id)
	}
}
