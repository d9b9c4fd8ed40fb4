// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/a2e"
)

// An Agent is a subagent as its [Runner] sees it, or a child of that subagent. Its methods are safe for
// concurrent use (A2E-D66).
type Agent struct {
	ID     string
	Config Config

	keeper *keeper
	crew   *crew
}

// Spawn adds a child, which ends with its parent. It fails above the bounds of the [Options].
func (a *Agent) Spawn(config *Config) (*Agent, error) {
	if config == nil {
		config = &Config{}
	}
	child, err := a.keeper.add(a.crew, config, a.ID)
	if err != nil {
		return nil, err
	}
	return &Agent{ID: child.id, Config: child.config, keeper: a.keeper, crew: a.crew}, nil
}

// copyOf returns a copy of a model with its defaults, and the size of its text. The path of an error
// begins with prefix.
func copyOf[T any](model *T, prefix string) (*T, int, error) {
	raw, err := a2e.EncodeModel(model)
	if err != nil {
		return nil, 0, err
	}
	own, err := a2e.DecodeModel[T](raw, prefix)
	return own, len(raw), err
}

// Run does a task of a child and returns its result, which is nil if the runner returned none. A task that fails or
// is stopped is an error. The end of ctx cancels the task.
func (a *Agent) Run(ctx context.Context, task *Task) (json.RawMessage, error) {
	if task == nil {
		task = &Task{}
	}
	started, err := a.keeper.begin(a.crew, a.ID, task)
	if err != nil {
		return nil, err
	}
	state, err := a.crew.waitFor(ctx, started)
	if err != nil {
		a.crew.cancel(started)
		return nil, err
	}
	if state.status == StatusCompleted {
		return state.result, nil
	}
	text := "subagents: " + a.Config.Name + ": " + state.status
	if state.err != "" {
		text += ": " + state.err
	}
	return nil, errors.New(text)
}

// Emit sends the event SUBAGENT_EVENT. The content is encoded as a JSON object; nil is an empty object.
func (a *Agent) Emit(ctx context.Context, event string, content any) error {
	e := &SubagentEvent{SubagentID: a.ID, Event: event}
	if content != nil {
		var m a2e.Members
		if err := m.Set("content", content); err != nil {
			return fmt.Errorf("subagents: emit: %w", err)
		}
		e.Content = m.Get("content")
	}
	return a.crew.session.Send(ctx, "SUBAGENT_EVENT", e)
}

// Receive returns the next message to the subagent, in the order of arrival. It keeps at most 100
// messages and 1 MiB of them; the sender of another one gets an error with the reason overloaded.
func (a *Agent) Receive(ctx context.Context) (*SubagentMessageRequest, error) {
	for {
		m, change, err := a.crew.next(a.ID)
		if m != nil || err != nil {
			return m, err
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// The bounds of the messages that a subagent has not received.
const (
	maxMessages     = 100
	maxMessageBytes = 1 << 20
)

// A mailbox holds the messages that a subagent has not received. Its fields are guarded by the mu of the
// crew.
type mailbox struct {
	messages []storedMessage
	size     int
	change   chan struct{} // closed by the next message; nil unless a receiver waits
}

type storedMessage struct {
	*SubagentMessageRequest
	size int
}

// next returns the oldest message to a subagent, or a channel that the next message closes.
func (c *crew) next(id string) (*SubagentMessageRequest, <-chan struct{}, error) {
	unlock, _ := c.lock(0)
	defer unlock()
	a, err := c.findLocked(id)
	if err != nil {
		return nil, nil, err
	}
	box := &a.mailbox
	if len(box.messages) > 0 {
		m := box.messages[0]
		box.messages[0] = storedMessage{} // does not retain it
		box.messages = box.messages[1:]
		box.size -= m.size
		c.size -= m.size
		return m.SubagentMessageRequest, nil, nil
	}
	if box.change == nil {
		box.change = make(chan struct{})
	}
	return nil, box.change, nil
}

// message keeps a message for its subagent.
func (k *keeper) message(_ context.Context, call *a2e.Call, r *SubagentMessageRequest) (*SubagentMessageResponse, error) {
	own, size, err := copyOf(r, "") // does not retain the line
	if err != nil {
		return nil, err
	}
	c := call.PluginState().(*crew)
	unlock, err := c.lock(size)
	defer unlock()
	if err != nil {
		return nil, err
	}
	a, err := c.findLocked(r.ToSubagentID)
	if err != nil {
		return nil, err
	}
	box := &a.mailbox
	switch {
	case c.closed || a.status == StatusTerminated:
		return nil, errTerminated()
	case len(box.messages) >= maxMessages || box.size+size > maxMessageBytes:
		full := newError(a2e.ReasonOverloaded, "the subagent has too many messages")
		full.Retryable = true
		return nil, full
	}
	if err := c.growLocked(size); err != nil {
		return nil, err
	}
	box.messages = append(box.messages, storedMessage{own, size})
	box.size += size
	if box.change != nil {
		close(box.change)
		box.change = nil
	}
	return &SubagentMessageResponse{}, nil
}
