// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

func TestOwnReceivesTheItemsOfOtherInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ra, rb := store.NewMemory(), always(outbox.Done()), always(outbox.Done())
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", ra.send)
		b.Send("o", rb.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		for i := range 10 {
			b.put("o/1", fmt.Sprint(i))
			time.Sleep(time.Duration(i) * 10 * time.Second)
		}
		require.Equal(t, numbers(10), ra.ids())
		require.Empty(t, rb.ids())
		require.Zero(t, keys(t, db, "work/"), "index entries of an owned stream")
	})
}

func TestOwnTakesOverAfterTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, rb := store.NewMemory(), always(outbox.Done())
		ra := newReceiver(func(ctx context.Context, i outbox.Item) outbox.Verdict {
			pause(ctx, time.Minute)
			return outbox.Done()
		})
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", ra.send)
		b.Send("o", rb.send)
		a.put("o/1", "a", "b")
		time.Sleep(30 * time.Second)
		require.NoError(t, b.Own(t.Context(), "o/1"))
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, ra.ids())
		require.Equal(t, []string{"b"}, rb.ids())
		require.InDelta(t, 30, time.Since(rb.start).Seconds()-30, 2, "seconds that Own waited")
		a.put("o/1", "c")
		time.Sleep(time.Second)
		require.Equal(t, []string{"b", "c"}, rb.ids())
	})
}

func TestOwnTakesOverAWaitingHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ra, rb := store.NewMemory(), always(outbox.Retry(time.Hour, errDown)), always(outbox.Done())
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", ra.send)
		b.Send("o", rb.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		a.put("o/1", "a")
		time.Sleep(time.Second)
		require.NoError(t, b.Own(t.Context(), "o/1"))
		require.Less(t, time.Since(ra.start), 2*time.Second, "time until Own returned")
		time.Sleep(time.Hour)
		require.Equal(t, []string{"a"}, rb.ids(), "attempts of the new owner")
		require.Equal(t, 2, rb.item(0).Attempt)
		require.Len(t, ra.ids(), 1, "attempts of the earlier owner")
	})
}

func TestOwnEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, time.Hour)
			return outbox.Done()
		}).send)
		a.put("o/1", "a")
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, b.Own(ctx, "o/1"), context.DeadlineExceeded)
	})
}

func TestOwnAfterACrashSendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, rb := store.NewMemory(), always(outbox.Done())
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", always(outbox.Done()).send)
		b.Send("o", rb.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		a.crash()
		b.put("o/1", "a")
		time.Sleep(time.Hour)
		require.Empty(t, rb.ids(), "attempts before the object is adopted")
		require.NoError(t, b.Own(t.Context(), "o/1"))
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, rb.ids())
	})
}

func TestOwnedStreamOutlivesItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ra := store.NewMemory(), always(outbox.Done())
		a, b := startNode(t, db, slow), startNode(t, db, slow)
		a.Send("o", ra.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		time.Sleep(100 * day)
		b.put("o/1", "a")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, ra.ids())
	})
}

func TestCloseSendsTheRest(t *testing.T) {
	for _, edit := range []func(*config){shared, private} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			r := newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
				pause(ctx, time.Second)
				return outbox.Done()
			})
			n := startNode(t, db, edit)
			n.Send("o", r.send)
			require.NoError(t, n.Own(t.Context(), "o/1"))
			n.put("o/1", numbers(100)...)
			require.NoError(t, n.Close(t.Context(), "o/1"))
			require.Equal(t, numbers(100), r.ids())
			require.Equal(t, 100*time.Second, time.Since(r.start).Round(time.Second))
			require.NoError(t, n.Close(t.Context(), "o/1"), "second Close")
			time.Sleep(10 * time.Minute)
			require.Zero(t, keys(t, db, "outbox/")+keys(t, db, "work/"), "keys after Close")
			require.NoError(t, n.Own(t.Context(), "o/1"), "Own after Close")
			n.put("o/1", "last")
			time.Sleep(time.Second)
			require.Equal(t, "last", r.ids()[100])
		})
	}
}

func TestSurvivorSendsTheRestAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, rb := store.NewMemory(), always(outbox.Done())
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", always(outbox.Retry(time.Minute, errDown)).send)
		b.Send("o", rb.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		a.put("o/1", "a", "b")
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		require.ErrorIs(t, a.Close(ctx, "o/1"), context.DeadlineExceeded)
		a.crash()
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"a", "b"}, rb.ids())
	})
}

func TestOwnAfterCloseKeepsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errDown))
		a, b := startNode(t, db), startNode(t, db)
		a.Send("o", r.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		a.put("o/1", "a")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.Error(t, a.Close(ctx, "o/1"))
		require.NoError(t, a.Own(t.Context(), "o/1"))
		r.set(outbox.Done())
		time.Sleep(time.Hour)
		b.put("o/1", "b")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a", "a", "b"}, r.ids())
	})
}

func TestStreamClosedByVerdictKeepsItemsAsDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Gone(errors.New("status 410")))
		n := startNode(t, db)
		n.Send("o", r.send)
		require.NoError(t, n.Own(t.Context(), "o/1"))
		n.put("o/1", "a")
		time.Sleep(time.Second)
		require.Len(t, r.ids(), 1)
		require.NoError(t, n.Close(t.Context(), "o/1"), "Close after Gone")
		r = newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, time.Second)
			return outbox.Gone(errors.New("status 410"))
		})
		n.Send("o", r.send)
		n.put("o/1", numbers(100)...)
		time.Sleep(time.Minute)
		require.Len(t, r.ids(), 1, "attempts")
		require.Len(t, n.letters(), 101, "dead letters")
		require.Equal(t, "stream closed: status 410", n.letters()[100].Reason+": "+n.letters()[100].Last)
		require.Zero(t, keys(t, db, "work/"), "index entries")
	})
}

func TestRedeliverPutsTheItemOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Dead("refused", nil))
		n := startNode(t, db)
		n.Send("k", r.send)
		n.put("k/1", "a", "b")
		time.Sleep(time.Second)
		letters := n.letters()
		r.set(outbox.Done())
		ctx := t.Context()
		require.NoError(t, n.Redeliver(ctx, "k/1", letters[0].Seq))
		require.ErrorIs(t, n.Redeliver(ctx, "k/1", letters[0].Seq), store.ErrNotFound)
		require.ErrorIs(t, n.Redeliver(ctx, "k/2", 1), store.ErrNotFound)
		time.Sleep(time.Second)
		require.Equal(t, []string{"a", "b", "a"}, r.ids())
		require.Equal(t, "data of a", string(r.item(2).Data))
		require.Equal(t, 1, r.item(2).Attempt)
		require.Equal(t, []outbox.Letter{letters[1]}, n.letters())
		require.NoError(t, n.Drop(ctx, "k/1", letters[1].Seq))
		require.Empty(t, n.letters())
	})
}

func TestRedeliverRepeatedAfterACrashPutsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Dead("refused", nil))
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{{Action: fault.ErrorBefore, Op: "update", Match: "x/outbox/dead/"}}
		})
		b := startNode(t, db)
		b.Send("k", r.send)
		b.put("k/1", "a")
		time.Sleep(time.Second)
		r.set(outbox.Done())
		letter := b.letters()[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, a.Redeliver(ctx, "k/1", letter.Seq), context.DeadlineExceeded)
		require.NoError(t, b.Redeliver(t.Context(), "k/1", letter.Seq))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "a"}, r.ids())
	})
}

func TestDeadLettersAreKept30Days(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		n := startNode(t, db, slow)
		n.Send("k", always(outbox.Dead("refused", nil)).send)
		n.put("k/1", "a")
		n.put("k/2", "b")
		time.Sleep(30*day - time.Minute)
		require.Len(t, n.letters(), 2, "letters before 30 days")
		time.Sleep(2 * time.Minute)
		require.Empty(t, n.letters(), "letters after 30 days")
		time.Sleep(2 * day)
		require.Zero(t, keys(t, db, "outbox/"), "keys")
	})
}

