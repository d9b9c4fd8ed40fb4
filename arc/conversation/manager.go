// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package conversation talks to ARC agents without chat ids.
package conversation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/guard"
)

// Options adjusts a [Manager]. The zero value is right for production.
type Options struct {
	// EndReason is the reason that Close gives for ending the chats. Empty
	// gives none.
	EndReason string
}

// A Manager talks to agents without chat ids: it begins a chat with the first
// message to an agent, continues it with the next ones, begins a new one where
// the agent no longer knows it, and ends all of them at Close.
//
// It may be used by several goroutines. Messages to one agent go one after the
// other, each when the answer before it is complete; different agents do not wait
// for each other.
type Manager struct {
	c    *arc.Client
	opts Options

	mu     sync.Mutex
	closed bool             // guarded by mu
	talks  map[string]*talk // by agent; guarded by mu
}

// A talk is what is going on with one agent.
type talk struct {
	turn   chan struct{} // held during a turn; guards chatID
	chatID string
}

// NewManager returns a Manager of the chats of c.
func NewManager(c *arc.Client, opts *Options) (*Manager, error) {
	if c == nil {
		return nil, errors.New("arc: conversation: no client")
	}
	v := &Manager{c: c, talks: map[string]*talk{}}
	if opts != nil {
		v.opts = *opts
	}
	return v, nil
}

// begin takes the turn with an agent.
func (v *Manager) begin(ctx context.Context, agent string) (*talk, error) {
	v.mu.Lock()
	t := v.talks[agent]
	if t == nil && !v.closed {
		t = &talk{turn: make(chan struct{}, 1)}
		v.talks[agent] = t
	}
	closed := v.closed
	v.mu.Unlock()
	if closed {
		return nil, arc.ErrClosed
	}
	if err := t.take(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	closed = v.closed
	v.mu.Unlock()
	if closed { // while we waited
		t.pass()
		return nil, arc.ErrClosed
	}
	return t, nil
}

func (t *talk) take(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *talk) pass() { <-t.turn }

// expired reports an error that says that the agent no longer has the chat.
func expired(err error) bool {
	return errors.Is(err, arc.ErrChatNotFound) || errors.Is(err, arc.ErrChatAlreadyClosed)
}

// Send sends a message to an agent and returns its complete answer.
func (v *Manager) Send(ctx context.Context, agent string, m *arc.Message, opts *arc.CallOptions) (*arc.Chat, error) {
	t, err := v.begin(ctx, agent)
	if err != nil {
		return nil, err
	}
	defer t.pass()
	if t.chatID != "" {
		chat, err := v.c.SendChatMessage(ctx, agent, &arc.ChatMessageParams{ChatID: t.chatID, Message: m}, opts)
		if !expired(err) {
			if err == nil && chat.Status == arc.ChatClosed {
				t.chatID = ""
			}
			return chat, err
		}
		t.chatID = ""
	}
	chat, err := v.c.StartChat(ctx, agent, &arc.StartChatParams{InitialMessage: m}, opts)
	if err == nil && chat.Status != arc.ChatClosed { // a stateless agent keeps no chat
		t.chatID = chat.ID
	}
	return chat, err
}

// errStreamUsed reports a stream that is ranged over a second time.
var errStreamUsed = errors.New("arc: conversation: a stream can be ranged over once only")

// Stream sends a message to an agent and streams its answer; see [arc.Client.Stream]
// for the guarantees of a stream. The turn ends with the loop.
func (v *Manager) Stream(ctx context.Context, agent string, m *arc.Message, opts *arc.CallOptions) iter.Seq2[*arc.ChatEvent, error] {
	return guard.Once(func(yield func(*arc.ChatEvent, error) bool) {
		t, err := v.begin(ctx, agent)
		if err != nil {
			yield(nil, err)
			return
		}
		defer t.pass()
		if t.chatID != "" {
			p := &arc.ChatMessageParams{ChatID: t.chatID, Message: m}
			if !t.follow(v.c.StreamChatMessage(ctx, agent, p, opts), true, yield) {
				return
			}
			t.chatID = ""
		}
		t.follow(v.c.StreamChat(ctx, agent, &arc.StartChatParams{InitialMessage: m}, opts), false, yield)
	}, errStreamUsed)
}

// follow hands on the events of a turn and keeps the id of the chat. It returns
// true if the chat turned out to have expired, and then has handed on nothing.
func (t *talk) follow(events iter.Seq2[*arc.ChatEvent, error], isOpen bool, yield func(*arc.ChatEvent, error) bool) (retry bool) {
	first := true
	for ev, err := range events {
		if err != nil {
			if isOpen && first && expired(err) {
				return true
			}
			yield(nil, err)
			return false
		}
		first = false
		if t.chatID == "" {
			t.chatID = ev.ChatID // a stream that has begun leaves a chat (ARC-D34)
		}
		if ev.Done && ev.Status == arc.ChatClosed {
			t.chatID = ""
		}
		if !yield(ev, nil) {
			return false
		}
	}
	return false
}

// ChatID returns the id of the chat with an agent, or "" without one. It waits for
// the current turn.
func (v *Manager) ChatID(ctx context.Context, agent string) (string, error) {
	t, err := v.begin(ctx, agent)
	if err != nil {
		return "", err
	}
	defer t.pass()
	return t.chatID, nil
}

// End ends the chat with an agent, if there is one. The next message begins
// another.
func (v *Manager) End(ctx context.Context, agent, reason string) error {
	t, err := v.begin(ctx, agent)
	if err != nil {
		return err
	}
	defer t.pass()
	return v.end(ctx, agent, t, reason)
}

// end ends a chat whose turn the caller holds.
func (v *Manager) end(ctx context.Context, agent string, t *talk, reason string) error {
	if t.chatID == "" {
		return nil
	}
	_, err := v.c.EndChat(ctx, agent, &arc.EndChatParams{ChatID: t.chatID, Reason: reason}, nil)
	if err != nil && !expired(err) {
		return fmt.Errorf("arc: end the chat with %q: %w", agent, err)
	}
	t.chatID = ""
	return nil
}

// Close ends all chats, each after its current turn, until ctx ends, and returns
// the errors. Further messages are refused with [arc.ErrClosed]. A second Close ends
// the chats that the first one could not end.
func (v *Manager) Close(ctx context.Context) error {
	v.mu.Lock()
	v.closed = true
	talks := make(map[string]*talk, len(v.talks))
	for agent, t := range v.talks {
		talks[agent] = t
	}
	v.mu.Unlock()
	var all struct {
		sync.Mutex
		errs []error
	}
	var g sync.WaitGroup
	requests := make(chan struct{}, 8)
	for agent, t := range talks {
		g.Go(func() {
			guard.Run("end of a chat", func() error {
				if err := t.take(ctx); err != nil {
					return err
				}
				defer t.pass()
				requests <- struct{}{}
				defer func() { <-requests }()
				return v.end(ctx, agent, t, v.opts.EndReason)
			}, func(err error) { // also if an interceptor ends the goroutine
				if err != nil {
					all.Lock()
					defer all.Unlock()
					all.errs = append(all.errs, err)
				}
			})
		})
	}
	g.Wait()
	return errors.Join(all.errs...)
}
