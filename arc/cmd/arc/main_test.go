// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/command"
)

// do runs the command with an input.
func do(t *testing.T, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	status = program.Run(ctx, args, &command.IO{In: strings.NewReader(in), Out: &out, Err: &errs})
	return status, out.String(), errs.String()
}

// serve starts arc serve, and returns the URL of the endpoint.
func serve(t *testing.T, args ...string) (url string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the commands of this test need a Unix shell")
	}
	ctx, stop := context.WithCancel(context.Background())
	out, in, err := os.Pipe()
	require.NoError(t, err)
	status := make(chan int, 1)
	go func() {
		args := append([]string{"serve", "-o", "json", "-addr", "127.0.0.1:0", "-agent", "child-01"}, args...)
		status <- program.Run(ctx, args, &command.IO{In: strings.NewReader(""), Out: in, Err: &bytes.Buffer{}})
	}()
	t.Cleanup(func() {
		stop()
		require.Equal(t, command.Done, <-status)
		require.NoError(t, out.Close())
		require.NoError(t, in.Close())
	})
	var started struct{ Address string }
	require.NoError(t, json.NewDecoder(out).Decode(&started))
	return "http://" + started.Address + "/arc"
}

func TestServeAndCall(t *testing.T) {
	url := serve(t, "-exec", "tr a-z A-Z", "-allow-anonymous")

	status, stdout, stderr := do(t, "", "call", url, "child-01", "some text; $(exit 1)")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, "SOME TEXT; $(EXIT 1)\n", stdout)

	status, stdout, stderr = do(t, "from standard input", "call", "-chat", url, "child-01")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, "FROM STANDARD INPUT\n", stdout)

	_, stdout, _ = do(t, "", "call", "-chat", "-o", "json", url, "child-01", "twice")
	require.Contains(t, stdout, `"text":"TWICE"`)

	_, stdout, _ = do(t, "", "call", "-o", "json", url, "child-01", "a task")
	var task arc.Task
	require.NoError(t, json.Unmarshal([]byte(stdout), &task), stdout)
	require.Equal(t, "A TASK", task.Artifacts[0].Parts[0].Content)

	status, stdout, stderr = do(t, "", "watch", url, "child-01", task.ID)
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, task.ID+": COMPLETED\nA TASK\n", stdout)

	status, stdout, stderr = do(t, "", "call", "-method", "task.info", "-params", `{"taskId":"`+task.ID+`"}`, url, "child-01")
	require.Equal(t, command.Done, status, stderr)
	require.Contains(t, stdout, `"status":"COMPLETED"`)

	status, _, stderr = do(t, "", "call", "-method", "task.info", "-params", `{"taskId":"task-0"}`, url, "child-01")
	require.Equal(t, command.Failed, status, stderr)
	status, _, stderr = do(t, "", "call", url, "absent-01", "some text")
	require.Equal(t, command.Failed, status, stderr)
}

func TestServeFailures(t *testing.T) {
	for _, tt := range []struct{ name, line, timeout, stderr string }{
		{"exit status", "echo secret >&2; exit 3", "1m", "exit status 3"},
		{"too much output", "yes", "1m", "more than 1048576 bytes"},
		{"too long", "exec sleep 60", "100ms", "longer than 100ms"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, "-exec", tt.line, "-timeout", tt.timeout, "-allow-anonymous")
			status, stdout, stderr := do(t, "", "call", url, "child-01", "x")
			require.Equal(t, command.Failed, status, stdout)
			require.Contains(t, stderr, tt.stderr)
			require.NotContains(t, stderr, "secret")
		})
	}
}

// A token comes from a file or the environment, and callers without it are refused.
func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("correct-horse\n"), 0o600))
	url := serve(t, "-exec", "cat", "-token-file", file)
	status, _, stderr := do(t, "", "call", url, "child-01", "x")
	require.Equal(t, command.Failed, status, stderr)
	status, stdout, stderr := do(t, "", "call", "-token-file", file, url, "child-01", "x")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, "x\n", stdout)
	t.Setenv(tokenVariable, "correct-horse")
	status, _, stderr = do(t, "", "call", url, "child-01", "x")
	require.Equal(t, command.Done, status, stderr)
}

func TestHelpAndUsage(t *testing.T) {
	for _, v := range program.Verbs {
		status, help, _ := do(t, "", v.Name, "-h")
		require.Equal(t, command.Done, status)
		require.Contains(t, help, "Examples:\n  ", v.Name)
	}
	for _, args := range [][]string{
		{"call", "http://127.0.0.1:1/arc"},
		{"call", "http://example.com/arc", "a-01", "x"},
		{"call", "-method", "a.b", "-params", "{", "http://127.0.0.1:1/arc", "a-01"},
		{"watch", "http://127.0.0.1:1/arc", "a-01"},
		{"serve", "-agent", "a-01", "-exec", "cat"},
		{"serve", "-agent", "a\nb", "-exec", "cat", "-allow-anonymous"},
		{"serve", "-agent", "a-01"},
	} {
		status, stdout, stderr := do(t, "", args...)
		require.Equal(t, command.NotDone, status, "%v: %s", args, stdout)
		require.Contains(t, stderr, "Usage:", args)
	}
	status, _, stderr := do(t, "", "call", "-method", "a.b", "http://127.0.0.1:1/arc", "a-01")
	require.Equal(t, command.NotDone, status, stderr)
}
