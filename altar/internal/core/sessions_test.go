// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/testkit"
)

// noOutcomes are Outcomes without records.
type noOutcomes struct{}

func (noOutcomes) Find(*RecordScope, string, *Record) bool  { return false }
func (noOutcomes) OwedTo(string) *RecordScope               { return nil }
func (noOutcomes) Add(string, *Record, int, bool, *Runtime) {}
func (noOutcomes) Close(string, *Runtime)                   {}
func (noOutcomes) EndScope(*RecordScope)                    {}

// A testMessage is a result or a final chunk of a Host.
type testMessage struct {
	id   int64 // of a chunk; -1: a result
	err  any
	size int
}

type testMessages struct{}

func (testMessages) Fault(cause Cause, _ *Call) any        { return cause }
func (testMessages) Result(_ *Call, err any) any           { return &testMessage{id: -1, err: err} }
func (testMessages) Last(_ *Call, id int64, err any) any   { return &testMessage{id: id, err: err} }
func (testMessages) Size(message any) int                  { return message.(*testMessage).size }
func (testMessages) Chunk(_ *Call, id int64, _ []byte) any { return id }
func (testMessages) Keep([]byte, any) ([]byte, bool)       { return nil, false }
func (testMessages) KeepStream([]byte, *Stream) []byte     { return nil }
func (testMessages) KeptStream(*Call, string) []Chunk      { return nil }
func (testMessages) Kept(*Call, string) any                { return nil }

func TestTombstonesAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		got := NewTombstones(3, 5)
		type entry struct {
			id string
			p  Principal
			at time.Time
		}
		var want []entry
		drop := func(keep func(entry) bool) {
			kept := want[:0]
			for _, e := range want {
				if keep(e) {
					kept = append(kept, e)
				}
			}
			want = kept
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			now = now.Add(time.Second)
			id := fmt.Sprint(rapid.IntRange(0, 12).Draw(t, "id"))
			p := Principal{Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "principal")}
			until := now.Add(10 * time.Second)
			drop(func(e entry) bool { return now.Before(e.at) && e.id != id })
			require.Equal(t, false, got.Has("none", now))
			got.Add(id, p, until)
			want = append(want, entry{id, p, until})
			n, isFirst := 0, true
			for _, e := range want {
				if e.p == p {
					n++
				}
			}
			drop(func(e entry) bool {
				if n > 3 && e.p == p && isFirst {
					isFirst = false
					return false
				}
				return true
			})
			if n <= 3 && len(want) > 5 { // of those that hold most the one with the oldest
				count := map[Principal]int{}
				for _, e := range want {
					count[e.p]++
				}
				largest := 0
				for i, e := range want {
					if count[e.p] > count[want[largest].p] {
						largest = i
					}
				}
				want = slices.Delete(want, largest, largest+1)
			}
			require.Len(t, got.byID, len(want))
			require.LessOrEqual(t, len(got.all.ids), max(64, 2*len(want)), "skipped ids are removed")
			for _, e := range want {
				require.True(t, got.Has(e.id, now), e.id)
			}
		}
	})
}

// A full table finds the principal with the largest number without a search among all principals.
func TestFullTombstonesOfManyPrincipals(t *testing.T) {
	testkit.RequireLess(t, 20, 100, 20_000, func(principals int) time.Duration {
		const each, adds = 2, 200
		table, until := NewTombstones(10, each*principals), time.Unix(1000, 0)
		add := func(n int) { table.Add(strconv.Itoa(n), Principal{Name: strconv.Itoa(n % principals)}, until) }
		for n := range each * principals {
			add(n)
		}
		start := time.Now()
		for n := range adds {
			add(each*principals + n)
		}
		return time.Since(start)
	})
}

// A naiveSession is a session as a list of all that has happened in it.
type naiveSession struct {
	s         *Session
	expires   time.Time
	endTime   time.Time
	inquiries []naiveInquiry
	calls     []*Call
	waiting   map[*Call]bool
	runs      map[*Call]*Runtime
	turns     map[string]uint64
	fulfills  map[*Runtime]bool // the contract "tool"
}

type naiveInquiry struct {
	rt  *Runtime
	due time.Time
}

