// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accptest_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
)

func question() *accp.Message {
	m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: "hello", Arguments: accp.Map()})
	if err != nil {
		panic(err)
	}
	return m
}

// A server and a client whose responses are lost: the client repeats its message, and the server answers it once.
func ExampleNewPair() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Cut, Op: "request", Limit: 2}}}
	defer plan.Close()
	srv, client := accptest.NewPair(t, &accptest.PairOptions{
		Client:    &accp.ClientOptions{Retry: &accp.RetryPolicy{Base: time.Millisecond}},
		Transport: func(next http.RoundTripper) http.RoundTripper { return fault.RoundTripper(next, plan) },
	})
	runs := 0
	srv.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"hello": func(context.Context, accp.Params) (accp.Value, error) { runs++; return accp.String("Hello"), nil },
	}))
	answer, err := client.Call(context.Background(), question(), &accp.CallOptions{Idempotent: true})
	if err != nil {
		panic(err)
	}
	fmt.Println(answer.Params.Text("result"), runs, "lost:", plan.Count(fault.Cut))
	// Output: Hello 1 lost: 2
}

// A server that cuts the connection by the script.
func ExampleNewPeer() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	peer := accptest.NewPeer(t, accptest.Receive("req:tool"), accptest.Cut())
	opts := &accp.ClientOptions{HTTPClient: peer.HTTPClient, Retry: &accp.RetryPolicy{MaxAttempts: 1}}
	accptest.SkipGreeting(opts)
	client, err := accp.NewClient(peer.URL, "tester", opts)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	_, err = client.Call(context.Background(), question(), nil)
	fmt.Println(err != nil)
	// Output: true
}
