// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

var arcAttacks = []attack{
	{name: "ARC/Tasks of 15 MiB", start: func(t *testing.T) *victim {
		text := strings.Repeat("x", 15<<20)
		return startARC(t, func(ctx context.Context, c *arc.Client, _, _ int) error {
			_, err := c.CreateTask(ctx, "agent", &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
			return err
		})
	}},
	{name: "ARC/Tasks", start: func(t *testing.T) *victim {
		return startARC(t, func(ctx context.Context, c *arc.Client, _, _ int) error {
			_, err := c.CreateTask(ctx, "agent", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
			return err
		})
	}},
	{name: "ARC/Chats of 2 MiB", start: func(t *testing.T) *victim {
		text := strings.Repeat("x", 2<<20)
		return startARC(t, func(ctx context.Context, c *arc.Client, attacker, n int) error {
			p := &arc.StartChatParams{ChatID: fmt.Sprint(attacker, "-", n), InitialMessage: arc.UserText(text)}
			_, err := c.StartChat(ctx, "agent", p, nil)
			return err
		})
	}},
}

func startARC(t *testing.T, hostile func(ctx context.Context, c *arc.Client, attacker, n int) error) *victim {
	var scopes []string
	for _, method := range []string{arc.MethodTaskCreate, arc.MethodChatStart} {
		scopes = append(scopes, arc.RequiredScopes(method)...)
	}
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.AuthenticatorFunc(
		func(_ context.Context, r *arc.ServerRequest) (*arc.Principal, error) {
			return &arc.Principal{ID: strings.TrimPrefix(r.Authorization, "Bearer "), Scopes: scopes}, nil
		})}})
	require.NoError(t, err)
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{AgentID: "agent"},
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
			<-ctx.Done() // the worst case
			return ctx.Err()
		}),
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			return out.Send(turn.Message.Text())
		}),
		Methods: map[string]arc.Handler{
			"agent.ping": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return map[string]any{}, nil }),
		},
	})
	url := serve(t, srv, srv.Close) + "/arc"
	bad, err := arc.NewClient(url, "bad", &arc.ClientOptions{TokenSource: arc.StaticTokenSource("bad"), HTTPClient: hostileHTTP(t),
		Retry: &arc.RetryPolicy{MaxAttempts: 1}})
	require.NoError(t, err)
	good, err := arc.NewClient(url, "good", &arc.ClientOptions{TokenSource: arc.StaticTokenSource("good"),
		Retry: &arc.RetryPolicy{MaxAttempts: 1}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = bad.Close()
		_ = good.Close()
	})
	return &victim{
		hostile: func(ctx context.Context, attacker, n int) error { return hostile(ctx, bad, attacker, n) },
		honest: func(ctx context.Context) error {
			_, err := good.Call(ctx, "agent", "agent.ping", nil, nil)
			if err == nil {
				_, err = good.StartChat(ctx, "agent", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil)
			}
			return err
		},
	}
}
