// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package a2e

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func terminate(cmd *exec.Cmd) error { return kill(cmd) }

func kill(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// exitCode returns the exit status of a child.
func exitCode(state *os.ProcessState) int { return state.ExitCode() }
