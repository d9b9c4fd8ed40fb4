// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "os/exec"

// ownGroup does nothing: there are no process groups.
func ownGroup(*exec.Cmd) {}

// killGroup ends a command that has started.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
