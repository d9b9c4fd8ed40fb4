// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

var errNoAnswer = errors.New("connection reset")

// A hookedStore is a store whose calls by Modify pass through a function. The function makes
// the call or not, and returns the answer.
type hookedStore struct {
	store.Store
	hook func(op string, call func() error) error
}

func hooked[T any](s *hookedStore, op string, call func() (T, error)) (result T, err error) {
	err = s.hook(op, func() error {
		result, err = call()
		return err
	})
	return result, err
}

func (s *hookedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	return hooked(s, "Get", func() (store.Entry, error) { return s.Store.Get(ctx, key) })
}

func (s *hookedStore) Create(
	ctx context.Context, key string, value []byte, ttl time.Duration,
) (store.Revision, error) {
	return hooked(s, "Create", func() (store.Revision, error) { return s.Store.Create(ctx, key, value, ttl) })
}

func (s *hookedStore) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	return hooked(s, "Update", func() (store.Revision, error) { return s.Store.Update(ctx, key, value, rev, ttl) })
}

func (s *hookedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	_, err := hooked(s, "Delete", func() (bool, error) { return true, s.Store.Delete(ctx, key, rev) })
	return err
}

// loseFirst returns a hook that makes the first call of op, or does not, then calls then and
// returns errNoAnswer.
func loseFirst(op string, isMade bool, then func()) func(string, func() error) error {
	var once sync.Once
	return func(name string, call func() error) (err error) {
		isFirst := false
		if name == op {
			once.Do(func() { isFirst = true })
		}
		if !isFirst {
			return call()
		}
		if isMade {
			call()
		}
		then()
		return errNoAnswer
	}
}

func increment(old store.Entry, _ bool) ([]byte, error) {
	n, _ := strconv.Atoi(string(old.Value))
	return []byte(strconv.Itoa(n + 1)), nil
}

func remove(store.Entry, bool) ([]byte, error) { return nil, nil }

func modify(t *testing.T, kv store.KV, n int) (e store.Entry) {
	t.Helper()
	for range n {
		var err error
		e, err = store.Modify(t.Context(), kv, "k", 0, increment)
		require.NoError(t, err)
	}
	return e
}

func content(t *testing.T, kv store.KV) string {
	t.Helper()
	e, err := kv.Get(t.Context(), "k")
	require.NoError(t, err)
	e, err = store.Content(e)
	require.NoError(t, err)
	return string(e.Value)
}

func TestModifyCreatesChangesAndDeletes(t *testing.T) {
	m := store.NewMemory()
	e, err := store.Modify(t.Context(), m, "k", time.Hour, func(old store.Entry, found bool) ([]byte, error) {
		require.False(t, found)
		require.Equal(t, store.Entry{Key: "k"}, old)
		return []byte("1"), nil
	})
	require.NoError(t, err)
	stored, err := m.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, store.Entry{Key: "k", Value: []byte("1"), Revision: stored.Revision}, e)
	require.WithinDuration(t, time.Now().Add(time.Hour), stored.Expires, time.Minute)

	e = modify(t, m, 20)
	require.Equal(t, "21", string(e.Value))
	require.Equal(t, "21", content(t, m))
	stored, err = m.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, stored.Revision, e.Revision)
	require.Len(t, stored.Value, 74+2)

	e, err = store.Modify(t.Context(), m, "k", 0, func(store.Entry, bool) ([]byte, error) { return []byte{}, nil })
	require.NoError(t, err)
	require.Empty(t, e.Value)
	require.Empty(t, content(t, m))

	for range 2 { // the second one finds nothing
		e, err = store.Modify(t.Context(), m, "k", 0, remove)
		require.NoError(t, err)
		require.Equal(t, store.Entry{Key: "k"}, e)
		_, err = m.Get(t.Context(), "k")
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

func TestModifyEndsWithoutWriteOnError(t *testing.T) {
	m := store.NewMemory()
	want := modify(t, m, 3)
	errOwn := errors.New("own")
	_, err := store.Modify(t.Context(), m, "k", 0, func(store.Entry, bool) ([]byte, error) { return []byte("x"), errOwn })
	require.ErrorIs(t, err, errOwn)
	got, err := store.Modify(t.Context(), m, "k", 0, func(store.Entry, bool) ([]byte, error) {
		return []byte("x"), store.ErrUnchanged
	})
	require.NoError(t, err)
	require.Equal(t, want, got)
	stored, err := m.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, want.Revision, stored.Revision)
	_, err = store.Modify(t.Context(), m, "k", -1, increment)
	require.ErrorIs(t, err, store.ErrInvalid)
}

