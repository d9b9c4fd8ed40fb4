// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNew(t *testing.T) {
	for _, s := range Sizes {
		text := Encode(New(s.N))
		require.InEpsilon(t, s.N, len(text), 0.2, s.Name)
		var m Message
		require.NoError(t, json.Unmarshal(text, &m))
		require.Equal(t, New(s.N), m)
		require.Equal(t, text, Encode(New(s.N)), "always the same")
	}
}

func TestEncode(t *testing.T) {
	require.Equal(t, `"<&>"`, string(Encode("<&>")))
	require.Panics(t, func() { Encode(func() {}) })
}

func TestEnvelope(t *testing.T) {
	for _, n := range []int{1 << 10, 16 << 10} {
		for _, korean := range []bool{false, true} {
			text := Envelope(n, korean)
			require.InEpsilon(t, n, len(text), 0.15)
			require.True(t, json.Valid(text))
			ascii := true
			for _, c := range text {
				ascii = ascii && c < 0x80
			}
			require.Equal(t, !korean, ascii)
		}
	}
}
