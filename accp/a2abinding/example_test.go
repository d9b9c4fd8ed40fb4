// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2aclient"
	"github.com/a2aproject/a2a-go/a2asrv"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/a2abinding"
)

// An agent answers behind an A2A endpoint, and another agent asks it.
func Example() {
	ctx := context.Background()
	agent, err := accp.NewServer("desk", nil)
	if err != nil {
		log.Fatal(err)
	}
	agent.HandleFunc(accp.IntentReq, accp.OpClassify, func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.SendResult(accp.Params{{Key: "class", Value: accp.String("invoice")}})
	})
	web := httptest.NewServer(a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(a2abinding.NewExecutor(agent))))
	defer web.Close()

	a2aClient, err := a2aclient.NewFromEndpoints(ctx, []a2a.AgentInterface{{URL: web.URL, Transport: a2a.TransportProtocolJSONRPC}},
		a2aclient.WithJSONRPCTransport(web.Client()))
	if err != nil {
		log.Fatal(err)
	}
	client, err := a2abinding.NewClient(a2aClient, "planner", nil)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := client.Call(ctx, &accp.Message{Intent: accp.IntentReq, Op: accp.OpClassify, Params: accp.Params{
		{Key: "data", Value: accp.String("i88")},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.From, answer.Intent, answer.Params.Text("class"))
	// Output: desk done invoice
}
