// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/option"
)

// Limits bound one process with its descendants. Zero means the default, a negative value no bound. A
// process above MaxOutput or MaxDescendants is ended. The next four hold for each descendant by itself,
// on Linux only. The system enforces them from the start if the host has the program prlimit of
// util-linux, and else from a moment later.
type Limits struct {
	MaxOutput      int64         // bytes: 64 MiB
	MaxDescendants int           // processes at once, the process included: 256; on Linux only
	MaxMemory      int64         // bytes of address space: 4 GiB, too few for WebAssembly, such as fetch in Node
	MaxCPUTime     time.Duration // 1 h
	MaxFiles       int64         // open files: 256
	MaxFileSize    int64         // bytes of a written file: 1 GiB
}

func (l Limits) withDefaults() Limits {
	l.MaxOutput = option.Bytes(l.MaxOutput, 64<<20)
	l.MaxDescendants = option.Count(l.MaxDescendants, 256)
	l.MaxMemory = option.Bytes(l.MaxMemory, 4<<30)
	l.MaxCPUTime = option.Duration(l.MaxCPUTime, time.Hour)
	l.MaxFiles = option.Bytes(l.MaxFiles, 256)
	l.MaxFileSize = option.Bytes(l.MaxFileSize, 1<<30)
	return l
}

// countInterval is the time between counts of descendants.
const countInterval = 250 * time.Millisecond

// A census counts the descendants of the running processes. The zero census has none.
type census struct {
	mu      sync.Mutex
	running map[string]func(count int) // by mark
	stop    chan struct{}              // ends the counts when no process is left
}

func (c *census) add(mark string, f func(count int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.running) == 0 {
		c.running, c.stop = map[string]func(int){}, make(chan struct{})
		go c.run(c.stop)
	}
	c.running[mark] = f
}

func (c *census) remove(mark string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, mark)
	if len(c.running) == 0 {
		close(c.stop)
	}
}

func (c *census) run(stop <-chan struct{}) {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for mark, n := range countMarks() {
			c.mu.Lock()
			f := c.running[mark]
			c.mu.Unlock()
			if f != nil {
				f(n)
			}
		}
	}
}
