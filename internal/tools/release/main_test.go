// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A release keeps the lists of requirements, and leaves those of earlier releases alone.
func TestFreezeRequirements(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := run("git", "init", "-q")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("arc.json", []byte("now"), 0o600))
	require.NoError(t, os.WriteFile("arc-v1.0.0.json", []byte("then"), 0o600))
	require.NoError(t, freezeRequirements(".", "v1.1.0"))
	staged, err := run("git", "ls-files")
	require.NoError(t, err)
	require.Equal(t, "arc-v1.0.0.json\narc-v1.1.0.json\narc.json\n", string(staged))
	for file, want := range map[string]string{"arc-v1.0.0.json": "then", "arc-v1.1.0.json": "now"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}
