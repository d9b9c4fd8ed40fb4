// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"encoding/json"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxText bounds the text of the server in an error.
const maxText = 1000

func clip(text string) string {
	if list := []rune(text); len(list) > maxText {
		return string(list[:maxText])
	}
	return text
}

// resultOf returns the payload of a result: its structured content, or else its content blocks.
func resultOf(got *sdk.CallToolResult) (any, error) {
	var texts []string
	blocks := []json.RawMessage{}
	for _, c := range got.Content {
		if c == nil {
			continue
		}
		if t, ok := c.(*sdk.TextContent); ok {
			texts = append(texts, t.Text)
		}
		raw, err := c.MarshalJSON()
		if err != nil {
			return nil, altar.Errorf(altar.ErrExecutionFailed, "", "the MCP server sent content that cannot be read")
		}
		blocks = append(blocks, raw)
	}
	if got.IsError {
		text := strings.Join(texts, "\n")
		if text == "" {
			text = "the tool failed"
		}
		return nil, altar.Errorf(altar.ErrExecutionFailed, "", "%s", clip(text))
	}
	if got.StructuredContent != nil && !strictjson.Rounded(got.StructuredContent) {
		return got.StructuredContent, nil
	}
	return blocks, nil
}
