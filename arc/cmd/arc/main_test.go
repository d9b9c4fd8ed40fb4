// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/discovery"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/command/commandtest"
)

// do runs the command with an input.
func do(t *testing.T, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return commandtest.Do(t, program, in, args...)
}

// serve starts arc serve, and returns the URL of the endpoint.
func serve(t *testing.T, args ...string) (url string) {
	t.Helper()
	return "http://" + commandtest.Serve(t, program, append([]string{"serve", "-agent", "child-01"}, args...)...) + "/arc"
}

// Discovery, which needs no token, does not show the command line, which may have secrets.
func TestServeHidesCommandLine(t *testing.T) {
	url := serve(t, "-exec", "cat # secret", "-allow-anonymous")
	client, err := discovery.NewClient(nil, url)
	require.NoError(t, err)
	defer client.Close()
	agents, err := client.Agents(t.Context())
	require.NoError(t, err)
	require.Len(t, agents, 1)
	require.NotContains(t, fmt.Sprint(agents), "secret")
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

	url = serve(t, "-exec", "cat", "-allow-anonymous")
	t.Setenv(tokenVariable, "")
	status, _, stderr = do(t, "", "call", url, "child-01", "x")
	require.Equal(t, command.Failed, status, "a token applies in any case: %s", stderr)
}

// A question without a message is its reason, an artifact that is not Base64 is written as it is, and the result of a task
// without artifacts is the last message of the agent.
func TestCallOfUnusualAgent(t *testing.T) {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	defer srv.Close()
	srv.HandleTasks("odd-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		if run.Message().Text() == "ask" {
			_, err := run.WaitInput(ctx, "a color")
			return err
		}
		if run.Message().Text() == "answer" {
			if err := run.AddMessage(ctx, arc.AgentText("I think")); err != nil {
				return err
			}
			return run.AddMessage(ctx, arc.AgentText("It is red"))
		}
		return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{{Type: arc.PartTypeImage, Content: "<svg/>"}}})
	}))
	web := httptest.NewServer(srv)
	defer web.Close()
	status, _, stderr := do(t, "", "call", web.URL+"/arc", "odd-01", "ask")
	require.Equal(t, command.Failed, status, stderr)
	require.Contains(t, stderr, "waits for input: a color")
	status, stdout, stderr := do(t, "", "call", web.URL+"/arc", "odd-01", "draw")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, "<svg/>\n", stdout)
	status, stdout, stderr = do(t, "", "call", web.URL+"/arc", "odd-01", "answer")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, "It is red\n", stdout)
}

func TestHelpAndUsage(t *testing.T) {
	commandtest.CheckHelp(t, program)
	commandtest.CheckUsage(t, program,
		[]string{"call", "http://127.0.0.1:1/arc"},
		[]string{"call", "http://example.com/arc", "a-01", "x"},
		[]string{"call", "-method", "a.b", "-params", "{", "http://127.0.0.1:1/arc", "a-01"},
		[]string{"watch", "http://127.0.0.1:1/arc", "a-01"},
		[]string{"serve", "-agent", "a-01", "-exec", "cat"},
		[]string{"serve", "-agent", "a\nb", "-exec", "cat", "-allow-anonymous"},
		[]string{"serve", "-agent", "a-01"},
	)
	commandtest.CheckRefusedAddress(t, program, "allow-insecure",
		[]string{"call", "http://192.0.2.1/arc", "upper-01", "text"},
		[]string{"watch", "http://192.0.2.1/arc", "upper-01", "task-01"},
		[]string{"doctor", "http://192.0.2.1/arc"},
	)
	status, _, stderr := do(t, "", "call", "-method", "a.b", "http://127.0.0.1:1/arc", "a-01")
	require.Equal(t, command.NotDone, status, stderr)
}
