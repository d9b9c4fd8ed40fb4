// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcpserver"
	"github.com/fivewire/fivewire/a2e/tools"
)

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// A host whose tools agents call over A2E and clients of MCP at /mcp.
func Example() {
	set := must(tools.NewSet(nil))
	type text struct {
		Text string `json:"text" jsonschema:"the text to count"`
	}
	tools.AddTool(set, "count", "Count the words of a text", func(_ context.Context, _ *a2e.Call, in text) (int, error) {
		return len(strings.Fields(in.Text)), nil
	}, nil)
	keys := must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"open-sesame": {ID: "planner"}}))
	host := must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}})).AddPlugin(set.Plugin())
	defer host.Close()
	mux := http.NewServeMux()
	mux.Handle("/", must(a2e.NewHTTPHandler(host, nil)))
	mux.Handle("/mcp", must(mcpserver.NewHandler(host, nil)))
	web := httptest.NewServer(mux)
	defer web.Close()

	// A client of MCP:
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1"}, nil)
	session := must(client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: web.URL + "/mcp",
		HTTPClient: &http.Client{Transport: bearer("open-sesame")}}, nil))
	defer session.Close()
	for _, tool := range must(session.ListTools(ctx, nil)).Tools {
		fmt.Println(tool.Name+":", tool.Description)
	}
	result := must(session.CallTool(ctx, &mcp.CallToolParams{Name: "count", Arguments: text{"one small step"}}))
	fmt.Println(result.Content[0].(*mcp.TextContent).Text)
	// Output:
	// count: Count the words of a text
	// 3
}
