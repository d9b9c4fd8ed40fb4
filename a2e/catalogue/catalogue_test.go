// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package catalogue_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/catalogue"
)

// Every published type has a model, and nothing else has (A2E-027, A2E-029,
// A2E-037).
func TestTypes(t *testing.T) {
	types := catalogue.Types()
	require.Len(t, types, 129, "and seven base types")
	requests := 0
	for _, ty := range types {
		require.NotEmpty(t, ty.Capability, ty.Name)
		if ty.Kind == a2e.KindRequest {
			requests++
			if ty.Response == "" {
				require.Contains(t, []string{"SUBAGENT_CANCEL_REQ", "SUBAGENT_TERMINATE_REQ"}, ty.Name)
			}
		}
	}
	require.Equal(t, 62, requests)
	require.Len(t, a2e.NewCodec(types...).Types.Types(), 136)
}

// A conversation in the dialect of the public Python SDK, one message of every namespace and
// direction: version in place of a2e, ASCII escapes, spaces, nulls for unset members, clock
// numbers. Both roles read it as typed messages and write messages of the same meaning (P-01, P-02,
// P-03, P-24, P-30).
func TestDeployedDialect(t *testing.T) {
	f, err := os.Open("testdata/dialect.ndjson")
	require.NoError(t, err)
	defer f.Close()
	seen := map[string]bool{}
	for in := bufio.NewScanner(f); in.Scan(); {
		line := in.Bytes()
		for _, host := range []bool{false, true} {
			codec := a2e.NewCodec(catalogue.Types()...)
			codec.Host = host
			m, err := codec.Decode(line)
			require.NoError(t, err, "%s", line)
			require.NotNil(t, m.Body, m.Type)
			namespace, _, _ := strings.Cut(m.Type, "/")
			seen[namespace] = true
			codec.EscapeNonASCII, codec.WriteVersion = true, true
			out, err := codec.Append(nil, m)
			require.NoError(t, err)
			decoded, err := codec.Decode(out)
			require.NoError(t, err)
			twice, err := codec.Append(nil, decoded)
			require.NoError(t, err)
			require.Equal(t, string(out), string(twice))
			require.Contains(t, string(out), `"version":"1.0"`)
			for _, c := range out {
				require.Less(t, c, byte(0x7f))
			}
		}
	}
	for _, namespace := range []string{"handshake", "ping", "pong", "shutdown", "error", "tool", "toolkit", "memory", "proc", "env", "learn",
		"skill", "chain", "mcp", "planning", "multi_agent"} {
		require.True(t, seen[namespace], namespace)
	}
}
