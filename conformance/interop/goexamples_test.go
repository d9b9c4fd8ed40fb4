// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/testkit"
)

// The programs that the official Go SDKs of MCP and A2A show as examples, as they are.

const (
	mcpExamples = "github.com/modelcontextprotocol/go-sdk/examples/"
)

// a2aExamples are the programs of both versions of the protocol.
var a2aExamples = map[string]string{
	"1.0": "github.com/a2aproject/a2a-go/v2/examples/helloworld/",
	"0.3": "github.com/a2aproject/a2a-go/examples/helloworld/",
}

// example builds a program of another module, at the version of go.mod.
func example(t *testing.T, pkg string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "example")
	out, err := exec.Command("go", "build", "-o", bin, pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

func TestMCPGoServer(t *testing.T) {
	t.Parallel()
	c := mcpConnect(t, exec.Command(example(t, mcpExamples+"server/everything")))
	name := accp.Param{Key: "name", Value: accp.String("Grüße {x}, 😀")}
	for _, tool := range []string{"greet", "greet (structured)"} {
		m, err := mcpCall(t, c, tool, name)
		require.NoError(t, err)
		require.Equal(t, accp.IntentDone, m.Intent)
		text, err := json.Marshal(m.Params)
		require.NoError(t, err)
		require.Contains(t, string(text), "Hi Grüße {x}, 😀")
	}
	_, err := mcpCall(t, c, "none", name)
	require.ErrorIs(t, err, accp.ErrToolNotFound)
	_, err = mcpCall(t, c, "greet", accp.Param{Key: "name", Value: accp.Int(1)})
	require.ErrorIs(t, err, accp.ErrToolSchema)
}

func TestMCPGoClient(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, example(t, mcpExamples+"client/listfeatures"), self)
	cmd.Env = append(os.Environ(), "FIVEWIRE_INTEROP_CHILD=mcp")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "tools:\n\tboom\n\techo\n")
	require.Contains(t, string(out), "resources:\n")
}

// The A2A examples send plain text instead of a frame. Both sides report an error.
func TestA2AGoServer(t *testing.T) {
	t.Parallel()
	for version, examples := range a2aExamples {
		t.Run(version, func(t *testing.T) {
			_, port, err := net.SplitHostPort(testkit.FreeAddress(t))
			require.NoError(t, err)
			cmd := exec.Command(example(t, examples+"server/jsonrpc"), "-port="+port)
			var output testkit.Log
			cmd.Stderr = &output
			require.NoError(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			url := "http://127.0.0.1:" + port
			require.Eventually(t, func() bool {
				_, err := a2aResolver.Resolve(ctx, url)
				return err == nil
			}, 30*time.Second, 5*tick, "%s", &output)
			_, err = a2aClient(ctx, t, url).Call(ctx, &accp.Message{Intent: accp.IntentReq, Op: profile.OpClassify, Params: accp.Params{{Key: "data", Value: accp.String("i88")}}}, nil)
			require.ErrorIs(t, err, accp.ErrInvalidType)
		})
	}
}

func TestA2AGoClient(t *testing.T) {
	t.Parallel()
	for version, examples := range a2aExamples {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, example(t, examples+"client"), "-card-url="+a2aDesk(t)).CombinedOutput()
			require.Error(t, err)
			if version == "0.3" { // the client cannot read the details of the error
				require.Contains(t, string(out), "Failed to send a message: ")
				return
			}
			require.Contains(t, string(out), "incompatible content types")
		})
	}
}