func TestModifyRefusesValueWithoutHeader(t *testing.T) {
	m := store.NewMemory()
	for _, value := range []string{"", "\x01", "{}", "\x01m short", "\x02m" + string(make([]byte, 100))} {
		rev, err := m.Create(t.Context(), "k", []byte(value), 0)
		require.NoError(t, err)
		_, err = store.Modify(t.Context(), m, "k", 0, increment)
		require.ErrorContains(t, err, strconv.Quote("\x01m"))
		require.ErrorContains(t, err, strconv.Quote(value[:min(len(value), 2)]))
		_, err = store.Content(store.Entry{Value: []byte(value)})
		require.Error(t, err, "content of %q: got none, want an error", value)
		require.NoError(t, m.Delete(t.Context(), "k", rev))
	}
}

func TestModifyReturnsConflictAfterHundredRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rounds := store.NewMemory(), 0
		modify(t, m, 1)
		s := &hookedStore{m, func(op string, call func() error) error {
			if op == "Update" {
				rounds++
				modify(t, m, 1)
			}
			return call()
		}}
		_, err := store.Modify(t.Context(), s, "k", 0, increment)
		require.ErrorIs(t, err, store.ErrConflict)
		require.Equal(t, 100, rounds)
		require.Equal(t, "101", content(t, m))
	})
}

func TestModifyRepeatsTwiceWithoutPause(t *testing.T) {
	for conflicts := range 4 {
		synctest.Test(t, func(t *testing.T) {
			m, left := store.NewMemory(), conflicts
			modify(t, m, 1)
			s := &hookedStore{m, func(op string, call func() error) error {
				if op == "Update" && left > 0 {
					left--
					modify(t, m, 1)
				}
				return call()
			}}
			start := time.Now()
			_, err := store.Modify(t.Context(), s, "k", 0, increment)
			require.NoError(t, err)
			require.Equal(t, conflicts > 2, time.Since(start) > 0, "after %d conflicts", conflicts)
		})
	}
}

func TestModifyByManyWritersLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 4 {
					if _, err := store.Modify(t.Context(), m, "k", 0, increment); err != nil {
						t.Errorf("Modify: got %v, want nil", err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, "200", content(t, m))
	})
}

// A change whose answer is lost is made once, and its outcome is found while at most 8
// changes were made.
func TestModifyFindsOutcomeOfLostAnswer(t *testing.T) {
	for _, op := range []string{"Create", "Update"} {
		for _, isMade := range []bool{true, false} {
			for others := range 12 {
				synctest.Test(t, func(t *testing.T) {
					m := store.NewMemory()
					before := 0
					if op == "Update" {
						before = 10
						modify(t, m, before)
					}
					s := &hookedStore{m, loseFirst(op, isMade, func() { modify(t, m, others) })}
					e, err := store.Modify(t.Context(), s, "k", 0, increment)
					got := content(t, m)
					isKnown := others < 8 || others == 8 && !isMade || op == "Create"
					if !isKnown {
						require.ErrorIs(t, err, store.ErrUnknown)
						require.Contains(t, []int{before + others, before + others + 1}, atoi(t, got))
						return
					}
					require.NoError(t, err, "%s made %v, %d others", op, isMade, others)
					require.Equal(t, before+others+1, atoi(t, got), "%s made %v, %d others", op, isMade, others)
					want := before + 1
					if !isMade {
						want += others
					}
					require.Equal(t, want, atoi(t, string(e.Value)))
					require.Equal(t, isMade && others > 0, e.Revision == 0, "revision: got %d", e.Revision)
				})
			}
		}
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func TestModifyFindsOutcomeOfLostDeletion(t *testing.T) {
	deleteKey := func(m store.KV) {
		_, err := store.Modify(context.Background(), m, "k", 0, remove)
		if err != nil {
			panic(err)
		}
	}
	for _, tt := range []struct {
		name   string
		isMade bool
		then   func(t *testing.T, m store.KV)
		want   string // the value afterwards
	}{
		{"made", true, func(*testing.T, store.KV) {}, ""},
		{"not made", false, func(*testing.T, store.KV) {}, ""},
		{"made and created by another", true, func(t *testing.T, m store.KV) { modify(t, m, 3) }, "3"},
		{"not made and changed by another", false, func(t *testing.T, m store.KV) { modify(t, m, 30) }, ""},
		{"not made and deleted by another", false, func(_ *testing.T, m store.KV) { deleteKey(m) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := store.NewMemory()
				modify(t, m, 1)
				s := &hookedStore{m, loseFirst("Delete", tt.isMade, func() { tt.then(t, m) })}
				_, err := store.Modify(t.Context(), s, "k", 0, remove)
				require.NoError(t, err)
				if tt.want != "" {
					require.Equal(t, tt.want, content(t, m))
					return
				}
				_, err = m.Get(t.Context(), "k")
				require.ErrorIs(t, err, store.ErrNotFound)
			})
		})
	}
}