// A sessionWorld is the sessions of a Shard with their model.
type sessionWorld struct {
	t         *testing.T
	seed      uint64
	r         *rand.Rand
	now       time.Time
	sessions  *Shard
	all       []*naiveSession // ever made, in order of creation
	inquiries []naiveInquiry  // standing Runtimes
	fulfills  map[*Runtime]bool
	runtimes  []*Runtime
	n         int
	seen      map[string]int
}

func (w *sessionWorld) live() (list []*naiveSession) {
	for _, m := range w.all {
		if m.endTime.IsZero() {
			list = append(list, m)
		}
	}
	return list
}

func (w *sessionWorld) pick() *naiveSession {
	if list := w.live(); len(list) > 0 {
		return list[w.r.IntN(len(list))]
	}
	return nil
}

func (w *sessionWorld) runtime() *Runtime { return w.runtimes[w.r.IntN(len(w.runtimes))] }

// waiting returns the held calls of all sessions in order.
func (w *sessionWorld) waiting(only *naiveSession) (list []*Call) {
	for _, m := range w.live() {
		for _, c := range m.calls {
			if m.waiting[c] && (only == nil || only == m) {
				list = append(list, c)
			}
		}
	}
	return list
}

func without(list []naiveInquiry, rt *Runtime) []naiveInquiry {
	return slices.DeleteFunc(list, func(a naiveInquiry) bool { return a.rt == rt })
}

func (w *sessionWorld) create() {
	w.n++
	s := &Session{ID: fmt.Sprint(w.n), IsLink: w.r.IntN(2) == 0, Seq: uint64(w.n)}
	m := &naiveSession{s: s, waiting: map[*Call]bool{}, runs: map[*Call]*Runtime{}, turns: map[string]uint64{}}
	m.expires = w.now.Add(time.Duration(1+w.r.IntN(20)) * time.Second)
	require.True(w.t, w.sessions.IsFree(s.ID))
	w.sessions.open(s, nil, m.expires)
	require.False(w.t, w.sessions.IsFree(s.ID))
	w.all = append(w.all, m)
}

func (w *sessionWorld) end(m *naiveSession) {
	m.endTime = w.now
	for _, c := range slices.Clone(m.calls) {
		require.Same(w.t, c, m.s.arrivals.first, "seed %d", w.seed)
		w.remove(m, c)
	}
	require.Nil(w.t, m.s.arrivals.first)
	m.inquiries = nil
	w.sessions.endSession(m.s, "destroyed")
	w.sessions.out = nil
}

// advance fires the timers that are due.
func (w *sessionWorld) advance() {
	w.now = w.now.Add(time.Duration(w.r.IntN(900)) * time.Millisecond)
	w.sessions.now = w.now
	for t := w.sessions.timers.Next(w.now); t != nil; t = w.sessions.timers.Next(w.now) {
		switch e := t.Event.(type) {
		case *Session:
			i := slices.IndexFunc(w.all, func(m *naiveSession) bool { return m.s == e })
			require.False(w.t, w.all[i].expires.After(w.now), "seed %d", w.seed)
			w.end(w.all[i])
		case *Inquiry:
			i := slices.IndexFunc(w.all, func(m *naiveSession) bool { return m.s == e.s })
			list := w.sessions.expired(e)
			if i < 0 {
				w.inquiries = without(w.inquiries, e.rt)
				require.Equal(w.t, w.waiting(nil), list, "seed %d", w.seed)
			} else {
				w.all[i].inquiries = without(w.all[i].inquiries, e.rt)
				require.Equal(w.t, w.waiting(w.all[i]), list, "seed %d", w.seed)
			}
			w.seen["expired"]++
		}
	}
	for _, m := range w.live() {
		require.True(w.t, m.expires.After(w.now), "seed %d: session %s has not expired", w.seed, m.s.ID)
		for _, a := range m.inquiries {
			require.True(w.t, a.due.After(w.now), "seed %d: an inquiry has not expired", w.seed)
		}
	}
}

func (w *sessionWorld) expect(m *naiveSession) {
	rt := w.runtime()
	a := naiveInquiry{rt, w.now.Add(time.Second)}
	if m == nil {
		w.inquiries = append(without(w.inquiries, rt), a)
		w.sessions.expect(nil, rt)
	} else {
		m.inquiries = append(without(m.inquiries, rt), a)
		w.sessions.expect(m.s, rt)
	}
}

