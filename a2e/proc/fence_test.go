// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/proc"
)

// A request sets listed variables only. A pattern permits no variable by which programs load other code
// (A2E-D52).
func TestRequestSetsListedVariablesOnly(t *testing.T) {
	dangerous := []string{"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "BASH_ENV", "BASH_FUNC_ls%%", "PYTHONPATH",
		"PERL5OPT", "RUBYOPT", "NODE_OPTIONS", "GIT_SSH_COMMAND", "GLIBC_TUNABLES", "EDITOR", "IFS"}
	for name, c := range map[string]struct {
		allowed        []string
		passes, denied []string
	}{
		"default":       {nil, []string{"LANG", "LC_ALL", "TZ", "NO_COLOR"}, append([]string{"OWN", "LANGUAGE", "FIVEWIRE_PROCESS"}, dangerous...)},
		"none":          {[]string{}, nil, []string{"LANG"}},
		"all":           {[]string{"*"}, []string{"OWN"}, append([]string{"FIVEWIRE_PROCESS"}, dangerous...)},
		"named in full": {[]string{"LD_PRELOAD", "PYTHON*"}, []string{"LD_PRELOAD"}, []string{"PYTHONPATH", "LD_LIBRARY_PATH"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, _, _ := connect(t, &proc.Options{AllowedCommands: []string{"echo"}, AllowedEnv: c.allowed, MaxProcesses: -1})
			for _, name := range c.denied {
				_, err := client.Spawn(t.Context(), &proc.SpawnRequest{Cmd: []string{"echo"}, Env: a2e.OrderedObject[string]{{Name: name, Value: ""}}}, nil)
				refused, ok := errors.AsType[*a2e.Error](err)
				require.True(t, ok, "%s: %v", name, err)
				require.Equal(t, []string{string(a2e.ErrUnauthorized), "env." + name, "not_allowed"}, []string{string(refused.Code), refused.Field, refused.Reason})
			}
			for _, name := range c.passes {
				spawn(t, client, &proc.SpawnRequest{Cmd: []string{"echo"}, Env: a2e.OrderedObject[string]{{Name: name, Value: ""}}})
			}
			all, err := client.GetStatus(t.Context(), nil, nil)
			require.NoError(t, err)
			require.Equal(t, "ok", all.Status)
			_, err = client.GetStatus(t.Context(), &proc.StatusRequest{ProcID: fmt.Sprintf("proc-%d", len(c.passes)+1)}, nil)
			require.ErrorIs(t, err, a2e.ErrUnknownProc, "a refused request starts nothing")
		})
	}
}

// A launcher starts each command, with its limits, after the decision of the policy.
func TestLauncherStartsCommands(t *testing.T) {
	var paths []string
	policy := proc.PolicyFunc(func(_ context.Context, c *proc.Command) error {
		paths = append(paths, c.Path)
		return nil
	})
	opts := &proc.Options{AllowedCommands: []string{"echo"}, Policy: policy, Launcher: []string{"sh", "-c", `echo launched "$@"; ulimit -n; exec "$@"`, "sh"}}
	opts.Limits.MaxFiles = 77
	c, _, _ := connect(t, opts)
	out, err := c.Run(t.Context(), &proc.SpawnRequest{Cmd: []string{"echo", "a  b", "--"}}, nil)
	require.NoError(t, err)
	require.Len(t, paths, 1)
	want := "launched " + paths[0] + " a  b --\n77\na  b --\n"
	if runtime.GOOS != "linux" {
		want = strings.Split(want, "77")[0]
	}
	require.Contains(t, string(out.Stdout), want)
	_, err = proc.NewPlugin(&proc.Options{Launcher: []string{"no-such-launcher"}})
	require.ErrorContains(t, err, `launcher "no-such-launcher"`)
}

// A policy refuses and changes commands.
func TestPolicyDecidesOnCommands(t *testing.T) {
	policy := proc.PolicyFunc(func(_ context.Context, c *proc.Command) error {
		switch c.Args[1] {
		case "no":
			return errors.New("the secret reason")
		case "own":
			return a2e.Errorf(a2e.ErrProcLimit, "not today")
		case "panic":
			panic("policy")
		case "relative":
			c.Path = "sh"
		}
		c.Args, c.Env = []string{"echo", "changed to", c.Args[1]}, nil
		return nil
	})
	c, w, _ := connect(t, &proc.Options{AllowedCommands: []string{"echo"}, Policy: policy})
	for arg, want := range map[string]a2e.Code{"no": a2e.ErrUnauthorized, "own": a2e.ErrProcLimit, "panic": a2e.ErrRuntime, "relative": a2e.ErrRuntime} {
		_, err := c.Spawn(t.Context(), &proc.SpawnRequest{Cmd: []string{"echo", arg}}, nil)
		require.ErrorIs(t, err, want, arg)
		require.NotContains(t, err.Error(), "secret")
	}
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"echo", "yes"}})
	w.until(t, "stdout", "changed to yes")
}

