// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/proc"
)

// A victim is a host with a secret, and an agent that attacks it.
type victim struct {
	t        *testing.T
	client   *proc.Client
	root     string // the folder of processes
	secret   string // a file outside of it
	listener string // port on loopback
}

// attackTime bounds what an attack may take. Its expiry counts as a success of the attack.
const attackTime = time.Minute

// hostVariable is in the environment of the host.
const hostVariable = "A2E_PROC_SECRET"

func newVictim(t *testing.T, sandbox bool) *victim {
	v := &victim{t: t, root: t.TempDir(), secret: filepath.Join(t.TempDir(), "secret")}
	t.Setenv(hostVariable, "the secret")
	require.NoError(t, os.WriteFile(v.secret, []byte("the secret"), 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(v.secret), filepath.Join(v.root, "link")))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, v.listener, _ = net.SplitHostPort(l.Addr().String())
	opts := &proc.Options{AllowedCommands: []string{"sh", "bash", "find", "git"}, AllowedDirs: []string{v.root}, AllowedEnv: []string{"*"},
		InheritedEnv: []string{"PATH"}, MaxProcesses: 4,
		Limits: proc.Limits{MaxDescendants: 50, MaxOutput: 1 << 20, MaxFileSize: 1 << 20, MaxMemory: 512 << 20, MaxCPUTime: time.Second, MaxFiles: 100}}
	if sandbox {
		opts.Launcher = proc.Bubblewrap(v.root)
	}
	p, err := proc.NewPlugin(opts)
	require.NoError(t, err)
	v.client, err = proc.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, p), nil))
	require.NoError(t, err)
	return v
}

// starts reports whether a request starts a process.
func (v *victim) starts(r *proc.SpawnRequest) bool {
	_, err := v.run(r)
	var e *a2e.Error
	return !errors.As(err, &e)
}

// startsWith reports whether a request with one of the variables starts a process.
func (v *victim) startsWith(names ...string) bool {
	for _, name := range names {
		if v.starts(&proc.SpawnRequest{Cmd: []string{"sh", "-c", "true"}, Env: a2e.OrderedObject[string]{{Name: name, Value: "x"}}}) {
			return true
		}
	}
	return false
}

func (v *victim) run(r *proc.SpawnRequest) (string, error) {
	ctx, cancel := context.WithTimeout(v.t.Context(), attackTime)
	defer cancel()
	out, err := v.client.Run(ctx, r, nil)
	if out == nil {
		return "", err
	}
	return string(out.Stdout), err
}

// prints reports whether a script prints a text.
func (v *victim) prints(text, format string, args ...any) bool {
	out, _ := v.run(&proc.SpawnRequest{Cmd: []string{"bash", "-c", fmt.Sprintf(format, args...)}})
	return strings.Contains(out, text)
}

// isEndless reports whether a script runs until attackTime.
func (v *victim) isEndless(format string, args ...any) bool {
	_, err := v.run(&proc.SpawnRequest{Cmd: []string{"sh", "-c", fmt.Sprintf(format, args...)}})
	return errors.Is(err, context.DeadlineExceeded)
}

