// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/llm"
)

func Example() {
	for _, vendor := range []llm.Vendor{llm.OpenAIChat, llm.Anthropic} {
		if err := run(context.Background(), vendor, os.Stdout); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// offered: [{"type":"function","function":{"name":"bank__transfer","description":"Transfers an amount in cents","parameters":{"type":"object","properties":{"account":{"type":"integer","description":"number of the account"},"cents":{"type":"integer"},"receipt":{"type":["string","null"],"description":"a file to attach (base64)"}},"required":["account","cents","receipt"],"additionalProperties":false},"strict":true}}]
	// model calls: {"id":"call-1","type":"function","function":{"name":"bank__transfer","arguments":"{\"account\":\"9007199254740993\",\"cents\":\"12.50\",\"memo\":\"rent\",\"receipt\":7}"}}
	// result: {"role":"tool","tool_call_id":"call-1","content":"{\"error\":\"INVALID_PARAMETERS: /cents wrong_type (expected integer, got string); /receipt wrong_type (expected binary, got number); /memo unknown_parameter\"}"}
	// model calls: {"id":"call-1","type":"function","function":{"name":"bank__transfer","arguments":"{\"account\":\"9007199254740993\",\"cents\":1250,\"receipt\":\"aGVsbG8\"}"}}
	// result: {"role":"tool","tool_call_id":"call-1","content":"1250 cents to 9007199254740993, receipt of 5 bytes"}
	// model: Done: {"role":"tool","tool_call_id":"call-1","content":"1250 cents to 9007199254740993, receipt of 5 bytes"}
	// offered: [{"name":"bank__transfer","description":"Transfers an amount in cents","input_schema":{"type":"object","properties":{"account":{"type":"integer","description":"number of the account"},"cents":{"type":"integer"},"receipt":{"type":["string","null"],"description":"a file to attach (base64)"}},"required":["account","cents","receipt"],"additionalProperties":false},"strict":true}]
	// model calls: {"type":"tool_use","id":"call-1","name":"bank__transfer","input":{"account":"9007199254740993","cents":"12.50","memo":"rent","receipt":7}}
	// result: {"type":"tool_result","tool_use_id":"call-1","content":"INVALID_PARAMETERS: /cents wrong_type (expected integer, got string); /receipt wrong_type (expected binary, got number); /memo unknown_parameter","is_error":true}
	// model calls: {"type":"tool_use","id":"call-1","name":"bank__transfer","input":{"account":"9007199254740993","cents":1250,"receipt":"aGVsbG8"}}
	// result: {"type":"tool_result","tool_use_id":"call-1","content":"1250 cents to 9007199254740993, receipt of 5 bytes"}
	// model: Done: {"type":"tool_result","tool_use_id":"call-1","content":"1250 cents to 9007199254740993, receipt of 5 bytes"}
}

// Each vendor's model repairs its call in one turn.
func TestVendors(t *testing.T) {
	for _, vendor := range []llm.Vendor{llm.OpenAIChat, llm.OpenAIResponses, llm.Anthropic, llm.Gemini} {
		var out strings.Builder
		require.NoError(t, run(t.Context(), vendor, &out))
		require.Equal(t, 2, strings.Count(out.String(), "model calls:"))
		require.Contains(t, out.String(), "1250 cents to 9007199254740993, receipt of 5 bytes")
	}
	require.ErrorContains(t, run(t.Context(), "none", io.Discard), "unknown vendor")
}
