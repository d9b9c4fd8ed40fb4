// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

func TestStoreWithNilPlanIsStoreItself(t *testing.T) {
	m := store.NewMemory()
	require.Same(t, m, fault.Store(m, nil))
}

func TestRuleThatIsOffOrOfUnknownKindHasNoEffect(t *testing.T) {
	m := store.NewMemory()
	plan := &fault.Plan{Rules: []fault.Rule{{Probability: -1}, {Action: "x"}}}
	_, err := fault.Store(m, plan).Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
	require.Zero(t, plan.Count("x"))
}

// ops calls each operation once, on a store with the key k at rev and the stream q with one
// record.
var ops = []struct {
	op   string
	call func(ctx context.Context, s store.Store, rev store.Revision) error
}{
	{"get", func(ctx context.Context, s store.Store, _ store.Revision) error {
		_, err := s.Get(ctx, "k")
		return err
	}},
	{"create", func(ctx context.Context, s store.Store, _ store.Revision) error {
		_, err := s.Create(ctx, "new", []byte("v"), 0)
		return err
	}},
	{"update", func(ctx context.Context, s store.Store, rev store.Revision) error {
		_, err := s.Update(ctx, "k", []byte("v2"), rev, 0)
		return err
	}},
	{"delete", func(ctx context.Context, s store.Store, rev store.Revision) error {
		return s.Delete(ctx, "k", rev)
	}},
	{"list", func(ctx context.Context, s store.Store, _ store.Revision) error {
		for _, err := range s.List(ctx, "k") {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"append", func(ctx context.Context, s store.Store, _ store.Revision) error {
		_, err := s.Append(ctx, "q", "id2", []byte("v"), 0)
		return err
	}},
	{"read", func(ctx context.Context, s store.Store, _ store.Revision) error {
		_, err := s.Read(ctx, "q", 0, 0)
		return err
	}},
	{"ack", func(ctx context.Context, s store.Store, _ store.Revision) error {
		return s.Ack(ctx, "q", 1)
	}},
	{"wait", func(ctx context.Context, s store.Store, _ store.Revision) error {
		return s.Wait(ctx, "q", 0)
	}},
	{"expire", func(ctx context.Context, s store.Store, _ store.Revision) error {
		return s.Expire(ctx, "q", 0)
	}},
}

var allActions = []fault.Action{
	fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Conflict, fault.Delay,
}

const changes = "create|update|delete|append|ack|expire"

func newStore(t *testing.T) (store.Store, store.Revision) {
	t.Helper()
	m := store.NewMemory()
	rev, err := m.Create(t.Context(), "k", []byte("v"), 0)
	require.NoError(t, err)
	_, err = m.Append(t.Context(), "q", "id", []byte("v"), 0)
	require.NoError(t, err)
	return m, rev
}

// state is all that a store holds, but for revisions.
func state(t *testing.T, s store.Store) string {
	t.Helper()
	var b strings.Builder
	for e, err := range s.List(t.Context(), "") {
		require.NoError(t, err)
		fmt.Fprintf(&b, "%s=%s ", e.Key, e.Value)
	}
	records, err := s.Read(t.Context(), "q", 0, 0)
	require.NoError(t, err)
	for _, r := range records {
		fmt.Fprintf(&b, "%d:%s ", r.Seq, r.ID)
	}
	return b.String()
}

const unchanged = "k=v 1:id "

// eachOp runs f for each of ops in a bubble, with a Plan of one rule for that operation.
func eachOp(t *testing.T, r fault.Rule, f func(t *testing.T, b *bench)) {
	for i, o := range ops {
		t.Run(fmt.Sprint("op ", i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, rev := newStore(t)
				r.Op = o.op
				plan := &fault.Plan{Rules: []fault.Rule{r}}
				defer plan.Close()
				s := fault.Store(m, plan)
				f(t, &bench{op: o.op, plan: plan, below: m, call: func(ctx context.Context) error {
					return o.call(ctx, s, rev)
				}})
			})
		})
	}
}

