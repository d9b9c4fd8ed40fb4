// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
)

// The cost of tasks in process: message in, message out, without HTTP.
func BenchmarkTaskCreate(b *testing.B) {
	s := newServer(b, nil)
	s.HandleTasks("a-01", arctest.Task())
	in := &arc.Incoming{Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`))}
	b.ReportAllocs()
	for b.Loop() {
		if a := s.ServeMessage(b.Context(), in, nil); a.Error != nil {
			b.Fatal(a.Error)
		}
	}
}

func BenchmarkTaskInfo(b *testing.B) {
	for _, messages := range []bool{false, true} {
		b.Run(fmt.Sprintf("messages=%v", messages), func(b *testing.B) {
			s := newServer(b, nil)
			s.HandleTasks("a-01", arctest.Task(arctest.Hang()))
			id := createTask(b, s, "a-01", "x")
			in := &arc.Incoming{Data: []byte(call("task.info", "a-01", fmt.Sprintf(`{"taskId":%q,"includeMessages":%v,"includeArtifacts":%v}`, id, messages, messages)))}
			b.ReportAllocs()
			for b.Loop() {
				if a := s.ServeMessage(b.Context(), in, nil); a.Error != nil {
					b.Fatal(a.Error)
				}
			}
		})
	}
}

// BenchmarkTaskEvents adds that many messages to one task: the cost of an event
// must not grow with the task.
func BenchmarkTaskEvents(b *testing.B) {
	for _, n := range []int{100, 200} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			s := newServer(b, nil)
			done := make(chan struct{})
			s.HandleTasks("a-01", arc.TaskFunc(func(ctx context.Context, run *arc.TaskRun) error {
				m := arc.AgentText("progress")
				for range n {
					if err := run.AddMessage(ctx, m); err != nil {
						return err
					}
				}
				done <- struct{}{}
				return nil
			}))
			in := &arc.Incoming{Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`))}
			b.ReportAllocs()
			for b.Loop() {
				if a := s.ServeMessage(b.Context(), in, nil); a.Error != nil {
					b.Fatal(a.Error)
				}
				<-done
			}
		})
	}
}

// BenchmarkRoute chooses among the instances of a group.
func BenchmarkRoute(b *testing.B) {
	r := arc.NewRouter(nil)
	for i := range 10 {
		if err := r.Add(fmt.Sprintf("g-%02d", i), "g", 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		id, err := r.Pick(b.Context(), "g", "")
		if err != nil {
			b.Fatal(err)
		}
		r.Done(id)
	}
}