// Another writer changes the entry, which refuses the repetition, and then deletes it.
func TestModifyDeletesEntryDeletedAfterRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		modify(t, m, 1)
		deletes := 0
		s := &hookedStore{m, func(op string, call func() error) error {
			if op != "Delete" {
				return call()
			}
			deletes++
			if deletes == 1 {
				return errNoAnswer
			}
			modify(t, m, 1)
			err := call()
			require.NoError(t, m.Delete(t.Context(), "k", 0))
			return err
		}}
		e, err := store.Modify(t.Context(), s, "k", 0, remove)
		require.NoError(t, err)
		require.Equal(t, store.Entry{Key: "k"}, e)
		require.Equal(t, 2, deletes)
	})
}

func TestContentHasNoSpareCapacity(t *testing.T) {
	m := store.NewMemory()
	modify(t, m, 1)
	stored, err := m.Get(t.Context(), "k")
	require.NoError(t, err)
	stored.Value = append(make([]byte, 0, 1000), stored.Value...)
	e, err := store.Content(stored)
	require.NoError(t, err)
	require.Equal(t, len(e.Value), cap(e.Value), "capacity: an append must not write to the store's bytes")
}

func TestModifyReportsUnknownAfterDeletionByAnother(t *testing.T) {
	for _, again := range []int{0, 1, 9} {
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			modify(t, m, 2)
			s := &hookedStore{m, loseFirst("Update", true, func() {
				_, err := store.Modify(t.Context(), m, "k", 0, remove)
				require.NoError(t, err)
				modify(t, m, again)
			})}
			_, err := store.Modify(t.Context(), s, "k", 0, increment)
			require.ErrorIs(t, err, store.ErrUnknown, "created again and changed %d times", again)
		})
	}
}

// A writer may renew the ttl with the stored value; that hides no change in doubt.
func TestModifyFindsOutcomeBehindRenewal(t *testing.T) {
	for _, isMade := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			modify(t, m, 2)
			s := &hookedStore{m, loseFirst("Update", isMade, func() {
				e, err := m.Get(t.Context(), "k")
				require.NoError(t, err)
				_, err = m.Update(t.Context(), "k", e.Value, e.Revision, time.Hour)
				require.NoError(t, err)
			})}
			_, err := store.Modify(t.Context(), s, "k", 0, increment)
			require.NoError(t, err)
			require.Equal(t, "3", content(t, m))
		})
	}
}

// The first attempt arrives after a read would have missed it.
func TestModifyRepeatsWriteThatArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		modify(t, m, 1)
		var late func() error
		lost := 3
		s := &hookedStore{m, func(op string, call func() error) error {
			if op != "Update" || lost == 0 {
				return call()
			}
			lost--
			late = call
			return errNoAnswer
		}}
		_, err := store.Modify(t.Context(), s, "k", 0, increment)
		require.NoError(t, err)
		require.ErrorIs(t, late(), store.ErrConflict)
		require.Equal(t, "2", content(t, m))
	})
}