// A bench is one operation with faults and the store below.
type bench struct {
	op    string
	plan  *fault.Plan
	below store.Store
	call  func(ctx context.Context) error
}

func (b *bench) isChange() bool { return slices.Contains(strings.Split(changes, "|"), b.op) }

func requireUnknown(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, fault.ErrInjected)
	for _, answer := range []error{
		store.ErrNotFound, store.ErrExists, store.ErrConflict, store.ErrDuplicate, store.ErrInvalid, store.ErrClosed,
	} {
		require.NotErrorIs(t, err, answer)
	}
}

func TestErrorBeforeMakesNoChange(t *testing.T) {
	eachOp(t, fault.Rule{Limit: 1}, func(t *testing.T, b *bench) {
		requireUnknown(t, b.call(t.Context()))
		require.Equal(t, unchanged, state(t, b.below))
		require.Equal(t, 1, b.plan.Count(fault.ErrorBefore))
		require.NoError(t, b.call(t.Context()), "after the limit")
		require.Equal(t, b.isChange(), state(t, b.below) != unchanged)
	})
}

func TestErrorAfterMakesChange(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.ErrorAfter, Delay: time.Minute}, func(t *testing.T, b *bench) {
		start := time.Now()
		requireUnknown(t, b.call(t.Context()))
		require.Equal(t, time.Minute, time.Since(start))
		require.Equal(t, b.isChange(), state(t, b.below) != unchanged)
		require.Equal(t, 1, b.plan.Count(fault.ErrorAfter))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.call(ctx), context.DeadlineExceeded, "answer lost until the context ends")
	})
}

func TestErrorAfterCutsListShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		for i := range 6 {
			_, err := m.Create(t.Context(), fmt.Sprint("k", i), nil, 0)
			require.NoError(t, err)
		}
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.ErrorAfter}}}
		lengths := map[int]bool{}
		for range 100 {
			n := 0
			var last error
			for e, err := range fault.Store(m, plan).List(t.Context(), "k") {
				require.NoError(t, last, "entry after an error")
				last = err
				if err == nil {
					require.Equal(t, fmt.Sprint("k", n), e.Key)
					n++
				}
			}
			requireUnknown(t, last)
			lengths[n] = true
		}
		require.Len(t, lengths, 7, "lengths of lists: got %v, want 0 to 6", lengths)
		for range fault.Store(m, plan).List(t.Context(), "k") {
			break // no yield after that
		}
	})
}

func TestLateLandingMakesChangeAfterError(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.LandLater, Delay: time.Hour, Limit: 1}, func(t *testing.T, b *bench) {
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		err := b.call(ctx)
		cancel()
		if !b.isChange() {
			require.NoError(t, err)
			require.Zero(t, b.plan.Count(fault.LandLater))
			return
		}
		requireUnknown(t, err)
		require.Zero(t, time.Since(start))
		require.Equal(t, unchanged, state(t, b.below))
		require.Equal(t, 1, b.plan.Count(fault.LandLater))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.NotEqual(t, unchanged, state(t, b.below))
	})
}

func TestFlushMakesPendingChangesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		plan := &fault.Plan{Seed: 3, Rules: []fault.Rule{{Action: fault.LandLater}}}
		defer plan.Close()
		s := fault.Store(m, plan)
		value := []byte("0")
		for i := range 20 {
			value[0] = byte('a' + i)
			_, err := s.Append(t.Context(), "q", string(value), value, 0)
			requireUnknown(t, err)
		}
		start := time.Now()
		plan.Flush()
		require.Zero(t, time.Since(start))
		records, err := m.Read(t.Context(), "q", 0, 0)
		require.NoError(t, err)
		require.Len(t, records, 20)
		for i, r := range records {
			require.Equal(t, string(byte('a'+i)), string(r.Value), "value: got a changed one")
			require.Equal(t, r.ID, string(r.Value))
		}
	})
}

