// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTombstonesAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		got := newTombstones(3, 5)
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
			require.Equal(t, false, got.has("none", now))
			got.add(id, p, until)
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
			if len(want) > 5 {
				want = want[1:]
			}
			require.Len(t, got.byID, len(want))
			require.LessOrEqual(t, len(got.all.ids), max(64, 2*len(want)), "skipped ids are removed")
			for _, e := range want {
				require.True(t, got.has(e.id, now), e.id)
			}
		}
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

// A sessionWorld is Sessions with their model.
type sessionWorld struct {
	t         *testing.T
	seed      uint64
	r         *rand.Rand
	now       time.Time
	timers    Timers
	sessions  *Sessions
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
	id := ""
	if w.r.IntN(2) == 0 {
		id = fmt.Sprint(w.r.IntN(8))
	}
	picked := w.sessions.PickID(id, func(id string) bool { return id != "" }, func() string { w.n++; return fmt.Sprint(GeneratedPrefix, w.n) }, w.now)
	isFree := id != ""
	for _, m := range w.all {
		if m.s.ID == id && (m.endTime.IsZero() || w.now.Before(m.endTime.Add(5*time.Second))) {
			isFree = false
		}
	}
	require.Equal(w.t, isFree, picked == id, "seed %d: id %q", w.seed, id)
	m := &naiveSession{s: &Session{ID: picked, Kind: SessionKind(w.r.IntN(2))}, waiting: map[*Call]bool{}, runs: map[*Call]*Runtime{}, turns: map[string]uint64{}}
	m.expires = w.now.Add(time.Duration(1+w.r.IntN(20)) * time.Second)
	w.sessions.Init(m.s, m.expires, m)
	w.sessions.Add(m.s)
	w.all = append(w.all, m)
}

func (w *sessionWorld) end(m *naiveSession) {
	w.sessions.End(m.s, w.now.Add(5*time.Second))
	m.endTime = w.now
	for _, c := range m.calls {
		require.Same(w.t, c, m.s.First(), "seed %d", w.seed)
		c.Release(Erred, 1, 0, w.now)
		c.End(Done)
		m.s.Leave(c)
	}
	require.Nil(w.t, m.s.First())
	m.calls, m.inquiries = nil, nil
}

