// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

// An ARC agent whose connections are cut: the client repeats requests with the same id, and the server
// runs each task once.
func ExampleListener() {
	var runs atomic.Int64
	server, err := arc.NewServer(&arc.ServerOptions{
		Auth: arc.Auth{AllowAnonymous: true}, Persistence: arc.Persistence{ResultTTL: time.Minute},
	})
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.HandleTasks("counter", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		runs.Add(1)
		return nil
	}))
	plan := &fault.Plan{Seed: 1, Rules: []fault.Rule{{Action: fault.Cut, Op: "send", Probability: 0.3, Limit: 8}}}
	defer plan.Close()
	ts := httptest.NewUnstartedServer(server)
	ts.Listener = fault.Listener(ts.Listener, plan)
	ts.Start()
	defer ts.Close()
	client, err := arc.NewClient(ts.URL+"/arc", "planner", &arc.ClientOptions{
		Idempotent: true, Retry: &arc.RetryPolicy{MaxAttempts: 50, Base: time.Millisecond, Max: time.Millisecond},
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	tasks := 0
	for range 20 {
		task, err := client.CreateTask(context.Background(), "counter", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		if err == nil {
			_, err = client.WaitTask(context.Background(), "counter", task.ID, &arc.WaitOptions{MinPollInterval: time.Millisecond})
		}
		if err == nil {
			tasks++
		}
	}
	fmt.Println(tasks, "tasks,", runs.Load(), "runs, cuts:", plan.Count(fault.Cut) > 0)
	// Output: 20 tasks, 20 runs, cuts: true
}

// An engine is a storage engine under test.
type engine struct{ store.Store }

// A storage engine whose answers are lost, late or refused: a counter by store.Modify loses no change and makes none twice.
func ExampleStore() {
	mine := engine{store.NewMemory()}
	plan := &fault.Plan{Seed: 1, Rules: []fault.Rule{
		{Action: fault.ErrorAfter, Op: "create|update", Probability: 0.3},
		{Action: fault.LandLater, Op: "create|update", Probability: 0.1, Delay: 100 * time.Millisecond},
		{Action: fault.Conflict, Op: "update", Probability: 0.2},
	}}
	defer plan.Close()
	view := fault.Store(mine, plan)
	increment := func(old store.Entry, _ bool) ([]byte, error) {
		n, _ := strconv.Atoi(string(old.Value))
		return []byte(strconv.Itoa(n + 1)), nil
	}
	var wg sync.WaitGroup
	var made, unknown atomic.Int64
	for range 4 {
		wg.Go(func() {
			for range 10 {
				_, err := store.Modify(context.Background(), view, "counter", 0, increment)
				switch {
				case err == nil:
					made.Add(1)
				case errors.Is(err, store.ErrUnknown):
					unknown.Add(1)
				}
			}
		})
	}
	wg.Wait()
	plan.Flush()
	e, err := mine.Get(context.Background(), "counter")
	if err == nil {
		e, err = store.Content(e)
	}
	n, _ := strconv.ParseInt(string(e.Value), 10, 64)
	fmt.Println(err, made.Load() <= n, n <= made.Load()+unknown.Load(), "faults:", len(plan.Log()) > 0)
	// Output: <nil> true true faults: true
}
