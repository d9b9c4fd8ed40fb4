// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A child that was started before its parent had limits gets them too (A2E-D52).
func TestEarlyChildrenGetLimits(t *testing.T) {
	mark := markName + "=early"
	cmd := exec.Command("/bin/sh", "-c", "sleep 60 & echo $!; wait")
	cmd.Env = []string{mark, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	l := Limits{MaxFiles: 77}.withDefaults()
	_, err = l.restrict(cmd.Process.Pid)
	require.NoError(t, err)
	files := func() string {
		text, err := os.ReadFile("/proc/" + strings.TrimSpace(line) + "/limits")
		require.NoError(t, err)
		_, rest, _ := strings.Cut(string(text), "Max open files")
		return strings.Fields(rest)[0]
	}
	require.NotEqual(t, "77", files())
	require.Eventually(t, func() bool { // no longer a copy of the shell, nor between the two programs
		text, err := os.ReadFile("/proc/" + strings.TrimSpace(line) + "/cmdline")
		return err == nil && strings.HasPrefix(string(text), "sleep")
	}, time.Minute, time.Millisecond)
	l.restrictTree(mark)
	require.Equal(t, fmt.Sprint(l.MaxFiles), files())
}

// A host counts as ended only if this is certain.
func TestEndedHosts(t *testing.T) {
	own := hostID(os.Getpid())
	cmd := exec.Command("/bin/sleep", "60")
	require.NoError(t, cmd.Start())
	other := hostID(cmd.Process.Pid)
	require.NotEqual(t, own, other)
	require.False(t, hasEnded(other))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.True(t, hasEnded(other))
	require.True(t, hasEnded(own+"0"), "another process had the number before")
	for _, id := range []string{own, "", "1-2", "x-y-z", "1" + other} {
		require.False(t, hasEnded(id), id)
	}
}
