// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// attempts records when requests were made, relative to the first one, in seconds.
type attempts struct {
	first time.Time
	at    []int
}

func (a *attempts) add() {
	if a.first.IsZero() {
		a.first = time.Now()
	}
	a.at = append(a.at, int(time.Since(a.first).Seconds()))
}

// schedule is when the attempts of ARC-D44 are made, in seconds.
var schedule = []int{0, 5, 15, 75, 375, 2175, 9375, 30975, 74175}

// pass lets time pass and waits until its events have ended.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// letters returns the dead letters of a server.
func letters(t *testing.T, s *arc.Server) (list []arc.DeadLetter) {
	t.Helper()
	for l, err := range s.DeadLetters(t.Context()) {
		require.NoError(t, err)
		list = append(list, l)
	}
	return list
}

// canceledTask makes a task with a subscription and cancels it.
func canceledTask(t *testing.T, s *arc.Server, url, events string) *arc.Subscription {
	t.Helper()
	s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
	return anotherTask(t, s, url, events)
}

func anotherTask(t *testing.T, s *arc.Server, url, events string) *arc.Subscription {
	t.Helper()
	id := createTask(t, s, "a-01", "x")
	synctest.Wait()
	sub := subscribe(t, s, "a-01", id, url, events)
	require.Nil(t, cancelTask(s, "a-01", id).Error)
	return sub
}

// ARC-D44: nine attempts in 20.6 hours, then a dead letter that can be listed, sent again and
// dropped.
func TestWebhookScheduleAndDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a attempts
		var isDown atomic.Bool
		isDown.Store(true)
		h := &hooks{fail: func(int) (int, error) {
			a.add()
			if isDown.Load() {
				return 500, nil
			}
			return 200, nil
		}}
		o := h.options()
		var hooked []arc.DeadLetter
		o.OnDeadLetter = func(_ context.Context, l arc.DeadLetter) { hooked = append(hooked, l) }
		s := newServer(t, &arc.ServerOptions{Webhook: o})
		sub := canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
		pass(20 * time.Hour)
		require.Empty(t, letters(t, s))
		pass(4 * time.Hour)
		require.Equal(t, schedule, a.at)
		list := letters(t, s)
		require.Len(t, list, 1)
		l := list[0]
		require.Equal(t, arc.DeadLetter{ID: l.ID, SubscriptionID: sub.ID, CallbackURL: "https://one.test/", Event: arc.EventTaskCanceled,
			Body: l.Body, Attempts: 9, Err: l.Err}, l)
		require.EqualError(t, l.Err, "arc: webhook answered HTTP status 500")
		require.Contains(t, string(l.Body), `"method":"task.notification"`)
		require.Len(t, hooked, 1)
		require.Equal(t, l.ID, hooked[0].ID)
		require.Equal(t, 9, hooked[0].Attempts)

		require.NoError(t, s.Redeliver(t.Context(), l.ID))
		pass(24 * time.Hour)
		list = letters(t, s)
		require.Len(t, list, 1, "given up again")
		require.NotEqual(t, l.ID, list[0].ID)
		isDown.Store(false)
		require.NoError(t, s.Redeliver(t.Context(), list[0].ID))
		pass(2 * time.Minute)
		require.Equal(t, []string{"one.test TASK_CANCELED CANCELED"}, h.take())
		require.Empty(t, letters(t, s))
		require.ErrorIs(t, s.Redeliver(t.Context(), list[0].ID), store.ErrNotFound)
		require.ErrorIs(t, s.Redeliver(t.Context(), "webhook"), store.ErrNotFound)
		require.ErrorIs(t, s.Discard(t.Context(), "other/1#1"), store.ErrNotFound)
	})
}

// A refusal is a dead letter at once, and Discard removes it.
func TestWebhookRefusalIsDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{fail: func(int) (int, error) { return 404, nil }}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		canceledTask(t, s, "https://one.test/", `["TASK_CANCELED","STATUS_CHANGE"]`)
		pass(time.Second)
		require.Equal(t, 2, h.count())
		list := letters(t, s)
		require.Len(t, list, 2)
		require.Equal(t, 1, list[0].Attempts)
		require.NoError(t, s.Discard(t.Context(), list[0].ID))
		require.Len(t, letters(t, s), 1)
	})
}

