// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proc_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/internal/kit"
)

// escape makes the test binary a program that leaves a process behind which is not in
// its group and holds its outputs.
const escape = "A2E_PROC_ESCAPE"

// sleep is how long that stays.
const sleep = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(escape) != "" {
		left := exec.Command("/bin/sleep", fmt.Sprint(sleep.Seconds()))
		left.Stdout, left.Stderr = os.Stdout, os.Stderr
		left.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := left.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("left", left.Process.Pid)
		time.Sleep(sleep) // an empty select is a deadlock of a program without further threads
	}
	goleak.VerifyTestMain(m)
}

// watch collects the events of processes.
type watch struct {
	mu     sync.Mutex
	events []*proc.ReadEvent
	more   chan struct{}
}

func connect(t *testing.T, opts *proc.Options) (*proc.Client, *watch, *a2e.Client) {
	p, err := proc.NewPlugin(opts)
	require.NoError(t, err)
	client := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(p), nil)
	w := &watch{more: make(chan struct{}, 1000)}
	client.OnPush("proc/read/event", func(m *a2e.Message) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, m.Body.(*proc.ReadEvent))
		w.more <- struct{}{}
	})
	c, err := proc.NewClient(client)
	require.NoError(t, err)
	return c, w, client
}

// until waits for an event that holds text.
func (w *watch) until(t *testing.T, stream, text string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		for i, e := range w.events {
			require.EqualValues(t, i, e.Seq, "events of one process are numbered (P-18)")
			if e.StreamType == stream && strings.Contains(string(e.Data), text) {
				w.mu.Unlock()
				return
			}
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-deadline:
			require.FailNow(t, "no such event", "%s %s", stream, text)
		}
	}
}

func spawn(t *testing.T, c *proc.Client, r *proc.SpawnRequest) *proc.SpawnResponse {
	t.Helper()
	resp, err := c.Spawn(t.Context(), r, nil)
	require.NoError(t, err)
	require.True(t, resp.OK, resp.Error)
	require.Positive(t, resp.PID)
	return resp
}

// A process reads, writes and ends (A2E-095, A2E-097, A2E-098, A2E-100). Its
// events may come before the answer to the spawn and then belong to that call.
func TestProcess(t *testing.T) {
	c, w, _ := connect(t, &proc.Options{AllowedCommands: []string{"cat", "sh"}, InheritedEnv: []string{"PATH"}})
	p := spawn(t, c, &proc.SpawnRequest{Cmd: []string{"cat"}, StdinMode: "pipe"})
	wrote, err := c.Write(t.Context(), &proc.WriteRequest{ProcID: p.ProcID, Data: "hällo\n"}, nil)
	require.NoError(t, err)
	require.True(t, wrote.OK)
	w.until(t, "stdout", `hällo`)
	wrote, err = c.Write(t.Context(), &proc.WriteRequest{ProcID: p.ProcID, Data: "last", EOF: true}, nil)
	require.NoError(t, err)
	require.True(t, wrote.OK)
	w.until(t, "stdout", `"code":0`)
	require.Eventually(t, func() bool {
		status, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: p.ProcID}, nil)
		return err == nil && status.Status == proc.StateStopped
	}, 10*time.Second, time.Millisecond)
	_, err = c.Write(t.Context(), &proc.WriteRequest{ProcID: p.ProcID, Data: "x"}, nil)
	require.ErrorIs(t, err, a2e.ErrProcDead)
	_, err = c.Kill(t.Context(), &proc.KillRequest{ProcID: p.ProcID, Signal: "SIGKILL"}, nil)
	require.ErrorIs(t, err, a2e.ErrProcDead)
	_, err = c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: "proc-9"}, nil)
	require.ErrorIs(t, err, a2e.ErrUnknownProc)
	all, err := c.GetStatus(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Equal(t, "ok", all.Status)
}

// Binary output, errors and the environment.
func TestOutput(t *testing.T) {
	t.Setenv("A2E_SECRET", "x")
	c, w, _ := connect(t, &proc.Options{AllowedCommands: []string{"sh"}, AllowedEnv: []string{"OWN"}})
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sh", "-c", `read go; printf '\377\n'; echo "[$A2E_SECRET$OWN]" >&2; exit 3`},
		Env: a2e.OrderedObject[string]{{Name: "OWN", Value: "mine"}}, StdinMode: "pipe"})
	_, err := c.Write(t.Context(), &proc.WriteRequest{ProcID: "proc-1", Data: "go\n"}, nil)
	require.NoError(t, err)
	w.until(t, "stderr", "[mine]")
	w.until(t, "stdout", `"base64":"/wo="`)
	w.until(t, "stderr", `"code":3`)
}

