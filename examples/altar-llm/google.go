// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"

	"google.golang.org/genai"
)

// askGoogle asks a model of Google, and makes its calls until it answers. An empty url is that of Google. The SDK decodes
// arguments as float64, so integers above 2^53 need llm.ToolsOptions.TextIntegers.
func askGoogle(ctx context.Context, url, key string, b *toolbox, question string) (string, error) {
	client, err := genai.NewClient(ctx, &genai.ClientConfig{APIKey: key, Backend: genai.BackendGeminiAPI, HTTPOptions: genai.HTTPOptions{BaseURL: url}})
	if err != nil {
		return "", err
	}
	offer := &genai.Tool{}
	for _, t := range b.offered {
		d := &genai.FunctionDeclaration{}
		if err := json.Unmarshal(t.JSON, d); err != nil {
			return "", err
		}
		offer.FunctionDeclarations = append(offer.FunctionDeclarations, d)
	}
	contents := []*genai.Content{genai.NewContentFromText(question, genai.RoleUser)}
	for {
		res, err := client.Models.GenerateContent(ctx, "gemini-2.5-flash", contents, &genai.GenerateContentConfig{Tools: []*genai.Tool{offer}})
		if err != nil {
			return "", err
		}
		if len(res.Candidates) == 0 || res.Candidates[0].Content == nil {
			return "", errors.New("the model has no answer")
		}
		var calls []json.RawMessage
		for _, p := range res.Candidates[0].Content.Parts {
			if p.FunctionCall != nil {
				text, err := json.Marshal(p)
				if err != nil {
					return "", err
				}
				calls = append(calls, text)
			}
		}
		if len(calls) == 0 {
			return res.Text(), nil
		}
		results, err := b.answer(ctx, calls)
		if err != nil {
			return "", err
		}
		returned := &genai.Content{Role: genai.RoleUser}
		for _, r := range results {
			p := &genai.Part{}
			if err := json.Unmarshal(r, p); err != nil {
				return "", err
			}
			returned.Parts = append(returned.Parts, p)
		}
		contents = append(contents, res.Candidates[0].Content, returned)
	}
}
