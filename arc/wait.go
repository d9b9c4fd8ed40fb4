// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/retry"
)

// WaitOptions adjusts [Client.WaitTask]. The zero value is right for production.
type WaitOptions struct {
	// Watcher, if set, has the processor call when something happens, so that
	// there is no need to ask often. Where the processor refuses the
	// subscription, Wait polls.
	Watcher Watcher

	// MinPollInterval and MaxPollInterval bound the delay between two polls. The
	// delay starts at the minimum, grows by half after each poll without a change,
	// and starts again after a change. Zero and negative values mean 200 ms and 10 s.
	MinPollInterval time.Duration
	MaxPollInterval time.Duration

	// WatchPollInterval is how often Wait asks although a watcher listens, in case
	// a notification is lost. Zero means 60 s; a negative value disables that.
	WatchPollInterval time.Duration

	// MaxFailures is how many questions in a row may fail for a reason that may
	// pass, such as the network or a busy server. Zero means 5, less than zero
	// none.
	MaxFailures int

	// OnUpdate, if set, is called with each observed state of the task. Only the
	// first and the last one include messages and artifacts.
	OnUpdate func(*Task)

	// CallOptions are the options of each request. Each has a random id instead of RequestID.
	CallOptions *CallOptions
}

// A WaitResult is the result of [Client.WaitTask].
type WaitResult struct {
	// Task is the task with its messages and artifacts. Over 64 MiB, or MaxMessage of the client if that is
	// more, further ones are missing; MessageCount and ArtifactCount are the totals.
	Task *Task

	// InputRequired reports that the task waits for [Client.SendTaskInput];
	// otherwise it has ended.
	InputRequired bool
}

// InputRequest returns the last message of the agent, which describes the required
// input, or nil.
func (o *WaitResult) InputRequest() *Message {
	for i := len(o.Task.Messages) - 1; i >= 0; i-- {
		if m := &o.Task.Messages[i]; m.Role == RoleAgent {
			return m
		}
	}
	return nil
}

// A TaskError reports a task that failed or was canceled. It is
// [ErrTaskAlreadyCanceled] to [errors.Is] in the second case; in the first it is
// [ErrTaskExecutionFailed] and the error that the task carries, if any.
type TaskError struct{ Task *Task }

// Error returns the final state of the task and its cause, if known.
func (e *TaskError) Error() string {
	text := fmt.Sprintf("arc: task %q %s", e.Task.ID, map[bool]string{true: "was canceled", false: "failed"}[e.Task.Status == TaskCanceled])
	switch {
	case e.Task.Error != nil:
		return text + ": " + e.Task.Error.Error()
	case e.Task.Reason != "":
		return fmt.Sprintf("%s: %q", text, e.Task.Reason)
	}
	return text
}

// Is reports whether target is the code for the final state of the task.
func (e *TaskError) Is(target error) bool {
	if e.Task.Status == TaskCanceled {
		return target == ErrTaskAlreadyCanceled
	}
	return target == ErrTaskExecutionFailed
}

// Unwrap returns the error that the task carries.
func (e *TaskError) Unwrap() error {
	if e.Task.Error == nil {
		return nil
	}
	return e.Task.Error
}

// WaitTask waits until a task has ended or waits for input. For a failed or canceled
// task it returns the result and a [*TaskError]. It has no time limit but ctx.
func (c *Client) WaitTask(ctx context.Context, target, taskID string, opts *WaitOptions) (*WaitResult, error) {
	w := waiting{c: c, target: target, id: taskID}
	if opts != nil {
		w.opts = *opts
	}
	o := &w.opts
	if o.CallOptions != nil {
		call := *o.CallOptions
		call.RequestID = "" // with one id, a server that keeps results repeats the first state
		o.CallOptions = &call
	}
	o.MinPollInterval = option.Or(o.MinPollInterval, 200*time.Millisecond, 200*time.Millisecond)
	o.MaxPollInterval = max(option.Or(o.MaxPollInterval, 10*time.Second, 10*time.Second), o.MinPollInterval)
	o.WatchPollInterval = option.Duration(o.WatchPollInterval, time.Minute)
	if o.MaxFailures == 0 {
		o.MaxFailures = 5
	}
	return w.run(ctx)
}

type waiting struct {
	c          *Client
	target, id string
	opts       WaitOptions

	news     <-chan struct{} // nil unless a watcher listens
	interval time.Duration
	last     *Task
	failures int
}

