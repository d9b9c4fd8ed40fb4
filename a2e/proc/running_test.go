// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/internal/kit"
)

func shell(script string) *proc.SpawnRequest {
	return &proc.SpawnRequest{Cmd: []string{"sh", "-c", script}}
}

// running returns a client of a host that permits a shell.
func running(t *testing.T, limits proc.Limits, extensions []string) (*proc.Client, *a2e.Client) {
	p, err := proc.NewPlugin(&proc.Options{AllowedCommands: []string{"sh"}, InheritedEnv: []string{"PATH"}, Limits: limits, MaxProcesses: -1})
	require.NoError(t, err)
	client := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(p), &a2e.ClientOptions{Extensions: extensions})
	c, err := proc.NewClient(client)
	require.NoError(t, err)
	return c, client
}

// Run returns all output and the status of a process.
func TestRun(t *testing.T) {
	c, client := running(t, proc.Limits{}, nil)
	require.Contains(t, client.PeerInfo().Features, "window")
	out, err := c.Run(t.Context(), shell("seq 1 300000; printf '\\377' >&2; exit 3"), nil)
	var exit *proc.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, []int{3, 3}, []int{exit.Code, out.Code})
	require.Equal(t, "\xff", string(out.Stderr))
	require.Equal(t, 300000, strings.Count(string(out.Stdout), "\n"))
	require.True(t, strings.HasPrefix(string(out.Stdout), "1\n2\n") && strings.HasSuffix(string(out.Stdout), "\n300000\n"))
	out, err = c.Run(t.Context(), shell("cat; echo end"), nil)
	require.NoError(t, err, "there is no input")
	require.Equal(t, "end\n", string(out.Stdout))
	_, err = c.Run(t.Context(), &proc.SpawnRequest{Cmd: []string{"no"}}, nil)
	require.ErrorIs(t, err, a2e.ErrUnauthorized)

	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Start(t.Context(), shell("read x"), nil)
	require.NoError(t, err)
	isRunning := func() (isRunning, isKnown bool) {
		status, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: "proc-4"}, nil)
		return err == nil && status.Status == proc.StateRunning, err == nil
	}
	go func() {
		for started := false; !started && t.Context().Err() == nil; started, _ = isRunning() {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err = c.Run(ctx, shell("sleep 100"), nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool {
		isRunning, isKnown := isRunning()
		return isKnown && !isRunning
	}, 30*time.Second, time.Millisecond, "the end of the context ends the process")
	require.NoError(t, p.Signal(t.Context(), "SIGTERM"))
	require.ErrorAs(t, p.Wait(t.Context()), &exit)
	require.Equal(t, -15, exit.Code)
}

// A process has an input and outputs. Its first output is kept, whenever it is read.
func TestStart(t *testing.T) {
	c, _ := running(t, proc.Limits{}, nil)
	for range 20 {
		p, err := c.Start(t.Context(), shell("echo first; cat; echo last >&2"), nil)
		require.NoError(t, err)
		_, err = io.WriteString(p.Stdin, "h\xc3")
		require.NoError(t, err)
		require.ErrorContains(t, p.Stdin.Close(), "character")
		_, err = io.WriteString(p.Stdin, "\xa4llo\n")
		require.NoError(t, err)
		_, err = io.WriteString(p.Stdin, "\xff")
		require.ErrorContains(t, err, "UTF-8")
		require.NoError(t, p.Stdin.Close())
		text, err := io.ReadAll(p.Stdout)
		require.NoError(t, err)
		require.Equal(t, "first\nhällo\n", string(text))
		text, err = io.ReadAll(p.Stderr)
		require.NoError(t, err)
		require.Equal(t, "last\n", string(text))
		require.NoError(t, p.Wait(t.Context()))
	}
}

// The answer to the request of a process precedes its events (A2E-D62).
func TestAnswerPrecedesEvents(t *testing.T) {
	c, _ := running(t, proc.Limits{}, nil)
	for range 30 {
		_, err := c.Spawn(t.Context(), shell("echo x"), &a2e.CallOptions{OnEvent: func(e a2e.Event) { t.Error("an event of the call: ", e.Header()) }})
		require.NoError(t, err)
	}
}

// A process whose output is not read waits, and nothing else does (A2E-D62).
func TestWindowStopsOneProcess(t *testing.T) {
	c, w, client := connect(t, &proc.Options{AllowedCommands: []string{"sh"}, InheritedEnv: []string{"PATH"}})
	r := shell("i=0; while [ $i -lt 3000 ]; do printf '%0999d\n' $i; i=$((i+1)); done")
	r.Window = new(int64(1))
	waiting := spawn(t, c, r)
	size := func() (n int, isEnded bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.events {
			if e.ProcID != waiting.ProcID {
				continue
			}
			var data struct {
				Text string
				Code *int
			}
			require.NoError(t, json.Unmarshal(e.Data, &data))
			n += len(data.Text)
			isEnded = isEnded || data.Code != nil
		}
		return n, isEnded
	}
	const minimum = 64 << 10
	for granted := minimum; granted < 3_000_000; granted += 500_000 {
		require.Eventually(t, func() bool { n, _ := size(); return n >= granted }, 30*time.Second, time.Millisecond)
		for range 3 { // quick calls and another process
			out, err := c.Run(t.Context(), shell("echo other"), nil)
			require.NoError(t, err)
			require.Equal(t, "other\n", string(out.Stdout))
		}
		n, isEnded := size()
		require.Less(t, n, granted+32<<10, "what was granted, and a piece that exceeds it")
		require.False(t, isEnded)
		for len(w.more) > 0 {
			<-w.more
		}
		require.NoError(t, client.Send(t.Context(), "proc/window/event", &proc.WindowEvent{ProcID: waiting.ProcID, Bytes: 500_000}))
	}
	require.Eventually(t, func() bool { _, isEnded := size(); return isEnded }, 30*time.Second, time.Millisecond)
	n, _ := size()
	require.Equal(t, 3_000_000, n)
}

// A grant is taken although a write waits for it, and others behind that (A2E-D62).
func TestGrantPassesWrites(t *testing.T) {
	c, w, client := connect(t, &proc.Options{AllowedCommands: []string{"cat"}})
	p := spawn(t, c, &proc.SpawnRequest{Cmd: []string{"cat"}, Window: new(int64(1))})
	sent := make(chan error, 4)
	write := func(data string) {
		_, err := c.Write(t.Context(), &proc.WriteRequest{ProcID: p.ProcID, Data: data}, nil)
		sent <- err
	}
	go write(strings.Repeat("0123456789\n", 100_000))
	w.until(t, "stdout", "0123456789")
	for range 3 {
		go write("x")
	}
	require.Eventually(t, func() bool { return client.Stats().InFlight == 4 }, 30*time.Second, time.Millisecond)
	_, _, err := client.Ping(t.Context())
	require.NoError(t, err)
	require.NoError(t, client.Send(t.Context(), "proc/window/event", &proc.WindowEvent{ProcID: p.ProcID, Bytes: 10_000_000}))
	for range 4 {
		require.NoError(t, <-sent)
	}
}

// Without windows the client keeps a part of the output, and a reader gets an error after it (A2E-D62).
func TestUnreadOutputIsBounded(t *testing.T) {
	c, _ := running(t, proc.Limits{}, []string{})
	p, err := c.Start(t.Context(), shell("seq 1 300000; seq 1 10 >&2"), nil)
	require.NoError(t, err)
	require.NoError(t, p.Wait(t.Context()))
	text, err := io.ReadAll(p.Stdout)
	require.ErrorIs(t, err, a2e.ErrSlowReader)
	require.LessOrEqual(t, len(text), 1<<20)
	require.Greater(t, len(text), 900_000)
	text, err = io.ReadAll(p.Stderr)
	require.NoError(t, err)
	require.Equal(t, 10, strings.Count(string(text), "\n"))
}

// A host that ignores the window of a process, or sends output without end, fills no memory.
func TestOutputOfHostileHostIsBounded(t *testing.T) {
	var host *a2e.Session
	send := func(data map[string]any) error {
		raw, err := json.Marshal(data)
		require.NoError(t, err)
		return host.Send(host.Context(), "proc/read/event", &proc.ReadEvent{Kind: a2e.EventStatus, ReqID: "r", ProcID: "p", StreamType: "stdout", Data: raw})
	}
	started, grants := make(chan bool, 200), make(chan int64, 10_000)
	plugin := &a2e.Plugin{Name: "proc", Capability: proc.Capability, Types: proc.Types(), Routes: []a2e.Route{
		a2e.NewRoute("proc/spawn/req", func(_ context.Context, call *a2e.Call, r *proc.SpawnRequest) (*proc.SpawnResponse, error) {
			host = call.Session
			started <- r.StdinMode == "null"
			return &proc.SpawnResponse{OK: true, ProcID: "p"}, nil
		}),
		a2e.NewRoute("proc/kill/req", func(context.Context, *a2e.Call, *proc.KillRequest) (*proc.KillResponse, error) {
			return &proc.KillResponse{OK: true}, send(map[string]any{"code": -9})
		}),
		a2e.NewEventRoute("proc/window/event", func(_ context.Context, _ *a2e.Call, e *proc.WindowEvent) error {
			grants <- e.Bytes
			return nil
		}),
	}}
	c, err := proc.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(plugin), nil))
	require.NoError(t, err)
	piece := strings.Repeat("x", 32<<10)

	p, err := c.Start(t.Context(), shell("x"), nil)
	require.NoError(t, err)
	require.False(t, <-started)
	for range 64 {
		require.NoError(t, send(map[string]any{"text": piece}))
	}
	require.NoError(t, send(map[string]any{"code": 0}))
	require.NoError(t, p.Wait(t.Context()))
	text, err := io.ReadAll(p.Stdout)
	require.ErrorIs(t, err, a2e.ErrSlowReader)
	require.LessOrEqual(t, len(text), 1<<20)

	before := kit.Heap()
	for range 100 { // whose output is not read
		p, err := c.Start(t.Context(), shell("x"), nil)
		require.NoError(t, err)
		<-started
		for range 8 {
			require.NoError(t, send(map[string]any{"text": piece}))
		}
		require.NoError(t, send(map[string]any{"code": 0}))
		require.NoError(t, p.Wait(t.Context()))
	}
	require.Less(t, kit.Heap()-before, int64(8<<20), "the output of 100 ended processes, 25 MiB, is kept")

	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		<-started
		for left := int64(256 << 10); ; left -= int64(len(piece)) {
			for left <= 0 {
				select {
				case n := <-grants:
					left += n
				case <-stop:
					done <- nil
					return
				}
			}
			if err := send(map[string]any{"text": piece}); err != nil {
				done <- err
				return
			}
		}
	}()
	out, err := c.Run(t.Context(), shell("x"), nil)
	close(stop)
	require.ErrorIs(t, err, a2e.ErrTooLarge)
	require.NoError(t, <-done)
	require.LessOrEqual(t, len(out.Stdout), 65<<20)
}

