// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/mcpbinding"
	"github.com/fivewire/fivewire/accp/profile"
)

// Whatever a client sends, it is refused in MCP's own terms or answered, by frames if it sent one;
// arguments that were accepted come back as they were.
func FuzzHandler(f *testing.F) {
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Session: accp.SessionOptions{Budget: accp.BudgetOff}})
	require.NoError(f, err)
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"echo": func(_ context.Context, args accp.Params) (accp.Value, error) { return accp.Map(args...), nil },
	}))
	handler, err := mcpbinding.NewToolHandler(agent, &mcp.Tool{Name: "echo"})
	require.NoError(f, err)
	f.Add("echo", `{"a":1,"b":[true,null,"x y"],"c":{"d":1.5}}`, "")
	f.Add("echo", `{"a":9007199254740993}`, "@planner>req:tool{pri:high}[mid:00000000000a,seq:1,ts:1714000000]")
	f.Add("none", `{}`, "@planner>cancel:tool{}[mid:00000000000a,seq:1,ts:1714000000,cid:x]")
	f.Add("echo", `[1]`, "@a>req:tool{}")
	f.Add("two words", `{"a":1,"a":2}`, "\x00")
	f.Fuzz(func(t *testing.T, name, arguments, head string) {
		req := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: name, Arguments: json.RawMessage(arguments)}}
		if head != "" {
			req.Params.Meta = mcp.Meta{"accp/frame": head}
		}
		res, err := handler(t.Context(), req)
		if err != nil {
			var rpc *jsonrpc.Error
			require.True(t, errors.As(err, &rpc), "%v", err)
			return
		}
		if head == "" {
			require.Len(t, res.Content, 1)
			text := res.Content[0].(*mcp.TextContent).Text
			if !res.IsError {
				want, err := accp.FromJSON([]byte(cmp.Or(arguments, "{}")))
				require.NoError(t, err)
				plain, err := want.AppendJSON(nil)
				require.NoError(t, err)
				require.JSONEq(t, string(plain), text)
				require.NotNil(t, res.StructuredContent)
			}
			return
		}
		frames := mcpbinding.ExtractFrames(res)
		require.Len(t, res.Content, len(frames))
		require.Len(t, frames, 1)
		m, err := new(accp.Codec).DecodeEnvelope(frames[0])
		require.NoError(t, err)
		require.Equal(t, m.Intent == accp.IntentFail, res.IsError)
		if m.Intent == accp.IntentDone {
			sent, err := accp.FromJSON([]byte(arguments))
			if arguments == "" {
				sent, err = accp.Map(), nil
			}
			require.NoError(t, err)
			want, err := new(accp.Codec).AppendValue(nil, sent)
			require.NoError(t, err)
			result, _ := m.Params.Get("result")
			got, err := new(accp.Codec).AppendValue(nil, result)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		}
	})
}
