// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package proc

import (
	"os"
	"os/exec"
)

func isolate(*exec.Cmd) {}

func signalGroup(cmd *exec.Cmd, _ string) error { return cmd.Process.Kill() }

func exitCode(s *os.ProcessState) int { return s.ExitCode() }

func readHeld(*os.File, []byte) int { return 0 }
