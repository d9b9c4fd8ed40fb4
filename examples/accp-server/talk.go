// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

// talk is a caller of the agent: over HTTP, then over WebSocket.
func talk(ctx context.Context, out io.Writer, url, token string) error {
	tokens := accp.TokenSourceFunc(func(context.Context) (string, error) { return token, nil })
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client, err := accp.NewClient(url+accp.FramesPath, "visitor", &accp.ClientOptions{TokenSource: tokens, HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return err
	}
	defer client.Close()

	// Both sides know the same schemas afterwards, the agent's own included.
	synced, err := client.SyncRegistry(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "hello: same schemas: %t, custom ones: %v\n", synced, client.Session().Registry().Codes())

	hello, err := accp.NewMessage(accp.IntentReq, profile.OpChat, profile.SchemaChat, profile.Chat{Role: "user", Content: "good morning"})
	if err != nil {
		return err
	}
	answer, err := client.Call(ctx, hello, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "chat: %s\n", answer.Params.Text("content"))

	answer, err = client.Call(ctx, &accp.Message{Intent: accp.IntentQry, Op: profile.OpLookup, Params: accp.Params{{Key: "query", Value: accp.String("north")}}}, nil)
	if err != nil {
		return err
	}
	var r report
	if err := accp.Unmarshal(answer.Params, &r); err != nil {
		return err
	}
	fmt.Fprintf(out, "report: %s %s %s\n", r.Region, r.Total, r.Unit)

	for range 2 { // the second time it is known
		pay, err := accp.NewMessage(accp.IntentReq, profile.OpTransaction, profile.SchemaTransaction, profile.Transaction{ID: "txn_001", Amount: "142.50", Currency: "EUR", Account: "acct_9876"})
		if err != nil {
			return err
		}
		if answer, err = client.Call(ctx, pay, nil); err != nil {
			return err
		}
		amount, _ := answer.Params.Get("amount")
		exact, _ := amount.Number()
		fmt.Fprintf(out, "transaction: %s %s\n", exact, answer.Params.Text("status"))
	}

	// Over WebSocket calls run concurrently, and the agent could ask as well.
	conn, err := accp.NewClient("ws"+url[len("http"):]+accp.WebSocketPath, "visitor", &accp.ClientOptions{
		HTTPClient: &http.Client{Transport: transport}, TokenSource: tokens,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Fprint(out, "stream:")
	for word, err := range conn.Stream(ctx, &accp.Message{Intent: accp.IntentReq, Op: profile.OpGenerate, Params: accp.Params{{Key: "data", Value: accp.String("one word after the other")}}}, nil) {
		if err != nil {
			return err
		}
		text, _ := word.Text()
		fmt.Fprint(out, " ", text)
	}
	fmt.Fprintln(out)
	for _, name := range []string{"count_words", "fly"} {
		tool, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: name,
			Arguments: accp.Map(accp.Param{Key: "text", Value: accp.String("three short words")})})
		if err != nil {
			return err
		}
		answer, err := conn.Call(ctx, tool, nil)
		if errors.Is(err, accp.ErrToolNotFound) {
			fmt.Fprintf(out, "tool %s: %s\n", name, accp.ErrToolNotFound.Info().Name)
			continue
		}
		if err != nil {
			return err
		}
		result, _ := answer.Params.Get("result")
		n, _ := result.Int()
		fmt.Fprintf(out, "tool %s: %d\n", name, n)
	}
	return nil
}
