// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"sync"
	"time"
)

const maxOutput = 1 << 20

// A Process is a child process with its group. All methods may be called concurrently.
type Process struct {
	ctx  context.Context
	name string
	args []string

	restarts sync.Mutex // one at a time

	mu     sync.Mutex // guards all below
	cmd    *exec.Cmd
	end    chan struct{} // of cmd
	output []byte        // the newest
}

// Command starts a child process in a group of processes. At the end of ctx the group is killed. The output
// of all its starts is kept, the newest mebibyte. Windows has no groups and no Stop.
func Command(ctx context.Context, name string, args ...string) (*Process, error) {
	p := &Process{ctx: ctx, name: name, args: args}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.startLocked(); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, p.kill)
	return p, nil
}

// startLocked starts the child. p.mu must be held.
func (p *Process) startLocked() error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	cmd := exec.Command(p.name, p.args...)
	cmd.Stdout = (*output)(p)
	cmd.Stderr = cmd.Stdout
	cmd.WaitDelay = time.Second // for pipes that a child of the child holds
	setGroup(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	end := make(chan struct{})
	p.cmd, p.end = cmd, end
	go func() {
		_ = cmd.Wait()
		close(end)
	}()
	return nil
}

// kill kills the group and waits for the end of the child.
func (p *Process) kill() {
	p.mu.Lock()
	cmd, end := p.cmd, p.end
	p.mu.Unlock()
	_ = resumeGroup(cmd)
	_ = killGroup(cmd)
	_ = cmd.Process.Kill()
	<-end
}

// Kill kills the group and starts the child again. With a positive interval, it repeats that until the
// context of the process ends.
func (p *Process) Kill(interval time.Duration) error {
	return p.repeat(interval, func() error {
		p.restarts.Lock()
		defer p.restarts.Unlock()
		p.kill()
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.startLocked()
	})
}

// Stop stops the group and continues it after d. With a positive interval, it repeats that until the context
// of the process ends.
func (p *Process) Stop(d, interval time.Duration) error {
	return p.repeat(interval, func() error {
		p.mu.Lock()
		cmd := p.cmd
		p.mu.Unlock()
		err := stopGroup(cmd)
		if err == nil {
			_ = sleep(p.ctx, d)
			err = resumeGroup(cmd)
		}
		return err
	})
}

// repeat calls f once, or at each interval in the background.
func (p *Process) repeat(interval time.Duration, f func() error) error {
	if interval <= 0 {
		return f()
	}
	go func() {
		for sleep(p.ctx, interval) == nil {
			if err := f(); err != nil && errors.Is(err, errors.ErrUnsupported) {
				return
			}
		}
	}()
	return nil
}

// Output returns the newest output of all starts.
func (p *Process) Output() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.output)
}

// An output receives the output of the child.
type output Process

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.output = append(o.output, b...)
	o.output = o.output[max(0, len(o.output)-maxOutput):]
	return len(b), nil
}
