// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
)

// chatProcesses returns servers on the given views of a store, with one agent.
func chatProcesses(t *testing.T, chat arc.ChatHandler, dbs ...store.Store) []*arc.Server {
	var list []*arc.Server
	for _, db := range dbs {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 10 * time.Second}})
		s.HandleChats("a-01", chat)
		list = append(list, s)
	}
	return list
}

// Twenty messages at once through two processes: each is answered, and the history has exactly these,
// each question followed by its answer.
func TestChatTurnsOfTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		servers := chatProcesses(t, arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			history, err := turn.History(ctx)
			if err != nil {
				return nil, err
			}
			time.Sleep(50 * time.Millisecond)
			var texts []string
			for _, m := range history {
				texts = append(texts, m.Text())
			}
			if turn.Message.Text() == "all" {
				return arc.AgentText(strings.Join(texts, " ")), nil
			}
			return arc.AgentText(turn.Message.Text() + "!"), nil
		}), db, db)
		require.Nil(t, startChat(servers[0], "a-01", "c", "start").Error)
		require.ErrorIs(t, startChat(servers[1], "a-01", "c", "again").Error, arc.ErrInvalidParams)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				require.Equal(t, fmt.Sprintf("m%d!", i), chatOf(t, say(servers[i%2], "a-01", "c", fmt.Sprint("m", i))).Message.Text())
			})
		}
		wg.Wait()
		texts := strings.Fields(chatOf(t, say(servers[1], "a-01", "c", "all")).Message.Text())
		require.Len(t, texts, 42)
		seen := map[string]bool{}
		for i := 0; i < len(texts); i += 2 {
			require.Equal(t, texts[i]+"!", texts[i+1])
			seen[texts[i]] = true
		}
		require.Len(t, seen, 21)
	})
}

// A chat.start in two processes at once has one winner.
func TestChatStartInTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		servers := chatProcesses(t, counting(time.Second), db, db)
		var failed sync.Map
		var wg sync.WaitGroup
		for i, s := range servers {
			wg.Go(func() {
				if res := startChat(s, "a-01", "c", "x"); res.Error != nil {
					failed.Store(i, res.Error.Code)
				}
			})
		}
		wg.Wait()
		n := 0
		failed.Range(func(_, code any) bool {
			n++
			require.Equal(t, arc.ErrInvalidParams, code)
			return true
		})
		require.Equal(t, 1, n)
	})
}

// chat.end cuts the turn in another process.
func TestChatEndCutsTurnInOtherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		servers := chatProcesses(t, arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			if turn.First {
				return arc.AgentText("yes"), nil
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}), db, db)
		require.Nil(t, startChat(servers[0], "a-01", "c", "x").Error)
		var wg sync.WaitGroup
		for _, s := range servers {
			wg.Go(func() { require.ErrorIs(t, say(s, "a-01", "c", "x").Error, arc.ErrChatAlreadyClosed) })
			time.Sleep(time.Second)
		}
		start := time.Now()
		require.Nil(t, endChat(servers[1], "a-01", "c").Error)
		wg.Wait()
		require.Less(t, time.Since(start), 3*time.Second)
	})
}

// The turn of a process that failed ends with its lease.
func TestChatTurnOfFailedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first := &crashStore{Store: db}
		servers := chatProcesses(t, arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			if turn.Message.Text() == "hang" {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return arc.AgentText("yes"), nil
		}), first, db)
		require.Nil(t, startChat(servers[0], "a-01", "c", "x").Error)
		go say(servers[0], "a-01", "c", "hang")
		synctest.Wait()
		first.crash()
		start := time.Now()
		require.Equal(t, "yes", chatOf(t, say(servers[1], "a-01", "c", "y")).Message.Text())
		require.LessOrEqual(t, time.Since(start), 12*time.Second)
	})
}

// A process frees its turn after a failure of the store, since no other process takes it from a living one.
func TestChatTurnIsFreedAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first := &hidesTurns{Store: db}
		servers := chatProcesses(t, arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			first.reads.Store(3)
			return arc.AgentText("yes"), nil
		}), first, db)
		require.Nil(t, startChat(servers[0], "a-01", "c", "x").Error)
		require.Equal(t, "yes", chatOf(t, say(servers[1], "a-01", "c", "y")).Message.Text())
	})
}

// A jump of the clock of the store ends a turn that a living process has. The process adds nothing to the chat of the
// next turn, and its caller gets an error.
func TestChatTurnLostToClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		servers := chatProcesses(t, arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			if turn.Message.Text() == "slow" {
				time.Sleep(time.Minute)
			}
			if turn.Message.Text() == "all" {
				history, err := turn.History(ctx)
				require.NoError(t, err)
				var texts []string
				for _, m := range history {
					texts = append(texts, m.Text())
				}
				return arc.AgentText(strings.Join(texts, " ")), nil
			}
			return arc.AgentText(turn.Message.Text() + "!"), nil
		}), db, db)
		require.Nil(t, startChat(servers[0], "a-01", "c", "start").Error)
		var wg sync.WaitGroup
		wg.Go(func() {
			res := say(servers[0], "a-01", "c", "slow")
			require.NotNil(t, res.Error)
			require.ErrorIs(t, res.Error, arc.ErrAgentNotAvailable)
		})
		synctest.Wait()
		for e, err := range db.List(t.Context(), "arc/turn/") {
			require.NoError(t, err)
			require.NoError(t, db.Delete(t.Context(), e.Key, e.Revision))
		}
		require.Equal(t, "quick!", chatOf(t, say(servers[1], "a-01", "c", "quick")).Message.Text())
		wg.Wait()
		require.Equal(t, "start start! quick quick!", chatOf(t, say(servers[1], "a-01", "c", "all")).Message.Text())
	})
}

// A turn that cannot be freed does not delay the end of the process.
func TestChatTurnIsLeftInShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &hidesTurns{Store: store.NewMemory()}
		servers := chatProcesses(t, arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			first.reads.Store(1000)
			return arc.AgentText("yes"), nil
		}), first)
		done := make(chan struct{})
		go func() {
			defer close(done)
			startChat(servers[0], "a-01", "c", "x")
		}()
		time.Sleep(10 * time.Second)
		require.NoError(t, servers[0].Close())
		start := time.Now()
		<-done
		require.LessOrEqual(t, time.Since(start), time.Second)
	})
}

// hidesTurns is a store that fails the next reads of turns.
type hidesTurns struct {
	store.Store
	reads atomic.Int32 // how often still
}

func (h *hidesTurns) Get(ctx context.Context, key string) (store.Entry, error) {
	if strings.HasPrefix(key, "arc/turn/") && h.reads.Add(-1) >= 0 {
		return store.Entry{}, errLapse
	}
	return h.Store.Get(ctx, key)
}