// respond is a fulfilment of a Runtime in a session or in all. It ends inquiries as ALT-D15 says.
func (w *sessionWorld) respond(m *naiveSession) {
	rt := w.runtime()
	if m != nil {
		w.fulfill(m, rt)
		m.inquiries = without(m.inquiries, rt)
		require.Equal(w.t, w.waiting(m), w.sessions.responded(m.s, rt), "seed %d", w.seed)
		return
	}
	w.fulfill(nil, rt)
	for _, m := range w.live() {
		m.inquiries = without(m.inquiries, rt)
	}
	w.inquiries = without(w.inquiries, rt)
	require.Equal(w.t, w.waiting(nil), w.sessions.responded(nil, rt), "seed %d", w.seed)
}

func (w *sessionWorld) fulfill(m *naiveSession, rt *Runtime) {
	change := func(r *Registry) *Registry { return r.With(rt, []string{"tool"}, false) }
	if m != nil {
		if m.fulfills == nil {
			m.fulfills = map[*Runtime]bool{}
		}
		m.fulfills[rt] = true
		w.sessions.change(m.s, change)
		return
	}
	w.fulfills[rt] = true
	w.sessions.change(nil, change)
}

func (w *sessionWorld) lose() {
	i := w.r.IntN(len(w.runtimes))
	rt := w.runtimes[i]
	var want []*Call
	isStanding := slices.ContainsFunc(w.inquiries, func(a naiveInquiry) bool { return a.rt == rt })
	for _, m := range w.live() {
		isAsked := slices.ContainsFunc(m.inquiries, func(a naiveInquiry) bool { return a.rt == rt })
		for _, c := range m.calls {
			if m.runs[c] == rt || m.waiting[c] && (isAsked || isStanding) {
				want = append(want, c)
			}
		}
		m.inquiries = without(m.inquiries, rt)
	}
	w.inquiries = without(w.inquiries, rt)
	rt.IsConnected, rt.LostAt = false, w.now
	got := w.sessions.lose(rt)
	require.Equal(w.t, want, got, "seed %d", w.seed)
	w.seen["lost"] += len(got)
	for _, m := range w.live() {
		for _, c := range slices.Clone(m.calls) {
			if m.runs[c] == rt {
				w.remove(m, c)
			}
		}
	}
	w.runtimes[i] = newRuntime(rt.ID) // its registrations of before stay, absent
}

func newRuntime(id string) *Runtime {
	return &Runtime{ID: id, IsConnected: true, Gate: &Load{Limit: 100, Threshold: 1}}
}

func (w *sessionWorld) remove(m *naiveSession, c *Call) {
	w.sessions.leaveLane(c)
	c.closeAnswer()
	c.release(Erred, w.now)
	c.state = Done
	m.s.release(c)
	m.calls = slices.DeleteFunc(m.calls, func(o *Call) bool { return o == c })
	delete(m.waiting, c)
	delete(m.runs, c)
}

func (w *sessionWorld) call(m *naiveSession) {
	id := fmt.Sprint(w.r.IntN(12))
	if slices.ContainsFunc(m.calls, func(c *Call) bool { return c.id == id }) {
		return
	}
	made := &Call{Contract: "tool", timers: &w.sessions.timers, session: m.s, id: id}
	made.Init(CallLimits{Limit: time.Hour})
	w.sessions.admit(made)
	m.s.enter(made, id)
	m.calls = append(m.calls, made)
}

// use changes a call of a session.
func (w *sessionWorld) use(m *naiveSession) {
	if len(m.calls) == 0 {
		return
	}
	c := m.calls[w.r.IntN(len(m.calls))]
	switch k := w.r.IntN(4); {
	case k == 0:
		w.remove(m, c)
	case m.runs[c] == nil && k == 1:
		m.s.hold(c)
		m.waiting[c] = true
	case m.runs[c] == nil && k == 2:
		rt := w.runtime()
		isTrial, _ := rt.Gate.Admit(0, false, w.now)
		w.sessions.dispatch(c, rt, isTrial)
		w.sessions.out = nil
		m.turns["tool"]++
		delete(m.waiting, c)
		m.runs[c] = rt
	case m.runs[c] == nil:
		c.claim()
		c.proceed(false)
		delete(m.waiting, c)
	}
}

