// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/stretchr/testify/require"
	"google.golang.org/genai"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/llm"
)

// reread returns a text after it was read into a type of an SDK and written again.
func reread[T any](t *testing.T, text []byte) string {
	var v T
	require.NoError(t, json.Unmarshal(text, &v))
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

// rereadAnthropicTool is reread of a tool. The SDK writes the members of a schema that it has no field for, but does not
// read them.
func rereadAnthropicTool(t *testing.T, text []byte) string {
	var v anthropic.ToolUnionParam
	require.NoError(t, json.Unmarshal(text, &v))
	v.OfTool.InputSchema.ExtraFields = map[string]any{"additionalProperties": false}
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

// forms are the types of each SDK for a tool, a call and the result of a call.
var forms = map[llm.Vendor]struct {
	tool, call, result func(t *testing.T, text []byte) string
	calls              string // of a model
}{
	llm.OpenAIChat: {reread[openai.ChatCompletionToolUnionParam], reread[openai.ChatCompletionMessageToolCallUnionParam], reread[openai.ChatCompletionMessageParamUnion],
		`{"id":"c-1","type":"function","function":{"name":"data__mix","arguments":"{\"i\":1}"}}`},
	llm.OpenAIResponses: {reread[responses.ToolUnionParam], reread[responses.ResponseInputItemUnionParam], reread[responses.ResponseInputItemUnionParam],
		`{"type":"function_call","call_id":"c-1","name":"data__mix","arguments":"{\"i\":1}"}`},
	llm.Anthropic: {rereadAnthropicTool, reread[anthropic.ContentBlockParamUnion], reread[anthropic.ContentBlockParamUnion],
		`{"type":"tool_use","id":"c-1","name":"data__mix","input":{"i":1}}`},
	llm.Gemini: {reread[genai.FunctionDeclaration], reread[genai.Part], reread[genai.Part],
		`{"functionCall":{"id":"c-1","name":"data__mix","args":{"i":1}}}`},
}

const everyType = `{"name":"data/mix","description":"Every type","parameters":[
	{"name":"s","type":"string","required":true,"description":"a text"},{"name":"i","type":"integer"},{"name":"f","type":"float"},{"name":"b","type":"boolean"},
	{"name":"bin","type":"binary"},{"name":"tags","type":"array[string]"},{"name":"grid","type":"array[array[integer]]"},
	{"name":"who","type":"object","properties":[{"name":"name","type":"string","required":true},{"name":"age","type":"integer"}]},
	{"name":"items","type":"array[object]","properties":[{"name":"sku","type":"string","required":true}]},{"name":"free","type":"object"}]}`

// The types of the vendors' SDKs have every form of a tool, a call and a result: what they read they write without
// loss.
func TestFormsOfSDKs(t *testing.T) {
	c, err := altar.DecodeContract([]byte(everyType))
	require.NoError(t, err)
	list := []altar.ToolInfo{{Name: c.Name, Description: c.Description, Parameters: c.Parameters}, {Name: "none"}}
	for vendor, f := range forms {
		t.Run(string(vendor), func(t *testing.T) {
			for _, o := range []llm.ToolsOptions{{}, {Strict: true}, {TextIntegers: true}, {Strict: true, TextIntegers: true}} {
				tools, err := llm.Tools(list, vendor, &o)
				require.NoError(t, err)
				for _, tool := range tools {
					require.JSONEq(t, string(tool.JSON), f.tool(t, tool.JSON))
				}
			}
			require.JSONEq(t, f.calls, f.call(t, []byte(f.calls)))
			call, err := llm.DecodeCall(vendor, []byte(f.calls))
			require.NoError(t, err)
			require.Equal(t, llm.Call{ID: "c-1", Name: "data__mix", Arguments: json.RawMessage(`{"i":1}`)}, *call)
			results := map[string]error{`"text"`: nil, `{"a":[1,null,"x"]}`: nil, `""`: nil, `null`: nil, `17`: nil, "": errors.New("it failed")}
			for payload, failure := range results {
				text, err := llm.Result(vendor, call, json.RawMessage(payload), failure)
				require.NoError(t, err)
				require.JSONEq(t, string(text), f.result(t, text))
			}
		})
	}
}
