// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

// showACCP lets two agents exchange compact frames, once over HTTP and once through sessions that
// omit text that the other side knows already.
func showACCP(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintln(out, "\nACCP: compact frames, and context that is kept short")
	heading(out, "A frame, and a tool that is called with one over HTTP")

	message := &accp.Message{From: "planner", Intent: accp.IntentReq, Op: profile.OpSchedule, Params: accp.Params{
		{Key: "target", Value: accp.String("dev_team")},
		{Key: "task", Value: accp.String("impl_auth_module")},
		{Key: "priority", Value: accp.String("high")},
	}}
	var codec accp.Codec
	frame, err := codec.Append(nil, message)
	if err != nil {
		return err
	}
	plain, err := message.MarshalJSON()
	if err != nil {
		return err
	}
	var tokens accp.ApproxCounter // an estimate; accp/tokenizer counts exactly
	fmt.Fprintf(out, "frame   %s\n", frame)
	fmt.Fprintf(out, "about %d tokens, as JSON about %d\n", tokens.Count(string(frame)), tokens.Count(string(plain)))

	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		return err
	}
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"add": func(_ context.Context, args accp.Params) (accp.Value, error) {
			a, _ := args.Get("a")
			b, _ := args.Get("b")
			x, ok1 := a.Int()
			y, ok2 := b.Int()
			if !ok1 || !ok2 {
				return accp.Value{}, accp.ErrToolSchema
			}
			return accp.Int(x + y), nil
		},
	}))
	web := httptest.NewServer(agent)
	defer web.Close()
	defer func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, agent.Shutdown(limit))
	}()
	client, err := accp.NewClient(web.URL+accp.FramesPath, "you", &accp.ClientOptions{HTTPClient: web.Client()})
	if err != nil {
		return err
	}
	defer client.Close()
	call := func(arguments ...accp.Param) (*accp.Message, error) {
		m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: "add", Arguments: accp.Map(arguments...)})
		if err != nil {
			return nil, err
		}
		return client.Call(ctx, m, nil)
	}
	answer, err := call(accp.Param{Key: "a", Value: accp.Int(2)}, accp.Param{Key: "b", Value: accp.Int(3)})
	if err != nil {
		return err
	}
	result, _ := answer.Params.Get("result")
	sum, _ := result.Int()
	fmt.Fprintf(out, "answer  2 + 3 = %d\n", sum)
	if _, err = call(); !errors.Is(err, accp.ErrToolSchema) { // what fails, fails with the protocol's own codes
		return fmt.Errorf("want the arguments to be refused, got %w", err)
	}
	fmt.Fprintln(out, "refused:", err)
	return showContext(ctx, out)
}

// showContext synchronizes a state by deltas, and replaces earlier messages with a
// checkpoint.
func showContext(ctx context.Context, out io.Writer) error {
	heading(out, "A shared state as deltas, and a checkpoint")
	planner, err := accp.NewSession("planner", "s1", nil)
	if err != nil {
		return err
	}
	research, err := accp.NewSession("research", "s1", nil)
	if err != nil {
		return err
	}
	state := accp.Params{{Key: "analysis", Value: accp.String("open")}, {Key: "owner", Value: accp.String("research")}, {Key: "budget", Value: accp.Int(40)}}
	for _, status := range []string{"running", "done"} {
		sent, err := planner.Sync(ctx, state.Set("analysis", accp.String(status)))
		if err != nil {
			return err
		}
		if _, err := research.Receive(ctx, sent.Frames[0]); err != nil {
			return err
		}
		delta, _ := sent.Message.Params.Get("delta")
		text, err := new(accp.Codec).AppendValue(nil, delta)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "sent    %s\n", text)
	}
	sent, err := research.Send(ctx, &accp.Message{Intent: accp.IntentDone, Op: profile.OpAnalyze, Params: accp.Params{
		{Key: "findings", Value: accp.Map(accp.Param{Key: "revenue", Value: accp.String("-12%")}, accp.Param{Key: "churn", Value: accp.String("+3.2%")})},
	}})
	if err != nil {
		return err
	}
	if _, err := planner.Receive(ctx, sent.Frames[0]); err != nil {
		return err
	}
	// The done frame made a checkpoint on both sides. ModelContext returns the messages
	// that a model needs; the other messages are in cold state.
	for _, line := range planner.ModelContext(500, 0).Lines {
		fmt.Fprintf(out, "context %s\n", line)
	}
	version, state := planner.State()
	fmt.Fprintf(out, "state %d: analysis is %s\n", version, state.Text("analysis"))
	return nil
}
