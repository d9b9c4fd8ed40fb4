// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var discard = slog.New(slog.DiscardHandler)

const testPeriod = time.Minute

func reserve(t *testing.T, s *Scope, r Resource, n int64) Hold {
	t.Helper()
	h, err := s.Reserve(r, n)
	require.NoError(t, err)
	return h
}

func requireRefused(t *testing.T, err error, scope string, limit, used int64) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, []any{scope, limit, used}, []any{e.Scope, e.Limit, e.Used}, "scope, limit and use of %v", e)
	require.GreaterOrEqual(t, e.RetryAfter, time.Second)
	require.LessOrEqual(t, e.RetryAfter, time.Minute)
	return e
}

func requireEmpty(t *testing.T, b *Budget) {
	t.Helper()
	for _, u := range b.Usage() {
		require.Zero(t, u.Used, "use of %v by %v", u.Resource, u.Scope)
	}
}

func TestBudgetHasDefaultsForOpenNetwork(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	want := []Usage{
		{"memory", "session", 0, 16 << 20}, {"memory", "principal", 0, 64 << 20}, {"memory", "all", 0, 256 << 20},
		{"storage", "session", 0, 256 << 20}, {"storage", "principal", 0, 1 << 30}, {"storage", "all", 0, -1},
		{"items", "session", 0, 1_000}, {"items", "principal", 0, 10_000}, {"items", "all", 0, 100_000},
		{"work", "session", 0, 64}, {"work", "principal", 0, 256}, {"work", "all", 0, 1_024},
		{"waiting", "session", 0, 256}, {"waiting", "principal", 0, 1_024}, {"waiting", "all", 0, 8_192},
		{"unauthenticated", "session", 0, -1}, {"unauthenticated", "principal", 0, 16}, {"unauthenticated", "all", 0, 256},
	}
	require.Equal(t, want, New(Limits{}, nil).Usage())

	debug.SetMemoryLimit(300 << 20)
	require.EqualValues(t, 100<<20, New(Limits{}, nil).usage()[Memory].limit.All, "a third of GOMEMLIMIT")
}

func TestRoomIsLowInAnyScope(t *testing.T) {
	for name, tt := range map[string]struct {
		limit Limit
		own   int64 // used by the session
		other int64 // used by another principal
		free  int64
		isLow bool
	}{
		"empty":     {Limit{16, 32, 128}, 0, 0, 16, false},
		"session":   {Limit{16, 32, 128}, 13, 0, 3, true},
		"principal": {Limit{-1, 32, 128}, 25, 0, 7, true},
		"rest":      {Limit{-1, -1, 128}, 0, 100, 28, true},
		"own share": {Limit{-1, 127, 128}, 40, 0, 24, false},
		"low share": {Limit{-1, 127, 128}, 50, 0, 14, true},
		"others":    {Limit{-1, 127, 128}, 0, 60, 34, false},
		"no bound":  {Limit{-1, -1, -1}, 1 << 40, 1 << 40, math.MaxInt64 - 1<<41, false},
	} {
		b := New(Limits{Memory: tt.limit, Logger: discard}, nil)
		s := b.Scope("alice", "1")
		reserve(t, s, Memory, tt.own)
		reserve(t, b.Scope("bob", "2"), Memory, tt.other)
		free, isLow := s.Room(Memory)
		require.Equal(t, []any{tt.free, tt.isLow}, []any{free, isLow}, name)
	}
}

