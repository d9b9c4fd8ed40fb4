// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package command

import (
	"os/exec"
	"runtime"
	"strconv"
)

// OwnGroup does nothing: there are no process groups.
func OwnGroup(*exec.Cmd) {}

// KillGroup ends a command that has started, on Windows with its descendants.
func KillGroup(cmd *exec.Cmd) {
	if runtime.GOOS == "windows" {
		_ = cmd.Process.WithHandle(func(uintptr) { // not after Wait: another process may have the number
			_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(cmd.Process.Pid)).Run() // best effort
		})
	}
	_ = cmd.Process.Kill()
}
