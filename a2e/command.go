// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// CommandOptions adjusts a [Command]. The zero value is right for production.
type CommandOptions struct {
	// Logger receives the lines that the child writes to its standard error. Nil means
	// slog.Default().
	Logger *slog.Logger

	// StripPrefix is taken off lines that have it. Hosts made with the public
	// Python SDK print their messages behind "line: ".
	StripPrefix string

	// CloseTimeout is the time limit for the child to exit after its input is closed, and
	// KillTimeout the time limit after the signal to terminate. Zero means 3 s and 2 s.
	CloseTimeout, KillTimeout time.Duration
}

// A Command is a host that runs as a child process and communicates over its standard input and
// output. Pass it to [NewClient], which then skips lines that are not messages.
type Command struct {
	cmd    *exec.Cmd
	opts   CommandOptions
	in     io.WriteCloser
	out    io.ReadCloser
	errOut io.ReadCloser
	stderr sync.WaitGroup // its reader

	once   sync.Once
	exited chan struct{}
	err    error // after exited is closed

	waiting sync.Once
	waited  chan struct{}
	exit    error // after waited is closed
	tail    tail  // of the standard error
}

// A tail keeps the last 4 KiB of the written text.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if excess := len(t.text) - 4096; excess > 0 {
		t.text = append(t.text[:0], t.text[excess:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.text), "")
}

// StartCommand starts cmd, whose standard streams must not be set, in a separate process group
// where the system has them. Env and Dir of cmd are not changed. Close ends it.
func StartCommand(cmd *exec.Cmd, opts *CommandOptions) (*Command, error) {
	if cmd == nil {
		return nil, errors.New("a2e: start command: no command")
	}
	c := &Command{cmd: cmd, exited: make(chan struct{}), waited: make(chan struct{})}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.Logger = cmp.Or(c.opts.Logger, slog.Default())
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
	if c.errOut, err = cmd.StderrPipe(); err != nil {
		return nil, fmt.Errorf("a2e: start command: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("a2e: start command: %w", err)
	}
	c.stderr.Go(func() { drainStderr(io.TeeReader(c.errOut, &c.tail), c.opts.Logger) })
	return c, nil
}

// drainStderr reads the standard error of a child by lines of bounded length.
func drainStderr(r io.Reader, log *slog.Logger) {
	in := bufio.NewReaderSize(r, 4096)
	for {
		line, _, err := in.ReadLine()
		if len(line) > 0 {
			log.InfoContext(context.Background(), "a2e: child output received", "stderr", string(line))
		}
		if err != nil {
			return
		}
	}
}

func (c *Command) noise() (bool, string) { return true, c.opts.StripPrefix }

// Read reads from the child.
func (c *Command) Read(b []byte) (int, error) { return c.out.Read(b) }

// Write writes to the child.
func (c *Command) Write(b []byte) (int, error) { return c.in.Write(b) }

// Close closes the child's input and waits for the child to exit. After CloseTimeout it signals the
// process group to terminate, and after KillTimeout kills it (A2E-139). It returns the exit status
// of the child, nil if it was successful.
func (c *Command) Close() error {
	c.once.Do(func() {
		defer close(c.exited)
		_ = c.in.Close()
		c.wait()
		for _, step := range []struct {
			wait time.Duration
			then func(*exec.Cmd) error
		}{{c.opts.CloseTimeout, terminate}, {c.opts.KillTimeout, kill}} {
			timer := time.NewTimer(step.wait)
			select {
			case <-c.waited:
				c.err = c.exit
				timer.Stop()
				_ = kill(c.cmd) // remaining processes of the group
				return
			case <-timer.C:
				_ = step.then(c.cmd)
			}
		}
		_ = c.out.Close() // a process that has left the group may hold the outputs
		_ = c.errOut.Close()
		<-c.waited
		c.err = c.exit
	})
	<-c.exited
	return c.err
}

// wait starts to wait for the end of the child.
func (c *Command) wait() {
	c.waiting.Do(func() {
		go func() {
			_, _ = io.Copy(io.Discard, c.out) // unread output must not block the child
			c.stderr.Wait()
			c.exit = c.cmd.Wait()
			close(c.waited)
		}()
	})
}

// cause returns the exit status of a child that has closed its output, or nil if it still runs.
func (c *Command) cause() *CloseError {
	c.wait()
	if !waitFor(c.waited, 200*time.Millisecond) {
		return nil
	}
	return &CloseError{Kind: "exit", Code: exitCode(c.cmd.ProcessState), Text: c.tail.String()}
}
