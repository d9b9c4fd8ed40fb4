// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
)

// askOpenAI asks a model of OpenAI, and makes its calls until it answers. An empty url is that of OpenAI.
func askOpenAI(ctx context.Context, url, key string, b *toolbox, question string) (string, error) {
	opts := []option.RequestOption{option.WithAPIKey(key)}
	if url != "" {
		opts = append(opts, option.WithBaseURL(url))
	}
	client := openai.NewClient(opts...)
	params := responses.ResponseNewParams{Model: "gpt-5-mini"}
	input := responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage(question, responses.EasyInputMessageRoleUser)}
	for _, t := range b.offered {
		params.Tools = append(params.Tools, param.Override[responses.ToolUnionParam](t.JSON))
	}
	for {
		params.Input.OfInputItemList = input
		res, err := client.Responses.New(ctx, params)
		if err != nil {
			return "", err
		}
		var calls []json.RawMessage
		for _, item := range res.Output {
			text := json.RawMessage(item.RawJSON()) // exact numbers
			input = append(input, param.Override[responses.ResponseInputItemUnionParam](text))
			if item.Type == "function_call" {
				calls = append(calls, text)
			}
		}
		if len(calls) == 0 {
			return res.OutputText(), nil
		}
		results, err := b.answer(ctx, calls)
		if err != nil {
			return "", err
		}
		for _, r := range results {
			input = append(input, param.Override[responses.ResponseInputItemUnionParam](r))
		}
	}
}
