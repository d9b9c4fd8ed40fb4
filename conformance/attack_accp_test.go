// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

var accpAttacks = []attack{
	{name: "ACCP/Sessions", start: func(t *testing.T) *victim {
		return startACCP(t, func(ctx context.Context, open func() *accp.Client, _, _ int) error {
			c := open()
			defer c.Close()
			return askACCP(ctx, c, "x")
		})
	}},
	{name: "ACCP/Calls of a session", start: func(t *testing.T) *victim {
		clients := make([]*accp.Client, attackers)
		text := strings.Repeat("x", 1<<10)
		return startACCP(t, func(ctx context.Context, open func() *accp.Client, attacker, _ int) error {
			if clients[attacker] == nil {
				clients[attacker] = open()
			}
			return askACCP(ctx, clients[attacker], text)
		})
	}},
}

func startACCP(t *testing.T, hostile func(ctx context.Context, open func() *accp.Client, attacker, n int) error) *victim {
	srv, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{Authenticator: accp.AuthenticatorFunc(
		func(r *http.Request) (*accp.Principal, error) {
			return &accp.Principal{ID: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")}, nil
		})}})
	require.NoError(t, err)
	srv.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"echo": func(_ context.Context, args accp.Params) (accp.Value, error) {
			text, _ := args.Get("text")
			return text, nil
		},
	}))
	url := serve(t, srv, srv.Close) + accp.FramesPath
	open := func(token string, o accp.ClientOptions) *accp.Client {
		o.Header = http.Header{"Authorization": {"Bearer " + token}}
		o.Retry = &accp.RetryPolicy{MaxAttempts: 1}
		c, err := accp.NewClient(url, token, &o)
		if err != nil {
			panic(err)
		}
		return c
	}
	web := hostileHTTP(t)
	good := open("good", accp.ClientOptions{})
	t.Cleanup(func() { _ = good.Close() })
	return &victim{
		hostile: func(ctx context.Context, attacker, n int) error {
			return hostile(ctx, func() *accp.Client { return open("bad", accp.ClientOptions{HTTPClient: web}) }, attacker, n)
		},
		honest: func(ctx context.Context) error { return askACCP(ctx, good, "x") },
	}
}

func askACCP(ctx context.Context, c *accp.Client, text string) error {
	ask := profile.ToolCall{Name: "echo", Arguments: accp.Map(accp.Param{Key: "text", Value: accp.String(text)})}
	m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, ask)
	if err == nil {
		_, err = c.Call(ctx, m, nil)
	}
	return err
}