// The end of the context ends Run, also with a host that does not answer.
func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kills := make(chan struct{}, 10)
		plugin := &a2e.Plugin{Name: "proc", Capability: proc.Capability, Types: proc.Types(), Routes: []a2e.Route{
			a2e.NewRoute("proc/spawn/req", func(context.Context, *a2e.Call, *proc.SpawnRequest) (*proc.SpawnResponse, error) {
				return &proc.SpawnResponse{OK: true, ProcID: "p"}, nil
			}),
			a2e.NewRoute("proc/kill/req", func(ctx context.Context, _ *a2e.Call, _ *proc.KillRequest) (*proc.KillResponse, error) {
				kills <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}),
		}}
		c := a2etest.Must(proc.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, plugin), nil)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := c.Run(ctx, shell("x"), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotEmpty(t, kills)
		require.LessOrEqual(t, time.Since(start), time.Minute+5*time.Second)
	})
}

// A process whose answer arrives after the end of its Start is killed before Start returns. Start waits at most 5 s for the
// answer, and as long for the end of the process.
func TestStartKillsProcessOfLateAnswer(t *testing.T) {
	idOf := func(line string) string {
		var m struct{ ID string }
		_ = json.Unmarshal([]byte(line), &m)
		return m.ID
	}
	var spawn string
	for _, tt := range []struct {
		name, features string
		timeout        time.Duration
		isCanceled     bool
		silent         string // the request that the host does not answer
	}{
		{"context", `"cancel"`, 0, true, ""},
		{"time limit", `"cancel"`, time.Millisecond, false, ""},
		{"host without cancel", "", 0, true, ""},
		{"silent start", `"cancel"`, 0, true, "spawn"},
		{"silent kill", `"cancel"`, 0, true, "kill"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				isKilled, free := new(atomic.Bool), make(chan struct{})
				answer := func(request, line string) string {
					if tt.silent == request {
						<-free
					}
					return line
				}
				steps := []a2etest.PeerStep{
					a2etest.Receive("handshake/req"),
					a2etest.Answer(func(line string) string {
						return `{"a2e":"1.0","type":"handshake/resp","id":"h-1","ts":1,"req_id":"` + idOf(line) + `","session_id":"s","accepted_caps":[{"capability":"proc"}],"max_parallel":4,"ok":true,"features":[` + tt.features + `]}`
					}),
					a2etest.Receive("proc/spawn/req"),
					a2etest.Answer(func(line string) string {
						spawn = idOf(line)
						if tt.isCanceled {
							cancel()
							synctest.Wait()
						}
						return ""
					}),
				}
				if tt.features != "" {
					steps = append(steps, a2etest.Receive("invoke/cancel"))
				}
				steps = append(steps,
					a2etest.Answer(func(string) string {
						return answer("spawn", `{"a2e":"1.0","type":"proc/spawn/resp","id":"h-2","ts":1,"req_id":"`+spawn+`","proc_id":"p-7","ok":true,"pid":7}`)
					}))
				if tt.silent != "spawn" {
					steps = append(steps, a2etest.Receive(`"proc_id":"p-7","signal":"SIGKILL"`),
						a2etest.Answer(func(line string) string {
							isKilled.Store(true)
							return answer("kill", `{"a2e":"1.0","type":"proc/kill/resp","id":"h-3","ts":1,"req_id":"`+idOf(line)+`","ok":true,"state":"stopped"}`)
						}))
				}
				agent := a2etest.Must(a2e.NewClient(a2etest.NewPeer(t, steps...), &a2e.ClientOptions{Capabilities: []string{"proc"}}))
				defer agent.Close()
				_, err := agent.Connect(t.Context())
				require.NoError(t, err)
				c := a2etest.Must(proc.NewClient(agent))
				start := time.Now()
				_, err = c.Start(ctx, shell("sleep 100"), &a2e.CallOptions{Timeout: tt.timeout})
				require.LessOrEqual(t, time.Since(start), 5*time.Second+tt.timeout)
				close(free)
				if tt.isCanceled {
					require.ErrorIs(t, err, context.Canceled)
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				require.Equal(t, tt.silent != "spawn", isKilled.Load())
			})
		})
	}
}

