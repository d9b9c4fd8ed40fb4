// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
)

// A task that requests missing input and produces an artifact.
func ExampleServer_HandleTasks() {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	srv.HandleTasks("translator-02", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		if err := run.AddMessage(ctx, arc.AgentText("Into which language?")); err != nil {
			return err
		}
		answer, err := run.WaitInput(ctx, "language")
		if err != nil {
			return err // canceled, most likely
		}
		text := fmt.Sprintf("%q in %s", run.Message().Text(), answer.Text())
		return run.AddArtifact(ctx, &arc.Artifact{Name: "translation", Parts: []arc.Part{arc.TextPart(text)}})
	}))
	ts := httptest.NewServer(srv)
	defer ts.Close()

	ctx := context.Background()
	c, err := arc.NewClient(ts.URL+"/arc", "planner-01", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	task, err := c.CreateTask(ctx, "translator-02", &arc.CreateTaskParams{InitialMessage: arc.UserText("Good morning")}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(task.Status)
	often := &arc.WaitOptions{MinPollInterval: time.Millisecond}
	out, err := c.WaitTask(ctx, "translator-02", task.ID, often)
	for err == nil && out.InputRequired {
		fmt.Println(out.InputRequest().Text())
		if err = c.SendTaskInput(ctx, "translator-02", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("French")}, nil); err == nil {
			out, err = c.WaitTask(ctx, "translator-02", task.ID, often)
		}
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Task.Artifacts[0].Parts[0].Content)
	// Output:
	// SUBMITTED
	// Into which language?
	// "Good morning" in French
}

// A chat whose answer is written piece by piece, and an agent with a custom method.
func ExampleServer_Register() {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{AgentID: "poet-01", Version: "1.0.0", Capabilities: []string{"poetry"}},
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			for _, word := range strings.Fields("roses are red") {
				if err := out.Send(word + " "); err != nil {
					return err // the reader has disconnected
				}
			}
			return nil
		}),
		Methods: map[string]arc.Handler{"poem.count": arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
			var in struct{ Text string }
			if err := call.Decode(&in); err != nil {
				return nil, err
			}
			return map[string]int{"words": len(strings.Fields(in.Text))}, nil
		})},
	})
	ask := func(body string) {
		a := srv.ServeMessage(context.Background(), &arc.ServerRequest{Data: []byte(body)}, nil)
		res, err := arc.DecodeResponse(a.Data, "")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(res.Result))
	}
	ask(`{"arc":"1.0","id":1,"method":"poem.count","requestAgent":"me","targetAgent":"poet-01","params":{"Text":"roses are red"}}`)
	// Output:
	// {"words":3}
}

// Middleware around every handler of the server.
func ExampleMiddleware() {
	log := func(next arc.Handler) arc.Handler {
		return arc.HandlerFunc(func(ctx context.Context, call *arc.Call) (any, error) {
			res, err := next.ServeARC(ctx, call)
			fmt.Println(call.Method, "for", call.RequestAgent, "by", call.Agent, "failed:", err != nil)
			return res, err
		})
	}
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Middleware: []arc.Middleware{log}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	srv.Handle("clock-01", "clock.read", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
		return nil, errors.New("stopped") // the caller reads: Internal error
	}))
	a := srv.ServeMessage(context.Background(), &arc.ServerRequest{Data: []byte(
		`{"arc":"1.0","id":1,"method":"clock.read","requestAgent":"planner-01","targetAgent":"clock-01","params":{}}`)}, nil)
	fmt.Println(a.Error.Message)
	// Output:
	// clock.read for planner-01 by clock-01 failed: true
	// Internal error
}

// Tokens, scopes and limits.
func ExampleServerOptions() {
	srv, err := arc.NewServer(&arc.ServerOptions{
		Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
			if token != "secret" {
				return nil, arc.ErrTokenInvalid
			}
			claims := json.RawMessage(`{"scope":"arc.chat.controller arc.agent.caller"}`)
			return &arc.Principal{ID: "alice", Scopes: arc.ParseScopes(claims)}, nil
		}))},
		Limits: arc.Limits{RequestRate: 10, RequestBurst: 20},
	})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	a := srv.ServeMessage(context.Background(), &arc.ServerRequest{Authorization: "Bearer secret", Data: []byte(
		`{"arc":"1.0","id":1,"method":"task.create","requestAgent":"planner-01","targetAgent":"x-01","params":{}}`)}, nil)
	fmt.Println(a.Error.Code.Name(), a.Error.Code.HTTPStatus())
	// Output:
	// InsufficientScope 403
}

// A server takes over what one before it has left in the store.
func ExampleServer_WaitRecovered() {
	ctx := context.Background()
	db := store.NewMemory() // for a real restart, an engine that outlives the process
	started := make(chan struct{}, 1)
	worker := arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		if !run.Redelivered() {
			started <- struct{}{}
			<-ctx.Done() // stopped in the middle
			return ctx.Err()
		}
		fmt.Println("again:", run.Message().Text())
		return nil
	})
	create := []byte(`{"arc":"1.0","id":1,"method":"task.create","requestAgent":"me","targetAgent":"worker-01",
		"params":{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"count the stars"}]}}}`)

	first, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Persistence: arc.Persistence{Store: db}})
	if err != nil {
		panic(err)
	}
	first.HandleTasks("worker-01", worker)
	first.ServeMessage(ctx, &arc.ServerRequest{Data: create}, nil)
	<-started
	if err := first.Close(); err != nil {
		fmt.Println(err)
	}

	second, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Persistence: arc.Persistence{Store: db}})
	if err != nil {
		panic(err)
	}
	second.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "worker-01"}, TaskHandler: worker, RerunInterrupted: true})
	if err := second.WaitRecovered(ctx); err != nil {
		fmt.Println(err)
	}
	if err := second.Shutdown(ctx); err != nil { // waits for the work
		fmt.Println(err)
	}
	// Output:
	// again: count the stars
}
