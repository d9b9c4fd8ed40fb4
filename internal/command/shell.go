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
	slots   chan struct{}
	done    context.Context // until Close
	stop    context.CancelFunc
}

// NewShell returns a Shell of a verb whose commands end after a time limit, with their descendants where
// the system has process groups.
func NewShell(s *IO, line string, timeout time.Duration) *Shell {
	shell := &Shell{line: line, timeout: timeout, groups: &s.Groups, slots: make(chan struct{}, maxRunning)}
	shell.done, shell.stop = context.WithCancel(context.Background())
	return shell
}

// Run returns the output of the command for an input. The error contains no output, which may have
// secrets.
func (s *Shell) Run(ctx context.Context, in []byte) ([]byte, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.done.Done():
		return nil, errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	defer context.AfterFunc(s.done, cancel)()
	out := &limited{stop: cancel}
	args := ShellArgs(s.line)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = bytes.NewReader(in), out, time.Second
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
	switch {
	case out.isFull:
		return nil, errFull
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("the command took longer than %v", s.timeout)
	case err != nil:
		return nil, fmt.Errorf("the command failed: %w", err)
	}
	return out.buf.Bytes(), nil
}

// Close ends the commands, and waits for them until ctx ends. Otherwise they would survive the exit of the process.
func (s *Shell) Close(ctx context.Context) {
	s.stop()
	for range maxRunning {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}

// ShellArgs returns the program and the arguments that run a command line.
func ShellArgs(line string) []string {
	if runtime.GOOS == "windows" {
		return []string{"cmd", "/C", line}
	}
	return []string{"sh", "-c", line}
}

var (
	errFull   = fmt.Errorf("the command wrote more than %d bytes", maxOutput)
	errClosed = errors.New("the command was not started: the server ends")
)

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
