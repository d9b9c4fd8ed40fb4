// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// lapses is a store whose outbox fails for a while: the first times that it is
// read and emptied.
type lapses struct {
	store.Store
	reads, acks atomic.Int32 // how often still
	queue       atomic.Value // the queue that was read last
}

var errLapse = errors.New("the store is away")

func (l *lapses) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if strings.HasPrefix(stream, "arc/outbox/items/") {
		l.queue.Store(stream)
		if l.reads.Add(-1) >= 0 {
			return nil, errLapse
		}
	}
	return l.Store.Read(ctx, stream, after, limit)
}

func (l *lapses) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if strings.HasPrefix(stream, "arc/outbox/items/") && l.acks.Add(-1) >= 0 {
		return errLapse
	}
	return l.Store.Ack(ctx, stream, seqs...)
}

// Pending notifications are sent when the store is available again, and leave the queue, without an
// external trigger.
func TestOutboxOutlivesTheStore(t *testing.T) {
	for name, acks := range map[string]bool{"while reading": false, "while emptying": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &lapses{Store: store.NewMemory()}
				h := &hooks{once: true}
				s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: h.options()})
				s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
				id := createTask(t, s, "a-01", "x")
				subscribe(t, s, "a-01", id, "https://one.test/", `["TASK_CANCELED","STATUS_CHANGE"]`)
				if acks {
					db.acks.Store(3)
				} else {
					db.reads.Store(3)
				}
				require.Nil(t, cancelTask(s, "a-01", id).Error)
				time.Sleep(time.Minute)
				synctest.Wait()
				got := h.take()
				require.Equal(t, []string{"one.test TASK_CANCELED CANCELED", "one.test STATUS_CHANGE CANCELED"}, got[len(got)-2:])
				waiting, err := db.Store.Read(t.Context(), db.queue.Load().(string), 0, 10)
				require.NoError(t, err)
				require.Empty(t, waiting)
			})
		})
	}
}

// A server whose store is away does not wait for it when it is shut down.
func TestShutdownWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &lapses{Store: store.NewMemory()}
		db.reads.Store(1 << 30)
		s := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: (&hooks{}).options()})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		id := createTask(t, s, "a-01", "x")
		subscribe(t, s, "a-01", id, "https://one.test/", `["TASK_CANCELED"]`)
		require.Nil(t, cancelTask(s, "a-01", id).Error)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
	})
}

// Two callers, or one twice, begin a chat of the same id in a group at the same
// time: one of them has it, the other is refused (ARC-D34), whichever instances they
// met.
func TestSameChatInGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		var started sync.WaitGroup
		started.Add(2)
		for _, id := range []string{"a-01", "a-02"} {
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g",
				ChatHandler: arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
					if turn.First {
						started.Done()
						started.Wait() // both are at it
					}
					return arc.AgentText(id), nil
				})})
		}
		answers := make(chan *arc.Response, 2)
		for range 2 {
			go func() {
				answers <- answer(t, post(s, call("chat.start", "g", `{"chatId":"c","initialMessage":`+hello("x")+`}`)))
			}()
		}
		first, second := <-answers, <-answers
		if first.Error != nil {
			first, second = second, first
		}
		require.Nil(t, first.Error)
		require.NotNil(t, second.Error)
		require.Equal(t, arc.ErrInvalidParams, second.Error.Code)
		next := answer(t, post(s, call("chat.message", "g", `{"chatId":"c","message":`+hello("y")+`}`)))
		require.Equal(t, first.ResponseAgent, next.ResponseAgent)
	})
}
