// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Interrupted is the exit status after a second interrupt.
const Interrupted = 130

// Groups are the process groups of commands that run. An interrupt at a terminal does not reach them.
// The zero value is ready for use, and safe for concurrent use.
type Groups struct {
	mu       sync.Mutex
	running  map[*exec.Cmd]bool // guarded by mu
	isKilled bool               // guarded by mu

	present sync.WaitGroup // as running
}

var errKilled = errors.New("the command was not started: the process ends")

// Start calls start, which starts a command in its own group. The caller removes the group after its end.
func (g *Groups) Start(cmd *exec.Cmd, start func() error) (remove func(), err error) {
	g.mu.Lock() // also during the start, so that Kill misses no group
	defer g.mu.Unlock()
	if g.isKilled {
		return nil, errKilled
	}
	if err := start(); err != nil {
		return nil, err
	}
	if g.running == nil {
		g.running = make(map[*exec.Cmd]bool)
	}
	g.running[cmd] = true
	g.present.Add(1)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.running, cmd)
		g.present.Done()
	}, nil
}

// Kill ends the processes of all groups. No group starts after it.
func (g *Groups) Kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isKilled = true
	for cmd := range g.running {
		KillGroup(cmd)
	}
}

// End is Kill, and waits for the removal of the groups, at most for a timeout. Without the wait some would survive the exit of
// this process.
func (g *Groups) End(timeout time.Duration) {
	g.Kill()
	removed := make(chan struct{})
	go func() {
		g.present.Wait()
		close(removed)
	}()
	select {
	case <-removed:
	case <-time.After(timeout):
	}
}

// OnInterrupt calls first at an interrupt of this process. Another one kills the groups and ends the
// process with status [Interrupted], whatever first and the process wait for.
func (g *Groups) OnInterrupt(first func()) (stop func()) {
	signals, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	second := func() {
		g.Kill()
		os.Exit(Interrupted)
	}
	go func() {
		for _, f := range []func(){first, second} {
			select {
			case <-signals:
				go f()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}