func TestModifyContinuesInBackgroundAfterCallerLeaves(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		modify(t, m, 1)
		var isDown atomic.Bool
		isDown.Store(true)
		s := &hookedStore{m, func(op string, call func() error) error {
			if op == "Update" && isDown.Load() {
				return errNoAnswer
			}
			return call()
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := store.Modify(ctx, s, "k", 0, increment)
		require.ErrorIs(t, err, store.ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errNoAnswer)
		require.Equal(t, "1", content(t, m))
		isDown.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, "2", content(t, m))
	})
}

func TestModifyReportsEndOfContextWhileItReadsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		modify(t, m, 1)
		lost := false
		s := &hookedStore{m, func(op string, call func() error) error {
			switch {
			case op == "Update" && !lost:
				lost = true
				call()
				return errNoAnswer
			case op == "Get" && lost:
				return errNoAnswer
			}
			return call()
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := store.Modify(ctx, s, "k", 0, increment)
		require.ErrorIs(t, err, store.ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errNoAnswer)
		require.Equal(t, "2", content(t, m))
	})
}

func TestPersistReturnsAnswers(t *testing.T) {
	for _, answer := range []error{
		nil, store.ErrNotFound, store.ErrExists, store.ErrConflict, store.ErrDuplicate, store.ErrInvalid,
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := store.Persist(t.Context(), func(context.Context) error {
				calls++
				if calls < 20 {
					return errNoAnswer
				}
				return answer
			})
			require.Equal(t, answer, err)
			require.Equal(t, 20, calls)
		})
	}
}

func TestPersistReportsUnknownOnClosedStore(t *testing.T) {
	err := store.Persist(t.Context(), func(context.Context) error { return store.ErrClosed })
	require.ErrorIs(t, err, store.ErrUnknown)
	require.ErrorIs(t, err, store.ErrClosed)
}

func TestPersistWithEndedContextDoesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := store.Persist(ctx, func(context.Context) error { panic("called") })
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, store.ErrUnknown)
	_, err = store.Modify(ctx, store.NewMemory(), "k", 0, increment)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, store.ErrUnknown)
}

// persistBriefly calls Persist with a context of one second.
func persistBriefly(t *testing.T, op func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return store.Persist(ctx, op)
}

func TestPersistEndsInBackground(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, tt := range []struct {
		name   string
		answer error
		after  time.Duration // of the answer
		want   time.Duration // at most, until the last call
	}{
		{"when the store answers", nil, 30 * time.Second, 32 * time.Second},
		{"when the store refuses", store.ErrConflict, 30 * time.Second, 32 * time.Second},
		{"when the store is closed", store.ErrClosed, 10 * time.Second, 12 * time.Second},
		{"after a minute", nil, time.Hour, 62 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var last time.Time
				err := persistBriefly(t, func(ctx context.Context) error {
					last = time.Now()
					if last.Sub(start) > tt.after {
						return tt.answer
					}
					return errNoAnswer
				})
				require.ErrorIs(t, err, store.ErrUnknown)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				require.Less(t, last.Sub(start), tt.want)
				require.Greater(t, last.Sub(start), min(tt.after, 58*time.Second))
			})
		})
	}
}

func TestPersistEndsHangInBackground(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var end time.Time
		err := persistBriefly(t, func(ctx context.Context) error {
			<-ctx.Done()
			end = time.Now()
			return ctx.Err()
		})
		require.ErrorIs(t, err, store.ErrUnknown)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 61*time.Second, end.Sub(start))
	})
}

func TestPersistSurvivesPanicInBackground(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		err := persistBriefly(t, func(context.Context) error {
			if time.Since(start) > time.Second {
				calls++
				panic("engine")
			}
			return errNoAnswer
		})
		require.ErrorIs(t, err, store.ErrUnknown)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 1, calls)
	})
}

