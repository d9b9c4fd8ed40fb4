// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/store"
)

func ExampleCodec() {
	var c accp.Codec
	m := &accp.Message{From: "planner", Intent: accp.IntentReq, Op: profile.OpSchedule, Params: accp.Params{
		{Key: "schema", Value: accp.String(profile.SchemaTask)},
		{Key: "assignee", Value: accp.String("dev_team")},
		{Key: "task", Value: accp.String("write the login page")},
		{Key: "priority", Value: accp.String("medium")}, // the default of the schema
	}}
	frame, err := c.Append(nil, m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(frame))

	back, err := c.Decode(frame)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(back.Params.Text("task"), back.Params.Text("priority"))
	// Output:
	// @planner>req:schedule{asgn:dev_team|schema:TA|task:\_write_the_login_page}
	// write the login page medium
}

// A model followed the examples of the draft, which violate its grammar. The strict form can be
// sent, or returned to the model.
func ExampleCodec_lenient() {
	c := accp.Codec{}
	frame := []byte(`@research>done:analyze{d:q3_sales|f:[rev:-12%QoQ,churn:+3.2%]|nx:@strategy:plan}`)
	_, err := c.Decode(frame)
	fmt.Println(errors.Is(err, accp.ErrParse))
	c.Lenient = true
	m, _ := c.DecodeRaw(frame)
	strict, _ := c.AppendRaw(nil, m)
	fmt.Println(string(strict))
	// Output:
	// true
	// @research>done:analyze{d:q3_sales|f:[{rev:-12%QoQ},{churn:+3.2%}]|nx:\@strategy\:plan}
}

// Structs with tags become messages, and a custom schema shortens them.
func ExampleSchemaOf() {
	type Report struct {
		Revenue string `json:"revenue" accp:"dec,abbr=rev"` // an exact decimal
		Region  string `json:"region" accp:"default=emea"`
	}
	schema, err := accp.SchemaOf("report", "RP", 1, Report{})
	if err != nil {
		log.Fatal(err)
	}
	registry := accp.NewRegistry()
	if err := registry.Register(schema); err != nil {
		log.Fatal(err)
	}
	c := accp.Codec{Registry: registry}
	m, err := accp.NewMessage(accp.IntentDone, profile.OpAnalyze, "RP", Report{Revenue: "1250.50", Region: "emea"})
	if err != nil {
		log.Fatal(err)
	}
	m.From = "analyst"
	frame, err := c.Append(nil, m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(frame))

	back, err := c.Decode(frame)
	if err != nil {
		log.Fatal(err)
	}
	var r Report
	if err := accp.Unmarshal(back.Params, &r); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%+v\n", r)
	// Output:
	// @analyst>done:analyze{rev:1250.5|schema:RP}
	// {Revenue:1250.5 Region:emea}
}

// Two sides of a session. The second one refuses a repeated frame, and makes a summary of the
// messages.
func ExampleSession() {
	ctx := context.Background()
	planner, err := accp.NewSession("planner", "s1", nil)
	if err != nil {
		log.Fatal(err)
	}
	worker, err := accp.NewSession("worker", "s1", nil)
	if err != nil {
		log.Fatal(err)
	}
	sent, err := planner.Send(ctx, &accp.Message{Intent: accp.IntentDone, Op: profile.OpPlan, Params: accp.Params{
		{Key: "steps", Value: accp.Int(3)},
		{Key: "owner", Value: accp.String("dev")},
	}})
	if err != nil {
		log.Fatal(err)
	}
	got, err := worker.Receive(ctx, sent.Frames[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(accp.Render(got.Unresolved))
	fmt.Println(got.Checkpoint.Summary)

	_, err = worker.Receive(ctx, sent.Frames[0])
	fmt.Println(errors.Is(err, accp.ErrDuplicate))
	// Output:
	// [planner] complete plan
	// owner: "dev"
	// steps: 3
	// planner:plan.owner=dev
	// planner:plan.steps=3
	// true
}

// Only what changed travels.
func ExampleSession_Sync() {
	ctx := context.Background()
	s, err := accp.NewSession("planner", "s1", nil)
	if err != nil {
		log.Fatal(err)
	}
	state := accp.Params{{Key: "phase", Value: accp.String("plan")}, {Key: "budget", Value: accp.Int(40)}}
	for range 2 {
		sent, err := s.Sync(ctx, state)
		if err != nil {
			log.Fatal(err)
		}
		body, _, _ := strings.Cut(string(sent.Frames[0]), "[")
		fmt.Println(body)
		state = state.Set("phase", accp.String("run"))
	}
	// Output:
	// @planner>sync:state{delta:{budget:40,phase:plan}|v:1}
	// @planner>sync:state{base:d4b8bd05|delta:{phase:run}|v:2}
}

func ExampleClient() {
	ctx := context.Background()
	s, err := accp.NewServer("weather", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	s.Handle(accp.IntentQry, profile.OpLookup, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.SendResult(accp.Params{{Key: "city", Value: accp.String(m.Params.Text("query"))}, {Key: "sky", Value: accp.String("clear")}})
	}))

	ts := httptest.NewServer(s)
	defer ts.Close()
	defer s.Shutdown(ctx)

	c, err := accp.NewClient(ts.URL+accp.FramesPath, "planner", &accp.ClientOptions{HTTPClient: ts.Client()})
	if err != nil {
		log.Fatal(err)
	}
	m, err := c.Call(ctx, &accp.Message{Intent: accp.IntentQry, Op: profile.OpLookup, Params: accp.Params{
		{Key: "query", Value: accp.String("Oslo")},
	}}, nil)

	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.From, m.Params.Text("city"), m.Params.Text("sky"))

	_, err = c.Call(ctx, &accp.Message{Intent: accp.IntentReq, Op: profile.OpPurge}, nil)
	fmt.Println(errors.Is(err, accp.ErrInvalidIntent))
	// Output:
	// weather Oslo clear
	// true
}

