// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package command

import "os/exec"

// OwnGroup does nothing: there are no process groups.
func OwnGroup(*exec.Cmd) {}

// KillGroup ends a command that has started.
func KillGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
