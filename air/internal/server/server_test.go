// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Only JSON, with any parameters, or no type at all (AIR-D70).
func TestJSONContent(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON; charset=utf-8": true, "application/json; x": true,
		"text/plain": false, "application/didcomm-signed+json": false, "application/jsonx": false, "json": false, ";": false,
	} {
		require.Equal(t, want, JSONContent(text), text)
	}
}
