// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fault

import (
	"os/exec"
	"syscall"
)

// setGroup gives a command a process group.
func setGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) error   { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
func stopGroup(cmd *exec.Cmd) error   { return syscall.Kill(-cmd.Process.Pid, syscall.SIGSTOP) }
func resumeGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT) }