func TestBudgetRefusesOverEachBound(t *testing.T) {
	b := New(Limits{Items: Limit{2, 3, 8}, Logger: discard}, nil)
	one, two := b.Scope("alice", "1"), b.Scope("alice", "2")
	reserve(t, one, Items, 2)
	_, err := one.Reserve(Items, 1)
	e := requireRefused(t, err, "session", 2, 2)
	require.Equal(t, "budget: items: limit of session reached: 2 of 2 used", e.Error())
	reserve(t, two, Items, 1)
	_, err = two.Reserve(Items, 1)
	requireRefused(t, err, "principal", 3, 3)

	reserve(t, b.Scope("bob", ""), Items, 2)
	_, err = b.Scope("bob", "").Reserve(Items, 1)
	requireRefused(t, err, "principal", 2, 2) // 5 are free without those of bob
	_, err = b.Scope("carol", "").Reserve(Items, 3)
	requireRefused(t, err, "principal", 1, 0)
	reserve(t, b.Scope("carol", ""), Items, 1)
	reserve(t, b.Scope("dave", ""), Items, 1)
	reserve(t, b.Scope("erin", ""), Items, 1)
	_, err = b.Scope("frank", "").Reserve(Items, 1)
	requireRefused(t, err, "all", 8, 8)
}

func TestBudgetWithoutBounds(t *testing.T) {
	b := New(Limits{Items: Limit{-1, -1, 4}, Memory: Limit{-1, -1, -1}, Logger: discard}, nil)
	for range 4 {
		reserve(t, b.Scope("alice", "1"), Items, 1)
	}
	_, err := b.Scope("bob", "").Reserve(Items, 1)
	requireRefused(t, err, "all", 4, 4)
	reserve(t, b.Scope("alice", "1"), Memory, math.MaxInt64-1)
	reserve(t, b.Scope("alice", "1"), Memory, 1)
	_, err = b.Scope("bob", "").Reserve(Memory, math.MaxInt64)
	require.Error(t, err, "the sum does not overflow")
}

func TestReserveOfNothingHoldsNothing(t *testing.T) {
	b := New(Limits{}, nil)
	for _, n := range []int64{0, -1, math.MinInt64} {
		require.Equal(t, Hold{}, reserve(t, b.Scope("alice", ""), Items, n))
	}
	Hold{}.Release()
	requireEmpty(t, b)
}

func TestReserveOfHugeSizeIsRefused(t *testing.T) {
	b := New(Limits{Logger: discard}, nil)
	_, err := b.Scope("alice", "1").Reserve(Memory, math.MaxInt64)
	requireRefused(t, err, "session", 16<<20, 0)
	_, err = b.Scope("alice", "").Reserve(Memory, math.MaxInt64)
	requireRefused(t, err, "principal", 64<<20, 0)
	requireEmpty(t, b)
}

func TestHoldReleaseIsIdempotent(t *testing.T) {
	b := New(Limits{}, nil)
	s := b.Scope("alice", "1")
	first := reserve(t, s, Items, 1)
	copied := first
	first.Release()
	second := reserve(t, s, Items, 1) // may use the same entry
	first.Release()
	copied.Release()
	require.EqualValues(t, 1, b.usage()[Items].used.All)

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(second.Release)
	}
	wg.Wait()
	requireEmpty(t, b)
}

func TestBudgetLeavesRoomForNewPrincipals(t *testing.T) {
	b := New(Limits{Logger: discard}, nil)
	used := int64(0)
	for i := range 20 {
		s := b.Scope(fmt.Sprint("principal ", i), "")
		for n := int64(64 << 20); n > 0; {
			if _, err := s.Reserve(Memory, n); err != nil {
				n /= 2
				continue
			}
			used += n
		}
		require.GreaterOrEqual(t, used, int64(64<<20), "the first principals get their bound")
		require.Less(t, used, int64(256<<20)-20, "room remains after principal %d", i)
	}
}

func TestAnonymousCallersShareHalf(t *testing.T) {
	b := New(Limits{Items: Limit{-1, 50, 100}, Unauthenticated: Limit{0, 16, 16}, Logger: discard}, nil)
	count := 0
	for i := range 1000 {
		if _, err := b.Scope(Anonymous(fmt.Sprintf("192.0.%d.%d", i/256, i%256)), "").Reserve(Items, 1); err == nil {
			count++
		}
	}
	require.Equal(t, 50, count)
	_, err := b.Scope(Anonymous("198.51.100.1"), "").Reserve(Items, 1)
	requireRefused(t, err, "all", 50, 50)
	for range 25 {
		reserve(t, b.Scope("alice", ""), Items, 1)
	}
	for i := range 16 {
		reserve(t, b.Scope(Anonymous(fmt.Sprintf("192.0.2.%d", i)), ""), Unauthenticated, 1)
	}
}

func TestAnonymousIsOnePrincipalPerAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1":                      "192.0.2.1",
		"192.0.2.1:8080":                 "192.0.2.1",
		"[::ffff:192.0.2.1]:80":          "192.0.2.1",
		"2001:db8:1:2:3:4:5:6":           "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:80":      "2001:db8:1:2::/64",
		"[fe80::1%eth0]:80":              "fe80::/64",
		"@":                              "invalid IP",
		"":                               "invalid IP",
		"example.com:80":                 "invalid IP",
		strings.Repeat("x", 10_000):      "invalid IP",
		netip.IPv6Unspecified().String(): "::/64",
	} {
		require.Equal(t, "\x00anonymous "+want, Anonymous(addr), addr)
	}
}

func TestReserveEvictsBeforeItRefuses(t *testing.T) {
	type call struct {
		principal string
		n         int64
	}
	var calls []call
	var b *Budget
	idle := map[string][]Hold{}
	limits := Limits{Items: Limit{4, 8, 16}, Logger: discard}
	b = New(limits, func(r Resource, principal string, n int64) (released int64) {
		require.Equal(t, Items, r)
		require.NotEmpty(t, b.Usage(), "no lock is held")
		calls = append(calls, call{principal, n})
		for p, holds := range idle {
			for len(holds) > 0 && released < n && (principal == "" || principal == p) {
				holds[0].Release()
				holds = holds[1:]
				released++
			}
			idle[p] = holds
		}
		return released
	})
	alice, bob := b.Scope("alice", "1"), b.Scope("bob", "")
	for range 4 {
		idle["alice"] = append(idle["alice"], reserve(t, alice, Items, 1))
	}
	require.Empty(t, calls, "nothing is evicted while there is room")
	reserve(t, alice, Items, 2)
	require.Equal(t, []call{{"alice", 2}}, calls)

	calls = nil
	reserve(t, bob, Items, 6)
	reserve(t, b.Scope("carol", ""), Items, 3)
	require.Equal(t, []call{}, append([]call{}, calls...))
	reserve(t, b.Scope("dave", ""), Items, 2)
	require.Equal(t, []call{{"dave", 1}, {"", 1}}, calls, "the same principal's first, then any")

	calls = nil
	_, err := alice.Reserve(Items, 4)
	requireRefused(t, err, "session", 4, 2)
	require.Equal(t, "alice", calls[0].principal)
	for _, c := range calls {
		require.NotEmpty(t, c.principal, "another principal's things do not help a session")
	}
}

func TestResizeEvictsBeforeItRefuses(t *testing.T) {
	var idle Hold
	b := New(Limits{Memory: Limit{-1, 100, -1}, Logger: discard}, func(Resource, string, int64) int64 {
		idle.Release()
		return 60
	})
	s := b.Scope("alice", "1")
	idle = reserve(t, s, Memory, 60)
	h := reserve(t, s, Memory, 10)
	require.NoError(t, h.Resize(40))
	require.EqualValues(t, 100, b.usage()[Memory].used.All, "there was room")
	require.NoError(t, h.Resize(90))
	require.EqualValues(t, 90, b.usage()[Memory].used.All, "the idle hold was evicted")
	requireRefused(t, h.Resize(101), "principal", 100, 90)
	require.EqualValues(t, 90, b.usage()[Memory].used.All, "a refused change changes nothing")
	h.Release()
	requireEmpty(t, b)
}

