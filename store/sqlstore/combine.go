// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"sync"
)

// Bounds of one batch, so that a caller does not wait long for the work of others.
const (
	batchMost  = 128
	batchBytes = 4 << 20
)

// A combiner groups concurrent callers into one transaction, and so into one write to the disk,
// which dominates the cost of a write. Callers with the same key take turns; callers with different
// keys do not wait for each other.
type combiner[T any] struct {
	// run does the work of all tasks and sets their err. Its context ends when no caller waits for
	// the result, or with that of the store.
	run func(ctx context.Context, key string, tasks []*task[T])

	mu     sync.Mutex
	queues map[string][]*task[T] // present while a goroutine works on the key
	wg     sync.WaitGroup
}

// A task is the work of one caller. After a caller gave up, run still has the
// whole task, so nothing in it may belong to the caller.
type task[T any] struct {
	ctx  context.Context
	size int
	of   T
	err  error
	done chan struct{}
}

func newCombiner[T any](run func(context.Context, string, []*task[T])) *combiner[T] {
	return &combiner[T]{run: run, queues: map[string][]*task[T]{}}
}

// do has the work done and returns its error, or that of ctx if that ends first.
func (c *combiner[T]) do(ctx, store context.Context, key string, size int, of T) (T, error) {
	t := &task[T]{ctx: ctx, size: size, of: of, done: make(chan struct{})}
	c.mu.Lock()
	queue, busy := c.queues[key]
	c.queues[key] = append(queue, t)
	if !busy {
		c.wg.Go(func() { c.work(store, key) })
	}
	c.mu.Unlock()
	select {
	case <-t.done:
		return t.of, t.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// take returns the next tasks of key, or nil when there are none left.
func (c *combiner[T]) take(key string) []*task[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue := c.queues[key]
	if len(queue) == 0 {
		delete(c.queues, key)
		return nil
	}
	n, size := 0, 0
	for n < len(queue) && n < batchMost && (n == 0 || size+queue[n].size <= batchBytes) {
		size += queue[n].size
		n++
	}
	tasks := queue[:n:n]
	c.queues[key] = queue[n:]
	return tasks
}

func (c *combiner[T]) work(store context.Context, key string) {
	for {
		batch := c.take(key)
		if batch == nil {
			return
		}
		// Tasks with an ended context are skipped.
		tasks := make([]*task[T], 0, len(batch))
		for _, t := range batch {
			if t.err = t.ctx.Err(); t.err == nil {
				tasks = append(tasks, t)
			}
		}
		if len(tasks) > 0 {
			c.runAll(store, key, tasks)
		}
		for _, t := range batch {
			close(t.done)
		}
	}
}

func (c *combiner[T]) runAll(store context.Context, key string, tasks []*task[T]) {
	ctx, cancel := context.WithCancel(store)
	defer cancel()
	var mu sync.Mutex
	left := len(tasks)
	for _, t := range tasks {
		if t.ctx.Done() == nil {
			continue
		}
		stop := context.AfterFunc(t.ctx, func() {
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				cancel()
			}
		})
		defer stop()
	}
	c.run(ctx, key, tasks)
}

// wait returns when all work is done.
func (c *combiner[T]) wait() { c.wg.Wait() }
