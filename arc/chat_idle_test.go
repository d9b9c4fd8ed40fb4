// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// counting answers how many messages the chat has so far, after a while.
func counting(took time.Duration) arc.ChatHandler {
	return arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
		if err := out.Send("so far "); err != nil {
			return err
		}
		time.Sleep(took)
		list, err := turn.History(ctx)
		if err != nil {
			return err
		}
		return out.Send(fmt.Sprint(len(list)))
	})
}

// keys counts what of chats is in the store.
func keys(t *testing.T, db store.Store) (n int) {
	t.Helper()
	for _, err := range db.List(t.Context(), "arc/chat/") {
		require.NoError(t, err)
		n++
	}
	return n
}

// An idle chat is removed with its history, and its id can be used again.
func TestChatIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Timing: arc.Timing{ChatIdleTimeout: time.Hour}})
		s.HandleChats("a-01", counting(0))
		require.Equal(t, arc.ChatActive, chatOf(t, startChat(s, "a-01", "c-1", "x")).Status)
		require.Equal(t, 1, keys(t, db))

		// Messages keep the chat and its whole history for many times the idle timeout. The history
		// of a message has the previous answer, and before it the two messages of each earlier
		// turn.
		turns := 40
		if race.Enabled { // which makes an hour of leases slow
			turns = 8
		}
		for turn := range turns {
			time.Sleep(59 * time.Minute)
			require.Equal(t, fmt.Sprintf("so far %d", 2*turn+2), chatOf(t, say(s, "a-01", "c-1", "y")).Message.Text())
		}

		time.Sleep(time.Hour + time.Second)
		require.Equal(t, arc.ErrChatNotFound, say(s, "a-01", "c-1", "z").Error.Code)
		require.Equal(t, arc.ErrChatNotFound, endChat(s, "a-01", "c-1").Error.Code)
		require.Zero(t, keys(t, db))
		time.Sleep(time.Hour)
		require.Equal(t, "so far 0", chatOf(t, startChat(s, "a-01", "c-1", "x")).Message.Text(), "of the earlier chat nothing is left")
	})
}

// A chat that a process with a wrong clock has written is kept with its whole history.
func TestChatIdleWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db},
			Timing: arc.Timing{ChatIdleTimeout: time.Hour}})
		s.HandleChats("a-01", counting(30*time.Minute))
		startChat(s, "a-01", "c-1", "x")
		for e, err := range db.List(t.Context(), "arc/chat/") {
			require.NoError(t, err)
			_, err = store.Modify(t.Context(), db, e.Key, time.Hour, func(old store.Entry, _ bool) ([]byte, error) {
				var chat map[string]any
				if err := json.Unmarshal(old.Value, &chat); err != nil {
					return nil, err
				}
				for _, name := range []string{"updated", "renewed"} {
					chat[name] = time.Now().Add(48 * time.Hour).UnixNano()
				}
				return json.Marshal(chat)
			})
			require.NoError(t, err)
		}
		for turn := range 3 {
			time.Sleep(50 * time.Minute)
			require.Equal(t, fmt.Sprintf("so far %d", 2*turn+2), chatOf(t, say(s, "a-01", "c-1", "y")).Message.Text())
		}
	})
}

// An answer may take longer than the time of silence, which begins after it.
func TestChatIdleLongTurn(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{ChatIdleTimeout: time.Hour}})
				s.HandleChats("a-01", counting(5*time.Hour))
				params := `{"chatId":"c-1","stream":%v,"initialMessage":` + hello("x") + `}`
				require.Equal(t, 200, post(s, call("chat.start", "a-01", fmt.Sprintf(params, stream))).Code)
				for turn := range 3 {
					time.Sleep(59 * time.Minute)
					require.Equal(t, fmt.Sprintf("so far %d", 2*turn+2), chatOf(t, say(s, "a-01", "c-1", "y")).Message.Text())
				}
				time.Sleep(61 * time.Minute)
				require.Equal(t, arc.ErrChatNotFound, say(s, "a-01", "c-1", "z").Error.Code)
			})
		})
	}
}

// A turn that fails was talk, too.
func TestChatIdleFailedTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{ChatIdleTimeout: time.Hour}})
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			if !turn.First {
				return arc.ErrPermissionDenied
			}
			return out.Send("hello")
		}))
		startChat(s, "a-01", "c-1", "x")
		for range 5 {
			time.Sleep(50 * time.Minute)
			require.Equal(t, arc.ErrPermissionDenied, say(s, "a-01", "c-1", "y").Error.Code)
		}
	})
}

func TestChatIdleDefaults(t *testing.T) {
	tests := []struct {
		name    string
		idle    time.Duration
		after   time.Duration
		expired bool
	}{
		{name: "within the default", after: arc.DefaultChatIdle - time.Second},
		{name: "after the default", after: arc.DefaultChatIdle + time.Second, expired: true},
		{name: "never", idle: -1, after: 10_000 * time.Hour},
		{name: "longer than any chat", idle: math.MaxInt64, after: 10_000 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{ChatIdleTimeout: tt.idle}})
				s.HandleChats("a-01", counting(0))
				startChat(s, "a-01", "c-1", "x")
				time.Sleep(tt.after)
				res := say(s, "a-01", "c-1", "y")
				if tt.expired {
					require.Equal(t, arc.ErrChatNotFound, res.Error.Code)
					return
				}
				require.Equal(t, "so far 2", chatOf(t, res).Message.Text())
			})
		})
	}
}