// Killing ends the whole group; time limits and the end of the session too
// (A2E-099, A2E-101, A2E-108, A2E-D52).
func TestKill(t *testing.T) {
	c, w, client := connect(t, &proc.Options{AllowedCommands: []string{"sleep"}, MaxProcesses: 2})
	p := spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sleep", "100"}, StdinMode: "null"})
	q := spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sleep", "100"}, Timeout: 1})
	_, err := c.Spawn(t.Context(), &proc.SpawnRequest{Cmd: []string{"sleep", "1"}}, nil)
	require.ErrorIs(t, err, a2e.ErrProcLimit)
	wrote, err := c.Write(t.Context(), &proc.WriteRequest{ProcID: p.ProcID, Data: "x"}, nil)
	require.ErrorContains(t, err, "proc: write: ", "there is no input")
	require.False(t, wrote.OK)
	_, err = c.Kill(t.Context(), &proc.KillRequest{ProcID: p.ProcID, Signal: "SIGSTOP"}, nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	killed, err := c.Kill(t.Context(), a2eKill(p.ProcID), nil)
	require.NoError(t, err)
	require.True(t, killed.OK)
	require.Equal(t, proc.StateStopped, killed.State)
	require.Eventually(t, func() bool {
		status, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: q.ProcID}, nil)
		return err == nil && status.Status == proc.StateTimedOut
	}, 10*time.Second, 20*time.Millisecond)
	w.mu.Lock()
	require.Equal(t, "killed", w.events[0].StreamType)
	require.JSONEq(t, `{"code":-15}`, string(w.events[0].Data))
	w.mu.Unlock()
	last := spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sleep", "100"}})
	require.NoError(t, client.Close())
	require.Eventually(t, func() bool { return !alive(int(last.PID)) }, time.Minute, time.Millisecond)
}

func a2eKill(id string) *proc.KillRequest {
	r := new(proc.KillRequest)
	r.ProcID = id
	return r
}

func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

// Processes of a killed host end at the start of the next host, and those of a running host do not (A2E-D67).
func TestProcessesOfKilledHostEnd(t *testing.T) {
	const name = "A2E_PROC_HOST"
	if runtime.GOOS != "linux" {
		t.Skip("needs setsid and /proc")
	}
	opts := &proc.Options{AllowedCommands: []string{"sh"}, InheritedEnv: []string{"PATH"}}
	if os.Getenv(name) != "" {
		c, w, _ := connect(t, opts)
		spawn(t, c, &proc.SpawnRequest{Cmd: []string{"sh", "-c", "setsid sleep 600 & echo $! $$; exec sleep 600"}})
		w.until(t, "stdout", "text")
		var data struct{ Text string }
		require.NoError(t, json.Unmarshal(w.events[0].Data, &data))
		fmt.Print("\nstarted ", data.Text)
		select {}
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	host := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	host.Env = append(os.Environ(), name+"=1")
	out, err := host.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, host.Start())
	t.Cleanup(func() { _ = host.Process.Kill() })
	var pids [2]int
	for lines := bufio.NewScanner(out); pids[1] == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "started %d %d", &pids[0], &pids[1])
	}
	require.Greater(t, min(pids[0], pids[1]), 1)
	t.Cleanup(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	isAlive := func() []bool { return []bool{alive(pids[0]), alive(pids[1])} }
	_, err = proc.NewPlugin(opts)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true}, isAlive(), "their host runs")
	require.NoError(t, host.Process.Kill())
	require.Eventually(t, func() bool { return !alive(host.Process.Pid) }, time.Minute, time.Millisecond)
	require.Equal(t, []bool{true, true}, isAlive())
	_, err = proc.NewPlugin(opts) // before the number of the host is free
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !slices.Contains(isAlive(), true) }, 20*time.Second, time.Millisecond)
	require.Error(t, host.Wait())
}

