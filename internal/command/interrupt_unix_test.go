// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package command

import (
	"bufio"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const fifoVariable = "COMMAND_TEST_FIFO"

// TestMain is a command that does not end after an interrupt, if the variable is set.
func TestMain(m *testing.M) {
	fifo := os.Getenv(fifoVariable)
	if fifo == "" {
		os.Exit(m.Run())
	}
	c := &Command{Name: "prog", Verbs: []Verb{{Name: "hang", Prepare: func(*flag.FlagSet) func(context.Context, *IO, []string) error {
		return func(ctx context.Context, s *IO, _ []string) error {
			shell := NewShell(s, "exec sleep 60 >'"+fifo+"'", time.Hour)
			go shell.Run(context.WithoutCancel(ctx), nil)
			<-ctx.Done()
			if err := s.Print("draining", nil); err != nil {
				return err
			}
			select {}
		}
	}}}}
	c.Main()
}

// A second interrupt ends a command that drains, with the commands that it has started.
func TestSecondInterruptEndsProcess(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, second := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "hang")
		cmd.Env = append(os.Environ(), fifoVariable+"="+fifo)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		child, err := os.Open(fifo) // after the child of the command has started
		require.NoError(t, err)
		defer child.Close()
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "draining\n", line)
		require.NoError(t, cmd.Process.Signal(second))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, Interrupted, exit.ExitCode())
		start := time.Now()
		_, err = io.ReadAll(child) // until its end
		require.NoError(t, err)
		require.Less(t, time.Since(start), 30*time.Second, "the child was killed")
	}
}
