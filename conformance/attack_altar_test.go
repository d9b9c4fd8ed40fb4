// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
)

var altarAttacks = []attack{
	{name: "ALTAR/Calls of 3 MiB", start: func(t *testing.T) *victim {
		text := strings.Repeat("x", 3<<20)
		return startALTAR(t, func(ctx context.Context, _ *altar.Client, s *altar.Session) error {
			_, err := altar.CallAs[string](ctx, s, "echo", map[string]string{"text": text}, nil)
			return err
		})
	}},
	{name: "ALTAR/Small calls", start: func(t *testing.T) *victim {
		return startALTAR(t, func(ctx context.Context, _ *altar.Client, s *altar.Session) error {
			_, err := altar.CallAs[string](ctx, s, "echo", map[string]string{"text": "x"}, nil)
			return err
		})
	}},
	{name: "ALTAR/Sessions created and destroyed", start: func(t *testing.T) *victim {
		return startALTAR(t, func(ctx context.Context, c *altar.Client, _ *altar.Session) error {
			s, err := c.CreateSession(ctx, nil)
			if err == nil {
				err = s.Destroy(ctx)
			}
			return err
		})
	}},
	{name: "ALTAR/Sessions", start: func(t *testing.T) *victim {
		return startALTAR(t, func(ctx context.Context, c *altar.Client, _ *altar.Session) error {
			_, err := c.CreateSession(ctx, nil)
			return err
		})
	}},
}

func startALTAR(t *testing.T, hostile func(ctx context.Context, c *altar.Client, s *altar.Session) error) *victim {
	m, err := altar.DecodeManifest([]byte(`{"version": "1.0.0", "contracts": [{"name": "echo", "description": "Returns the text",
		"parameters": [{"name": "text", "type": "string"}]}]}`))
	require.NoError(t, err)
	host, err := altar.NewHost(m, &altar.HostOptions{Auth: altar.Auth{Authenticator: altar.AuthenticatorFunc(
		func(r *http.Request) (*altar.Principal, error) {
			return &altar.Principal{ID: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")}, nil
		}), Authorizer: altar.AuthorizerFunc(altar.AllowAll)}})
	require.NoError(t, err)
	url := serve(t, host, host.Close)
	dial := func(token string, client *http.Client) altar.Dialer {
		return func(ctx context.Context) (altar.Conn, error) {
			return altar.DialHTTP(ctx, url+altar.MessagesPath, &altar.HTTPDialOptions{HTTPClient: client, Header: http.Header{"Authorization": {"Bearer " + token}}})
		}
	}
	runtime, err := altar.NewRuntime("text-01", nil)
	require.NoError(t, err)
	altar.AddTool(runtime, "echo", func(_ context.Context, in struct {
		Text string `json:"text"`
	}) (string, error) {
		return in.Text, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- runtime.RunWithReconnect(ctx, func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "runtime"}) })
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	open := func(token string, web *http.Client) (*altar.Client, *altar.Session) {
		c, err := altar.NewClient(dial(token, web), nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		s, err := c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		return c, s
	}
	badClient, bad := open("bad", hostileHTTP(t))
	_, good := open("good", nil)
	for tools, err := good.ListTools(ctx); len(tools) == 0; tools, err = good.ListTools(ctx) {
		require.NoError(t, err)
	}
	return &victim{
		hostile: func(ctx context.Context, _, _ int) error { return hostile(ctx, badClient, bad) },
		honest: func(ctx context.Context) error {
			_, err := altar.CallAs[string](ctx, good, "echo", map[string]string{"text": "x"}, nil)
			return err
		},
	}
}
