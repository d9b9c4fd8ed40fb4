// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/a2abinding"
	"github.com/fivewire/fivewire/accp/profile"
)

// An agent answers behind an A2A endpoint, and another agent calls it.
func Example() {
	ctx := context.Background()
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	agent.Handle(accp.IntentReq, profile.OpClassify, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.SendResult(accp.Params{{Key: "class", Value: accp.String("invoice")}})
	}))

	executor, err := a2abinding.NewExecutor(agent)
	if err != nil {
		log.Fatal(err)
	}
	web := httptest.NewServer(a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(executor)))
	defer web.Close()

	a2aClient, err := a2aclient.NewFromEndpoints(ctx, []*a2a.AgentInterface{a2a.NewAgentInterface(web.URL, a2a.TransportProtocolJSONRPC)},
		a2aclient.WithJSONRPCTransport(web.Client()))
	if err != nil {
		log.Fatal(err)
	}
	client, err := a2abinding.NewClient(a2aClient, "planner", nil)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := client.Call(ctx, &accp.Message{Intent: accp.IntentReq, Op: profile.OpClassify, Params: accp.Params{
		{Key: "data", Value: accp.String("i88")},
	}}, nil)

	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.From, answer.Intent, answer.Params.Text("class"))
	// Output: desk done invoice
}
