// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/life"
)

// The machine of chats is that of the reference. A dash stands for a refusal.
func TestNextChatFollowsTable(t *testing.T) {
	for state, row := range map[string]map[ChatAction]string{
		"":       {StartChat: "ACTIVE"},
		"ACTIVE": {MessageChat: "ACTIVE", PauseChat: "PAUSED", ResumeChat: "ACTIVE", EndChat: "CLOSED"},
		"PAUSED": {MessageChat: "ACTIVE", PauseChat: "PAUSED", ResumeChat: "ACTIVE", EndChat: "CLOSED"},
		"CLOSED": {},
	} {
		for _, a := range []ChatAction{StartChat, MessageChat, PauseChat, ResumeChat, EndChat} {
			next, ok := NextChat(state, a)
			want, isAllowed := row[a]
			require.Equal(t, isAllowed, ok, "%s in %s", a, state)
			if ok {
				require.Equal(t, want, next, "%s in %s", a, state)
			} else {
				require.Equal(t, state, next)
			}
		}
	}
}

// A chat is renewed during its turn, also if the clock was ahead when it was written.
func TestChatIsRenewedAfterClockWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := life.New(life.Options{Logger: slog.New(slog.DiscardHandler), Closed: errTest})
		e, err := New(Options{Logger: slog.New(slog.DiscardHandler), Life: l, ChatIdle: time.Minute, Closed: errTest})
		require.NoError(t, err)
		defer e.Release(t.Context())
		r := chatRecord{c: e.Chats, key: "k", id: "c"}
		require.NoError(t, r.change(&chatState{ID: "c", Status: active}, func(*chatState) {}))
		r.saved += Moment(time.Hour)
		time.Sleep(30 * time.Second)
		r.renew()
		time.Sleep(45 * time.Second)
		st, err := r.load(t.Context())
		require.NoError(t, err)
		require.NotNil(t, st)
	})
}

var errTest = errors.New("test")

// A turnModel has the holder of the turn of a chat, and the waiting messages.
type turnModel struct {
	holder  int // zero for none
	isStart bool
	isPause bool
	isEnd   bool
	queue   []int
}

const turnLimit = 2

// apply makes an event on a turn and the model, and compares what both say. Message m is the next new one.
func (o *turnModel) apply(t *testing.T, turn *turn[int], event, m int) {
	switch event {
	case 0: // chat.start
		want := o.holder == 0 && !o.isEnd
		require.Equal(t, want, turn.Open())
		if want {
			o.holder, o.isStart = m, true
		}
	case 1: // a message
		want := o.holder == 0 && !o.isEnd
		require.Equal(t, want, turn.Enter())
		if want {
			o.holder = m
			break
		}
		want = len(o.queue) < turnLimit
		require.Equal(t, want, turn.Wait(m, turnLimit))
		if want {
			o.queue = append(o.queue, m)
		}
	case 2: // the handler pauses the chat
		turn.Pause()
		o.isPause = o.isPause || o.holder != 0 && !o.isEnd
	case 3: // the turn ends
		if o.holder == 0 {
			break
		}
		*o = turnModel{isEnd: o.isEnd, queue: o.queue}
		next, ok := turn.Leave()
		require.Equal(t, len(o.queue) > 0 && !o.isEnd, ok)
		if ok {
			require.Equal(t, o.queue[0], next)
			o.holder, o.queue = next, slices.Clone(o.queue[1:])
		}
	case 4: // chat.end
		turn.End()
		o.isEnd = true
	case 5: // the oldest waiting message leaves
		if len(o.queue) == 0 {
			require.False(t, turn.Remove(m))
			break
		}
		require.True(t, turn.Remove(o.queue[0]))
		o.queue = slices.Clone(o.queue[1:])
	}
	require.Equal(t, o.holder != 0, turn.IsTaken())
	require.Equal(t, o.isEnd, turn.IsEnded())
	require.Equal(t, o.isPause && !o.isEnd, turn.Phase == Pausing)
	require.True(t, !o.isStart || o.isEnd || turn.MayBeNew())
	require.True(t, slices.Equal(o.queue, turn.waiting))
}

// Every sequence of seven events gives the turn to one message at a time, in order, and to none after the end.
func TestTurnFollowsModel(t *testing.T) {
	var walk func(turn turn[int], o turnModel, depth int)
	walk = func(turn turn[int], o turnModel, depth int) {
		for event := range 6 {
			next, model := turn, o
			next.waiting, model.queue = slices.Clone(turn.waiting), slices.Clone(o.queue)
			model.apply(t, &next, event, depth)
			if depth < 6 {
				walk(next, model, depth+1)
			}
		}
	}
	walk(turn[int]{}, turnModel{}, 1)
}
