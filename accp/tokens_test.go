// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// The estimate is the same everywhere (ACCP-D39).
func TestApprox(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 1, "abcdef": 1, "abcdefg": 2, "123": 1, "1234": 2, " ": 0, "  ": 1, "\n": 1, "{}": 1, "{}:": 2,
		"é": 1, "한국": 2, "😀": 2, "a b": 2, "ab12": 2, "\xff": 1,
	} {
		require.Equal(t, want, accp.ApproxCounter{}.Count(text), "%q", text)
	}
	require.Equal(t, 3, accp.TokenCounterFunc(func(s string) int { return len(s) }).Count("abc"))
}