func (w *sessionWorld) step() {
	m := w.pick()
	switch k := w.r.IntN(16); {
	case m == nil || k == 0:
		w.create()
	case k == 1:
		w.end(m)
	case k < 4:
		w.advance()
	case k == 4:
		w.expect(nil)
	case k == 5:
		w.expect(m)
	case k == 6:
		w.respond(nil)
	case k == 7:
		w.respond(m)
	case k == 8:
		w.lose()
	case k < 12:
		w.call(m)
	default:
		w.use(m)
	}
}

// check compares what can be inquiries.
func (w *sessionWorld) check() {
	live := w.live()
	var ids []string
	own, running := 0, map[*Runtime]int{}
	inUse := map[string]bool{}
	for _, m := range live {
		ids = append(ids, m.s.ID)
		if !m.s.IsLink {
			own++
		}
		require.Same(w.t, m.s, w.sessions.Find(m.s.ID))
		require.Equal(w.t, m.turns["tool"], m.s.Turn("tool"))
		for _, rt := range w.runtimes {
			require.Equal(w.t, m.fulfills[rt] || w.fulfills[rt], m.s.Registry().Has("tool", rt), "seed %d: session %s", w.seed, m.s.ID)
		}
		pin := fmt.Sprint(w.r.IntN(4))
		isOpen := func(a naiveInquiry) bool { return a.rt.ID == pin }
		require.Equal(w.t, slices.ContainsFunc(m.inquiries, isOpen) || slices.ContainsFunc(w.inquiries, isOpen), m.s.isExpected(pin), "seed %d: session %s", w.seed, m.s.ID)
		require.Equal(w.t, len(m.inquiries)+len(w.inquiries) > 0, m.s.isExpected(""))
		for _, c := range m.calls {
			require.Same(w.t, c, m.s.Call(c.id))
			inUse[c.id] = true
			if rt := m.runs[c]; rt != nil {
				running[rt]++
			}
		}
		require.Equal(w.t, w.waiting(m), append([]*Call(nil), m.s.heldCalls()...))
	}
	var got []string
	for s := range w.sessions.All() {
		got = append(got, s.ID)
	}
	require.Equal(w.t, ids, got, "seed %d", w.seed)
	require.Equal(w.t, own, w.sessions.Counts.Sessions)
	require.Len(w.t, w.sessions.byID, len(live))
	for _, rt := range w.runtimes {
		require.Equal(w.t, running[rt], rt.Gate.Running(), "seed %d", w.seed)
	}
	table := w.sessions.env.IDs.(IDTable)
	for id := range inUse {
		if c := table[id]; c != nil {
			w.seen["in use"]++
			require.Equal(w.t, id, c.id)
			require.False(w.t, c.session.IsEnded())
		}
	}
	require.LessOrEqual(w.t, len(table), len(inUse), "seed %d: an id of no call is in use", w.seed)
	w.seen["held"] += len(w.waiting(nil))
}

// Sessions agree with the text of ALT-D15, ALT-D18, ALT-D19 and ALT-D24 over random sequences of events.
func TestSessionsModel(t *testing.T) {
	seen := map[string]int{}
	for seed := range sequences() {
		r := rand.New(rand.NewPCG(seed, 17))
		w := &sessionWorld{t: t, seed: seed, r: r, now: time.Unix(0, 0), fulfills: map[*Runtime]bool{}, seen: seen}
		w.sessions = NewShard(0, &Env{IDs: IDTable{}, Outcomes: noOutcomes{}, Messages: testMessages{}, Registry: &Registry{}}, new(atomic.Uint64))
		w.sessions.now = w.now
		for i := range 3 {
			w.runtimes = append(w.runtimes, newRuntime(fmt.Sprint(i)))
		}
		for range 40 {
			w.step()
		}
		w.check()
		for _, m := range w.live() {
			w.end(m)
		}
		require.Empty(t, w.sessions.env.IDs, "seed %d", seed)
		require.Empty(t, w.sessions.heldCalls(), "seed %d", seed)
		require.Empty(t, w.sessions.special, "seed %d", seed)
		require.Empty(t, w.sessions.holding, "seed %d", seed)
		require.Len(t, w.sessions.timers.heap, len(w.inquiries), "seed %d: a timer of an ended session is set", seed)
	}
	for _, what := range []string{"expired", "lost", "in use", "held"} {
		require.Greater(t, seen[what], 100, what)
	}
}