// ARC-D44: 410 ends a subscription, and all that waits for it becomes dead letters.
func TestSubscriptionEndsAfterStatus410(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{fail: func(n int) (int, error) {
			if n <= 3 { // the first event moves to the second queue
				return 500, nil
			}
			return 410, nil
		}}
		db := store.NewMemory()
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: h.options()})
		sub := canceledTask(t, s, "https://one.test/", `["TASK_CANCELED","STATUS_CHANGE"]`)
		pass(time.Hour)
		require.Equal(t, 4, h.count())
		record := storedTask(t, db, sub.TaskID)
		require.Empty(t, record.Subs)
		require.Equal(t, sub.ID, record.EndedSubs[0].ID)
		attempts := []int{}
		for _, l := range letters(t, s) {
			attempts = append(attempts, l.Attempts)
		}
		slices.Sort(attempts)
		require.Equal(t, []int{1, 3}, attempts)
	})
}

// A change of an ended task keeps its lifetime, whatever its clock said at its end.
func TestEndedTaskKeepsLifetime(t *testing.T) {
	for name, jump := range map[string]time.Duration{"clock behind": -48 * time.Hour, "clock ahead": 48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hooks{fail: func(n int) (int, error) {
					if n == 1 {
						return 500, nil
					}
					return 410, nil
				}}
				db := store.NewMemory()
				s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: h.options()})
				sub := canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
				synctest.Wait()
				member := regexp.MustCompile(`"ended":\d+`)
				_, err := store.Modify(t.Context(), db, "arc/task/"+sub.TaskID, 24*time.Hour, func(old store.Entry, _ bool) ([]byte, error) {
					return member.ReplaceAll(old.Value, fmt.Appendf(nil, `"ended":%d`, time.Now().Add(jump).UnixNano())), nil
				})
				require.NoError(t, err)
				pass(time.Minute)
				require.Len(t, storedTask(t, db, sub.TaskID).EndedSubs, 1)
				pass(23 * time.Hour)
				require.Equal(t, arc.TaskCanceled, taskOf(t, s, "a-01", sub.TaskID).Status)
				pass(time.Hour)
				fault(t, post(s, call("task.info", "a-01", `{"taskId":"`+sub.TaskID+`"}`)), arc.ErrTaskNotFound)
			})
		})
	}
}

// A skewedStore is a store whose clock is behind.
type skewedStore struct {
	store.Store
	skew time.Duration
}

func (s *skewedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	if !e.Expires.IsZero() {
		e.Expires = e.Expires.Add(-s.skew)
	}
	return e, err
}

// Changes of an ended task keep its lifetime, whatever the difference between the clocks of the process and of the store.
func TestEndedTaskKeepsLifetimeDespiteSkew(t *testing.T) {
	for _, skew := range []time.Duration{10 * time.Hour, -10 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			h := &hooks{fail: func(int) (int, error) { return 410, nil }}
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: &skewedStore{store.NewMemory(), skew}}, Webhook: h.options()})
			sub := canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
			pass(time.Minute)
			for range 4 {
				require.NoError(t, s.Redeliver(t.Context(), letters(t, s)[0].ID))
				pass(time.Minute)
			}
			pass(23 * time.Hour)
			require.Equal(t, arc.TaskCanceled, taskOf(t, s, "a-01", sub.TaskID).Status)
			pass(time.Hour)
			fault(t, post(s, call("task.info", "a-01", `{"taskId":"`+sub.TaskID+`"}`)), arc.ErrTaskNotFound)
		})
	}
}

// A subscription to an ended task changes nothing, and so not the lifetime of the task.
func TestSubscriptionToEndedTaskKeepsLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		sub := canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
		pass(23 * time.Hour)
		res := post(s, call("task.subscribe", "a-01", `{"taskId":"`+sub.TaskID+`","callbackUrl":"https://two.test/"}`))
		require.Equal(t, 200, res.Code, res.Body)
		pass(2 * time.Hour)
		fault(t, post(s, call("task.info", "a-01", `{"taskId":"`+sub.TaskID+`"}`)), arc.ErrTaskNotFound)
	})
}

// ARC-D44: while the second queue has items, a notification has one attempt in the first.
func TestWebhookFailingEventStepsAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a attempts
		h := &hooks{fail: func(n int) (int, error) {
			a.add()
			if n <= 4 {
				return 0, errors.New("no network")
			}
			return 200, nil
		}}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		canceledTask(t, s, "https://one.test/", `["TASK_CANCELED","STATUS_CHANGE"]`)
		pass(time.Hour)
		require.Equal(t, []int{0, 5, 15, 15, 75, 75}, a.at)
		require.Equal(t, []string{"one.test TASK_CANCELED CANCELED", "one.test STATUS_CHANGE CANCELED"}, h.take())
	})
}