// A process above a limit of its output or its descendants is ended (A2E-D52).
func TestLimitsEndProcesses(t *testing.T) {
	c, _ := running(t, proc.Limits{MaxOutput: 100_000, MaxDescendants: 5}, nil)
	for _, script := range []string{"yes", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 100 & done; wait"} {
		if runtime.GOOS != "linux" && script != "yes" {
			continue
		}
		out, err := c.Run(t.Context(), shell(script), nil)
		var exit *proc.ExitError
		require.ErrorAs(t, err, &exit, script)
		require.Equal(t, "limit", exit.Reason)
		require.LessOrEqual(t, len(out.Stdout), 100_000)
	}
	for i := range 2 {
		status, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: fmt.Sprintf("proc-%d", i+1)}, nil)
		require.NoError(t, err)
		require.Equal(t, proc.StateCrashed, status.Status)
	}
	_, err := c.Run(t.Context(), shell("sleep 1; for i in 1 2 3; do sleep 0 & done; wait"), nil)
	require.NoError(t, err, "below the limits")
}

// The system enforces the other limits (A2E-D52).
func TestLimitsOfTheSystem(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs prlimit")
	}
	without := t.TempDir() // the programs of this test, but not prlimit
	for _, name := range []string{"sh", "cat"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(without, name)))
	}
	for _, c := range []struct {
		name, path string
		limits     proc.Limits
	}{
		{"4294967296 3600 256 1073741824", os.Getenv("PATH"), proc.Limits{}},
		{"1073741824 7 100 5000", os.Getenv("PATH"), proc.Limits{MaxMemory: 1 << 30, MaxCPUTime: 7 * time.Second, MaxFiles: 100, MaxFileSize: 5000}},
		{"4294967296 3600 256 1073741824", without, proc.Limits{}},
	} {
		t.Setenv("PATH", c.path)
		name, limits := c.name, c.limits
		c, _ := running(t, limits, nil)
		p, err := c.Start(t.Context(), shell("read x; cat /proc/self/limits"), nil)
		require.NoError(t, err)
		_, err = io.WriteString(p.Stdin, "go\n")
		require.NoError(t, err)
		text, err := io.ReadAll(p.Stdout)
		require.NoError(t, err)
		require.NoError(t, p.Wait(t.Context()))
		want := strings.Fields(name)
		for i, resource := range []string{"Max address space", "Max cpu time", "Max open files", "Max file size"} {
			_, rest, _ := strings.Cut(string(text), resource)
			require.Equal(t, []string{want[i], want[i]}, strings.Fields(rest)[:2], resource)
		}
	}
}

