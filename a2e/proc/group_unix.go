// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proc

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

func isolate(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals the process group, which outlives its first process.
func signalGroup(cmd *exec.Cmd, name string) error {
	signal := syscall.SIGTERM
	switch name {
	case "SIGKILL":
		signal = syscall.SIGKILL
	case "SIGINT":
		signal = syscall.SIGINT
	}
	return syscall.Kill(-cmd.Process.Pid, signal)
}

// exitCode is negative for a process that a signal has ended.
func exitCode(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return -int(w.Signal())
	}
	return s.ExitCode()
}

// readHeld reads bytes that a pipe holds, without waiting.
func readHeld(f *os.File, b []byte) (n int) {
	_ = f.SetReadDeadline(time.Time{})
	rc, err := f.SyscallConn()
	if err != nil || len(b) == 0 {
		return 0
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), b)
		return true
	})
	return max(n, 0)
}