func TestPersistBoundsRepetitionsInBackground(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		var refused atomic.Int64
		hang := func(ctx context.Context) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}
		var wg sync.WaitGroup
		for range 1100 {
			wg.Go(func() {
				err := persistBriefly(t, hang)
				if err == nil || !errors.Is(err, store.ErrUnknown) {
					t.Errorf("Persist: got %v, want ErrUnknown", err)
				}
				if err != nil && len(err.Error()) > 90 {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		require.Equal(t, int64(1024), running.Load())
		require.Equal(t, int64(1100-1024), refused.Load())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Zero(t, running.Load())
		require.ErrorIs(t, persistBriefly(t, hang), store.ErrUnknown)
		synctest.Wait()
		require.Equal(t, int64(1), running.Load(), "after the others ended: got none, want a repetition")
		time.Sleep(2 * time.Minute)
	})
}

// A workload is several writers, each behind faults, that append their marks to one value.
type workload struct {
	seed    uint64
	rules   []fault.Rule
	writers int
	timeout time.Duration // of one Modify
	crashes bool          // the first writer, after a second
}

// run returns a violated law, or "". Every mark of a change is in the value once if Modify
// returned nil, at most once if it returned ErrUnknown, and never after another error.
func (w workload) run(t *testing.T) (broken string, counts [3]int) {
	m := store.NewMemory()
	var mu sync.Mutex
	results := map[string]error{}
	var plans []*fault.Plan
	var wg sync.WaitGroup
	for i := range w.writers {
		plan := &fault.Plan{Seed: w.seed + uint64(i), Rules: w.rules}
		plans = append(plans, plan)
		view := fault.Store(m, plan)
		wg.Go(func() {
			for n := range 6 {
				mark := fmt.Sprintf("%d.%d ", i, n)
				ctx, cancel := context.WithTimeout(t.Context(), w.timeout)
				_, err := store.Modify(ctx, view, "k", 0, func(old store.Entry, _ bool) ([]byte, error) {
					return append(old.Value[:len(old.Value):len(old.Value)], mark...), nil
				})
				cancel()
				mu.Lock()
				results[mark] = err
				mu.Unlock()
			}
		})
	}
	if w.crashes {
		time.AfterFunc(time.Second, plans[0].Crash)
	}
	wg.Wait()
	time.Sleep(5 * time.Minute) // for repetitions in the background and late changes
	for _, plan := range plans {
		plan.Close()
	}
	value := ""
	if _, err := m.Get(t.Context(), "k"); err == nil {
		value = content(t, m)
	}
	for mark, err := range results {
		n := strings.Count(value, mark)
		switch {
		case err == nil:
			counts[0]++
		case errors.Is(err, store.ErrUnknown):
			counts[1]++
		default:
			counts[2]++
		}
		isUnknown := errors.Is(err, store.ErrUnknown)
		if n > 1 || err == nil && n != 1 || err != nil && !isUnknown && n != 0 {
			return fmt.Sprintf("change %s: got %d times, result %v", mark, n, err), counts
		}
	}
	return "", counts
}

func TestModifyMakesEachChangeOnceDespiteFaults(t *testing.T) {
	defer goleak.VerifyNone(t)
	var total [3]int
	rapid.Check(t, func(r *rapid.T) {
		w := workload{
			seed:    rapid.Uint64().Draw(r, "seed"),
			writers: rapid.IntRange(1, 4).Draw(r, "writers"),
			timeout: time.Duration(rapid.SampledFrom([]int{50, 500, 30_000}).Draw(r, "timeout")) * time.Millisecond,
			crashes: rapid.Bool().Draw(r, "crashes"),
		}
		for _, kind := range []fault.Action{
			fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Conflict, fault.Delay,
		} {
			if rate := rapid.SampledFrom([]float64{-1, 0.1, 0.4}).Draw(r, fmt.Sprint("rate ", kind)); rate > 0 {
				w.rules = append(w.rules, fault.Rule{Action: kind, Probability: rate, Delay: 300 * time.Millisecond})
			}
		}
		var broken string
		synctest.Test(t, func(t *testing.T) {
			var counts [3]int
			broken, counts = w.run(t)
			for i, n := range counts {
				total[i] += n
			}
		})
		if broken != "" {
			r.Fatal(broken)
		}
	})
	require.NotContains(t, total[:], 0, "results nil, unknown and other: got %v, want some of each", total)
}
