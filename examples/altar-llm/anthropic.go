// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"
)

// askAnthropic asks a model of Anthropic, and makes its calls until it answers. An empty url is that of Anthropic.
func askAnthropic(ctx context.Context, url, key string, b *toolbox, question string) (string, error) {
	opts := []option.RequestOption{option.WithAPIKey(key)}
	if url != "" {
		opts = append(opts, option.WithBaseURL(url))
	}
	client := anthropic.NewClient(opts...)
	params := anthropic.MessageNewParams{Model: "claude-haiku-4-5", MaxTokens: 1024,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(question))}}
	for _, t := range b.offered {
		params.Tools = append(params.Tools, param.Override[anthropic.ToolUnionParam](t.JSON))
	}
	for {
		res, err := client.Messages.New(ctx, params)
		if err != nil {
			return "", err
		}
		var calls []json.RawMessage
		var blocks, returned []anthropic.ContentBlockParamUnion
		answer := ""
		for _, block := range res.Content {
			text := json.RawMessage(block.RawJSON()) // exact numbers
			blocks = append(blocks, param.Override[anthropic.ContentBlockParamUnion](text))
			if block.Type == "tool_use" {
				calls = append(calls, text)
			}
			answer += block.Text
		}
		if len(calls) == 0 {
			return answer, nil
		}
		results, err := b.answer(ctx, calls)
		if err != nil {
			return "", err
		}
		for _, r := range results {
			returned = append(returned, param.Override[anthropic.ContentBlockParamUnion](r))
		}
		params.Messages = append(params.Messages, anthropic.NewAssistantMessage(blocks...), anthropic.NewUserMessage(returned...))
	}
}
