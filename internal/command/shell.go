// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"
)

// maxOutput bounds the output of a [Shell], in bytes.
const maxOutput = 1 << 20

// A Shell runs a command line with an input. The line never contains data of callers.
type Shell struct {
	Line    string
	Timeout time.Duration
}

// Run returns the output of the command for an input. The error contains no output, which may have
// secrets.
func (s *Shell) Run(ctx context.Context, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	out := &limited{stop: cancel}
	args := ShellArgs(s.Line)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = bytes.NewReader(in), out, time.Second
	err := cmd.Run()
	switch {
	case out.isFull:
		return nil, errFull
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("the command took longer than %v", s.Timeout)
	case err != nil:
		return nil, fmt.Errorf("the command failed: %w", err)
	}
	return out.buf.Bytes(), nil
}

// ShellArgs returns the program and the arguments that run a command line.
func ShellArgs(line string) []string {
	if runtime.GOOS == "windows" {
		return []string{"cmd", "/C", line}
	}
	return []string{"sh", "-c", line}
}

var errFull = fmt.Errorf("the command wrote more than %d bytes", maxOutput)

// limited keeps up to maxOutput bytes, and stops the command beyond.
type limited struct {
	buf    bytes.Buffer
	stop   func()
	isFull bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.buf.Len()+len(p) > maxOutput {
		l.isFull = true
		l.stop()
		return 0, errFull
	}
	return l.buf.Write(p)
}
