// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"sync"

	"github.com/fivewire/fivewire/arc"
)

// A TaskWatcher is a [arc.Watcher] for the handler of a [Receiver]: it is that
// handler.
//
//	watcher := webhook.NewTaskWatcher("https://me.example/arc-events", nil)
//	receiver, err := webhook.NewReceiver(watcher, secrets, nil)
//	...
//	result, err := client.WaitTask(ctx, target, task.ID, &arc.WaitOptions{Watcher: watcher})
//
// It may be used by several goroutines. A notification is taken as news only: the
// state of the task always comes from the processor.
type TaskWatcher struct {
	url  string
	next arc.NotificationHandler

	mu      sync.Mutex
	watches map[string][]chan struct{} // by task; guarded by mu
}

// NewTaskWatcher returns a watcher whose receiver can be reached at url.
// Notifications of all tasks also go to next, unless it is nil.
func NewTaskWatcher(url string, next arc.NotificationHandler) *TaskWatcher {
	return &TaskWatcher{url: url, next: next, watches: map[string][]chan struct{}{}}
}

// ServeNotification passes the news on.
func (w *TaskWatcher) ServeNotification(ctx context.Context, n *arc.Notification) error {
	w.mu.Lock()
	for _, news := range w.watches[n.TaskID] {
		select {
		case news <- struct{}{}:
		default: // there are news already
		}
	}
	w.mu.Unlock()
	if w.next != nil {
		return w.next.ServeNotification(ctx, n)
	}
	return nil
}

// Watch begins to watch a task.
func (w *TaskWatcher) Watch(taskID string) (string, <-chan struct{}, func()) {
	news := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watches[taskID] = append(w.watches[taskID], news)
	return w.url, news, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		rest := w.watches[taskID][:0:0]
		for _, other := range w.watches[taskID] {
			if other != news {
				rest = append(rest, other)
			}
		}
		if len(rest) == 0 {
			delete(w.watches, taskID)
		} else {
			w.watches[taskID] = rest
		}
	}
}
