// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package chains_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/proc"
)

// Nodes of kind proc run through the proc plugin of the host, if the agent may use it (A2E-D64).
func TestProcNodes(t *testing.T) {
	run := func(c *a2e.Client, input string) *chains.Response {
		client, err := chains.NewClient(c)
		require.NoError(t, err)
		resp, err := runQuiet(t, client, `{"word":"a b"}`, []chains.Node{node("p", "", "", func(n *chains.Node) {
			n.Kind, n.InputMap = chains.NodeProc, json.RawMessage(input)
		})})
		require.NoError(t, err)
		return resp
	}
	sh := func(script string) string { return `{"cmd":["sh","-c",` + script + `]}` }
	refusesTrue := a2e.AuthorizerFunc(func(_ context.Context, call *a2e.Call) error {
		if r, ok := call.Message.Body.(*proc.SpawnRequest); ok && r.Cmd[0] == "true" {
			return a2e.Errorf(a2e.ErrUnauthorized, "not this program")
		}
		return nil
	})
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true, Authorizer: refusesTrue}}).AddPlugin(a2etest.Must(chains.NewPlugin(nil))).
		AddPlugin(a2etest.Must(proc.NewPlugin(&proc.Options{AllowedCommands: []string{"sh", "true"}, InheritedEnv: []string{"PATH"}})))
	c := a2etest.Connect(t, h, nil)
	resp := run(c, sh(`"echo out; printf '\\377' >&2"`))
	require.True(t, resp.Success, string(resp.Error))
	require.JSONEq(t, `{"code":0,"stdout":"out\n","stderr":"\ufffd"}`, string(resp.FinalOutput))
	for input, want := range map[string]string{
		sh(`"echo no such file >&2; exit 7"`): `{"code":"chain_node_error","message":"exit status 7: no such file\n"}`,
		sh(`"yes"`):                           `{"code":"chain_node_error","message":"the program wrote more than 1048576 bytes","reason":"too_large"}`,
		`{"cmd":["true"]}`:                    `{"code":"unauthorized","message":"not this program"}`,
		`{"cmd":["ls"]}`:                      `{"code":"unauthorized","message":"the program is not allowed here","reason":"not_allowed"}`,
		`{"cmd":"$.word"}`:                    `{"code":"schema_violation","message":"input.cmd has another type, want array, got string","reason":"type"}`,
	} {
		resp := run(c, input)
		require.False(t, resp.Success, input)
		require.JSONEq(t, want, string(resp.Error))
	}
	limited := a2etest.Connect(t, h, &a2e.ClientOptions{Capabilities: []string{chains.Capability}})
	require.JSONEq(t, `{"code":"chain_node_error","message":"nodes of kind proc cannot run here"}`, string(run(limited, sh(`"echo"`)).Error))
	without := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(chains.NewPlugin(nil))), nil)
	require.JSONEq(t, `{"code":"chain_node_error","message":"nodes of kind proc cannot run here"}`, string(run(without, sh(`"echo"`)).Error))
	client, err := chains.NewClient(c)
	require.NoError(t, err)
	_, err = client.Run(t.Context(), &chains.Request{EntryNode: "p", Timeout: 1, Nodes: []chains.Node{node("p", "", "", func(n *chains.Node) {
		n.Kind, n.Input = chains.NodeProc, json.RawMessage(sh(`"sleep 60"`))
	})}}, nil)
	require.ErrorIs(t, err, a2e.ErrTimeout)
	processes, err := proc.NewClient(c)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		status, err := processes.GetStatus(t.Context(), &proc.StatusRequest{ProcID: "proc-4"}, nil)
		return err == nil && status.Status == proc.StateTimedOut
	}, 10*time.Second, time.Millisecond)
}
