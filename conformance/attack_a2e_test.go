// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
)

var a2eAttacks = []attack{
	{name: "A2E/Sessions before the handshake", start: func(t *testing.T) *victim {
		var mu sync.Mutex
		var conns []net.Conn
		t.Cleanup(func() {
			for _, conn := range conns {
				_ = conn.Close()
			}
		})
		return startA2E(t, func(ctx context.Context, address string, _ *a2e.Client) error {
			conn, err := hostileDialer.DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if conns = append(conns, conn); len(conns) > 4000 {
				_ = conns[0].Close()
				conns = conns[1:]
			}
			return nil
		})
	}},
	{name: "A2E/Memories", start: func(t *testing.T) *victim {
		return startA2E(t, func(ctx context.Context, _ string, c *a2e.Client) error {
			return openMemory(ctx, c)
		})
	}},
}

func startA2E(t *testing.T, hostile func(ctx context.Context, address string, c *a2e.Client) error) *victim {
	plugin, err := memory.NewPlugin(nil)
	require.NoError(t, err)
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2e.AuthenticatorFunc(
		func(_ context.Context, r *a2e.HandshakeRequest) (*a2e.Principal, error) {
			return &a2e.Principal{ID: r.AgentID}, nil
		})}})
	require.NoError(t, err)
	host.AddPlugin(plugin)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- host.ServeListener(t.Context(), l) }()
	t.Cleanup(func() {
		_ = host.Close()
		<-done
	})
	open := func(ctx context.Context, id string, d *net.Dialer) (*a2e.Client, error) {
		conn, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		c, err := a2e.NewClient(conn, &a2e.ClientOptions{AgentID: id, Capabilities: []string{"memory"}})
		if err != nil {
			return nil, err
		}
		if _, err = c.Connect(ctx); err != nil {
			_ = c.Close()
		}
		return c, err
	}
	bad, err := open(t.Context(), "bad", hostileDialer)
	require.NoError(t, err)
	t.Cleanup(func() { _ = bad.Close() })
	return &victim{
		hostile: func(ctx context.Context, _, _ int) error { return hostile(ctx, l.Addr().String(), bad) },
		honest: func(ctx context.Context) error {
			c, err := open(ctx, "good", &net.Dialer{})
			if err != nil {
				return err
			}
			defer c.Close()
			return openMemory(ctx, c)
		},
	}
}

func openMemory(ctx context.Context, c *a2e.Client) error {
	client, err := memory.NewClient(c)
	if err == nil {
		_, err = client.Init(ctx, nil, nil)
	}
	return err
}
