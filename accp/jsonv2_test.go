// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build go1.27

package accp_test

import (
	"encoding/json/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/bench/pair"
)

// A jsonMessage is what a program would use that sends the same messages as JSON.
type jsonMessage struct {
	From    string         `json:"from"`
	Intent  string         `json:"intent"`
	Op      string         `json:"op"`
	Payload map[string]any `json:"payload"`
	Meta    struct {
		MID string `json:"mid"`
		Seq int64  `json:"seq"`
		TS  int64  `json:"ts"`
		CID string `json:"cid"`
		SID string `json:"sid"`
	} `json:"meta"`
}

// BenchmarkPairJSON compares with version 2 of encoding/json on the same messages
// without schemas: how many times as long it takes. It needs Go 1.27.
func BenchmarkPairJSON(b *testing.B) {
	var c accp.Codec
	for _, s := range benchFrames {
		frame := []byte(s.frame)
		m, err := c.DecodeRaw(frame)
		require.NoError(b, err)
		text, err := m.MarshalJSON()
		require.NoError(b, err)
		var j jsonMessage
		require.NoError(b, json.Unmarshal(text, &j))
		require.Equal(b, m.Meta.CID, j.Meta.CID)
		require.Len(b, j.Payload, len(m.Params))
		b.Run("op=decode/msg="+s.name, func(b *testing.B) {
			pair.Ratio(b, pair.Loop(func() {
				var j jsonMessage
				err = json.Unmarshal(text, &j)
			}), pair.Loop(func() { m, err = c.DecodeRaw(frame) }))
		})
		b.Run("op=encode/msg="+s.name, func(b *testing.B) {
			pair.Ratio(b, pair.Loop(func() { _, err = json.Marshal(&j, json.Deterministic(true)) }),
				pair.Loop(func() { _, err = c.AppendRaw(nil, m) }))
		})
		require.NoError(b, err)
	}
}