// ARC-D44: a restart neither repeats attempts nor hurries.
func TestWebhookScheduleOutlivesRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a attempts
		h := &hooks{fail: func(int) (int, error) {
			a.add()
			return 503, nil
		}}
		db := store.NewMemory()
		options := func() *arc.ServerOptions {
			return &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}, Webhook: h.options()}
		}
		s := newServer(t, options())
		start := time.Now()
		canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
		for i, at := range schedule {
			pass(time.Until(start.Add(time.Duration(at)*time.Second + 500*time.Millisecond)))
			require.Equal(t, schedule[:i+1], a.at)
			require.NoError(t, s.Close())
			s = newServer(t, options())
		}
		after := 24 * time.Hour
		if race.Enabled { // which makes an hour of leases slow
			after = time.Hour
		}
		pass(after)
		require.Equal(t, schedule, a.at)
		list := letters(t, s)
		require.Len(t, list, 1)
		require.Equal(t, 9, list[0].Attempts)
	})
}

// The first attempts follow the policy, and a negative number of attempts means a single one.
func TestWebhookRetryPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy arc.RetryPolicy
		want   []int
	}{
		{arc.RetryPolicy{MaxAttempts: 5}, []int{0, 5, 15, 35, 75}},
		{arc.RetryPolicy{MaxAttempts: 5, Max: 10 * time.Second}, []int{0, 5, 15, 25, 35}},
		{arc.RetryPolicy{Base: -1}, []int{0, 0, 0, 60, 360, 2160, 9360, 30960, 74160}},
		{arc.RetryPolicy{MaxAttempts: -1}, []int{0}},
		{arc.RetryPolicy{MaxAttempts: 25, Base: 12 * time.Hour, Max: 2 * time.Minute}, steps(25, 120)},
		{arc.RetryPolicy{MaxAttempts: 25, Base: math.MaxInt64, Max: -1}, []int{0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var a attempts
			h := &hooks{fail: func(int) (int, error) {
				a.add()
				return 500, nil
			}}
			o := h.options()
			o.Retry = &tt.policy
			s := newServer(t, &arc.ServerOptions{Webhook: o})
			canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
			pass(24 * time.Hour)
			require.Equal(t, tt.want, a.at[:len(tt.want)])
			require.Len(t, letters(t, s), 1)
			if len(tt.want) == 1 {
				require.Len(t, a.at, 1)
			}
		})
	}
}

// steps returns n times in seconds, at equal intervals.
func steps(n, seconds int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i * seconds
	}
	return list
}

// ARC-D44: while 10,000 notifications or 64 MiB wait, messages are given up and not listed. The ends of tasks are queued.
func TestFullWebhookQueueGivesMessagesUp(t *testing.T) {
	if race.Enabled {
		t.Skip("it sends 64 MiB and 10,000 notifications")
	}
	for _, tt := range []struct{ size, tasks, messages, kept int }{{1, 1, 10_020, 10_000}, {1 << 20, 4, 20, 64}} {
		synctest.Test(t, func(t *testing.T) {
			var isUp atomic.Bool
			h := &hooks{fail: func(int) (int, error) {
				if isUp.Load() {
					return 200, nil
				}
				return 500, nil
			}}
			o := h.withStatic(arc.StaticWebhook{ID: "all", CallbackURL: "https://all.test/", TargetAgent: "ops-01",
				Events: []arc.Event{arc.EventNewMessage, arc.EventTaskCompleted}})
			dropped := 0
			o.OnDeadLetter = func(_ context.Context, l arc.DeadLetter) {
				require.Equal(t, "NEW_MESSAGE", l.ID+string(l.Event))
				dropped++
			}
			s := newServer(t, &arc.ServerOptions{Webhook: o, Limits: arc.Limits{MaxMemory: -1, MaxMemoryPerPrincipal: -1}})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				for range tt.messages {
					if err := run.AddProgress(ctx, "%s", strings.Repeat("x", tt.size)); err != nil {
						return err
					}
				}
				return nil
			}))
			for range tt.tasks {
				createTask(t, s, "a-01", "x")
				synctest.Wait()
			}
			require.Empty(t, letters(t, s))
			isUp.Store(true)
			pass(2 * time.Hour)
			got := h.take()
			require.Equal(t, tt.tasks*tt.messages+tt.tasks, len(got)+dropped)
			require.InDelta(t, tt.kept+tt.tasks, len(got), 3)
			slices.Sort(got)
			require.Equal(t, "all.test TASK_COMPLETED COMPLETED", got[len(got)-tt.tasks])
		})
	}
}

