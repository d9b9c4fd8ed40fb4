// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	stdjson "encoding/json"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// toolCall is the call of a tool in a2e.
type toolCall struct {
	Version       string  `json:"a2e"`
	Type          string  `json:"type"`
	ID            string  `json:"id"`
	TS            float64 `json:"ts"`
	SessionID     string  `json:"session_id"`
	ToolName      string  `json:"tool_name"`
	Arguments     JSON    `json:"arguments"`
	CorrelationID string  `json:"correlation_id,omitzero"`
	Streaming     bool    `json:"streaming,omitzero" jsonmap:"always"`
	Timeout       int64   `json:"timeout,omitzero"`
}

// The same for the other packages.
type otherToolCall struct {
	Version       string             `json:"a2e"`
	Type          string             `json:"type"`
	ID            string             `json:"id"`
	TS            float64            `json:"ts"`
	SessionID     string             `json:"session_id"`
	ToolName      string             `json:"tool_name"`
	Arguments     stdjson.RawMessage `json:"arguments"`
	CorrelationID string             `json:"correlation_id,omitempty"`
	Streaming     bool               `json:"streaming"`
	Timeout       int64              `json:"timeout,omitempty"`
}

type jsontextToolCall struct {
	Version       string         `json:"a2e"`
	Type          string         `json:"type"`
	ID            string         `json:"id"`
	TS            float64        `json:"ts"`
	SessionID     string         `json:"session_id"`
	ToolName      string         `json:"tool_name"`
	Arguments     jsontext.Value `json:"arguments"`
	CorrelationID string         `json:"correlation_id,omitzero"`
	Streaming     bool           `json:"streaming"`
	Timeout       int64          `json:"timeout,omitzero"`
}

const toolCallText = `{"a2e":"1.0","type":"tool/call/req","id":"0000000000000000000000000000002a","ts":1716886800.25,"session_id":"finance-analyzer-01",` +
	`"tool_name":"web_search","arguments":{"query":"quarterly revenue by region and every risk","max":10,"exact":true,"lang":"en"},` +
	`"correlation_id":"0000000000000000000000000000002a","streaming":false,"timeout":30}`

func TestBenchmarksDoTheSame(t *testing.T) {
	m := parse[toolCall](t, toolCallText)
	require.Equal(t, toolCallText, write(t, &m))
	var v2 jsontextToolCall
	require.NoError(t, json.Unmarshal([]byte(toolCallText), &v2))
	out, err := json.Marshal(&v2)
	require.NoError(t, err)
	require.Equal(t, toolCallText, string(out))
}

func BenchmarkRead(b *testing.B) {
	text := []byte(toolCallText)
	c := strictjson.NewCursor(nil, strictjson.Options{})
	read := func() {
		c.Reset(text, strictjson.Options{})
		m := new(toolCall)
		if f := Read(c, m); f != nil {
			panic(f)
		}
	}
	b.Run("time", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			read()
		}
	})
	v2 := func() {
		if err := json.Unmarshal(text, new(jsontextToolCall)); err != nil {
			panic(err)
		}
	}
	b.Run("ratio=v2", func(b *testing.B) { pair.Ratio(b, pair.Loop(read), pair.Loop(v2)) })
	v1 := func() {
		if err := stdjson.Unmarshal(text, new(otherToolCall)); err != nil {
			panic(err)
		}
	}
	b.Run("ratio=v1", func(b *testing.B) { pair.Ratio(b, pair.Loop(read), pair.Loop(v1)) })
}

func BenchmarkAppend(b *testing.B) {
	m := parse[toolCall](b, toolCallText)
	buf := make([]byte, 0, 1024)
	write := func() {
		if _, err := Append(buf, &m); err != nil {
			panic(err)
		}
	}
	b.Run("time", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			write()
		}
	})
	var other jsontextToolCall
	require.NoError(b, json.Unmarshal([]byte(toolCallText), &other))
	v2 := func() {
		if _, err := json.Marshal(&other); err != nil {
			panic(err)
		}
	}
	b.Run("ratio=v2", func(b *testing.B) { pair.Ratio(b, pair.Loop(write), pair.Loop(v2)) })
}