// Ended processes whose output is not read hold pipes of the host, so their number is bounded (A2E-D62).
func TestUnreadProcessesAreBounded(t *testing.T) {
	c, client := running(t, proc.Limits{}, nil)
	r := shell("seq 1 20000")
	r.Window = new(int64(1))
	var last *proc.SpawnResponse
	var err error
	n := 0
	for ; err == nil && n < 150; n++ {
		if last, err = c.Spawn(t.Context(), r, nil); err != nil {
			break
		}
		require.Eventually(t, func() bool {
			status, err := c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: last.ProcID}, nil)
			return err == nil && status.Status != proc.StateRunning
		}, 30*time.Second, time.Millisecond)
	}
	require.ErrorIs(t, err, a2e.ErrProcLimit)
	require.Equal(t, 100, n)
	_, err = c.GetStatus(t.Context(), &proc.StatusRequest{ProcID: "proc-1"}, nil)
	require.NoError(t, err, "it can be granted more")
	exits := make(chan struct{}, 1)
	client.OnPush("proc/read/event", func(m *a2e.Message) {
		if e := m.Body.(*proc.ReadEvent); e.ProcID == "proc-1" && strings.Contains(string(e.Data), `"code"`) {
			exits <- struct{}{}
		}
	})
	require.NoError(t, client.Send(t.Context(), "proc/window/event", &proc.WindowEvent{ProcID: "proc-1", Bytes: 1 << 20}))
	<-exits
	require.Eventually(t, func() bool {
		_, err = c.Spawn(t.Context(), shell("exit"), nil)
		return err == nil
	}, 30*time.Second, time.Millisecond)
}

// A write that fails in the middle returns how much was sent, and the next one does not send it again.
func TestFailedWriteCountsWhatWasSent(t *testing.T) {
	c, _ := running(t, proc.Limits{}, nil)
	p, err := c.Start(t.Context(), shell("cat"), nil)
	require.NoError(t, err)
	_, err = io.WriteString(p.Stdin, "\xc3")
	require.NoError(t, err)
	sent := "\xa4" + strings.Repeat("x", 32<<10-2)
	n, err := io.WriteString(p.Stdin, sent+"\xff")
	require.ErrorContains(t, err, "UTF-8")
	require.Equal(t, len(sent), n)
	_, err = io.WriteString(p.Stdin, "end")
	require.NoError(t, err)
	require.NoError(t, p.Stdin.Close())
	text, err := io.ReadAll(p.Stdout)
	require.NoError(t, err)
	require.Equal(t, "\xc3"+sent+"end", string(text))
}