// failsWhile returns the answers of a webhook that fails while isDown is set.
func failsWhile(isDown *atomic.Bool) func(int) (int, error) {
	return func(int) (int, error) {
		if isDown.Load() {
			return 500, nil
		}
		return 200, nil
	}
}

// ARC-D44: a notification that is 23 hours old becomes a dead letter without an attempt.
func TestOldNotificationIsDeadLetter(t *testing.T) {
	for _, age := range []time.Duration{22 * time.Hour, 23 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var isDown atomic.Bool
			isDown.Store(true)
			h := &hooks{fail: failsWhile(&isDown)}
			db := store.NewMemory()
			start := func() *arc.Server {
				return newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}, Webhook: h.options()})
			}
			s := start()
			canceledTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
			synctest.Wait()
			require.NoError(t, s.Close())
			require.Empty(t, h.take())
			pass(age)
			isDown.Store(false)
			s = start()
			pass(time.Minute)
			if age < 23*time.Hour {
				require.Len(t, h.take(), 1)
				require.Empty(t, letters(t, s))
				return
			}
			require.Empty(t, h.take())
			list := letters(t, s)
			require.Len(t, list, 1)
		})
	}
}

// ARC-D44: a host that is down costs one attempt a minute, whatever waits for it.
func TestWebhookBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		isDown.Store(true)
		h := &hooks{fail: failsWhile(&isDown)}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		for i := range 20 {
			anotherTask(t, s, fmt.Sprintf("https://one.test/%d", i), `["TASK_CANCELED"]`)
		}
		pass(time.Second)
		base := h.count()
		require.Less(t, base, 26)
		pass(30 * time.Minute)
		require.InDelta(t, base+30, h.count(), 2)
		isDown.Store(false)
		pass(3 * time.Hour)
		require.Len(t, h.take(), 20)
	})
}

// A turnCounter is a store that counts reads of the queues of webhooks, of which each turn of a queue makes one.
type turnCounter struct {
	store.Store
	turns atomic.Int64
}

func (s *turnCounter) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if strings.Contains(stream, "outbox/items/") {
		s.turns.Add(1)
	}
	return s.Store.Read(ctx, stream, after, limit)
}

// ARC-D44: all subscriptions to a host that is down cost a few turns a minute together, not each. Once the host answers,
// all are served at once.
func TestSubscriptionsToDeadHostShareTurns(t *testing.T) {
	for _, n := range []int{100, 400} {
		synctest.Test(t, func(t *testing.T) {
			var isDown atomic.Bool
			isDown.Store(true)
			h := &slowHook{host: "one.test"}
			h.fail = func(int) (int, error) {
				if isDown.Load() {
					return 0, errors.New("no network")
				}
				return 200, nil
			}
			o := h.options()
			o.Transport = h
			db := &turnCounter{Store: store.NewMemory()}
			s := newServer(t, &arc.ServerOptions{Webhook: o, Persistence: arc.Persistence{Store: db}})
			s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
			for i := range n {
				anotherTask(t, s, fmt.Sprintf("https://one.test/%d", i), `["TASK_CANCELED"]`)
			}
			pass(5 * time.Minute)
			turns, attempts := db.turns.Load(), h.count()
			pass(50 * time.Minute)
			require.InDelta(t, attempts+45, h.count(), 6)
			require.NotZero(t, turns)
			require.LessOrEqual(t, db.turns.Load()-turns, int64(200))

			isDown.Store(false)
			pass(70*time.Second + time.Duration(n/32+1)*9*time.Second)
			require.Len(t, h.take(), n)
			require.LessOrEqual(t, h.highest, 32)
		})
	}
}

// A slowHook takes 9 s for each request of one host.
type slowHook struct {
	hooks
	host string

	running, highest int       // requests of the host; guarded by mu, like the next field
	last             time.Time // request of another host
}

func (h *slowHook) RoundTrip(req *http.Request) (*http.Response, error) {
	isSlow := req.URL.Host == h.host
	h.mu.Lock()
	if isSlow {
		h.running++
		h.highest = max(h.highest, h.running)
	} else {
		h.last = time.Now()
	}
	h.mu.Unlock()
	if isSlow {
		time.Sleep(9 * time.Second)
		h.mu.Lock()
		h.running--
		h.mu.Unlock()
	}
	return h.hooks.RoundTrip(req)
}

