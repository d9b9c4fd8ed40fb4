// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"time"
)

const (
	maxOutput  = 1 << 20 // bytes of the output of a [Shell]
	maxRunning = 16      // commands of a [Shell]; others wait
)

// A Shell runs a command line with an input. The line never contains data of callers. It is safe for
// concurrent use.
type Shell struct {
	line    string
	timeout time.Duration
	groups  *Groups
	log     io.Writer
	slots   chan struct{}
}

// NewShell returns a Shell of a verb whose commands end after a time limit, with their descendants where
// the system has process groups. Their standard error is that of the verb.
func NewShell(s *IO, line string, timeout time.Duration) *Shell {
	return &Shell{line: line, timeout: timeout, groups: &s.Groups, log: s.Err, slots: make(chan struct{}, maxRunning)}
}

// Run returns the output of the command for an input. The error contains no output, which may have
// secrets.
func (s *Shell) Run(ctx context.Context, in []byte) ([]byte, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	out := &limited{stop: cancel}
	args := ShellArgs(s.line)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(in), out, s.log, time.Second
	OwnGroup(cmd)
	cmd.Cancel = func() error {
		KillGroup(cmd)
		return nil
	}
	remove, err := s.groups.Start(cmd, cmd.Start)
	if err == nil {
		err = cmd.Wait()
		remove()
	}
	if errors.Is(err, exec.ErrWaitDelay) { // the command has succeeded, and a descendant keeps its output open
		KillGroup(cmd)
		err = nil
	}
	switch {
	case errors.Is(err, errKilled):
		return nil, err
	case out.isFull:
		return nil, errFull
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("the command took longer than %v", s.timeout)
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