// A start that the agent gives up while the policy decides leaves no process behind.
func TestAbandonedStartLeavesNoProcess(t *testing.T) {
	deciding := make(chan struct{})
	policy := proc.PolicyFunc(func(ctx context.Context, _ *proc.Command) error {
		close(deciding)
		<-ctx.Done()
		return nil
	})
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxConcurrentPerSession: 1}},
		a2etest.Must(proc.NewPlugin(&proc.Options{AllowedCommands: []string{"sleep"}, Policy: policy})))
	client := a2etest.Connect(t, h, nil)
	c := a2etest.Must(proc.NewClient(client))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-deciding
		cancel()
	}()
	_, err := c.Spawn(ctx, &proc.SpawnRequest{Cmd: []string{"sleep", "60"}}, nil)
	require.ErrorIs(t, err, context.Canceled)
	_, err = c.Write(t.Context(), &proc.WriteRequest{ProcID: "none"}, nil) // behind the handler
	require.ErrorIs(t, err, a2e.ErrUnknownProc)
	status, err := client.Call(t.Context(), "proc/status/req", nil, nil)
	require.NoError(t, err)
	require.Equal(t, "[]", string(status.Extra.Get("procs")))
}

// A start that the agent gives up after the program has started, and before the answer, leaves no process behind.
func TestStartAbandonedBeforeItsAnswerLeavesNoProcess(t *testing.T) {
	started, canceled := make(chan struct{}), make(chan struct{})
	late := func(next a2e.Handler) a2e.Handler {
		return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (any, error) {
			body, err := next.ServeA2E(ctx, call)
			if call.Message.Type == "proc/spawn/req" {
				close(started)
				<-ctx.Done()
				close(canceled)
			}
			return body, err
		})
	}
	h := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{late}}, a2etest.Must(proc.NewPlugin(&proc.Options{AllowedCommands: []string{"sleep"}})))
	c := a2etest.Must(proc.NewClient(a2etest.Connect(t, h, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	_, err := c.Spawn(ctx, &proc.SpawnRequest{Cmd: []string{"sleep", "60"}}, nil)
	require.ErrorIs(t, err, context.Canceled)
	<-canceled
	require.Eventually(t, func() bool {
		status, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: "proc-1"}, nil)
		require.NoError(t, err)
		return status.Status == proc.StateStopped
	}, 30*time.Second, time.Millisecond)
}

// textOfEvents waits for the exit of a process and returns its output before that.
func (w *watch) textOfEvents(t *testing.T) (text string, events int) {
	t.Helper()
	w.until(t, "stdout", `"code":0`)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.events[:len(w.events)-1] {
		var data struct{ Text string }
		require.NoError(t, json.Unmarshal(e.Data, &data))
		require.LessOrEqual(t, len(data.Text), 32<<10)
		require.NotContains(t, data.Text, "\uFFFD", i)
		text += data.Text
	}
	return text, len(w.events)
}

// Output goes in large pieces of whole lines, and of whole characters (A2E-D62).
func TestOutputGoesInPieces(t *testing.T) {
	c, w, _ := connect(t, &proc.Options{AllowedCommands: []string{"seq", "sh"}, InheritedEnv: []string{"PATH"}})
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"seq", "1", "300000"}})
	text, events := w.textOfEvents(t)
	require.LessOrEqual(t, events, 200)
	require.Equal(t, 300000, strings.Count(text, "\n"))
	require.True(t, strings.HasPrefix(text, "1\n2\n") && strings.HasSuffix(text, "\n300000\n"))

	c, w, _ = connect(t, &proc.Options{AllowedCommands: []string{"sh"}, InheritedEnv: []string{"PATH"}})
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sh", "-c", `yes ä | head -c 90000 | tr -d '\n'; printf '\303'; sleep 0.1; printf '\244 name: '; sleep 0.2; echo x`}})
	text, _ = w.textOfEvents(t)
	require.Equal(t, strings.Repeat("ä", 30000+1)+" name: x\n", text)
	prompt := false
	for _, e := range w.events {
		prompt = prompt || strings.HasSuffix(string(e.Data), ` name: "}`)
	}
	require.True(t, prompt, "a text without LF does not wait for one")
}

// The exit of a process is sent at once, after its output, although a descendant without the mark holds
// the output (A2E-D62).
func TestExitDoesNotWaitForOutputs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs setsid and /proc")
	}
	c, w, _ := connect(t, &proc.Options{AllowedCommands: []string{"sh"}, InheritedEnv: []string{"PATH"}})
	start := time.Now()
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sh", "-c", `setsid env -i sleep 60 & echo $!; seq 1 5000; exit 0`}})
	text, _ := w.textOfEvents(t)
	require.Less(t, time.Since(start), 10*time.Second)
	require.True(t, strings.HasSuffix(text, "\n5000\n"))
	pid := 0
	_, err := fmt.Sscan(text, &pid)
	require.NoError(t, err)
	require.Greater(t, pid, 1)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))

	start = time.Now()
	c, w, _ = connect(t, &proc.Options{AllowedCommands: []string{"sh"}, InheritedEnv: []string{"PATH"}})
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sh", "-c", `setsid sleep 60 & echo $!`}})
	text, _ = w.textOfEvents(t)
	require.Less(t, time.Since(start), 10*time.Second)
	_, err = fmt.Sscan(text, &pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !alive(pid) }, time.Minute, time.Millisecond, "a descendant ends with its process")
}
