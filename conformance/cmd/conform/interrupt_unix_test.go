// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/command"
)

// TestConform is the command, in a test binary that is started as it.
func TestConform(t *testing.T) {
	if flag.NArg() == 0 {
		t.Skip("the tests of interrupts run this")
	}
	os.Exit(run(flag.Args(), os.Stdin, os.Stdout, os.Stderr))
}

// startConform starts the command with the name of a pipe as last argument, and returns it and the pipe when the
// implementation writes to it.
func startConform(t *testing.T, args ...string) (cmd *exec.Cmd, implementation *os.File) {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	argv := self("TestConform", append(args, fifo)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	implementation, err := os.Open(fifo)
	require.NoError(t, err)
	t.Cleanup(func() { _ = implementation.Close() })
	return cmd, implementation
}

// requireEnd requires that an implementation has been killed.
func requireEnd(t *testing.T, implementation io.Reader) {
	t.Helper()
	start := time.Now()
	_, err := io.ReadAll(implementation) // until its end
	require.NoError(t, err)
	require.Less(t, time.Since(start), 30*time.Second, "its end by itself")
}

// An interrupt ends the process of the implementation, also one that has not answered yet. It does not reach
// the process by the terminal.
func TestInterruptEndsImplementation(t *testing.T) {
	for _, mode := range []string{"codec", "server", "client"} {
		t.Run(mode, func(t *testing.T) {
			cmd, child := startConform(t, mode, "-protocol", "arc", "-timeout", "1h", "--", "sh", "-c", `exec sleep 60 2>"$0"`)
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			require.Equal(t, exitNotRun, exit.ExitCode())
			requireEnd(t, child)
		})
	}
}

// A second interrupt does not wait for the end of a testee that reads nothing.
func TestSecondInterruptEndsConform(t *testing.T) {
	vectors := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(vectors, "arc"), 0o700))
	suite := `{"format":1,"protocol":"arc","suite":"long","spec":"ARC","cases":[{"id":"arc-long-001","doc":"a long line","ref":"ARC-020","op":"decode_request",` +
		`"in":{"wire":"` + strings.Repeat("x", 1<<20) + `"},"want":{}}]}` // more than a pipe holds
	require.NoError(t, os.WriteFile(filepath.Join(vectors, "arc", "long.json"), []byte(suite), 0o600))
	const testee = `read -r hello
		echo '{"conform":1,"hello":{"name":"stuck","version":"1","protocols":["arc"],"ops":{"arc":["decode_request"]}}}'
		head -c 1 >/dev/null
		exec sleep 60 2>"$0"`
	cmd, child := startConform(t, "codec", "-vectors", vectors, "-suite", "long", "-timeout", "1h", "--", "sh", "-c", testee)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, command.Interrupted, exit.ExitCode())
	requireEnd(t, child)
}
