// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/env"
)

// Transports are made from configuration values (A2E-141).
func TestTransportConfig(t *testing.T) {
	t.Parallel() // it waits most of the time
	web := httptest.NewServer(a2etest.Must(a2e.NewHTTPHandler(echoHost(), nil)))
	t.Cleanup(web.Close)
	exe, err := os.Executable()
	require.NoError(t, err)
	quoted, err := json.Marshal(exe)
	require.NoError(t, err)
	for _, text := range []string{`{"type":"direct"}`, `{"type":"http","url":"` + web.URL + `"}`,
		`{"type":"stdio","command":[` + string(quoted) + `],"env":{"A2E_TEST_CHILD":"host"}}`} {
		config, err := a2e.DecodeModel[a2e.TransportConfig](json.RawMessage(text), "transport")
		require.NoError(t, err)
		config.Host = echoHost()
		rw, err := config.Dial(t.Context())
		require.NoError(t, err, text)
		c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{Token: "s3cret"}))
		_, err = c.Connect(t.Context())
		require.NoError(t, err, text)
		_, _, err = c.Ping(t.Context())
		require.NoError(t, err, text)
		require.NoError(t, c.Close())
	}
	for _, text := range []string{`{"type":"direct"}`, `{"type":"carrier pigeon"}`, `{"type":"subprocess"}`, `{"type":"http"}`,
		`{"type":"subprocess","command":["/no/such/program"]}`} {
		config, err := a2e.DecodeModel[a2e.TransportConfig](json.RawMessage(text), "transport")
		require.NoError(t, err)
		_, err = config.Dial(t.Context())
		require.Error(t, err, text)
	}
	_, err = a2e.DecodeModel[a2e.TransportConfig](json.RawMessage(`{}`), "transport")
	require.ErrorContains(t, err, "transport.type")
}

// Only agents that requested changes receive them (A2E-106), and a plugin is a value of types and
// handlers (A2E-040).
func TestEnvPush(t *testing.T) {
	for _, asked := range []bool{false, true} {
		h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(nil, nil)))
		caps := []string{"env"}
		if asked {
			caps = append(caps, "env_push")
		}
		c := a2etest.Connect(t, h, &a2e.ClientOptions{Capabilities: caps})
		got := make(chan string, 2)
		for _, typ := range []string{"env/state/push", "demo/last"} {
			c.OnPush(typ, func(*a2e.Message) { got <- typ })
		}
		s := h.Sessions()[0]
		require.NoError(t, env.PushState(t.Context(), s, &env.StatePush{EpisodeID: "e", EventType: "status", Delta: json.RawMessage(`{"x":1}`)}))
		require.NoError(t, s.Send(t.Context(), "demo/last", nil))
		if asked {
			require.Equal(t, "env/state/push", <-got)
		}
		require.Equal(t, "demo/last", <-got)
	}
}