func TestLateLandingsAreBoundedAndDroppedByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.LandLater, Delay: 1000 * time.Hour}}}
		s := fault.Store(m, plan)
		for i := range 1030 {
			_, err := s.Create(t.Context(), fmt.Sprint(i), nil, 0)
			requireUnknown(t, err)
		}
		require.Equal(t, 1024, plan.Count(fault.LandLater))
		require.Equal(t, 6, plan.Count(fault.ErrorBefore))
		start := time.Now()
		plan.Close()
		plan.Close()
		require.Zero(t, time.Since(start))
		for e, err := range m.List(t.Context(), "") {
			require.NoError(t, err)
			t.Errorf("entry %s: got a change after Close, want none", e.Key)
		}
	})
}

func TestLateLandingsThatArrivedLeaveSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.LandLater}}}
		defer plan.Close()
		s := fault.Store(store.NewMemory(), plan)
		for i := range 1100 {
			_, err := s.Create(t.Context(), fmt.Sprint(i), nil, 0)
			requireUnknown(t, err)
			plan.Flush()
		}
		require.Equal(t, 1100, plan.Count(fault.LandLater))
	})
}

// A slowStore takes a second for Create, also after its context has ended.
type slowStore struct{ store.Store }

func (s slowStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	time.Sleep(time.Second)
	return s.Store.Create(ctx, key, value, ttl)
}

func TestCloseWaitsForPendingChangeInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.LandLater, Delay: 1}}}
		_, err := fault.Store(slowStore{store.NewMemory()}, plan).Create(t.Context(), "k", nil, 0)
		requireUnknown(t, err)
		time.Sleep(time.Millisecond)
		start := time.Now()
		plan.Close()
		require.Equal(t, time.Second-time.Millisecond, time.Since(start).Round(time.Millisecond))
	})
}

func TestHangEndsWithContextOrDelay(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.Hang}, func(t *testing.T, b *bench) {
		start := time.Now()
		requireUnknown(t, b.call(t.Context()))
		require.Equal(t, 10*time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.call(ctx), context.DeadlineExceeded)
		require.Equal(t, 11*time.Second, time.Since(start))
		require.Equal(t, unchanged, state(t, b.below))
		require.Equal(t, 2, b.plan.Count(fault.Hang))
	})
}

func TestSlowDelaysAnswer(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.Delay, Limit: 1}, func(t *testing.T, b *bench) {
		start := time.Now()
		require.NoError(t, b.call(t.Context()))
		require.Positive(t, time.Since(start))
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.Equal(t, 1, b.plan.Count(fault.Delay))
	})
	eachOp(t, fault.Rule{Action: fault.Delay, Delay: time.Hour}, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		require.ErrorIs(t, b.call(ctx), context.DeadlineExceeded)
		require.Equal(t, unchanged, state(t, b.below))
	})
}

func TestConflictIsChangeOfAnotherWriter(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.Conflict}, func(t *testing.T, b *bench) {
		err := b.call(t.Context())
		want := 0
		if b.op == "update" || b.op == "delete" {
			want = 1
			require.ErrorIs(t, err, store.ErrConflict)
			require.Equal(t, unchanged, state(t, b.below))
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, want, b.plan.Count(fault.Conflict))
	})
}

func TestConflictKeepsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		rev, err := m.Create(t.Context(), "k", nil, time.Minute)
		require.NoError(t, err)
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Conflict}}}
		time.Sleep(30 * time.Second)
		_, err = fault.Store(m, plan).Update(t.Context(), "k", nil, rev, time.Hour)
		require.ErrorIs(t, err, store.ErrConflict)
		time.Sleep(30 * time.Second)
		_, err = m.Get(t.Context(), "k")
		require.ErrorIs(t, err, store.ErrNotFound)
	})
}