// advance fires the timers that are due.
func (w *sessionWorld) advance() {
	w.now = w.now.Add(time.Duration(w.r.IntN(900)) * time.Millisecond)
	for t := w.timers.Next(w.now); t != nil; t = w.timers.Next(w.now) {
		switch e := t.Event.(type) {
		case *naiveSession:
			require.False(w.t, e.expires.After(w.now), "seed %d", w.seed)
			w.end(e)
		case *Inquiry:
			i := slices.IndexFunc(w.all, func(m *naiveSession) bool { return m.s == e.s })
			list := w.sessions.Expired(e)
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
		w.sessions.Expect(nil, rt, w.now)
	} else {
		m.inquiries = append(without(m.inquiries, rt), a)
		w.sessions.Expect(m.s, rt, w.now)
	}
}

// respond is a fulfilment of a Runtime in a session or in all. It ends inquiries as ALT-D15 says.
func (w *sessionWorld) respond(m *naiveSession) {
	rt := w.runtime()
	if m != nil {
		w.fulfill(m, rt)
		m.inquiries = without(m.inquiries, rt)
		require.Equal(w.t, w.waiting(m), w.sessions.Responded(m.s, rt), "seed %d", w.seed)
		return
	}
	w.fulfill(nil, rt)
	for _, m := range w.live() {
		m.inquiries = without(m.inquiries, rt)
	}
	w.inquiries = without(w.inquiries, rt)
	require.Equal(w.t, w.waiting(nil), w.sessions.Responded(nil, rt), "seed %d", w.seed)
}

func (w *sessionWorld) fulfill(m *naiveSession, rt *Runtime) {
	change := func(r *Registry) *Registry { return r.With(rt, []string{"tool"}, false) }
	if m != nil {
		if m.fulfills == nil {
			m.fulfills = map[*Runtime]bool{}
		}
		m.fulfills[rt] = true
		w.sessions.Change(m.s, change)
		return
	}
	w.fulfills[rt] = true
	w.sessions.Change(nil, change)
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
	got := w.sessions.Lost(rt, w.now)
	require.Equal(w.t, want, got, "seed %d", w.seed)
	w.seen["lost"] += len(got)
	for _, m := range w.live() {
		for _, c := range slices.Clone(m.calls) {
			if m.runs[c] == rt {
				w.remove(m, c)
			}
		}
	}
	w.runtimes[i] = &Runtime{ID: rt.ID, IsConnected: true} // its registrations of before stay, absent
}

func (w *sessionWorld) remove(m *naiveSession, c *Call) {
	c.CloseAnswer()
	c.Release(Erred, 1, 0, w.now)
	c.End(Done)
	m.s.Leave(c)
	m.calls = slices.DeleteFunc(m.calls, func(o *Call) bool { return o == c })
	delete(m.waiting, c)
	delete(m.runs, c)
}

func (w *sessionWorld) call(m *naiveSession) {
	id := fmt.Sprint(w.r.IntN(12))
	if slices.ContainsFunc(m.calls, func(c *Call) bool { return c.id == id }) {
		return
	}
	made := NewCall(CallLimits{Limit: time.Hour}, nil, &w.timers)
	m.s.Enter(&made, id)
	m.calls = append(m.calls, &made)
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
		m.s.Hold(c)
		m.waiting[c] = true
	case m.runs[c] == nil && k == 2:
		rt := w.runtime()
		c.Dispatch(rt, w.now)
		m.s.CountTurn("tool")
		m.turns["tool"]++
		delete(m.waiting, c)
		m.runs[c] = rt
	case m.runs[c] == nil:
		c.Claim()
		c.Continue(false)
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
	case k == 9 && m.s.Kind == GuestSession:
		w.sessions.Adopt(m.s)
		i := slices.Index(w.all, m)
		w.all = append(slices.Delete(w.all, i, i+1), m) // it counts as created now
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
		if m.s.Kind == OwnSession {
			own++
		}
		require.Same(w.t, m.s, w.sessions.Find(m.s.ID))
		require.Equal(w.t, m.turns["tool"], m.s.Turn("tool"))
		for _, rt := range w.runtimes {
			require.Equal(w.t, m.fulfills[rt] || w.fulfills[rt], m.s.Registry().Has("tool", rt), "seed %d: session %s", w.seed, m.s.ID)
		}
		pin := fmt.Sprint(w.r.IntN(4))
		isOpen := func(a naiveInquiry) bool { return a.rt.ID == pin }
		require.Equal(w.t, slices.ContainsFunc(m.inquiries, isOpen) || slices.ContainsFunc(w.inquiries, isOpen), m.s.IsExpected(pin), "seed %d: session %s", w.seed, m.s.ID)
		require.Equal(w.t, len(m.inquiries)+len(w.inquiries) > 0, m.s.IsExpected(""))
		for _, c := range m.calls {
			require.Same(w.t, c, m.s.Call(c.id))
			inUse[c.id] = true
			if rt := m.runs[c]; rt != nil {
				running[rt]++
			}
		}
		require.Equal(w.t, w.waiting(m), append([]*Call(nil), m.s.Held()...))
	}
	var got []string
	for s := range w.sessions.All() {
		got = append(got, s.ID)
	}
	require.Equal(w.t, ids, got, "seed %d", w.seed)
	require.Equal(w.t, own, w.sessions.Own())
	require.Equal(w.t, len(live), w.sessions.Len())
	for _, rt := range w.runtimes {
		require.Equal(w.t, running[rt], rt.Running(), "seed %d", w.seed)
	}
	for id := range inUse {
		if c := w.sessions.InUse(id); c != nil {
			w.seen["in use"]++
			require.Equal(w.t, id, c.id)
			require.False(w.t, c.session.IsEnded())
		}
	}
	require.LessOrEqual(w.t, w.sessions.Calls(), len(inUse), "seed %d: an id of no call is in use", w.seed)
	w.seen["held"] += len(w.waiting(nil))
}

// Sessions agree with the text of ALT-D15, ALT-D18, ALT-D19 and ALT-D24 over random sequences of events.
func TestSessionsModel(t *testing.T) {
	seen := map[string]int{}
	for seed := range sequences() {
		r := rand.New(rand.NewPCG(seed, 17))
		w := &sessionWorld{t: t, seed: seed, r: r, now: time.Unix(0, 0), fulfills: map[*Runtime]bool{}, seen: seen}
		w.sessions = NewSessions(&w.timers)
		for i := range 3 {
			w.runtimes = append(w.runtimes, &Runtime{ID: fmt.Sprint(i), IsConnected: true})
		}
		for range 40 {
			w.step()
		}
		w.check()
		for _, m := range w.live() {
			w.end(m)
		}
		require.Zero(t, w.sessions.Calls(), "seed %d", seed)
		require.Empty(t, w.sessions.Held(), "seed %d", seed)
		require.Empty(t, w.sessions.special, "seed %d", seed)
		require.Empty(t, w.sessions.holding, "seed %d", seed)
		require.Len(t, w.timers.heap, len(w.inquiries), "seed %d: a timer of an ended session is set", seed)
	}
	for _, what := range []string{"expired", "lost", "in use", "held"} {
		require.Greater(t, seen[what], 100, what)
	}
}