// ARC-D44: a slow host does not delay the notifications to others.
func TestSlowWebhookDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const subscriptions = 200
		h := &slowHook{host: "slow.test"}
		o := h.options()
		o.Transport = h
		s := newServer(t, &arc.ServerOptions{Webhook: o})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		for i := range subscriptions {
			anotherTask(t, s, fmt.Sprintf("https://slow.test/%d", i), `["TASK_CANCELED"]`)
		}
		start := time.Now()
		anotherTask(t, s, "https://one.test/", `["TASK_CANCELED"]`)
		pass((subscriptions/32 + 1) * 10 * time.Second)
		require.Less(t, h.last.Sub(start), time.Second)
		require.Equal(t, 32, h.highest, "attempts at a host at once")
		require.Len(t, h.take(), subscriptions+1)
	})
}

// Two processes have one sender: after its failure the other one continues.
func TestWebhookSenderIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{fail: func(n int) (int, error) {
			if n == 1 {
				return 500, nil
			}
			return 200, nil
		}}
		db := store.NewMemory()
		first := &crashStore{Store: db}
		a := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: first, LeaseTTL: 3 * time.Second}, Webhook: h.options()})
		b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}, Webhook: h.options()})
		canceledTask(t, a, "https://one.test/", `["TASK_CANCELED","STATUS_CHANGE"]`)
		pass(time.Second)
		first.crash()
		pass(time.Minute)
		require.Equal(t, []string{"one.test TASK_CANCELED CANCELED", "one.test STATUS_CHANGE CANCELED"}, h.take())
		require.Equal(t, 3, h.count())
		require.Empty(t, letters(t, b))
	})
}

// Dead letters of a subscription that ended with status 410 can be sent again, once the receiver accepts notifications.
func TestRedeliverAfterStatus410(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isGone atomic.Bool
		isGone.Store(true)
		h := &hooks{fail: func(int) (int, error) {
			if isGone.Load() {
				return 410, nil
			}
			return 200, nil
		}}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		canceledTask(t, s, "https://one.test/", `["TASK_CANCELED","STATUS_CHANGE"]`)
		pass(time.Hour)
		list := letters(t, s)
		require.Len(t, list, 2)
		require.NoError(t, s.Redeliver(t.Context(), list[0].ID))
		pass(time.Hour)
		list = letters(t, s)
		require.Len(t, list, 2)
		isGone.Store(false)
		for _, l := range list {
			require.NoError(t, s.Redeliver(t.Context(), l.ID))
		}
		pass(time.Hour)
		require.Empty(t, letters(t, s))
		require.ElementsMatch(t, []string{"one.test TASK_CANCELED CANCELED", "one.test STATUS_CHANGE CANCELED"}, h.take())
	})
}

// A static webhook whose notifications could not be sent is an error of the constructor.
func TestInvalidStaticWebhooksAreRefused(t *testing.T) {
	valid := arc.StaticWebhook{ID: "all", CallbackURL: "https://all.test/", TargetAgent: "ops-01", Events: []arc.Event{arc.EventTaskFailed}}
	for name, edit := range map[string]func(w *arc.StaticWebhook){
		"no id":            func(w *arc.StaticWebhook) { w.ID = "" },
		"an id in use":     func(w *arc.StaticWebhook) { w.ID = "first" },
		"a long id":        func(w *arc.StaticWebhook) { w.ID = strings.Repeat("x", 257) },
		"no URL":           func(w *arc.StaticWebhook) { w.CallbackURL = "" },
		"no absolute URL":  func(w *arc.StaticWebhook) { w.CallbackURL = "all.test/hook" },
		"another scheme":   func(w *arc.StaticWebhook) { w.CallbackURL = "ftp://all.test/" },
		"no agent":         func(w *arc.StaticWebhook) { w.TargetAgent = "" },
		"an unknown event": func(w *arc.StaticWebhook) { w.Events = []arc.Event{"TASK_DONE"} },
		"":                 func(*arc.StaticWebhook) {},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := valid, valid
			first.ID = "first"
			edit(&w)
			s, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Webhook: &arc.WebhookOptions{Static: []arc.StaticWebhook{first, w}}})
			if name == "" {
				require.NoError(t, err)
				require.NoError(t, s.Close())
				return
			}
			require.ErrorContains(t, err, "arc: server: static webhook ")
		})
	}
}
