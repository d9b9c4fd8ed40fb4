// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proc

import (
	"os"
	"os/exec"
	"syscall"
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