func TestAnyPrincipalReleasesTheRestOnly(t *testing.T) {
	idle, want := map[string]Hold{}, map[string]int64{"alice": 30, "": 20}
	b := New(Limits{Memory: Limit{-1, -1, 100}, Logger: discard}, func(_ Resource, principal string, n int64) int64 {
		require.Equal(t, want[principal], n, "units that %q must release", principal)
		idle[principal].Release()
		return min(n, map[string]int64{"alice": 10, "": 90}[principal])
	})
	alice := b.Scope("alice", "")
	idle["alice"], idle[""] = reserve(t, alice, Memory, 10), reserve(t, b.Scope("bob", ""), Memory, 90)
	reserve(t, alice, Memory, 30).Release()
	requireEmpty(t, b)
}

// The eviction for a Resize may release the hold itself, which then stays released.
func TestResizeOfHoldThatIsEvicted(t *testing.T) {
	var h Hold
	b := New(Limits{Memory: Limit{-1, 100, -1}, Logger: discard}, func(Resource, string, int64) int64 {
		h.Release()
		return 60
	})
	s := b.Scope("alice", "1")
	h = reserve(t, s, Memory, 60)
	require.NoError(t, h.Resize(130))
	requireEmpty(t, b)
	other := reserve(t, s, Memory, 10) // may have the same entry
	require.NoError(t, h.Resize(20))
	require.EqualValues(t, 10, b.usage()[Memory].used.All)
	other.Release()
	requireEmpty(t, b)
}

func TestReserveEndsIfEvictionDoesNotHelp(t *testing.T) {
	calls := 0
	b := New(Limits{Items: Limit{1, 1, 1}, Logger: discard}, func(Resource, string, int64) int64 {
		calls++
		return 1
	})
	reserve(t, b.Scope("alice", ""), Items, 1)
	_, err := b.Scope("alice", "").Reserve(Items, 1)
	requireRefused(t, err, "principal", 1, 1)
	require.Equal(t, maxEvictions, calls)
}

func TestErrorEstimatesRetryAfter(t *testing.T) {
	retryAfter := func(s *Scope, n int64) time.Duration {
		_, err := s.Reserve(Items, n)
		return requireRefused(t, err, "session", 100, 100).RetryAfter
	}
	synctest.Test(t, func(t *testing.T) {
		s := New(Limits{Items: Limit{Session: 100}, Logger: discard}, nil).Scope("alice", "1")
		time.Sleep(time.Hour)
		var holds []Hold
		for range 100 {
			holds = append(holds, reserve(t, s, Items, 1))
		}
		require.Equal(t, time.Second, retryAfter(s, 1), "at least")
		time.Sleep(20 * time.Second)
		require.Equal(t, 20*time.Second, retryAfter(s, 1), "the oldest holds last that long")
		time.Sleep(20 * time.Second)
		for i := range 20 {
			holds[i].Release()
			holds[i] = reserve(t, s, Items, 1)
		}
		require.Equal(t, 2*time.Second, retryAfter(s, 1), "one in two seconds was released")
		require.Equal(t, 20*time.Second, retryAfter(s, 10))
		for i := range 1_000 {
			time.Sleep(time.Second)
			holds[i%100].Release()
			holds[i%100] = reserve(t, s, Items, 1)
			_ = retryAfter(s, 1)
		}
		require.InDelta(t, 30, retryAfter(s, 30).Seconds(), 1, "one in a second was released")
		time.Sleep(24 * time.Hour)
		require.Equal(t, time.Minute, retryAfter(s, 10), "at most")
		for range 20 {
			retryAfter(s, 1)
		}
		for i := range 100 {
			holds[i].Release()
			holds[i] = reserve(t, s, Items, 1)
		}
		require.Equal(t, time.Second, retryAfter(s, 1), "a long pause does not count for ever")
	})
}

func TestBudgetLogsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := New(Limits{Items: Limit{1, 2, 4}, Logger: slog.New(slog.NewTextHandler(&out, nil))}, nil)
		records := func() (n int) {
			n = strings.Count(out.String(), "\n")
			out.Reset()
			return n
		}
		refuse := func(principal, session string, n int64) {
			_, err := b.Scope(principal, session).Reserve(Items, n)
			require.Error(t, err)
		}
		refuse(Anonymous("192.0.2.1:80"), "1", 2)
		require.Contains(t, out.String(), `level=WARN msg="budget: reservation refused" resource=items scope=session`+
			` principal="anonymous 192.0.2.1" limit=1 used=0`)
		require.Equal(t, 1, records())
		for range 100 {
			refuse("alice", "1", 2)
			refuse("alice", "2", 2)
			refuse("alice", "", 3)
			refuse("bob", "", 3)
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, 3, records(), "alice's sessions, alice and bob")
		time.Sleep(testPeriod)
		refuse("alice", "1", 2)
		require.Equal(t, 1, records())
		for i := range 3 * maxRecords {
			refuse(fmt.Sprint(i), "", 3)
		}
		require.Equal(t, maxRecords-1, records(), "names of callers do not fill the log")
		require.LessOrEqual(t, len(b.records), maxRecords)
	})
}

func TestRequestsAreBoundedByRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{RequestRate: 10, RequestBurst: 20, Logger: discard}, nil)
		allowed := func(principal string, calls int) (n int) {
			for range calls {
				if _, err := b.Scope(principal, "s").Reserve(Requests, 1); err == nil {
					n++
				} else {
					require.Equal(t, Requests, requireRefused(t, err, "principal", 20, 20).Resource)
				}
			}
			return n
		}
		require.Equal(t, 20, allowed("alice", 100), "the burst")
		require.Equal(t, 20, allowed("bob", 100))
		time.Sleep(time.Second)
		require.Equal(t, 10, allowed("alice", 100), "the rate")
		time.Sleep(time.Hour)
		require.Equal(t, 20, allowed("alice", 100), "no more than the burst")
		_, err := b.Scope("carol", "").Reserve(Requests, 50)
		require.Equal(t, 3*time.Second, requireRefused(t, err, "principal", 20, 20).RetryAfter)
		_, err = b.Scope("carol", "").Reserve(Requests, math.MaxInt64)
		require.Error(t, err)
		require.Equal(t, 20, allowed("carol", 100), "a refused reservation takes nothing")
		requireEmpty(t, b)

		b = New(Limits{RequestRate: 0.5, Logger: discard}, nil)
		require.Equal(t, 1, allowed("alice", 1), "a burst of zero means at least one request")
		_, err = b.Scope("alice", "").Reserve(Requests, 1)
		requireRefused(t, err, "principal", 1, 1)
	})
}

func TestRequestRatesHaveBoundedMemory(t *testing.T) {
	skipIfSlow(t)
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{RequestRate: 1, RequestBurst: 1, Logger: discard}, nil)
		s := Scope{b: b, account: account{parent: &account{scope: "principal"}}}
		for i := range maxBuckets {
			s.principal = fmt.Sprint(i)
			reserve(t, &s, Requests, 1)
		}
		s.principal = "over the bound"
		reserve(t, &s, Requests, 1)
		s.principal = "over the bound, too"
		_, err := s.Reserve(Requests, 1)
		require.Error(t, err, "invented names share a bucket")
		require.LessOrEqual(t, len(b.buckets), maxBuckets+1)
		time.Sleep(2 * time.Second)
		reserve(t, &s, Requests, 1)
		require.Len(t, b.buckets, 1, "full buckets leave the memory")
	})
}

// collect runs the garbage collector until a budget keeps n scopes and n principals.
func collect(b *Budget, n int) {
	for done := false; !done; {
		runtime.GC()
		runtime.Gosched()
		b.mu.Lock()
		done = len(b.scopes) == n && len(b.principals) == n
		b.mu.Unlock()
	}
}