func TestRivalMakesConflictOfCreateAndAppend(t *testing.T) {
	rival := func(ctx context.Context, s store.Store, name string) error {
		_, createErr := s.Create(ctx, name, []byte("rival"), 0)
		_, appendErr := s.Append(ctx, name, "id2", []byte("rival"), 0)
		return errors.Join(createErr, appendErr)
	}
	m, _ := newStore(t)
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Conflict, Rival: rival}}}
	s := fault.Store(m, plan)
	_, err := s.Create(t.Context(), "new", []byte("v"), 0)
	require.ErrorIs(t, err, store.ErrExists)
	_, err = s.Append(t.Context(), "q2", "id2", []byte("v"), 0)
	require.ErrorIs(t, err, store.ErrDuplicate)
	require.Equal(t, 2, plan.Count(fault.Conflict))
	_, err = s.Create(t.Context(), "new", []byte("v"), 0)
	require.ErrorIs(t, err, store.ErrExists)
	require.Equal(t, 2, plan.Count(fault.Conflict), "a rival that failed is no conflict")
}

func TestCrashEndsEveryCall(t *testing.T) {
	eachOp(t, fault.Rule{Probability: -1}, func(t *testing.T, b *bench) {
		b.plan.Crash()
		err := b.call(t.Context())
		require.ErrorIs(t, err, fault.ErrCrashed)
		require.ErrorIs(t, err, store.ErrClosed)
		require.Equal(t, unchanged, state(t, b.below))
	})
	for _, action := range []fault.Action{fault.Hang, fault.Delay} {
		eachOp(t, fault.Rule{Action: action, Delay: time.Hour}, func(t *testing.T, b *bench) {
			start, end := time.Now(), make(chan error)
			go func() { end <- b.call(t.Context()) }()
			synctest.Wait()
			b.plan.Crash()
			require.ErrorIs(t, <-end, fault.ErrCrashed)
			require.Zero(t, time.Since(start))
		})
	}
}

func TestCrashEndsWaitAndKeepsPendingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newStore(t)
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.LandLater, Op: "create"}}}
		defer plan.Close()
		s := fault.Store(m, plan)
		_, err := s.Create(t.Context(), "late", nil, 0)
		requireUnknown(t, err)
		end := make(chan error)
		go func() { end <- s.Wait(t.Context(), "q", 1) }()
		synctest.Wait()
		plan.Crash()
		require.ErrorIs(t, <-end, fault.ErrCrashed)
		plan.Flush()
		require.Equal(t, "k=v late= 1:id ", state(t, m))
		restarted := fault.Store(m, &fault.Plan{})
		_, err = restarted.Get(t.Context(), "late")
		require.NoError(t, err)
	})
}

func TestCrashDuringListEndsIt(t *testing.T) {
	for _, paused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, _ := newStore(t)
			_, err := m.Create(t.Context(), "k2", nil, 0)
			require.NoError(t, err)
			plan, n := &fault.Plan{}, 0
			for _, err = range fault.Store(m, plan).List(t.Context(), "k") {
				n++
				if paused && n == 1 {
					plan.Pause()
					time.AfterFunc(time.Minute, plan.Crash)
				} else if n == 1 {
					plan.Crash()
				}
			}
			require.ErrorIs(t, err, fault.ErrCrashed)
			require.Equal(t, 2, n)
		})
	}
}

func TestPauseWithholdsCallsUntilResume(t *testing.T) {
	eachOp(t, fault.Rule{Probability: -1}, func(t *testing.T, b *bench) {
		b.plan.Pause()
		b.plan.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.call(ctx), context.DeadlineExceeded)
		require.Equal(t, unchanged, state(t, b.below))

		start := time.Now()
		time.AfterFunc(time.Hour, b.plan.Resume)
		require.NoError(t, b.call(t.Context()))
		require.Equal(t, time.Hour, time.Since(start))
		require.Equal(t, b.isChange(), state(t, b.below) != unchanged)
		b.plan.Resume()
	})
}

