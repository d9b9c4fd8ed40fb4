// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const day = 24 * time.Hour

var (
	quiet   = slog.New(slog.DiscardHandler)
	errDown = errors.New("receiver down")
)

func TestMain(m *testing.M) {
	if race.Enabled {
		_ = flag.Set("rapid.checks", "10")
	}
	goleak.VerifyTestMain(m)
}

// A config is the options of a process and the faults of its store.
type config struct {
	outbox.Options
	rules     []fault.Rule
	ttl       time.Duration // of the lease
	isPrivate bool          // the lease
}

// A node is one process with its view of the store.
type node struct {
	*outbox.Outbox
	t     *testing.T
	plan  *fault.Plan
	lease *lease.Lease
}

func startNode(t *testing.T, db store.Store, edit ...func(c *config)) *node {
	t.Helper()
	c := config{Options: outbox.Options{Prefix: "x/", Logger: quiet}}
	for _, f := range edit {
		f(&c)
	}
	n := &node{t: t, plan: &fault.Plan{Rules: c.rules}}
	view := fault.Store(db, n.plan)
	var err error
	n.lease, err = lease.Acquire(t.Context(), view,
		lease.Options{Prefix: c.Prefix, TTL: c.ttl, Private: c.isPrivate, Logger: quiet})
	require.NoError(t, err)
	n.Outbox = outbox.New(view, n.lease, c.Options)
	t.Cleanup(func() {
		n.crash()
		time.Sleep(2 * time.Second) // for repetitions in the background
	})
	return n
}

func shared(*config) {}

func private(c *config) { c.isPrivate = true }

// slow makes few rounds of the lease, for tests of weeks.
func slow(c *config) { c.ttl = 3 * time.Hour }

// crash ends the process in the eyes of the store.
func (n *node) crash() {
	n.plan.Crash()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = n.Shutdown(ctx)
	_ = n.lease.Release(context.Background())
	n.plan.Close()
}

// stop ends the process in order.
func (n *node) stop() {
	require.NoError(n.t, n.Shutdown(context.Background()))
	require.NoError(n.t, n.lease.Release(context.Background()))
}

func (n *node) put(stream string, ids ...string) {
	n.t.Helper()
	for _, id := range ids {
		require.NoError(n.t, n.Put(n.t.Context(), stream, id, []byte("data of "+id)))
	}
}

func (n *node) letters() (list []outbox.Letter) {
	n.t.Helper()
	for l, err := range n.Dead(n.t.Context()) {
		require.NoError(n.t, err)
		list = append(list, l)
	}
	return list
}

// A receiver records attempts.
type receiver struct {
	start time.Time

	mu       sync.Mutex // guards all below
	verdict  func(ctx context.Context, i outbox.Item) outbox.Verdict
	attempts []outbox.Item
	times    []time.Duration
}

// newReceiver returns a receiver with a verdict, by default Done.
func newReceiver(verdict func(ctx context.Context, i outbox.Item) outbox.Verdict) *receiver {
	return &receiver{verdict: verdict, start: time.Now()}
}

// always returns a receiver with one verdict.
func always(v outbox.Verdict) *receiver {
	return newReceiver(func(context.Context, outbox.Item) outbox.Verdict { return v })
}

func (r *receiver) send(ctx context.Context, i outbox.Item) outbox.Verdict {
	r.mu.Lock()
	r.attempts = append(r.attempts, i)
	r.times = append(r.times, time.Since(r.start))
	verdict := r.verdict
	r.mu.Unlock()
	return verdict(ctx, i)
}

func (r *receiver) set(v outbox.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verdict = func(context.Context, outbox.Item) outbox.Verdict { return v }
}

// ids returns the ids of the attempts in their order.
func (r *receiver) ids() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.attempts {
		ids = append(ids, i.ID)
	}
	return ids
}

func (r *receiver) item(i int) outbox.Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attempts[i]
}

