// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"time"
)

// CommandOptions adjusts a [Command]. The zero value is right for production.
type CommandOptions struct {
	// Logger receives what the child writes to its standard error. Nil
	// discards it; it is read in any case, so that the child never blocks.
	Logger *slog.Logger

	// StripPrefix is taken off lines that have it. Hosts made with the public
	// Python SDK print their messages behind "line: ".
	StripPrefix string

	// CloseTimeout is how long the child may take to end after its input was closed,
	// and Kill how long after it was told to terminate. Zero means 3 and 2
	// seconds.
	CloseTimeout, KillTimeout time.Duration
}

// A Command is a host that runs as a child process and speaks over its standard
// input and output. Give it to [NewClient], which passes over lines that are no
// messages.
type Command struct {
	cmd    *exec.Cmd
	opts   CommandOptions
	in     io.WriteCloser
	out    io.ReadCloser
	stderr sync.WaitGroup

	once sync.Once
	gone chan struct{}
	err  error // guarded by gone
}

// StartCommand starts cmd, whose standard streams must not be set, in a process
// group of its own where the system has them. Env and Dir of cmd are the
// caller's. Close ends it.
func StartCommand(cmd *exec.Cmd, opts *CommandOptions) (*Command, error) {
	c := &Command{cmd: cmd, gone: make(chan struct{})}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.CloseTimeout <= 0 {
		c.opts.CloseTimeout = 3 * time.Second
	}
	if c.opts.KillTimeout <= 0 {
		c.opts.KillTimeout = 2 * time.Second
	}
	ownGroup(cmd)
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("a2e: start command: %w", err)
	}
	if c.out, err = cmd.StdoutPipe(); err != nil {
		return nil, fmt.Errorf("a2e: start command: %w", err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("a2e: start command: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("a2e: start command: %w", err)
	}
	c.stderr.Go(func() { drainStderr(stderr, c.opts.Logger) })
	return c, nil
}

// drainStderr reads the standard error of a child by lines of bounded length.
func drainStderr(r io.Reader, log *slog.Logger) {
	if log == nil {
		_, _ = io.Copy(io.Discard, r)
		return
	}
	in := bufio.NewReaderSize(r, 4096)
	for {
		line, _, err := in.ReadLine()
		if len(line) > 0 {
			log.Info("a2e: child", "stderr", string(line))
		}
		if err != nil {
			return
		}
	}
}

func (c *Command) noise() (bool, string) { return true, c.opts.StripPrefix }

// Read reads what the child writes.
func (c *Command) Read(b []byte) (int, error) { return c.out.Read(b) }

// Write writes to the child.
func (c *Command) Write(b []byte) (int, error) { return c.in.Write(b) }

// Close closes the child's input and waits for it to end, 3 seconds by default;
// then it tells its process group to terminate, and after 2 more seconds kills
// it (A2E-139). It returns how the child ended, nil if it ended well.
func (c *Command) Close() error {
	c.once.Do(func() {
		defer close(c.gone)
		_ = c.in.Close()
		ended := make(chan error, 1)
		go func() {
			_, _ = io.Copy(io.Discard, c.out) // what nobody reads any more must not block the child
			c.stderr.Wait()
			ended <- c.cmd.Wait()
		}()
		for _, step := range []struct {
			wait time.Duration
			then func(*exec.Cmd) error
		}{{c.opts.CloseTimeout, terminate}, {c.opts.KillTimeout, kill}} {
			timer := time.NewTimer(step.wait)
			select {
			case c.err = <-ended:
				timer.Stop()
				_ = kill(c.cmd) // what it left behind in its group
				return
			case <-timer.C:
				_ = step.then(c.cmd)
			}
		}
		_ = c.out.Close()
		c.err = <-ended
	})
	<-c.gone
	return c.err
}

// PID returns the process id of the child.
func (c *Command) PID() int { return c.cmd.Process.Pid }