func TestDeadLettersAreBounded(t *testing.T) {
	for name, edit := range map[string]func(c *config){
		"items": func(c *config) { c.MaxItems = 100 },
		"bytes": func(c *config) { c.MaxBytes = 100 * 400 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := startNode(t, store.NewMemory(), edit)
				n.Send("k", always(outbox.Dead("refused", nil)).send)
				for i, id := range numbers(500) {
					n.put("k/1", id)
					if i%50 == 49 {
						time.Sleep(time.Second)
						require.LessOrEqual(t, len(n.letters()), 200, "dead letters")
					}
				}
				letters := n.letters()
				require.GreaterOrEqual(t, len(letters), 100, "dead letters")
				require.Equal(t, "499", letters[len(letters)-1].ID, "the newest letter")
			})
		})
	}
}

func TestLetterLongerThanTheStoreTakesLosesItsDataOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, &narrow{store.NewMemory()})
		n.Send("k", always(outbox.Dead(strings.Repeat("r", 2000), errDown)).send)
		require.NoError(t, n.Put(t.Context(), "k/1", "a", make([]byte, 9_990)))
		n.put("k/1", "b")
		time.Sleep(time.Second)
		letters := n.letters()
		require.Len(t, letters, 2)
		require.Empty(t, letters[0].Data)
		require.Len(t, letters[0].Reason, 1024)
		require.Equal(t, "data of b", string(letters[1].Data))
	})
}

// narrow is a store that takes values of at most 10,000 bytes.
type narrow struct{ *store.Memory }

func (s *narrow) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if len(value) > 10_050 {
		return 0, store.ErrInvalid
	}
	return s.Memory.Create(ctx, key, value, ttl)
}

func TestPutRefusesOverTheBoundsOfAStream(t *testing.T) {
	item := make([]byte, 1000)
	for name, tt := range map[string]struct {
		edit     func(c *config)
		puts     int
		resource budget.Resource
	}{
		"default items": {shared, 10_000, budget.Items},
		"items":         {func(c *config) { c.MaxItems = 5 }, 5, budget.Items},
		"bytes":         {func(c *config) { c.MaxItems = -1; c.MaxBytes = 11_000 }, 10, budget.Storage},
		"private":       {func(c *config) { c.MaxItems = 5; c.isPrivate = true }, 5, budget.Items},
		"private bytes": {func(c *config) { c.MaxBytes = 11_000; c.isPrivate = true }, 10, budget.Storage},
	} {
		t.Run(name, func(t *testing.T) {
			if race.Enabled && tt.puts > 1000 {
				t.Skip("too slow")
			}
			synctest.Test(t, func(t *testing.T) {
				db, r := store.NewMemory(), always(outbox.Retry(30*time.Second, errDown))
				n := startNode(t, db, tt.edit)
				n.Send("k", r.send)
				for i := range tt.puts {
					require.NoError(t, n.Put(t.Context(), "k/1", fmt.Sprint(i), item), "put %d", i)
				}
				err := n.Put(t.Context(), "k/1", "more", item)
				e, ok := errors.AsType[*budget.Error](err)
				require.True(t, ok, "got %v, want a *budget.Error", err)
				require.Equal(t, tt.resource, e.Resource)
				require.Equal(t, "stream", e.Scope)
				require.GreaterOrEqual(t, 30*time.Second, e.RetryAfter)
				require.Equal(t, tt.puts, waiting(t, db, "k/1"), "items that wait")
				require.NoError(t, n.Put(t.Context(), "k/2", "more", item), "put into another stream")
				r.set(outbox.Done())
				time.Sleep(time.Minute)
				for i := range 5 {
					err := n.Put(t.Context(), "k/1", fmt.Sprint("b", i), item)
					require.NoError(t, err, "put %d after all were sent", i)
				}
			})
		})
	}
}

func TestWaitingCountsItemsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := always(outbox.Retry(time.Minute, errDown))
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		expect := func(want int64) {
			t.Helper()
			items, bytes, err := n.Waiting(t.Context(), "k/1")
			require.NoError(t, err)
			require.Equal(t, want, items)
			require.Equal(t, want > 0, bytes > 1000*want, "got %d bytes", bytes)
		}
		expect(0)
		for range 3 {
			require.NoError(t, n.Put(t.Context(), "k/1", "", make([]byte, 1000)))
		}
		time.Sleep(time.Second)
		expect(3)
		r.set(outbox.Done())
		time.Sleep(time.Hour)
		expect(0)
	})
}

// Waiting does not count an item whose first Put failed behind its append; Has finds it.
func TestHasFindsItemsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errDown))
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{{Action: fault.ErrorBefore, Op: "create", Match: "x/outbox/sender/"}}
		})
		b := startNode(t, db)
		b.Send("k", r.send)
		expect := func(want bool) {
			t.Helper()
			has, err := b.Has(t.Context(), "k/1")
			require.NoError(t, err)
			require.Equal(t, want, has)
		}
		expect(false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, a.Put(ctx, "k/1", "a", nil))
		b.put("k/1", "a")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, r.ids())
		expect(true)
		r.set(outbox.Done())
		time.Sleep(2 * time.Minute)
		expect(false)
	})
}

func TestMaxLettersBoundsDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory(), func(c *config) { c.MaxLetters = 3 })
		n.Send("k", always(outbox.Dead("refused", errDown)).send)
		for range 200 {
			require.NoError(t, n.Put(t.Context(), "k/1", "", []byte("x")))
		}
		time.Sleep(time.Minute)
		letters := 0
		for _, err := range n.Dead(t.Context()) {
			require.NoError(t, err)
			letters++
		}
		require.Less(t, letters, 3+65, "a sender trims every 64 letters")
		require.GreaterOrEqual(t, letters, 3)
	})
}

func TestPutRefusesOverTheDefaultBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory())
		for range 15 {
			require.NoError(t, n.Put(t.Context(), "k/1", "", make([]byte, 4<<20)))
		}
		err := n.Put(t.Context(), "k/1", "", make([]byte, 4<<20))
		e, ok := errors.AsType[*budget.Error](err)
		require.True(t, ok, "got %v, want a *budget.Error", err)
		require.Equal(t, int64(64<<20), e.Limit)
		require.Equal(t, int64(15*4<<20), e.Used/1000*1000/(4<<20)*(4<<20), "used")
	})
}

func TestShutdownWaitsForAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		r := newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, 10*time.Second)
			return outbox.Done()
		})
		n := startNode(t, db)
		n.Send("k", r.send)
		n.put("k/1", "a", "b")
		time.Sleep(time.Second)
		require.NoError(t, n.Shutdown(t.Context()))
		require.Equal(t, 10*time.Second, time.Since(r.start).Round(time.Second))
		require.Equal(t, []string{"a"}, r.ids())
		require.Equal(t, 1, waiting(t, db, "k/1"), "items that wait")
		require.ErrorIs(t, n.Put(t.Context(), "k/1", "c", nil), outbox.ErrClosed)
		require.ErrorIs(t, n.Own(t.Context(), "k/3"), outbox.ErrClosed)
		require.NoError(t, n.Shutdown(t.Context()), "second Shutdown")
	})
}

func TestShutdownCutsAttemptsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory())
		var cause error
		release := make(chan struct{})
		n.Send("k", newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			<-ctx.Done()
			cause = ctx.Err()
			<-release // longer than it may
			return outbox.Retry(0, ctx.Err())
		}).send)
		n.put("k/1", "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.Sleep(time.Second)
		require.ErrorIs(t, n.Shutdown(ctx), context.DeadlineExceeded)
		synctest.Wait()
		require.ErrorIs(t, cause, context.Canceled)
		close(release)
	})
}

func TestCloseReportsShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory())
		n.Send("o", always(outbox.Retry(time.Hour, errDown)).send)
		require.NoError(t, n.Own(t.Context(), "o/1"))
		n.put("o/1", "a")
		time.AfterFunc(time.Minute, func() { _ = n.Shutdown(context.Background()) })
		require.ErrorIs(t, n.Close(t.Context(), "o/1"), outbox.ErrClosed)
	})
}

func TestCloseReportsTheEndOfTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory())
		n.Send("o", always(outbox.Retry(time.Hour, errDown)).send)
		require.NoError(t, n.Own(t.Context(), "o/1"))
		n.put("o/1", "a")
		time.AfterFunc(time.Minute, n.plan.Pause)
		time.AfterFunc(2*time.Minute, n.plan.Resume)
		start := time.Now()
		require.ErrorIs(t, n.Close(t.Context(), "o/1"), lease.ErrLost)
		require.Less(t, time.Since(start), 2*time.Minute, "time until Close returned")
	})
}

func TestVerdictIsKeptWhileTheStoreFails(t *testing.T) {
	for _, v := range []outbox.Verdict{
		outbox.Done(), outbox.Dead("refused", nil), outbox.Gone(nil), outbox.Retry(time.Hour, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			db, r := store.NewMemory(), always(v)
			n := startNode(t, db, func(c *config) {
				c.rules = []fault.Rule{
					{Action: fault.ErrorBefore, Op: "get|ack", Match: "x/outbox/", After: 2, Limit: 9},
				}
			})
			n.Send("k", r.send)
			n.put("k/1", "a")
			time.Sleep(30 * time.Minute)
			require.Positive(t, n.plan.Count(fault.ErrorBefore), "errors of the store")
			require.Equal(t, []string{"a"}, r.ids())
		})
	}
}

func TestPausedOwnerBeginsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var mu sync.Mutex
		var sent []string
		send := func(name string) func(context.Context, outbox.Item) outbox.Verdict {
			return func(ctx context.Context, i outbox.Item) outbox.Verdict {
				mu.Lock()
				sent = append(sent, name+i.ID)
				mu.Unlock()
				if name == "a" {
					<-ctx.Done() // the end of the epoch
				}
				return outbox.Done()
			}
		}
		a, b := startNode(t, db), startNode(t, db)
		a.Send("k", send("a"))
		b.Send("k", send("b"))
		a.put("k/1", "1", "2", "3")
		time.Sleep(time.Second)
		a.plan.Pause()
		time.Sleep(time.Minute)
		a.plan.Resume()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{"a1", "b1", "b2", "b3"}, sent)
	})
}

func TestStreamReturnsAfterAnOutageOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errDown))
		n := startNode(t, db)
		n.Send("k", r.send)
		n.put("k/1", "a")
		time.Sleep(time.Second)
		n.plan.Pause()
		time.Sleep(time.Hour)
		r.set(outbox.Done())
		n.plan.Resume()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "a"}, r.ids())
		require.Equal(t, 2, r.item(1).Attempt)
		n.put("k/2", "b")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a", "a", "b"}, r.ids())
	})
}

func TestStreamWaitsForTheFunctionOfAnEarlierEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newReceiver(func(context.Context, outbox.Item) outbox.Verdict {
			<-release // ignores its context
			return outbox.Done()
		})
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		n.put("k/1", "a")
		time.Sleep(time.Second)
		n.plan.Pause()
		time.Sleep(time.Minute)
		n.plan.Resume()
		time.Sleep(time.Hour)
		require.Len(t, r.ids(), 1, "attempts during one that ignores its context")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, n.Own(ctx, "k/1"), context.DeadlineExceeded)
		close(release)
		time.Sleep(time.Minute)
		require.Len(t, r.ids(), 2, "attempts")
	})
}

func TestLateCreationLeavesNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		late := func(c *config) {
			c.rules = []fault.Rule{
				{Action: fault.LandLater, Op: "create", Match: "x/outbox/", Limit: 1, Delay: 5 * time.Minute},
			}
		}
		a, b := startNode(t, db, late), startNode(t, db)
		a.Send("k", r.send)
		b.Send("k", r.send)
		a.put("k/1", "a")
		time.Sleep(6 * time.Minute)
		a.crash()
		b.put("k/1", "b")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "b"}, r.ids())
	})
}

func TestCreationInDoubtIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{
				{Action: fault.LandLater, Op: "create", Match: "x/outbox/", Delay: time.Minute},
				{Action: fault.Hang, Op: "get", Match: "x/outbox/", After: 1, Limit: 1, Delay: 2 * time.Minute},
			}
		})
		b := startNode(t, db)
		a.Send("k", r.send)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, a.Put(ctx, "k/1", "a", nil))
		time.Sleep(90 * time.Second) // the record exists, and its sender is about to read it
		b.put("k/1", "b")
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"a", "b"}, r.ids())
	})
}

func TestOutageBeyondMaxAgeIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var logs testkit.Log
		withLogs := func(c *config) { c.MaxAge = day; c.Logger = logs.Logger() }
		a := startNode(t, db, withLogs)
		a.Send("k", always(outbox.Retry(time.Hour, errDown)).send)
		a.put("k/1", numbers(7)...)
		a.crash()
		time.Sleep(3 * day)
		require.Zero(t, waiting(t, db, "k/1"), "items that wait")
		startNode(t, db, withLogs).Send("k", always(outbox.Done()).send)
		time.Sleep(time.Minute)
		n := strings.Count(logs.String(), `msg="outbox: items lost" stream=k/1 lost=7 puts=7`)
		require.Equal(t, 1, n, "log records of lost items in %s", logs.String())
	})
}

func TestCrashReportsNoLostItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var logs testkit.Log
		withLogs := func(c *config) { c.Logger = logs.Logger() }
		r := newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, 100*time.Millisecond)
			return outbox.Done()
		})
		n := startNode(t, db, withLogs)
		n.Send("k", r.send)
		n.put("k/1", numbers(500)...)
		for range 3 { // each leaves sends that the record does not count
			time.Sleep(5 * time.Second)
			n.crash()
			n = startNode(t, db, withLogs)
			n.Send("k", r.send)
			time.Sleep(30 * time.Second)
		}
		n.put("k/1", "last")
		time.Sleep(time.Minute)
		require.Zero(t, waiting(t, db, "k/1"), "items that wait")
		require.Zero(t, strings.Count(logs.String(), "items lost"), logs.String())
	})
}

// A counter counts the calls of a store.
type counter struct {
	*store.Memory
	mu    sync.Mutex
	calls map[string]int
}

func (c *counter) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[string]int{}
	}
	c.calls[name]++
}

// reset returns the calls since the last reset.
func (c *counter) reset() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

func (c *counter) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	c.count("create")
	return c.Memory.Create(ctx, key, value, ttl)
}

func (c *counter) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	c.count("update")
	return c.Memory.Update(ctx, key, value, rev, ttl)
}

func (c *counter) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	c.count("append")
	return c.Memory.Append(ctx, stream, id, value, ttl)
}

func (c *counter) Get(ctx context.Context, key string) (store.Entry, error) {
	c.count("get")
	return c.Memory.Get(ctx, key)
}

func (c *counter) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	c.count("read")
	return c.Memory.Read(ctx, stream, after, limit)
}

func TestIdleStreamsCostNoCallsAndNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &counter{Memory: store.NewMemory()}
		n := startNode(t, db, private, slow)
		n.Send("o", always(outbox.Done()).send)
		n.Send("k", always(outbox.Later(day, errDown)).send)
		time.Sleep(time.Second)
		goroutines := runtime.NumGoroutine()
		streams := 5_000
		if race.Enabled {
			streams = 500
		}
		for i := range streams {
			require.NoError(t, n.Own(t.Context(), fmt.Sprintf("o/%d", i)))
			n.put(fmt.Sprintf("k/%d", i), "a")
		}
		n.put("o/1", "a")
		time.Sleep(time.Minute)
		require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+1, "goroutines with idle streams")
		db.reset()
		time.Sleep(22 * time.Hour)
		require.Empty(t, db.reset(), "calls of the store by idle streams")
	})
}

func TestSurvivorsAdoptEachStreamOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errDown))
		nodes := []*node{startNode(t, db), startNode(t, db), startNode(t, db)}
		for _, n := range nodes {
			n.Send("k", r.send)
		}
		for i := range 20 {
			nodes[0].put(fmt.Sprintf("k/%d", i), "a")
		}
		time.Sleep(time.Second)
		nodes[0].crash()
		time.Sleep(30 * time.Second) // the survivors adopt
		owners := map[lease.Owner]bool{nodes[1].lease.Owner(): true, nodes[2].lease.Owner(): true}
		for e, err := range db.List(t.Context(), "x/work/") {
			require.NoError(t, err)
			require.True(t, owners[lease.Owner(strings.Split(e.Key, "/")[2])], "entry %s", e.Key)
		}
		require.Equal(t, 20, keys(t, db, "work/"), "index entries")
		r.set(outbox.Done())
		time.Sleep(time.Minute)
		require.Len(t, r.ids(), 40, "attempts")
	})
}

func TestPutDuringTheEndOfASenderIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		b := startNode(t, db)
		b.Send("k", r.send)
		var isCalled atomic.Bool
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{{Action: fault.Conflict, Op: "update", Match: "x/outbox/sender/", After: 1, Limit: 1,
				Rival: func(ctx context.Context, _ store.Store, _ string) error {
					isCalled.Store(true) // right before the end of the record
					return b.Put(ctx, "k/1", "b", nil)
				}}}
		})
		a.Send("k", r.send)
		a.put("k/1", "a")
		time.Sleep(9 * time.Second)
		require.False(t, isCalled.Load(), "put before the end")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "b"}, r.ids())
	})
}

func TestPutOfASentItemChangesNoCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		var logs testkit.Log
		b := startNode(t, db, func(c *config) { c.Logger = logs.Logger() })
		b.Send("k", r.send)
		require.NoError(t, b.Own(t.Context(), "k/1"))
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{{Action: fault.Conflict, Op: "update", Match: "x/outbox/sender/", Limit: 1,
				Rival: func(ctx context.Context, _ store.Store, _ string) error {
					err := b.Put(ctx, "k/1", "b", nil) // after the append of a
					time.Sleep(time.Second)
					return err
				}}}
		})
		a.put("k/1", "a")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "b"}, r.ids())
		require.NotContains(t, logs.String(), "items lost")
		e, err := db.Get(t.Context(), senderKey("k/1"))
		require.NoError(t, err)
		require.Contains(t, string(e.Value), `"Puts":2,"Sent":2,"Bytes":0`)
	})
}

func TestSurvivorKeepsTheItemsOfAClosedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Gone(errors.New("status 410")))
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{{Action: fault.Delay, Op: "create", Match: "x/outbox/dead/"}}
		})
		b := startNode(t, db)
		a.Send("o", r.send)
		b.Send("o", r.send)
		require.NoError(t, a.Own(t.Context(), "o/1"))
		a.put("o/1", numbers(100)...)
		time.Sleep(10 * time.Second)
		a.crash()
		time.Sleep(time.Minute)
		require.Len(t, r.ids(), 1, "attempts")
		require.Len(t, b.letters(), 100, "dead letters")
		require.Zero(t, waiting(t, db, "o/1"), "items that wait")
	})
}
