// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Commands that run after the drain end before Serve, with their descendants, and no further ones start.
func TestServeEndsCommands(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo") // ends with the last process that has it
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	serve := NewServeFlags(fs)
	require.NoError(t, fs.Parse([]string{"-addr=127.0.0.1:0"}))
	s := &IO{Out: &bytes.Buffer{}}
	shell := NewShell(s, "exec 3>'"+fifo+"'; echo $$ >&3; sleep 600 & wait", time.Hour)
	result := make(chan error, 1)
	go func() {
		_, err := shell.Run(t.Context(), nil)
		result <- err
	}()
	r, err := os.Open(fifo)
	require.NoError(t, err)
	defer r.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failure := errors.New("the drain took too long")
	err = serve.Serve(ctx, s, &http.Server{}, func(context.Context) error { return failure })
	require.ErrorIs(t, err, failure)
	require.Equal(t, syscall.ESRCH, syscall.Kill(pid, 0), "the process after Serve")
	require.ErrorContains(t, <-result, "the command failed")
	_, err = io.ReadAll(r)
	require.NoError(t, err, "the end of the descendant")
	_, err = shell.Run(t.Context(), nil)
	require.Equal(t, errKilled, err)
}