// leaves reports whether a script leaves a process behind. The script has to run sleep with the argument %s.
func (v *victim) leaves(script string) bool {
	seconds := fmt.Sprintf("600.%d", time.Now().UnixNano())
	_, err := v.run(&proc.SpawnRequest{Cmd: []string{"bash", "-c", fmt.Sprintf(script, seconds)}})
	require.NoError(v.t, err)
	left := func() (pids []int) {
		list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range list {
			if text, _ := os.ReadFile(file); bytes.Contains(text, []byte(seconds)) { // of sleep, or of a shell that is about to run it
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				pids = append(pids, pid)
			}
		}
		return pids
	}
	for range 20 { // a killed process needs a moment
		if len(left()) == 0 {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range left() {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	return true
}

// An attack is a row of ATTACKS.md. The fence, or only the launcher, stops it.
type attack struct {
	name    string
	isOpen  bool // without the launcher
	succeed func(v *victim) bool
}

func attacks() []attack {
	pid := os.Getpid()
	cwd := func(dir func(v *victim) string) func(v *victim) bool {
		return func(v *victim) bool {
			return v.starts(&proc.SpawnRequest{Cmd: []string{"sh", "-c", "true"}, Cwd: dir(v)})
		}
	}
	cmd := func(args ...string) func(v *victim) bool {
		return func(v *victim) bool { return v.starts(&proc.SpawnRequest{Cmd: args}) }
	}
	env := func(names ...string) func(v *victim) bool {
		return func(v *victim) bool { return v.startsWith(names...) }
	}
	return []attack{
		{"a program that is not listed", false, cmd("ls")},
		{"a path in place of a listed name", false, cmd("/bin/sh", "-c", "true")},
		{"a name with `..`", false, cmd("../bin/sh", "-c", "true")},
		{"a NUL byte in an argument", false, cmd("sh", "-c", "true\x00")},
		{"`LD_PRELOAD`, `LD_LIBRARY_PATH`, `LD_AUDIT`", false, env("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT")},
		{"`PATH`, `IFS`", false, env("PATH", "IFS")},
		{"`ENV`, `BASH_ENV`, `PS4`, `SHELLOPTS`", false, env("ENV", "BASH_ENV", "PS4", "SHELLOPTS")},
		{"a function of bash, `BASH_FUNC_ls%%`", false, env("BASH_FUNC_ls%%")},
		{"`PYTHONPATH`, `PERL5OPT`, `RUBYOPT`", false, env("PYTHONPATH", "PERL5OPT", "RUBYOPT")},
		{"`NODE_OPTIONS`, `JAVA_TOOL_OPTIONS`", false, env("NODE_OPTIONS", "JAVA_TOOL_OPTIONS")},
		{"`GIT_SSH_COMMAND`, `EDITOR`, `PAGER`, `LESSOPEN`", false, env("GIT_SSH_COMMAND", "EDITOR", "PAGER", "LESSOPEN")},
		{"`GLIBC_TUNABLES`, `GCONV_PATH`", false, env("GLIBC_TUNABLES", "GCONV_PATH")},
		{"a variable with `=` in its name", false, env("A=B", "LANG=x\x00LD_PRELOAD")},
		{"the mark by which descendants are found", false, env("FIVEWIRE_PROCESS")},
		{"a working directory outside of the folders", false, cwd(func(*victim) string { return "/" })},
		{"a working directory with `..`", false, cwd(func(v *victim) string { return v.root + "/../.." })},
		{"a working directory behind a symbolic link", false, cwd(func(v *victim) string { return v.root + "/link" })},
		{"variables of the host", false, func(v *victim) bool { return v.prints("the secret", "env; cat /proc/self/environ") }},
		{"more processes than permitted", false, func(v *victim) bool {
			for range 4 {
				_, err := v.client.Start(v.t.Context(), &proc.SpawnRequest{Cmd: []string{"sh", "-c", "sleep 600"}}, nil)
				require.NoError(v.t, err)
			}
			return v.starts(&proc.SpawnRequest{Cmd: []string{"sh", "-c", "true"}})
		}},
		{"a child in the background", false, func(v *victim) bool { return v.leaves("sleep %s >/dev/null 2>&1 &") }},
		{"a child with `setsid`", false, func(v *victim) bool { return v.leaves("setsid sleep %s >/dev/null 2>&1 &") }},
		{"a double fork", false, func(v *victim) bool { return v.leaves("(setsid sleep %s >/dev/null 2>&1 &) &") }},
		{"a child that keeps the outputs open", false, func(v *victim) bool { return v.isEndless("setsid sleep 600 &") }},
		{"1,000 children", false, func(v *victim) bool {
			return v.isEndless("i=0; while [ $i -lt 1000 ]; do sleep 600 & i=$((i+1)); done; wait")
		}},
		{"an output without end", false, func(v *victim) bool { return v.isEndless("yes") }},
		{"a file without end", false, func(v *victim) bool {
			_, _ = v.run(&proc.SpawnRequest{Cmd: []string{"sh", "-c", "head -c 3000000 /dev/zero > big"}})
			info, err := os.Stat(v.root + "/big")
			return err == nil && info.Size() > 1<<20
		}},
		{"memory without end", false, func(v *victim) bool {
			return v.prints("done", "dd if=/dev/zero of=/dev/null bs=1G count=1 && echo done")
		}},
		{"open files without end", false, func(v *victim) bool {
			return v.prints("done", "for i in $(seq 10 200); do eval \"exec $i</dev/null\" || exit; done; echo done")
		}},
		{"an endless loop", false, func(v *victim) bool { return v.isEndless("while :; do :; done") }},
		{"a run without end, over its time limit", false, func(v *victim) bool {
			_, err := v.run(&proc.SpawnRequest{Cmd: []string{"sh", "-c", "sleep 600"}, Timeout: 1})
			return errors.Is(err, context.DeadlineExceeded)
		}},
		{"a child with `setsid` and an empty environment", true, func(v *victim) bool {
			return v.leaves("env -i setsid sh -c 'echo > up; exec sleep %s' >/dev/null 2>&1 & while ! test -e up; do sleep 0.01; done")
		}},
		{"a file outside of the folders is read", true, func(v *victim) bool { return v.prints("the secret", "cat %s", v.secret) }},
		{"the same through a symbolic link", true, func(v *victim) bool { return v.prints("the secret", "ln -s %s l; cat l", v.secret) }},
		{"the same by `find -exec`", true, func(v *victim) bool {
			out, _ := v.run(&proc.SpawnRequest{Cmd: []string{"find", ".", "-maxdepth", "0", "-exec", "cat", v.secret, ";"}})
			return strings.Contains(out, "the secret")
		}},
		{"the same by `git -c alias.x=!cat`", true, func(v *victim) bool {
			out, _ := v.run(&proc.SpawnRequest{Cmd: []string{"git", "-c", "alias.x=!cat " + v.secret, "x"}})
			return strings.Contains(out, "the secret")
		}},
		{"a file outside of the folders is written", true, func(v *victim) bool {
			v.prints("", "echo changed > %s.changed", v.secret)
			_, err := os.Stat(v.secret + ".changed")
			return err == nil
		}},
		{"`/proc/PID/environ` of the host", true, func(v *victim) bool { return v.prints("=", "cat /proc/%d/environ", pid) }},
		{"`/proc/PID/root` of the host", true, func(v *victim) bool { return v.prints("the secret", "cat /proc/%d/root%s", pid, v.secret) }},
		{"the memory of the host, by `/proc/PID/maps`", true, func(v *victim) bool { return v.prints("r-xp", "cat /proc/%d/maps", pid) }},
		{"a signal to the host", true, func(v *victim) bool { return v.prints("done", "kill -0 %d && echo done", pid) }},
		{"a service of the host on loopback", true, func(v *victim) bool {
			return v.prints("done", "exec 3<>/dev/tcp/127.0.0.1/%s && echo done", v.listener)
		}},
	}
}

// The fence stops the attacks that ATTACKS.md lists, and the launcher the others.
func TestAttacks(t *testing.T) {
	for _, program := range []string{"bash", "git", "setsid"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	var table strings.Builder
	for _, a := range attacks() {
		stop := "stopped"
		if a.isOpen {
			stop = "open"
		}
		fmt.Fprintf(&table, "| %s | %s | stopped |\n", a.name, stop)
	}
	page, err := os.ReadFile("ATTACKS.md")
	require.NoError(t, err)
	require.Contains(t, string(page), table.String())
	for _, sandbox := range []bool{false, true} {
		t.Run(fmt.Sprintf("launcher=%t", sandbox), func(t *testing.T) {
			if launcher := proc.Bubblewrap(); sandbox && exec.Command(launcher[0], append(launcher[1:], "true")...).Run() != nil {
				t.Skip("bwrap is not installed, or may not make namespaces")
			}
			for _, a := range attacks() {
				t.Run(a.name, func(t *testing.T) {
					require.Equal(t, a.isOpen && !sandbox, a.succeed(newVictim(t, sandbox)))
				})
			}
		})
	}
}