func TestPauseWithholdsAnswersOfCallsInProgress(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.Delay, Delay: time.Minute, Limit: 1}, func(t *testing.T, b *bench) {
		start := time.Now()
		end := make(chan error)
		go func() { end <- b.call(t.Context()) }()
		synctest.Wait()
		b.plan.Pause()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, b.isChange(), state(t, b.below) != unchanged)
		select {
		case err := <-end:
			t.Fatalf("call while paused: got answer %v, want none", err)
		default:
		}
		b.plan.Resume()
		require.NoError(t, <-end)
		require.Equal(t, time.Hour, time.Since(start))
	})
}

func TestRuleSelectsCalls(t *testing.T) {
	type call struct {
		op   string
		name string
	}
	isX := func(_, name string) bool { return strings.HasSuffix(name, "x") }
	for _, tt := range []struct {
		name string
		rule fault.Rule
		want string // F: failed
	}{
		{"every call", fault.Rule{}, "FFFFFF"},
		{"operations", fault.Rule{Op: "get|read"}, "FFF..F"},
		{"prefix", fault.Rule{Match: "a/"}, "FF.F.."},
		{"operation and prefix", fault.Rule{Op: "get", Match: "a/"}, "FF...."},
		{"function", fault.Rule{When: isX}, ".FF..F"},
		{"skip", fault.Rule{Op: "get", After: 1}, ".FF..."},
		{"limit", fault.Rule{Limit: 2}, "FF...."},
		{"skip and limit", fault.Rule{After: 2, Limit: 1}, "..F..."},
		{"off", fault.Rule{Probability: -1}, "......"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := fault.Store(store.NewMemory(), &fault.Plan{Rules: []fault.Rule{tt.rule}})
			got := ""
			for _, c := range []call{
				{"get", "a/"}, {"get", "a/x"}, {"get", "b/x"},
				{"append", "a/"}, {"append", "b"}, {"read", "x"},
			} {
				var err error
				switch c.op {
				case "get":
					_, err = s.Get(t.Context(), c.name)
				case "append":
					_, err = s.Append(t.Context(), c.name, "", nil, 0)
				case "read":
					_, err = s.Read(t.Context(), c.name, 0, 0)
				}
				if errors.Is(err, fault.ErrInjected) {
					got += "F"
				} else {
					got += "."
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// trace is what happens to 400 calls under every kind of fault.
func trace(t *testing.T, seed uint64) string {
	var b strings.Builder
	synctest.Test(t, func(t *testing.T) {
		var rules []fault.Rule
		for _, action := range allActions {
			rules = append(rules, fault.Rule{Action: action, Probability: 0.2})
		}
		plan := &fault.Plan{Seed: seed, Rules: rules}
		defer plan.Close()
		m := store.NewMemory()
		s := fault.Store(m, plan)
		start := time.Now()
		for range 400 {
			e, _ := m.Get(t.Context(), "k")
			_, err := s.Update(t.Context(), "k", []byte("v"), e.Revision, time.Hour)
			if errors.Is(err, store.ErrNotFound) {
				_, err = s.Create(t.Context(), "k", []byte("v"), time.Hour)
			}
			fmt.Fprintln(&b, time.Since(start), err)
		}
		for _, action := range allActions {
			require.Greater(t, plan.Count(action), 10, "faults: %s", action)
		}
	})
	return b.String()
}

func TestSeedDecidesFaults(t *testing.T) {
	first := trace(t, 1)
	for range 5 {
		require.Equal(t, first, trace(t, 1))
	}
	require.NotEqual(t, first, trace(t, 2))
}

func TestRateIsProbability(t *testing.T) {
	plan := &fault.Plan{Seed: 1, Rules: []fault.Rule{{Probability: 0.25}}}
	s := fault.Store(store.NewMemory(), plan)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				s.Get(context.Background(), "k")
			}
		})
	}
	wg.Wait()
	require.InDelta(t, 1000, plan.Count(fault.ErrorBefore), 150)
}
