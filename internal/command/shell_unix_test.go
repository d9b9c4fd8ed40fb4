// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A command that takes too long ends with its descendants.
func TestShellEndsDescendants(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	_, err := NewShell(&IO{}, "sleep 600 >/dev/null & echo $! >'"+file+"'; wait", time.Second).Run(t.Context(), nil)
	require.ErrorContains(t, err, "longer than 1s")
	requireEnded(t, file)
}

// A command that ends before a descendant that keeps its output open has succeeded. The descendant ends.
func TestShellEndsDescendantsOfEndedCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	out, err := NewShell(&IO{}, "sleep 600 & echo $! >'"+file+"'; echo done", time.Minute).Run(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, "done\n", string(out))
	requireEnded(t, file)
}

// requireEnded waits for the end of the process with the id in a file.
func requireEnded(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		if syscall.Kill(pid, 0) != nil {
			return true
		}
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err == nil && bytes.Contains(stat, []byte(") Z ")) // a zombie has ended
	}, 10*time.Second, 10*time.Millisecond)
}

// Callers cannot start more than maxRunning commands at a time.
func TestShellBoundsCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "starts")
	started := func() int {
		text, _ := os.ReadFile(file)
		return bytes.Count(text, []byte("x"))
	}
	s := NewShell(&IO{}, "echo x >>'"+file+"'; exec sleep 600", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range maxRunning {
		wg.Go(func() { _, _ = s.Run(ctx, nil) })
	}
	require.Eventually(t, func() bool { return started() == maxRunning }, 30*time.Second, time.Millisecond)
	late, stop := context.WithCancel(t.Context())
	stop()
	for range 20 { // a free slot would be taken in one of two
		_, err := s.Run(late, nil)
		require.Equal(t, context.Canceled, err)
	}
	cancel()
	wg.Wait()
	require.Equal(t, maxRunning, started())
}

// The operator of the verb gets what the command writes to its standard error, and the caller does not.
func TestShellKeepsStandardErrorForOperator(t *testing.T) {
	var log bytes.Buffer
	_, err := NewShell(&IO{Err: &log}, "echo 'disk full' >&2; exit 3", time.Minute).Run(t.Context(), nil)
	require.ErrorContains(t, err, "exit status 3")
	require.NotContains(t, err.Error(), "disk full")
	require.Equal(t, "disk full\n", log.String())
}
