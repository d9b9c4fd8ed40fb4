// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// handshake is why a protocol has no case of a fault.
const handshake = "its scripts begin with the messages of one WebSocket, behind the HTTP handshake"

// clientFaults are the faults that client mode plays. Each protocol has a case and a text of its
// input, or the reason for having no case.
var clientFaults = map[string]map[string][2]string{
	"cut answers and streams": {
		"arc": {"arc-client-edges-001", `"cut":true`}, "accp": {"accp-client-edges-001", `"cut":true`}, "air": {"air-fetching-023", `"cut":true`},
		"a2e": {"a2e-client-edges-003", `"eof":true`}, "altar": {"altar-scripts-034", `"eof":true`},
	},
	"half-closed connections": { // by leaveHalfClosed and halfClose
		"arc": {"arc-client-008", `event: stream`}, "accp": {"accp-client-edges-001", `"cut":true`}, "air": {"air-delivering-035", `"cut":true`},
		"a2e": {"a2e-client-edges-003", `"eof":true`}, "altar": {"altar-scripts-034", `"eof":true`},
	},
	"ends before the answer": {
		"arc": {"arc-client-edges-002", `"fail":"reset"`}, "accp": {"accp-client-004", `"lost":true`}, "air": {"air-delivering-022", `"timeout":true`},
		"a2e": {"a2e-client-edges-003", `"eof":true`}, "altar": {"altar-scripts-034", `"eof":true`},
	},
	"ends after the answer": { // each HTTP connection does
		"arc": {"arc-client-001", `"replies"`}, "accp": {"accp-client-001", `"answers"`}, "air": {"air-delivering-014", `"replies"`},
		"a2e": {"a2e-client-edges-003", `"recv".*"eof":true`}, "altar": {"altar-scripts-034", `"send".*"eof":true`},
	},
	"slow answers": { // every answer and message is sent in pieces
		"arc": {"arc-client-008", `event: stream`}, "accp": {"accp-client-001", `"frames"`}, "air": {"air-fetching-001", `"body"`},
		"a2e": {"a2e-client-001", `"recv"`}, "altar": {"altar-runtime-001", `"send"`},
	},
	"duplicates": {
		"arc": {"arc-client-edges-005", `s\.1\\.*s\.1\\`}, "accp": {"accp-client-edges-005", `5e0000000001.*5e0000000001`},
		"air": {"air-fetching-023", `nonce-1236.*nonce-1236`}, "a2e": {"a2e-client-004", `"recv"`}, "altar": {"altar-scripts-035", `AcknowledgeRuntime.*AcknowledgeRuntime`},
	},
	"another order": {
		"arc": {"arc-client-edges-005", `s\.3\\.*s\.2\\`}, "accp": {"accp-client-edges-006", `idx:1.*idx:0`},
		"air": {"air-fetching-002", `"poll"`}, "a2e": {"a2e-client-004", `"recv"`}, "altar": {"altar-scripts-035", `CancelCall.*"ToolCall\\"`},
	},
	"malformed answers": {
		"arc": {"arc-client-007", `"replies"`}, "accp": {"accp-client-edges-004", `<html>`}, "air": {"air-fetching-015", `<html>`},
		"a2e": {"a2e-client-007", `"recv"`}, "altar": {"altar-runtime-005", `Gossip`},
	},
	"redirects": {
		"arc": {"arc-client-006", `"status":307`}, "accp": {"accp-client-edges-003", `"status":307`}, "air": {"air-delivering-011", `"status":307`},
		"a2e": {"", handshake}, "altar": {"", handshake},
	},
	"429 with Retry-After": {
		"arc": {"arc-client-edges-003", `"status":429.*"Retry-After"`}, "accp": {"accp-client-edges-002", `"status":429.*"Retry-After"`},
		"air": {"air-fetching-014", `"status":429.*retry-after`}, "a2e": {"", handshake}, "altar": {"", handshake},
	},
}

// Client mode plays each fault for each protocol, in a case without -slow where that is possible.
func TestClientFaults(t *testing.T) {
	cases := Embedded().Cases()
	for fault, byProtocol := range clientFaults {
		require.Len(t, byProtocol, len(clientProtocols()), fault)
		for protocol, shown := range byProtocol {
			require.Contains(t, clientProtocols(), protocol)
			if shown[0] == "" {
				require.NotEmpty(t, shown[1])
				continue
			}
			i := slices.IndexFunc(cases, func(c *Case) bool { return c.ID == shown[0] })
			require.GreaterOrEqual(t, i, 0, "%s of %s: %s", fault, protocol, shown[0])
			require.Equal(t, protocol, cases[i].Protocol)
			require.Empty(t, cases[i].NotLiveClient(4*time.Minute), "%s of %s: %s", fault, protocol, shown[0])
			var in bytes.Buffer
			require.NoError(t, json.Compact(&in, cases[i].in))
			require.Regexp(t, shown[1], in.String(), "%s of %s: %s", fault, protocol, shown[0])
		}
	}
}
