// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// An agent with chats and no tasks answers each message once, in the chat of its contextId.
func TestChats(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, nil, ask)
		require.True(t, f.engine.Unregister("worker-01"))
		var runs atomic.Int64
		f.engine.HandleChats("worker-01", arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			runs.Add(1)
			if turn.Message.Text() == "fail" {
				return nil, arc.Errorf(arc.ErrInvalidParams, "no such word")
			}
			history, err := turn.History(ctx)
			return arc.AgentText(fmt.Sprintf("%d %s", len(history), turn.Message.Text())), err
		}))
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		send := func(ctx context.Context, m *a2a.Message) (*a2a.Message, error) {
			res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m})
			if err != nil {
				return nil, err
			}
			return res.(*a2a.Message), nil
		}
		first, err := send(ctx, message("one"))
		require.NoError(t, err)
		require.Equal(t, "0 one", textOf(first))
		require.Equal(t, a2a.MessageRoleAgent, first.Role)
		require.NotEmpty(t, first.ContextID)
		require.Empty(t, first.TaskID)

		second := message("two")
		second.ContextID = first.ContextID
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 12 {
					answer, err := send(ctx, second)
					if err != nil || textOf(answer) != "2 two" {
						t.Errorf("%v %v", answer, err)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 2, runs.Load())
		other := *second
		other.Parts = message("other").Parts
		_, err = send(ctx, &other)
		require.ErrorIs(t, err, a2a.ErrInvalidParams, "one id, two messages")

		named := message("three")
		named.ContextID = "room-1"
		for range 2 {
			answer, err := send(ctx, named)
			require.NoError(t, err)
			require.Equal(t, "0 three", textOf(answer))
			require.Equal(t, "room-1", answer.ContextID)
		}
		other = *named
		other.Parts = message("other").Parts
		_, err = send(ctx, &other)
		require.ErrorIs(t, err, a2a.ErrInvalidParams)
		foreign := message("four")
		foreign.ContextID = "room-1"
		answer, err := send(as(t.Context(), "bob"), foreign)
		require.NoError(t, err)
		require.Equal(t, "0 four", textOf(answer), "the chat of another caller is another one")

		_, err = send(ctx, message("fail"))
		require.ErrorIs(t, err, a2a.ErrInvalidParams)
		streamed := message("five")
		streamed.ContextID = "room-1"
		for event, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: streamed}) {
			require.NoError(t, err)
			require.Equal(t, "2 five", textOf(event.(*a2a.Message)))
		}
		require.EqualValues(t, 6, runs.Load())

		require.True(t, f.engine.Unregister("worker-01"))
		f.engine.Handle("worker-01", "custom.method", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return nil, nil }))
		_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("six")})
		require.ErrorIs(t, err, a2a.ErrUnsupportedOperation)
	})
}
