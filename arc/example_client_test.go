// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/fivewire/fivewire/arc"
)

// translator is a server with one agent.
func translator() *arc.Server {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{AgentID: "translator-02"},
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			return run.AddArtifact(ctx, &arc.Artifact{Name: "translation", Parts: []arc.Part{arc.TextPart("bonjour")}})
		}),
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			if err := out.Send("You said: "); err != nil {
				return err
			}
			return out.Send(turn.Message.Text())
		}),
	})
	return srv
}

func ExampleClient_WaitTask() {
	srv := translator()
	defer srv.Close()
	ts := httptest.NewServer(srv)
	defer ts.Close()
	c, err := arc.NewClient(ts.URL+"/arc", "planner-01", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx := context.Background()
	task, err := c.CreateTask(ctx, "translator-02", &arc.CreateTaskParams{InitialMessage: arc.UserText("hello")}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(task.Status)
	outcome, err := c.WaitTask(ctx, "translator-02", task.ID, &arc.WaitOptions{MinPollInterval: 10 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(outcome.Task.Status, outcome.Task.Artifacts[0].Parts[0].Content)
	// Output:
	// SUBMITTED
	// COMPLETED bonjour
}

func ExampleClient_StreamChat() {
	srv := translator()
	defer srv.Close()
	ts := httptest.NewServer(srv)
	defer ts.Close()
	c, err := arc.NewClient(ts.URL+"/arc", "planner-01", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	params := &arc.StartChatParams{InitialMessage: arc.UserText("hello")}
	for ev, err := range c.StreamChat(context.Background(), "translator-02", params, nil) {
		if err != nil {
			log.Fatal(err) // always the last thing that a stream yields
		}
		fmt.Print(ev.Text)
	}
	fmt.Println()
	// Output: You said: hello
}

func ExampleClient_Call() {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	srv.Handle("calc-01", "math.add", arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
		var in struct {
			A int64 `json:"a"`
			B int64 `json:"b"`
		}
		if err := call.Decode(&in); err != nil {
			return nil, err
		}
		return map[string]int64{"sum": in.A + in.B}, nil
	}))
	ts := httptest.NewServer(srv)
	defer ts.Close()
	c, err := arc.NewClient(ts.URL+"/arc", "planner-01", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	res, err := c.Call(context.Background(), "calc-01", "math.add", map[string]int{"a": 2, "b": 40}, nil)
	if err != nil {
		log.Fatal(err)
	}
	var out struct {
		Sum int64 `json:"sum"`
	}
	if err := res.Decode(&out); err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Sum)
	_, err = c.Call(context.Background(), "calc-01", "math.divide", nil, nil)
	fmt.Println(errors.Is(err, arc.ErrMethodNotFound))
	// Output:
	// 42
	// true
}