// A transaction runs once: its agent is killed, its server is restarted, and the next life of the agent, which sends it again
// under the same id, gets the outcome of the only run.
func ExampleClient_Call_transaction() {
	runs, began, finish := 0, make(chan struct{}, 1), make(chan struct{})
	kv := store.NewMemory() // a database, which both lives of the server share
	open := func() (*accp.Server, *httptest.Server) {
		srv, err := accp.NewServer("bank", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Persistence: accp.Persistence{Store: kv}})
		if err != nil {
			log.Fatal(err)
		}
		srv.Handle(accp.IntentReq, profile.OpTransaction, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			runs++
			began <- struct{}{}
			<-finish
			return w.SendResult(accp.Params{{Key: "status", Value: accp.String("settled")}})
		}))
		return srv, httptest.NewServer(srv)
	}
	pay := func(ctx context.Context, ts *httptest.Server) (*accp.Message, error) {
		client, err := accp.NewClient(ts.URL+accp.FramesPath, "payer", &accp.ClientOptions{SessionID: "payments"})
		if err != nil {
			return nil, err
		}
		defer client.Close()
		m := &accp.Message{Intent: accp.IntentReq, Op: profile.OpTransaction, Params: accp.Params{{Key: "schema", Value: accp.String(profile.SchemaTransaction)},
			{Key: "transaction_id", Value: accp.String("txn_001")}, {Key: "amount", Value: accp.Int(142)}}}
		return client.Call(ctx, m, nil)
	}

	srv, ts := open()
	life, kill := context.WithCancel(context.Background())
	go func() {
		<-began
		kill() // in the middle of the call
	}()
	_, err := pay(life, ts)
	fmt.Println("first life:", errors.Is(err, context.Canceled))
	close(finish)
	if err := srv.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	ts.Close()

	srv, ts = open()
	defer ts.Close()
	defer srv.Close()
	answer, err := pay(context.Background(), ts)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("second life:", answer.Params.Text("status"), "after", runs, "run")
	// Output:
	// first life: true
	// second life: settled after 1 run
}

// A stream over a WebSocket connection, one word per chunk.
func ExampleClient_Stream() {
	ctx := context.Background()
	s, err := accp.NewServer("writer", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	s.Handle(accp.IntentReq, profile.OpGenerate, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		words := strings.Fields(m.Params.Text("data"))
		for i, word := range words {
			chunk, err := accp.NewMessage(accp.IntentStream, m.Op, profile.SchemaStream,
				profile.Chunk{Index: int64(i), Data: accp.String(word), Final: i == len(words)-1})
			if err != nil {
				return err
			}
			if err := w.Send(chunk); err != nil {
				return err
			}
		}
		return nil
	}))

	ts := httptest.NewServer(s)
	defer ts.Close()
	defer s.Shutdown(ctx)

	c, err := accp.NewClient("ws"+strings.TrimPrefix(ts.URL, "http")+accp.WebSocketPath, "planner", &accp.ClientOptions{HTTPClient: ts.Client()})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for v, err := range c.Stream(ctx, &accp.Message{Intent: accp.IntentReq, Op: profile.OpGenerate, Params: accp.Params{
		{Key: "data", Value: accp.String("three short words")},
	}}, nil) {
		if err != nil {
			log.Fatal(err)
		}
		word, _ := v.Text()
		fmt.Println(word)
	}
	// Output:
	// three
	// short
	// words
}

func ExampleNewToolHandler() {
	ctx := context.Background()
	s, err := accp.NewServer("calc", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	s.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"add": func(_ context.Context, args accp.Params) (accp.Value, error) {
			var in struct{ A, B int64 }
			if err := accp.Unmarshal(args, &in); err != nil {
				return accp.Value{}, err
			}
			return accp.Int(in.A + in.B), nil
		},
	}))
	ts := httptest.NewServer(s)
	defer ts.Close()
	defer s.Shutdown(ctx)

	c, err := accp.NewClient(ts.URL+accp.FramesPath, "planner", &accp.ClientOptions{HTTPClient: ts.Client()})
	if err != nil {
		log.Fatal(err)
	}
	call, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: "add",
		Arguments: accp.Map(accp.Param{Key: "a", Value: accp.Int(40)}, accp.Param{Key: "b", Value: accp.Int(2)})})
	if err != nil {
		log.Fatal(err)
	}
	m, err := c.Call(ctx, call, nil)
	if err != nil {
		log.Fatal(err)
	}
	result, _ := m.Params.Get("result")
	fmt.Println(result.Int())
	// Output: 42 true
}
