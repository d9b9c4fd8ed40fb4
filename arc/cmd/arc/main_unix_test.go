// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/command"
)

// The command and its descendants end when its task is canceled, and when the caller of its chat disconnects.
func TestServeEndsCommand(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo") // ends with the last process that has it
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	url := serve(t, "-exec", "exec 3>'"+fifo+"'; echo started >&3; sleep 600 & wait", "-allow-anonymous")
	client, err := arc.NewClient(url, "tester-01", nil)
	require.NoError(t, err)
	defer client.Close()
	requireEnds := func(end func()) {
		t.Helper()
		r, err := os.Open(fifo)
		require.NoError(t, err)
		defer r.Close()
		b := bufio.NewReader(r)
		_, err = b.ReadString('\n')
		require.NoError(t, err)
		end()
		_, err = io.ReadAll(b)
		require.NoError(t, err)
	}

	status, stdout, stderr := do(t, "", "call", "-method", "task.create", "-params",
		`{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"x"}]}}`, url, "child-01")
	require.Equal(t, command.Done, status, stderr)
	var result struct{ Task arc.Task }
	require.NoError(t, json.Unmarshal([]byte(stdout), &result), stdout)
	requireEnds(func() {
		_, err = client.CancelTask(t.Context(), "child-01", &arc.CancelTaskParams{TaskID: result.Task.ID}, nil)
		require.NoError(t, err)
	})

	ctx, cancel := context.WithCancel(t.Context())
	failure := make(chan error, 1)
	go func() {
		_, err := client.StartChat(ctx, "child-01", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil)
		failure <- err
	}()
	requireEnds(cancel)
	require.ErrorIs(t, <-failure, context.Canceled)
}