func (w *waiting) run(ctx context.Context) (*WaitResult, error) {
	w.interval = w.opts.MinPollInterval
	if w.opts.Watcher != nil {
		stop, err := w.watch(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	whole := true // a task that is over already needs one question only
	for {
		t, err := w.ask(ctx, whole)
		switch {
		case err != nil:
			w.failures++
			if w.failures > w.opts.MaxFailures || !passing(ctx, err) {
				return nil, err
			}
		case settled(t.Status) && !whole:
			whole = true
			continue
		default:
			w.failures = 0
			if w.opts.OnUpdate != nil && w.moved(t) {
				w.opts.OnUpdate(t)
			}
			if settled(t.Status) {
				return outcomeOf(t)
			}
			if w.moved(t) {
				w.interval = w.opts.MinPollInterval
			}
			w.last, whole = t, false
		}
		if err := w.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// maxHistory bounds the messages and artifacts that are read in pages, in bytes.
const maxHistory = 64 << 20

// ask reads the task, or the whole of it in pages (ARC-D79).
func (w *waiting) ask(ctx context.Context, whole bool) (*Task, error) {
	p := &TaskInfoParams{TaskID: w.id, OmitMessages: !whole, OmitArtifacts: !whole}
	var messages []Message
	var artifacts []Artifact
	size := 0
	for {
		if whole {
			p.MessagesAfter, p.ArtifactsAfter = new(int64(len(messages))), new(int64(len(artifacts)))
		}
		t, err := w.c.GetTask(ctx, w.target, p, w.opts.CallOptions)
		if err != nil || !whole || t.MessageCount == "" { // a server without pages answers with everything
			return t, err
		}
		page := *t
		if messages != nil || artifacts != nil {
			t.Messages, t.Artifacts = append(messages, t.Messages...), append(artifacts, t.Artifacts...)
		}
		messages, artifacts = t.Messages, t.Artifacts
		if len(page.Messages)+len(page.Artifacts) == 0 || t.hasTotals(len(messages), len(artifacts)) {
			return t, nil
		}
		text, _ := page.MarshalJSON() // it was read before
		size += len(text)
		if size >= max(maxHistory, w.c.opts.Limits.MaxMessage) {
			return t, nil
		}
	}
}

// hasTotals reports whether the task has so many messages and artifacts.
func (t *Task) hasTotals(messages, artifacts int) bool {
	return string(t.MessageCount) == strconv.Itoa(messages) && string(t.ArtifactCount) == strconv.Itoa(artifacts)
}

func settled(s TaskStatus) bool { return s.Final() || s == TaskInputRequired }

func outcomeOf(t *Task) (*WaitResult, error) {
	o := &WaitResult{Task: t, InputRequired: t.Status == TaskInputRequired}
	if t.Status == TaskFailed || t.Status == TaskCanceled {
		return o, &TaskError{Task: t}
	}
	return o, nil
}

func (w *waiting) moved(t *Task) bool {
	return w.last == nil || w.last.Status != t.Status || w.last.UpdatedAt != t.UpdatedAt
}

// passing reports an error that another question may not meet.
func passing(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	var e *Error
	var h *HTTPError
	switch {
	case errors.As(err, &e):
		switch e.Code {
		case ErrAgentNotAvailable, ErrAgentUnreachable, ErrAgentTimeout, ErrAgentCapacityExceeded, ErrRateLimitExceeded, ErrInternal:
			return true
		}
		return false
	case errors.As(err, &h):
		return h.Status >= 500 || h.Status == http.StatusTooManyRequests || h.Status == http.StatusRequestTimeout
	}
	return !errors.Is(err, ErrRedirect) && !errors.Is(err, ErrInvalidResult) && !errors.Is(err, ErrVersionMismatch) &&
		retry.ClassOf(err) != retry.Permanent
}

// pause waits for the next poll or the next event.
func (w *waiting) pause(ctx context.Context) error {
	d := w.interval
	w.interval = min(w.interval+w.interval/2, w.opts.MaxPollInterval)
	if w.news != nil && w.failures == 0 {
		d = w.opts.WatchPollInterval
	}
	work, err := w.c.life.Start(ctx, life.Idle)
	if err != nil {
		return fmt.Errorf("arc: wait for task %q: %w", w.id, err)
	}
	defer work.Finish()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.news:
	case <-work.Done(): // also by Close
		return fmt.Errorf("arc: wait for task %q: %w", w.id, errorOfCall(context.Cause(work)))
	}
	return nil
}

// watch subscribes. A processor that refuses is polled.
func (w *waiting) watch(ctx context.Context) (stop func(), err error) {
	url, news, stop := w.opts.Watcher.Watch(w.id)
	_, err = w.c.SubscribeTask(ctx, w.target, &SubscribeParams{TaskID: w.id, CallbackURL: url,
		Events: []Event{EventTaskCompleted, EventTaskFailed, EventTaskCanceled, EventTaskPaused}}, w.opts.CallOptions)
	switch {
	case err == nil:
		w.news = news
		return stop, nil
	case errors.Is(err, ErrTaskNotFound) || ctx.Err() != nil:
		stop()
		return nil, err
	}
	w.c.opts.Logger.DebugContext(ctx, "arc: subscription failed, task polled", "task", w.id, "err", err)
	return stop, nil
}

// A Watcher receives events of tasks from a webhook.
type Watcher interface {
	// Watch begins to watch a task. The processor shall call the URL; news gets
	// a value when it has. The function ends the watch.
	Watch(taskID string) (callbackURL string, news <-chan struct{}, stop func())
}