// delays returns the times of the attempts.
func (r *receiver) delays() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.times)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// numbers returns n ids.
func numbers(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

// senderKey returns the key of the record of a stream.
func senderKey(stream string) string { return "x/outbox/sender/" + state.Join(stream) }

// waiting returns how many items wait in a stream.
func waiting(t *testing.T, db store.Store, stream string) int {
	records, err := db.Read(t.Context(), "x/outbox/items/"+state.Join(stream), 0, 20_000)
	require.NoError(t, err)
	return len(records)
}

// keys returns how many keys of the group have the prefix.
func keys(t *testing.T, db store.Store, prefix string) (n int) {
	for _, err := range db.List(t.Context(), "x/"+prefix) {
		require.NoError(t, err)
		n++
	}
	return n
}

func TestPutSendsInOrder(t *testing.T) {
	for _, edit := range []func(*config){shared, private} {
		synctest.Test(t, func(t *testing.T) {
			n, r := startNode(t, store.NewMemory(), edit), always(outbox.Done())
			n.Send("k", r.send)
			n.put("k/1", numbers(200)...)
			time.Sleep(time.Second)
			require.Equal(t, numbers(200), r.ids())
			item := r.item(7)
			require.Equal(t, outbox.Item{Stream: "k/1", ID: "7", Seq: item.Seq, Attempt: 1, Data: []byte("data of 7"),
				First: item.First}, item)
			require.WithinDuration(t, r.start, item.First, time.Second, "time of Put")
		})
	}
}

func TestSenderEndsTenSecondsAfterTheQueueIsEmpty(t *testing.T) {
	for _, edit := range []func(*config){shared, private} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			n := startNode(t, db, edit)
			n.Send("k", always(outbox.Done()).send)
			n.put("k/1", "a")
			time.Sleep(10*time.Second - 1)
			require.Equal(t, 1, keys(t, db, "work/"), "index entries before the end")
			n.put("k/1", "b") // begins the period again
			time.Sleep(10*time.Second - 1)
			require.Equal(t, 1, keys(t, db, "work/"), "index entries before the end")
			time.Sleep(time.Nanosecond)
			time.Sleep(time.Second)
			require.Zero(t, keys(t, db, "work/"), "index entries after the end")
			time.Sleep(10 * time.Minute) // after which no creation lands
			require.Zero(t, keys(t, db, "outbox/"), "keys after the end")
		})
	}
}

func TestTwoProcessesSend200ItemsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		a, b := startNode(t, db), startNode(t, db)
		a.Send("k", r.send)
		b.Send("k", r.send)
		var puts sync.WaitGroup
		for i, id := range numbers(200) {
			puts.Go(func() { []*node{a, b}[i%2].put(fmt.Sprintf("k/%d", i%3), id) })
		}
		puts.Wait()
		time.Sleep(time.Minute)
		got := r.ids()
		slices.Sort(got)
		want := numbers(200)
		slices.Sort(want)
		require.Equal(t, want, got)
	})
}

func TestCrashSends120ItemsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		r := newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, 10*time.Millisecond)
			return outbox.Done()
		})
		a, b := startNode(t, db), startNode(t, db)
		a.Send("k", r.send)
		b.Send("k", r.send)
		a.put("k/1", numbers(120)...)
		time.Sleep(505 * time.Millisecond) // in an attempt
		a.crash()
		time.Sleep(time.Minute)
		counts := map[string]int{}
		for _, id := range r.ids() {
			counts[id]++
		}
		require.Len(t, counts, 120, "items")
		require.LessOrEqual(t, len(r.ids()), 121, "sends of 120 items with 1 owner failure")
	})
}

func TestItemSurvivesExitDuringRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errDown))
		n := startNode(t, db)
		n.Send("k", r.send)
		n.put("k/1", "a")
		time.Sleep(90 * time.Second)
		n.stop()
		time.Sleep(time.Hour)
		r.set(outbox.Done())
		startNode(t, db).Send("k", r.send)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "a", "a"}, r.ids())
		require.Equal(t, 3, r.item(2).Attempt, "attempt after the exit")
		require.Zero(t, waiting(t, db, "k/1"), "items that wait")
	})
}

