// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/store"
)

// Of two inputs at once one is refused. It does not take the place from the run that continues with the other one, or
// with none.
func TestRefusedInputLeavesPlaceOfRun(t *testing.T) {
	for name, resume := range map[string]func(t *testing.T, e *Engine, q *Request, id string){
		"input": func(t *testing.T, e *Engine, q *Request, id string) {
			require.NoError(t, e.Tasks.Send(t.Context(), q, id, []byte(`{}`)))
		},
		"timeout": func(*testing.T, *Engine, *Request, string) { time.Sleep(2 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := life.New(life.Options{})
				e, err := New(Options{Life: l, Logger: slog.New(slog.DiscardHandler), Places: Limits{1, 1, 10, 10}, MaxItems: 100,
					Closed: life.ErrClosed, Canceled: errors.New("canceled"),
					Estimate: func(*Run) (time.Duration, error) { return 0, nil },
					Serve: func(r *Run) error {
						ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
						defer cancel()
						_, _ = r.WaitInput(ctx, "more")
						<-r.Context().Done()
						return nil
					}})
				require.NoError(t, err)
				q := &Request{Agent: "a", Target: "a", Place: new(Place)}
				_, err = e.Tasks.Create(t.Context(), q, make([]byte, Room), nil, "", nil)
				require.NoError(t, err)
				synctest.Wait()
				var id string
				for id = range e.Tasks.live {
				}
				s := e.Tasks.live[id].peek()
				place, err := e.Tasks.reservePlace(q, s.rec, s.run)
				require.NoError(t, err)
				resume(t, e, q, id)
				synctest.Wait()
				place.undo()
				require.Equal(t, 1, e.Tasks.places.queue.running)
				_, err = e.Tasks.Cancel(t.Context(), q, id, "")
				require.NoError(t, err)
				synctest.Wait()
				require.Zero(t, e.Tasks.places.queue.running)
				require.NoError(t, l.Close())
				e.Release(t.Context())
			})
		})
	}
}

// A subscription that another process has counted ends in this process: that gives nothing back.
func TestSubscriptionOfOtherProcess(t *testing.T) {
	l := life.New(life.Options{})
	e, err := New(Options{Life: l, Logger: slog.New(slog.DiscardHandler), Store: store.NewMemory()})
	require.NoError(t, err)
	used := func() (list []int64) {
		for _, u := range e.Usage() {
			if u.Scope == "all" && (u.Resource == "items" || u.Resource == "storage") {
				list = append(list, u.Used)
			}
		}
		return list
	}
	q := &Request{Account: "alice"}
	require.NoError(t, e.ledger.add(taskObject, "t", q, 0))
	before := used()
	require.NoError(t, e.ledger.attach("t", -5000, -1))
	require.Equal(t, before, used())
	require.NoError(t, e.ledger.attach("t", 1000, 1))
	require.NoError(t, e.ledger.attach("t", -5000, -1))
	require.NoError(t, e.ledger.attach("t", -1000, -1))
	require.Equal(t, before, used())
	require.NoError(t, l.Close())
	e.Release(t.Context())
}
