// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/mcpbinding"
	"github.com/fivewire/fivewire/accp/profile"
)

// An agent with a tool serves behind an MCP server, and another agent calls it.
func Example() {
	ctx := context.Background()
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"shout": func(_ context.Context, args accp.Params) (accp.Value, error) {
			return accp.String(strings.ToUpper(args.Text("text"))), nil
		},
	}))
	server := mcp.NewServer(&mcp.Implementation{Name: "desk", Version: "1.0.0"}, nil)
	err = mcpbinding.AddTools(server, agent, &mcp.Tool{
		Name:        "shout",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`),
	})
	if err != nil {
		log.Fatal(err)
	}

	here, there := mcp.NewInMemoryTransports() // or stdio, or HTTP
	if _, err := server.Connect(ctx, there, nil); err != nil {
		log.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "planner", Version: "1.0.0"}, nil).Connect(ctx, here, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	client, err := mcpbinding.NewClient(session, "planner", nil)
	if err != nil {
		log.Fatal(err)
	}
	call, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{
		Name:      "shout",
		Arguments: accp.Map(accp.Param{Key: "text", Value: accp.String("hello")}),
	})
	if err != nil {
		log.Fatal(err)
	}
	answer, err := client.Call(ctx, call, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.From, answer.Intent, answer.Params.Text("result"))
	// Output: desk done HELLO
}