func TestRetriesContinueForDaysOverRestarts(t *testing.T) {
	for _, edit := range []func(*config){shared, private} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			r := newReceiver(func(_ context.Context, i outbox.Item) outbox.Verdict {
				return outbox.Retry(time.Hour<<min(i.Attempt-1, 4), errDown)
			})
			n := startNode(t, db, edit, slow)
			n.Send("k", r.send)
			n.put("k/1", "a", "b")
			for range 6 {
				time.Sleep(20 * time.Hour)
				n.stop()
				n = startNode(t, db, edit, slow)
				n.Send("k", r.send)
			}
			var hours []int
			times := r.delays()
			for i := range r.ids() {
				item := r.item(i)
				require.Equal(t, i+1, item.Attempt, "attempt")
				hours = append(hours, int((times[i]+time.Minute)/time.Hour))
			}
			require.Equal(t, []int{0, 1, 3, 7, 15, 31, 47, 63, 79, 95, 111}, hours, "hours of the attempts")
			r.set(outbox.Done())
			time.Sleep(16 * time.Hour)
			require.Equal(t, []string{"a", "b"}, r.ids()[len(hours):], "items after the outage")
		})
	}
}

func TestRefusedItemIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errors.New("status 401")))
		n := startNode(t, db)
		n.Send("k", r.send)
		n.put("k/1", "a", "b")
		time.Sleep(9*time.Minute + time.Second)
		require.Equal(t, 2, waiting(t, db, "k/1"), "items that wait after 401")
		r.set(outbox.Dead("refused", errors.New("status 404")))
		time.Sleep(time.Minute)
		letters := n.letters()
		require.Len(t, letters, 2, "dead letters after 404")
		l := letters[0]
		got := strings.Join([]string{l.Stream, l.ID, l.Reason, l.Last, string(l.Data)}, " ")
		require.Equal(t, "k/1 a refused status 404 data of a", got)
		require.Equal(t, 11, l.Attempt, "attempts")
		require.WithinDuration(t, r.start, l.First, time.Second, "time of Put")
		require.WithinDuration(t, r.start.Add(10*time.Minute), l.Time, time.Second, "time of the verdict")
	})
}

func TestFunctionRunsForEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := always(outbox.Retry(0, errDown)) // it would sign with the present time
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		n.put("k/1", "a")
		time.Sleep(2500 * time.Millisecond)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, r.delays())
	})
}

func TestHeadIsRetriedBeforeTheNextItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(func(_ context.Context, i outbox.Item) outbox.Verdict {
			if i.ID == "b" && i.Attempt < 3 {
				return outbox.Retry(time.Second, errDown)
			}
			return outbox.Done()
		})
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		n.put("k/1", "a", "b", "c")
		time.Sleep(500 * time.Millisecond)
		n.put("k/1", "d") // does not shorten the delay
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "b", "b", "b", "c", "d"}, r.ids())
		require.Equal(t, 2*time.Second, r.delays()[3])
	})
}

func TestLaterMakesNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := always(outbox.Later(time.Minute, errDown))
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		n.put("k/1", "a")
		time.Sleep(time.Hour - 1)
		require.Len(t, r.ids(), 60, "calls")
		r.set(outbox.Done())
		time.Sleep(time.Minute)
		require.Equal(t, 1, r.item(60).Attempt, "attempt after 60 calls without one")
	})
}

// Wake ends the delay of Later, also of an attempt that is being made, but not that of Retry.
func TestWakeEndsTheDelayOfLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, time.Second)
			return outbox.Later(time.Hour, errDown)
		})
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		require.False(t, n.Wake("k/1"), "it has no sender")
		n.put("k/1", "a")
		time.Sleep(time.Minute)
		require.Len(t, r.ids(), 1)
		require.True(t, n.Wake("k/1"))
		time.Sleep(time.Second / 2)
		require.Len(t, r.ids(), 2, "after the delay has begun")
		n.Wake("k/1")
		time.Sleep(time.Minute)
		require.Len(t, r.ids(), 3, "before the delay has begun")
		r.set(outbox.Retry(time.Hour, errDown))
		for range 2 {
			n.Wake("k/1")
			time.Sleep(time.Minute)
			require.Len(t, r.ids(), 4, "the delay of Retry is kept")
		}
	})
}

func TestWaitingStreamsHoldNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory())
		n.Send("dead", always(outbox.Later(time.Hour, errDown)).send)
		n.Send("slow", always(outbox.Retry(time.Hour, errDown)).send)
		r := always(outbox.Done())
		n.Send("k", r.send)
		for i := range 200 {
			n.put(fmt.Sprintf("dead/%d", i), "a")
			n.put(fmt.Sprintf("slow/%d", i), "a")
		}
		n.put("k/1", "a")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, r.ids(), "sends while 400 streams wait")
	})
}

func TestSendMakes64AttemptsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, highest := 0, 0
		var mu sync.Mutex
		r := newReceiver(func(context.Context, outbox.Item) outbox.Verdict {
			mu.Lock()
			running++
			highest = max(highest, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return outbox.Done()
		})
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		for i := range 200 {
			n.put(fmt.Sprintf("k/%d", i), "a")
		}
		time.Sleep(time.Minute)
		require.Equal(t, 64, highest, "attempts at once")
		require.Len(t, r.ids(), 200, "attempts")
	})
}

func TestStreamsShareThePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(func(ctx context.Context, _ outbox.Item) outbox.Verdict {
			pause(ctx, time.Second)
			return outbox.Done()
		})
		n := startNode(t, store.NewMemory())
		n.Send("k", r.send)
		for i := range 64 {
			n.put(fmt.Sprintf("k/%d", i), numbers(70)...)
		}
		n.put("k/last", "last")
		time.Sleep(66 * time.Second)
		require.Contains(t, r.ids(), "last", "a stream waits for at most one turn of the others")
	})
}

func TestRepeatedPutSendsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		a, b := startNode(t, db, slow), startNode(t, db, slow)
		a.Send("k", r.send)
		b.Send("k", r.send)
		a.put("k/1", "a", "a")
		b.put("k/1", "a")
		time.Sleep(29 * day)
		a.put("k/1", "a") // long after Ack and after the end of the sender
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a"}, r.ids())
		require.NoError(t, a.Put(t.Context(), "k/1", "", nil))
		require.NoError(t, a.Put(t.Context(), "k/1", "", nil))
		time.Sleep(time.Second)
		require.Equal(t, []string{"a", "", ""}, r.ids(), "items without an id")
	})
}

func TestRepeatedPutFindsTheItemOfAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		a := startNode(t, db, func(c *config) {
			c.rules = []fault.Rule{{Action: fault.ErrorBefore, Op: "create", Match: "x/outbox/sender/"}}
		})
		b := startNode(t, db)
		b.Send("k", r.send)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := a.Put(ctx, "k/1", "a", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, waiting(t, db, "k/1"), "items after a Put without an answer")
		require.Empty(t, r.ids(), "attempts without a sender")
		b.put("k/1", "a")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, r.ids())
	})
}

func TestPutSucceedsUnderFaults(t *testing.T) {
	changes := "create|update|delete|append|ack"
	for name, r := range map[string]fault.Rule{
		"error before":   {Action: fault.ErrorBefore, Op: changes, Probability: 0.5},
		"error after":    {Action: fault.ErrorAfter, Op: changes, Probability: 0.5},
		"late landing":   {Action: fault.LandLater, Op: changes, Probability: 0.5},
		"hang":           {Action: fault.Hang, Op: changes, Probability: 0.5},
		"conflict storm": {Action: fault.Conflict, Op: "update", Probability: 0.8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, rec := store.NewMemory(), always(outbox.Done())
				r.Match = "x/outbox/"
				n := startNode(t, db, func(c *config) { c.rules = []fault.Rule{r} })
				n.Send("k", rec.send)
				n.put("k/1", numbers(50)...)
				time.Sleep(time.Hour)
				require.Positive(t, n.plan.Count(r.Action), "faults")
				require.Equal(t, numbers(50), rec.ids(), "attempts")
				require.Zero(t, waiting(t, db, "k/1"), "items that wait")
			})
		})
	}
}

func TestPutCopiesTheItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := always(outbox.Done())
		n := startNode(t, store.NewMemory(), func(c *config) {
			c.rules = []fault.Rule{{Action: fault.ErrorBefore, Op: "append", Match: "x/outbox/", Limit: 3}}
		})
		n.Send("k", r.send)
		item := []byte("item")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorIs(t, n.Put(ctx, "k/1", "a", item), store.ErrUnknown)
		copy(item, "----") // while the append is repeated in the background
		time.Sleep(time.Minute)
		n.put("k/1", "a")
		time.Sleep(time.Second)
		require.Equal(t, "item", string(r.item(0).Data))
	})
}

func TestPutWithoutFunctionWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		n := startNode(t, db)
		startNode(t, db).Send("other", r.send)
		n.put("k/1", "a", "b")
		time.Sleep(time.Hour)
		require.Empty(t, r.ids())
		n.Send("k", r.send)
		time.Sleep(time.Second)
		require.Equal(t, []string{"a", "b"}, r.ids())
	})
}

func TestSurvivorWithoutFunctionLeavesTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		a := startNode(t, db)
		a.Send("k", always(outbox.Retry(time.Hour, errDown)).send)
		startNode(t, db).Send("other", r.send)
		a.put("k/1", "a")
		a.crash()
		time.Sleep(time.Hour)
		require.Empty(t, r.ids())
		startNode(t, db).Send("k", r.send)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a"}, r.ids())
	})
}

func TestPanicMakesADeadLetter(t *testing.T) {
	for name, f := range map[string]func() error{
		"panic":           func() error { panic("boom") },
		"goexit":          func() error { (&testing.T{}).FailNow(); return nil },
		"error of a text": func() error { return (*textError)(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(func(_ context.Context, i outbox.Item) outbox.Verdict {
					if i.ID == "a" {
						return outbox.Retry(time.Second, f())
					}
					return outbox.Done()
				})
				n := startNode(t, store.NewMemory())
				n.Send("k", r.send)
				n.put("k/1", "a", "b")
				time.Sleep(time.Minute)
				require.Equal(t, []string{"a", "b"}, r.ids())
				require.Equal(t, "function panicked", n.letters()[0].Reason)
			})
		})
	}
}

func TestZeroVerdictRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Verdict{})
		n := startNode(t, db)
		n.Send("k", r.send)
		n.put("k/1", "a")
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, []time.Duration{0, time.Second}, r.delays())
		require.Equal(t, 1, waiting(t, db, "k/1"), "items that wait")
	})
}

func TestItemIsDeadAtMaxAge(t *testing.T) {
	for _, v := range []outbox.Verdict{outbox.Retry(day, errDown), outbox.Later(7*time.Hour, errDown)} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			n := startNode(t, db, slow, func(c *config) { c.MaxAge = 10 * time.Hour })
			n.Send("k", always(v).send)
			n.put("k/1", "a")
			time.Sleep(10*time.Hour - 1)
			require.Empty(t, n.letters(), "dead letters before MaxAge")
			time.Sleep(time.Nanosecond)
			time.Sleep(time.Second)
			require.Len(t, n.letters(), 1, "dead letters at MaxAge")
			require.Equal(t, "maximum age reached", n.letters()[0].Reason)
			require.Equal(t, "receiver down", n.letters()[0].Last)
			require.Zero(t, waiting(t, db, "k/1"), "items that wait")
		})
	}
}

func TestMaxAgeNegativeKeepsItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		n := startNode(t, db, slow, func(c *config) { c.MaxAge = -1 })
		n.Send("k", always(outbox.Retry(100*day, errDown)).send)
		n.put("k/1", "a")
		time.Sleep(200 * day)
		require.Equal(t, 1, waiting(t, db, "k/1"), "items that wait")
	})
}

func TestWrongClockOfAnotherProcessCostsOneInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Retry(time.Minute, errDown))
		a := startNode(t, db)
		a.Send("k", r.send)
		a.put("k/1", "a")
		time.Sleep(time.Second)
		a.crash()
		_, err := store.Modify(t.Context(), db, senderKey("k/1"), 0, func(old store.Entry, _ bool) ([]byte, error) {
			return []byte(strings.Replace(string(old.Value), `"Next":"2000-`, `"Next":"2100-`, 1)), nil
		})
		require.NoError(t, err)
		startNode(t, db).Send("k", r.send)
		time.Sleep(2 * time.Minute)
		require.GreaterOrEqual(t, len(r.ids()), 2, "attempts")
	})
}

func TestUnreadableItemIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r := store.NewMemory(), always(outbox.Done())
		n := startNode(t, db)
		n.Send("k", r.send)
		_, err := db.Append(t.Context(), "x/outbox/items/"+state.Join("k/1"), "", []byte("\x07old"), 0)
		require.NoError(t, err)
		n.put("k/1", "a")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a"}, r.ids())
		l := n.letters()[0]
		require.Equal(t, "item not readable: stored value: format 7, want format 1", l.Reason+": "+l.Last)
		require.Equal(t, "\x07old", string(l.Data))
	})
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }

// A store whose clock is ahead gives an item no time to come.
type aheadStore struct{ store.Store }

func (s aheadStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	records, err := s.Store.Read(ctx, stream, after, limit)
	for i := range records {
		records[i].Time = records[i].Time.Add(time.Hour)
	}
	return records, err
}

func TestFirstIsNotAfterTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := startNode(t, aheadStore{store.NewMemory()}), always(outbox.Done())
		n.Send("k", r.send)
		n.put("k/1", "a")
		synctest.Wait()
		require.Equal(t, r.start, r.item(0).First)
	})
}

// Later is no attempt, so the dead letter of an item that never had one has none.
func TestLaterCountsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory(), slow, func(c *config) { c.MaxAge = time.Hour })
		n.Send("k", always(outbox.Later(25*time.Minute, errDown)).send)
		n.put("k/1", "a")
		time.Sleep(2 * time.Hour)
		letters := n.letters()
		require.Len(t, letters, 1)
		require.Zero(t, letters[0].Attempt)
		require.Equal(t, errDown.Error(), letters[0].Last)
	})
}

func TestStoredTextsAreShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, long := startNode(t, store.NewMemory()), strings.Repeat("x", 5000)
		n.Send("k", always(outbox.Dead(long, errors.New(long))).send)
		n.put("k/1", "a")
		synctest.Wait()
		require.Len(t, n.letters()[0].Reason, 1024)
		require.Len(t, n.letters()[0].Last, 1024)
	})
}

// The error of a full stream has the delay of its first item.
func TestPutReturnsDelayOfFullStream(t *testing.T) {
	for delay, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Second, 20 * time.Second: 20 * time.Second, time.Hour: time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, store.NewMemory(), func(c *config) { c.MaxItems = 1 })
			n.Send("k", always(outbox.Retry(delay, errDown)).send)
			n.put("k/1", "a")
			synctest.Wait()
			e, isFull := errors.AsType[*budget.Error](n.Put(t.Context(), "k/1", "b", nil))
			require.True(t, isFull)
			require.Equal(t, want, e.RetryAfter)
		})
	}
}

func TestStreamsHaveShortNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, store.NewMemory())
		n.put(strings.Repeat("k", 512), "a")
		for _, name := range []string{"", strings.Repeat("k", 513)} {
			require.ErrorIs(t, n.Put(t.Context(), name, "a", nil), store.ErrInvalid)
		}
	})
}

// Dead yields the error of a damaged letter once, after the other letters.
func TestDeadYieldsErrorOfDamagedLetterLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		n := startNode(t, db)
		n.Send("k", always(outbox.Dead("reason", errDown)).send)
		n.put("k/1", "a", "b", "c")
		synctest.Wait()
		letter := n.letters()[1]
		_, err := store.Modify(t.Context(), db, fmt.Sprintf("x/outbox/dead/%s/%020d", state.Join("k/1"), letter.Seq), 0,
			func(store.Entry, bool) ([]byte, error) { return []byte("damaged"), nil })
		require.NoError(t, err)
		var got []string
		for l, err := range n.Dead(t.Context()) {
			got = append(got, fmt.Sprint(l.ID, err == nil))
		}
		require.Equal(t, []string{"atrue", "ctrue", "false"}, got)
	})
}