// Nothing runs that is not listed, and nowhere else than in a root (A2E-096).
func TestDenied(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Symlink("/", filepath.Join(root, "out")))
	require.NoError(t, os.Mkdir(filepath.Join(root, "in"), 0o700))
	c, w, _ := connect(t, &proc.Options{AllowedCommands: []string{"pwd"}, AllowedDirs: []string{root}})
	for _, r := range []*proc.SpawnRequest{
		{Cmd: []string{"sh", "-c", "true"}},
		{Cmd: []string{"/bin/pwd"}},
		{Cmd: []string{"pwd"}, Cwd: "/"},
		{Cmd: []string{"pwd"}, Cwd: "out"},
		{Cmd: []string{"pwd"}, Cwd: "../"},
		{Cmd: []string{"pwd"}, Cwd: "missing"},
	} {
		_, err := c.Spawn(t.Context(), r, nil)
		require.ErrorIs(t, err, a2e.ErrUnauthorized, "%v %s", r.Cmd, r.Cwd)
	}
	for _, r := range []*proc.SpawnRequest{
		{},
		{Cmd: []string{"pwd", "a\x00b"}},
		{Cmd: []string{"pwd"}, Env: a2e.OrderedObject[string]{{Name: "A=B", Value: "1"}}},
	} {
		_, err := c.Spawn(t.Context(), r, nil)
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	}
	spawn(t, c, &proc.SpawnRequest{Cmd: []string{"pwd"}, Cwd: "in"})
	require.Eventually(t, func() bool {
		s, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: "proc-1"}, nil)
		return err == nil && s.Status == proc.StateStopped
	}, 10*time.Second, time.Millisecond)
	_ = w
	none, _, _ := connect(t, nil)
	_, err := none.Spawn(t.Context(), &proc.SpawnRequest{Cmd: []string{"ls"}}, nil)
	require.ErrorIs(t, err, a2e.ErrUnauthorized)
	_, err = proc.NewPlugin(&proc.Options{AllowedCommands: []string{"no-such-program-here"}})
	require.Error(t, err)
	_, err = proc.NewPlugin(&proc.Options{AllowedDirs: []string{"/no/such/folder"}})
	require.Error(t, err)
}

// A descendant in another session ends with a kill and with the session (A2E-099, A2E-101, A2E-D62).
func TestEscapedProcess(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	start := time.Now()
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("kill=%t", kill), func(t *testing.T) {
			var left int
			t.Cleanup(func() {
				if left > 1 {
					_ = syscall.Kill(left, syscall.SIGKILL)
				}
			}) // after the session has ended
			c, w, client := connect(t, &proc.Options{AllowedCommands: []string{exe}, AllowedEnv: []string{escape}})
			started := spawn(t, c, &proc.SpawnRequest{Cmd: []string{exe}, Env: a2e.OrderedObject[string]{{Name: escape, Value: "1"}}})
			w.until(t, "stdout", "left")
			w.mu.Lock()
			text := string(w.events[0].Data)
			w.mu.Unlock()
			_, err := fmt.Sscanf(text, `{"text":"left %d`, &left)
			require.NoError(t, err, text)
			require.Greater(t, left, 1)
			if kill {
				_, err := c.Kill(t.Context(), &proc.KillRequest{ProcID: started.ProcID, Signal: "SIGKILL"}, nil)
				require.NoError(t, err)
				w.until(t, "killed", "code")
			} else {
				require.NoError(t, client.Close())
			}
			require.Eventually(t, func() bool { return runtime.GOOS != "linux" || !alive(left) }, time.Minute, time.Millisecond)
		})
	}
	require.Less(t, time.Since(start), sleep/2, "the descendant has ended")
}

// The processes of a session keep neither the messages nor the arguments that started them.
func TestProcessesKeepNoMessages(t *testing.T) {
	_, _, agent := connect(t, &proc.Options{AllowedCommands: []string{"true"}, MaxProcesses: -1})
	long := strings.Repeat("x", 100<<10)
	before := kit.Heap()
	for range 60 {
		body := a2e.Members{}
		for name, value := range map[string]any{"cmd": []string{"true", long, long, long}, "pad": strings.Repeat("x", 1<<20)} {
			require.NoError(t, body.Set(name, value))
		}
		answer, err := a2e.CallAs[proc.SpawnResponse](t.Context(), agent, "proc/spawn/req", body, nil)
		require.NoError(t, err)
		require.True(t, answer.OK, answer.Error)
	}
	require.Less(t, kit.Heap()-before, int64(15<<20))
}
