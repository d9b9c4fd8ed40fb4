// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The three programs together, as a user starts them.
func TestThreePrograms(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "../altar-host", "../altar-runtime")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	host := exec.CommandContext(ctx, filepath.Join(dir, "altar-host"), "-addr", "127.0.0.1:0", "-for", "1m")
	stdout, err := host.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, host.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	url := "ws://" + strings.TrimPrefix(lines.Text(), "listening on http://")

	runtime := exec.CommandContext(ctx, filepath.Join(dir, "altar-runtime"), "-url", url, "-for", "1m")
	require.NoError(t, runtime.Start())
	for !strings.Contains(lines.Text(), "admin") && !strings.Contains(lines.Text(), "text/words") && lines.Scan() {
	}

	var got bytes.Buffer
	require.NoError(t, run(ctx, []string{"-url", url}, &got))
	require.Equal(t, `tool text/upper: Returns the text in upper case
tool text/words: Yields the words of the text one by one
upper: HELLO
word: one
word: two
word: three
fault /text: missing_required
fault /txet: unknown_parameter
`, got.String())

	require.NoError(t, runtime.Process.Signal(syscall.SIGTERM))
	require.NoError(t, runtime.Wait(), "the Runtime drains and ends well")
	require.NoError(t, host.Process.Signal(syscall.SIGTERM))
	for lines.Scan() {
	}
	require.NoError(t, host.Wait(), "so does the Host")
}