func TestBudgetKeepsNoScopeWithoutHold(t *testing.T) {
	b := New(Limits{Logger: discard}, nil)
	for i := range 10_000 {
		reserve(t, b.Scope(fmt.Sprint("principal ", i), "session"), Items, 1).Release()
	}
	collect(b, 0)
	h := reserve(t, b.Scope("alice", "session"), Items, 1000)
	b.Scope("bob", "session")
	collect(b, 1)
	_, err := b.Scope("alice", "session").Reserve(Items, 1)
	requireRefused(t, err, "session", 1000, 1000)
	h.Release()
	collect(b, 0)
	requireEmpty(t, b)
}

// collected returns a channel that is closed once the garbage collector has taken v.
func collected[T any](v *T) <-chan struct{} {
	c := make(chan struct{})
	runtime.AddCleanup(v, func(c chan struct{}) { close(c) }, c)
	return c
}

// await runs the garbage collector until a channel is closed.
func await(c <-chan struct{}) {
	for {
		runtime.GC()
		runtime.Gosched()
		select {
		case <-c:
			return
		default:
		}
	}
}

// A server has scopes of the budget that calls it.
type server struct {
	budget *Budget
	scopes []*Scope
}

func (s *server) evict(Resource, string, int64) int64 { return int64(len(s.scopes)) }

func TestBudgetDoesNotKeepItsOwner(t *testing.T) {
	s := &server{}
	s.budget = New(Limits{}, s.evict)
	s.scopes = append(s.scopes, s.budget.Scope("alice", "session"))
	isCollected := collected(s)
	s = nil
	await(isCollected)
}

func TestBudgetKeepsNewScopeOfSameSession(t *testing.T) {
	b := New(Limits{}, nil)
	key := scopeKey{"alice", "session"}
	b.mu.Lock()
	first, second := &Scope{b: b}, &Scope{b: b}
	keepLocked(b, b.scopes, key, first)
	keepLocked(b, b.scopes, key, second)
	b.mu.Unlock()
	isCollected := collected(first)
	first = nil
	await(isCollected)
	runtime.GC()
	require.Same(t, second, b.Scope("alice", "session"))
}

func TestBudgetKeepsNoMemoryOfItsCaller(t *testing.T) {
	b := New(Limits{}, nil)
	text := strings.Repeat("x", 1<<20)
	s := b.Scope(text[:5], text[5:10])
	require.Equal(t, "xxxxx", s.principal)
	require.NotSame(t, unsafe.StringData(text), unsafe.StringData(s.principal))
	for key := range b.scopes {
		require.NotSame(t, unsafe.StringData(text), unsafe.StringData(key.principal))
		require.NotSame(t, unsafe.StringData(text[5:]), unsafe.StringData(key.session))
	}
}

func acquire(t *testing.T, s *Scope) Hold {
	t.Helper()
	h, err := s.Acquire(t.Context())
	require.NoError(t, err)
	return h
}

// A journal collects what goroutines do.
type journal struct {
	mu    sync.Mutex
	texts []string
}

func (j *journal) add(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.texts = append(j.texts, text)
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.texts)
}

func TestAcquireAdmitsPrincipalsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Work: Limit{-1, -1, 1}}, nil)
		busy := acquire(t, b.Scope("alice", ""))
		var order journal
		for _, principal := range []string{"alice", "alice", "alice", "alice", "bob", "bob", "carol"} {
			go func() {
				defer acquire(t, b.Scope(principal, "")).Release()
				order.add(principal)
				time.Sleep(time.Second)
			}()
			synctest.Wait()
		}
		busy.Release()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"alice", "bob", "carol", "alice", "bob", "alice", "alice"}, order.list())
		requireEmpty(t, b)
	})
}

func TestAcquireKeepsOrderInSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Work: Limit{1, 4, -1}}, nil)
		first := acquire(t, b.Scope("alice", "1"))
		var order journal
		for _, x := range [][2]string{{"1", "a"}, {"1", "b"}, {"2", "c"}, {"2", "d"}} {
			go func() {
				defer acquire(t, b.Scope("alice", x[0])).Release()
				order.add(x[1])
				time.Sleep(time.Second)
			}()
			synctest.Wait()
		}
		require.Equal(t, []string{"c"}, order.list(), "a full session does not hold up another one")
		first.Release()
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"a", "b", "c", "d"}, order.list())
		require.Less(t, slices.Index(order.list(), "a"), slices.Index(order.list(), "b"))
		requireEmpty(t, b)
	})
}

func TestAcquireEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Work: Limit{1, 1, 1}}, nil)
		s := b.Scope("alice", "1")
		busy := acquire(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Acquire(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, b.usage()[Waiting].used.All)
		require.Empty(t, slices.Concat(b.waiting[0], b.waiting[1]))
		busy.Release()
		acquire(t, s).Release()
		requireEmpty(t, b)
	})
}

// A place counts, even if the context ends before the caller notices the place.
func TestAcquireLosesNoPlaceAtEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Work: Limit{1, 1, 1}}, nil)
		s := b.Scope("alice", "1")
		for range 100 {
			busy := acquire(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() {
				h, err := s.Acquire(ctx)
				h.Release()
				result <- err
			}()
			synctest.Wait()
			b.mu.Lock()
			cancel()
			admitted := b.releaseLocked(busy)
			b.mu.Unlock()
			close(admitted[0].ready)
			require.NoError(t, <-result)
		}
		requireEmpty(t, b)
	})
}

func TestAcquirePassesOverFullSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Work: Limit{1, 2, 10}}, nil)
		acquire(t, b.Scope("alice", "1"))
		busy := acquire(t, b.Scope("alice", "2"))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = b.Scope("alice", "1").Acquire(ctx) }()
		synctest.Wait()
		admitted := false
		go func() {
			acquire(t, b.Scope("alice", "2"))
			admitted = true
		}()
		synctest.Wait()
		busy.Release()
		synctest.Wait()
		require.True(t, admitted)
		cancel()
	})
}

// Anonymous callers that wait cost the calls of other principals no time.
func TestAcquireCostsNoWalkOverAnonymous(t *testing.T) {
	testkit.RequireLess(t, 10, 10, 4000, func(waiting int) time.Duration {
		b := New(Limits{}, nil)
		scope := func(n int) *Scope { return b.Scope(Anonymous(fmt.Sprintf("10.0.%d.%d", n/256, n%256)), "") }
		var scopes []*Scope
		for n := range 4096 {
			scopes = append(scopes, scope(n))
		}
		for _, s := range scopes[:512] {
			acquire(t, s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		defer callers.Wait()
		defer cancel()
		for _, s := range scopes[:waiting] {
			callers.Go(func() { _, _ = s.Acquire(ctx) })
		}
		isWaiting := func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.all.use[Waiting].used == int64(waiting)
		}
		for !isWaiting() {
			runtime.Gosched()
		}
		s := b.Scope("alice", "")
		start := time.Now()
		for range 1000 {
			acquire(t, s).Release()
		}
		return time.Since(start)
	})
}

func TestAcquireRefusesOverWaitingPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Work: Limit{1, 1, 1}, Waiting: Limit{2, 3, 0}, Logger: discard}, nil)
		h := acquire(t, b.Scope("alice", "1"))
		for _, session := range []string{"1", "1", "2"} {
			go func() { acquire(t, b.Scope("alice", session)).Release() }()
		}
		synctest.Wait()
		_, err := b.Scope("alice", "1").Acquire(t.Context())
		require.Equal(t, Waiting, requireRefused(t, err, "session", 2, 2).Resource)
		_, err = b.Scope("alice", "2").Acquire(t.Context())
		requireRefused(t, err, "principal", 3, 3)
		_, err = b.Scope("alice", "2").Reserve(Work, 1)
		require.Equal(t, Work, requireRefused(t, err, "principal", 1, 1).Resource)
		h.Release()
		synctest.Wait()
		requireEmpty(t, b)
	})
}

func TestResourceNames(t *testing.T) {
	names := map[string]bool{}
	for r := range Resource(numResources) {
		names[r.String()] = true
	}
	require.Len(t, names, numResources)
}
