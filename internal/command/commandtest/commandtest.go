// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package commandtest runs the commands of this module within a test.
package commandtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/command"
)

// Do runs a command with an input, for a minute at most.
func Do(t *testing.T, c *command.Command, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	status = c.Run(ctx, args, &command.IO{In: strings.NewReader(in), Out: &out, Err: &errs})
	return status, out.String(), errs.String()
}

// Serve runs a verb that serves, until the end of the test, and returns its address.
func Serve(t *testing.T, c *command.Command, args ...string) (address string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the commands of this test need a Unix shell")
	}
	ctx, stop := context.WithCancel(context.Background())
	out, in, err := os.Pipe()
	require.NoError(t, err)
	status := make(chan int, 1)
	go func() {
		args := append([]string{args[0], "-o", "json", "-addr", "127.0.0.1:0"}, args[1:]...)
		status <- c.Run(ctx, args, &command.IO{In: strings.NewReader(""), Out: in, Err: io.Discard}) // also of concurrent children
		_ = in.Close()
	}()
	t.Cleanup(func() {
		stop()
		require.Equal(t, command.Done, <-status)
		require.NoError(t, out.Close())
	})
	var started struct{ Address string }
	require.NoError(t, json.NewDecoder(out).Decode(&started))
	return started.Address
}

// CheckHelp checks that each verb has help with examples.
func CheckHelp(t *testing.T, c *command.Command) {
	t.Helper()
	status, help, _ := Do(t, c, "", "-h")
	require.Equal(t, command.Done, status)
	for _, v := range c.Verbs {
		require.Contains(t, help, "  "+c.Name+" "+v.Name+" ")
		status, help, _ := Do(t, c, "", v.Name, "-h")
		require.Equal(t, command.Done, status)
		require.Contains(t, help, "Examples:\n  ", v.Name)
		require.Contains(t, help, "-o text", v.Name)
	}
}

// CheckUsage checks that each list of arguments is refused with the usage of the command.
func CheckUsage(t *testing.T, c *command.Command, calls ...[]string) {
	t.Helper()
	for _, args := range calls {
		status, stdout, stderr := Do(t, c, "", args...)
		require.Equal(t, command.NotDone, status, "%v: %s", args, stdout)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "Usage:", args)
	}
}

// CheckRefusedAddress checks that each list of arguments is refused with the name of the flag that permits it.
func CheckRefusedAddress(t *testing.T, c *command.Command, flag string, calls ...[]string) {
	t.Helper()
	for _, args := range calls {
		status, stdout, stderr := Do(t, c, "", args...)
		require.Equal(t, command.NotDone, status, "%v: %s", args, stdout)
		require.Contains(t, stderr, "; -"+flag+" permits", args)
	}
}
