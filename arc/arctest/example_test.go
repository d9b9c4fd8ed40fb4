// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arctest_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
)

// The agent under test calls a server whose agent follows a script, without a
// network.
func ExampleScriptedTask() {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	finished := make(chan struct{})
	srv.HandleTasks("painter-01", arctest.ScriptedTask(
		arctest.AddMessage("mixing red"),
		arctest.AddArtifact("picture", "a red house"),
		func(ctx context.Context, run *arc.TaskRun) error {
			task, err := run.Task(ctx)
			if err != nil {
				return err
			}
			fmt.Println(task.Messages[0].Text(), "->", task.Messages[1].Text(), "->", task.Artifacts[0].Parts[0].Content)
			close(finished)
			return nil
		}))
	answer := srv.ServeMessage(context.Background(), &arc.ServerRequest{Data: []byte(`{"arc":"1.0","id":"1","method":"task.create",
		"requestAgent":"tester-01","targetAgent":"painter-01",
		"params":{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"a house, please"}]}}}`)}, nil)
	if answer.Error != nil {
		log.Fatal(answer.Error)
	}
	<-finished
	// Output: a house, please -> mixing red -> a red house
}

// A server and a client whose responses are lost: the client repeats its request, and the task runs once.
func ExampleNewPair() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Cut, Op: "request", Limit: 2}}}
	defer plan.Close()
	srv, client := arctest.NewPair(t, &arctest.PairOptions{
		Server:    &arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: time.Minute}},
		Client:    &arc.ClientOptions{Idempotent: true, Retry: &arc.RetryPolicy{Base: time.Millisecond}},
		Transport: func(next http.RoundTripper) http.RoundTripper { return fault.RoundTripper(next, plan) },
	})
	runs := make(chan string, 10)
	srv.HandleTasks("painter-01", arc.TaskHandlerFunc(func(_ context.Context, run *arc.TaskRun) error {
		runs <- run.Message().Text()
		return nil
	}))
	task, err := client.CreateTask(context.Background(), "painter-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("a house")}, nil)
	if err == nil {
		_, err = client.WaitTask(context.Background(), "painter-01", task.ID, nil)
	}
	fmt.Println(<-runs, len(runs), err, "lost:", plan.Count(fault.Cut))
	// Output: a house 0 <nil> lost: 2
}

// A server that loses a request and answers the next one by the script.
func ExampleNewPeer() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	peer := arctest.NewPeer(t,
		arctest.Receive("task.info"), arctest.Cut(),
		arctest.Receive("task.info"), arctest.Answer(func(received string) string {
			_, id, _ := strings.Cut(received, `"id":"`)
			id, _, _ = strings.Cut(id, `"`)
			return `{"arc":"1.0","id":"` + id + `","responseAgent":"a-01","targetAgent":"tester-01","result":{"type":"task",
				"task":{"taskId":"task-1","status":"COMPLETED","createdAt":"2026-01-01T00:00:00Z"}},"error":null}`
		}))
	client, err := arc.NewClient(peer.URL, "tester-01", &arc.ClientOptions{HTTPClient: peer.HTTPClient,
		Retry: &arc.RetryPolicy{MaxAttempts: 2, Base: time.Millisecond}})
	if err != nil {
		panic(err)
	}
	task, err := client.GetTask(context.Background(), "a-01", &arc.TaskInfoParams{TaskID: "task-1"}, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(task.ID, task.Status)
	// Output: task-1 COMPLETED
}
