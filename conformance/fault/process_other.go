// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package fault

import (
	"errors"
	"os/exec"
)

func setGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }
func stopGroup(*exec.Cmd) error     { return errors.ErrUnsupported }
func resumeGroup(*exec.Cmd) error   { return errors.ErrUnsupported }
