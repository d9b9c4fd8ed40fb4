// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A naiveCall is section e over lists of all that has happened to a call.
type naiveCall struct {
	l         CallLimits
	isStream  bool
	state     CallState
	rt        *Runtime
	runs      []*Runtime           // dispatched to, in order
	losses    int                  // of Runtimes
	start     time.Time            // of the first dispatch
	silence   time.Time            // since when the Runtime is silent
	hasCredit bool                 // at that time
	received  map[int64]naiveChunk // accepted since the last dispatch
	next      int64                // id of the first missing chunk
	moved     time.Time            // when next rose last while chunks waited
	credit    int64
	answered  bool
	readers   map[*Reader]*naiveReader
	base      int64
	top       int64 // the highest base
	given     int64
	absent    time.Time // wait for a Runtime
	empty     time.Time // when the last reader was detached
	hasReader bool      // once
}

type naiveChunk struct {
	size    int
	isFinal bool
	at      time.Time
}

type naiveReader struct {
	from, place, credit int64
	got                 []int64
}

const gracePeriod = 30 * time.Second

// rebase moves the base to the lowest place of all readers.
func (n *naiveCall) rebase() {
	first := true
	for _, r := range n.readers {
		if first || r.place < n.base {
			n.base, first = r.place, false
		}
	}
	n.top = max(n.top, n.base)
}

// window is w of ALT-D37.
func (n *naiveCall) window() int64 {
	longest := 0
	for _, c := range n.received {
		longest = max(longest, c.size)
	}
	if longest == 0 {
		return 64
	}
	return int64(min(64, max(1, 1048576/longest)))
}

// deadline is the text of ALT-D25.
func (n *naiveCall) deadline() (due time.Time) {
	if n.start.IsZero() || n.state >= Ending {
		return due
	}
	if !n.isStream {
		due = n.start.Add(n.l.Limit)
		if n.l.Bound > 0 && n.l.Bound < n.l.Limit {
			due = n.start.Add(n.l.Bound)
		}
		return due
	}
	if n.hasCredit {
		due = n.silence.Add(n.l.Limit)
	}
	if end := n.start.Add(n.l.Bound); n.l.Bound > 0 && (due.IsZero() || end.Before(due)) {
		due = end
	}
	return due
}

// gap is when the wait for a missing chunk, or for an absent Runtime, ends.
func (n *naiveCall) gap() (due time.Time) {
	if n.state == Held {
		return n.absent
	}
	if n.state != Running {
		return due
	}
	for id, c := range n.received {
		if id >= n.next && (due.IsZero() || c.at.Before(due)) {
			due = c.at
		}
	}
	if due.IsZero() {
		return due
	}
	if n.moved.After(due) {
		due = n.moved
	}
	return due.Add(time.Second)
}

func (n *naiveCall) highest() (id int64) {
	for k := range n.received {
		id = max(id, k+1)
	}
	return id
}

// silent notes that the silence of the Runtime begins again.
func (n *naiveCall) silent(now time.Time) {
	n.silence, n.hasCredit = now, !n.rt.TakesCredit || n.highest() < n.credit
}

// accept is the text of ALT-D28.
func (n *naiveCall) accept(id int64, c naiveChunk) Verdict {
	final := int64(-1)
	for k, o := range n.received {
		if o.isFinal && (final < 0 || k < final) {
			final = k
		}
	}
	_, isDouble := n.received[id]
	switch {
	case !n.isStream:
		return Unexpected
	case id < n.next || final >= 0 && id > final:
		return Late
	case id > n.next+16:
		return Gap
	case isDouble:
		return Late
	}
	n.received[id] = c
	for {
		o, ok := n.received[n.next]
		if !ok {
			return Accepted
		}
		if len(n.received) > int(n.next)+1 || id != n.next {
			n.moved = c.at
		}
		n.next++
		if o.isFinal {
			return Final
		}
	}
}

// A callWorld is a Call with its model and the part of the Host.
type callWorld struct {
	t         *testing.T
	seed      uint64
	isCalm    bool // the chunks are in order, and few are final
	r         *rand.Rand
	now       time.Time
	isTouched bool // a reader has changed
	timers    Timers
	call      Call
	n         naiveCall
	all       []*Reader // ever attached
	places    map[*Reader]*naiveReader
}

func (w *callWorld) check(isRight bool, format string, args ...any) {
	w.t.Helper()
	if !isRight {
		w.t.Fatalf("seed %d at %v: %s", w.seed, w.now.Sub(time.Unix(0, 0)), fmt.Sprintf(format, args...))
	}
}

func newCallWorld(t *testing.T, seed uint64) *callWorld {
	r := rand.New(rand.NewPCG(seed, 61))
	w := &callWorld{t: t, seed: seed, r: r, now: time.Unix(0, 0), isCalm: r.IntN(2) == 0, places: map[*Reader]*naiveReader{}}
	l := CallLimits{Limit: time.Duration(1+r.IntN(20)) * time.Second, IsIdempotent: r.IntN(2) == 0, IsPinned: r.IntN(4) == 0, Params: r.IntN(100)}
	if r.IntN(2) == 0 {
		l.Bound = time.Duration(1+r.IntN(30)) * time.Second
	}
	w.n = naiveCall{l: l, isStream: r.IntN(4) > 0, state: Held, readers: map[*Reader]*naiveReader{}}
	var stream *Stream
	if w.n.isStream {
		stream = NewStream(1 << 20)
	}
	w.call = Call{Stream: stream, timers: &w.timers}
	w.call.Init(l)
	return w
}

// attach adds a reader that knows the chunks before an id.
func (w *callWorld) attach() {
	r, credit := &Reader{}, int64(w.r.IntN(40))
	from := int64(0)
	if w.n.given > 0 {
		from = w.r.Int64N(w.n.given + 1)
	}
	if !w.n.isStream {
		from = 0
	}
	w.isTouched = true
	w.check(w.call.attach(r, from, credit, w.now), "chunk %d is not kept", from)
	m := &naiveReader{from: from, place: from, credit: credit}
	w.all, w.places[r], w.n.readers[r], w.n.hasReader = append(w.all, r), m, m, true
}

func (w *callWorld) detach(r *Reader) {
	w.isTouched = true
	w.call.detach(r, gracePeriod, w.now)
	delete(w.n.readers, r)
	if len(w.n.readers) == 0 {
		w.n.empty = w.now
	}
}

func (w *callWorld) reader() *Reader {
	for _, r := range w.all {
		if w.n.readers[r] != nil && w.r.IntN(2) == 0 {
			return r
		}
	}
	return nil
}

func (w *callWorld) dispatch() {
	rt := &Runtime{ID: "r", IsConnected: true, TakesCredit: w.r.IntN(3) > 0, Gate: &Load{Limit: 1, Threshold: 1, Cooldown: time.Minute}}
	n := &w.n
	isTrial, ok := rt.Gate.Admit(0, n.l.IsPinned, w.now)
	w.check(ok && !isTrial, "the Runtime admits no call")
	w.call.dispatch(rt, isTrial, w.now)
	n.runs, n.rt, n.state, n.received = append(n.runs, rt), rt, Running, map[int64]naiveChunk{}
	n.next, n.credit, n.answered, n.absent = 0, 8, false, time.Time{}
	if n.start.IsZero() {
		n.start = w.now
	}
	n.silent(w.now)
	w.check(rt.Gate.Running() == 1, "the Runtime runs %d calls", rt.Gate.Running())
}

func (w *callWorld) chunk() {
	n := &w.n
	id := n.next
	if !w.isCalm || w.r.IntN(40) == 0 {
		id = max(0, id+int64(w.r.IntN(4))-1)
	}
	if !w.isCalm && w.r.IntN(12) == 0 {
		id += int64(w.r.IntN(18))
	}
	c := naiveChunk{size: w.r.IntN(2) * w.r.IntN(40_000), isFinal: !w.isCalm && w.r.IntN(25) == 0, at: w.now}
	n.answered = n.answered || c.isFinal
	isGranted := n.isStream && n.rt.TakesCredit && id < n.credit
	want := n.accept(id, c)
	got, final, granted := w.call.receive(Chunk{ID: id, Size: c.size, Final: c.isFinal, Data: id}, w.now)
	w.check(got == want && granted == isGranted, "chunk %d: %v %v, want %v %v", id, got, granted, want, isGranted)
	switch want {
	case Accepted:
		n.silent(w.now)
	case Unexpected, Gap:
		w.end(BadAnswer)
	case Final:
		w.check(final.Final && final.ID == n.next-1, "final chunk %d, want %d", final.ID, n.next-1)
		w.pump(1)
		w.call.Stream.End(final, w.now)
		w.end(Succeeded)
	}
}

// pump gives the readers chunks as far as their connections take them.
func (w *callWorld) pump(odds int) {
	n := &w.n
	if !n.isStream || n.state >= Ending && odds > 1 {
		return
	}
	for _, r := range w.all {
		m := n.readers[r]
		if m == nil {
			continue
		}
		for c, ok := w.call.Stream.Peek(r); ok && w.r.IntN(odds) == 0; c, ok = w.call.Stream.Peek(r) {
			_, isReceived := n.received[c.ID]
			w.check(c.ID == m.place && isReceived && c.ID < n.next && (c.ID < m.credit || c.Final), "a reader at %d with credit %d gets chunk %d", m.place, m.credit, c.ID)
			w.isTouched = true
			w.call.Stream.Take(r, w.now)
			m.got = append(m.got, c.ID)
			m.place++
			n.given = max(n.given, m.place)
		}
		isWithin := m.place < n.next && m.place < m.credit && !n.received[m.place].isFinal
		w.check(odds > 1 || !isWithin, "a reader at %d with credit %d of %d chunks gets none", m.place, m.credit, n.next)
	}
}

// raise is the end of an event.
func (w *callWorld) raise() {
	n := &w.n
	n.rebase()
	takes := n.state == Running && n.isStream && n.rt.TakesCredit
	w.check(w.call.TakesCredit() == takes, "takes credit: %v", !takes)
	if !takes || !w.isTouched {
		return
	}
	w.isTouched = false
	hasFinal := false
	for _, c := range n.received {
		hasFinal = hasFinal || c.isFinal
	}
	had, want := n.highest() < n.credit, n.base+n.window()
	isRaised := !hasFinal && want >= n.credit+max(1, n.window()/2)
	if isRaised {
		n.credit = want
		if !had {
			n.silent(w.now)
		}
	}
	credit, raised := w.call.raise(math.MaxInt64, w.now)
	w.check(credit == n.credit && raised == isRaised, "credit %d %v, want %d %v", credit, raised, n.credit, isRaised)
	w.check(credit <= n.top+64, "credit %d, and no reader was slower than %d", credit, n.top)
}

func (w *callWorld) lose() {
	n := &w.n
	n.rt.IsConnected = false
	can := n.l.IsIdempotent && !n.l.IsPinned && n.losses == 0 && n.given == 0
	w.check(w.call.canFailOver() == can, "may run again: %v", !can)
	if !can {
		w.end(Erred)
		return
	}
	n.losses++
	w.call.failOver(w.now)
	w.check(n.rt.Gate.Running() == 0, "the lost Runtime runs a call")
	n.state, n.rt = Held, nil
	if w.r.IntN(2) == 0 {
		n.absent = w.now.Add(5 * time.Second)
		w.timers.Set(&w.call.gap, n.absent)
	}
}

// end ends the call with a result.
func (w *callWorld) end(res CallResult) {
	n := &w.n
	want := Neutral
	isShort := n.l.Bound > 0 && !w.now.Before(n.start.Add(n.l.Bound)) && (n.isStream || n.l.Bound < n.l.Limit)
	if n.answered {
		want = Success
	}
	if res == BadAnswer || res == TimedOut && !n.answered && !isShort || res == Unavailable && n.answered {
		want = Failure
	}
	isRunning := n.state == Running
	w.check(w.call.release(res, w.now) == isRunning, "the Runtime ran the call: %v", !isRunning)
	owes := isRunning && !n.answered && n.rt.IsConnected
	w.check((w.call.owing() != nil) == owes && w.call.isOwed == owes, "a final message is owed: %v", !owes)
	if isRunning {
		w.check(n.rt.Gate.Running() == 0, "the Runtime runs %d calls", n.rt.Gate.Running())
		w.check(n.rt.Gate.(*Load).IsTripped() == (want == Failure), "result %d counts as %d", res, want)
	}
	w.call.state = Done
	n.state = Done
	for r := range n.readers {
		w.call.detach(r, gracePeriod, w.now)
		delete(n.readers, r)
	}
}

// fire fires the timers that are due, and checks that the others are right.
func (w *callWorld) fire() {
	n := &w.n
	for t := w.timers.Next(w.now); t != nil; t = w.timers.Next(w.now) {
		switch t {
		case &w.call.deadline:
			w.check(!w.now.Before(n.deadline()) && !n.deadline().IsZero(), "the deadline fires before %v", n.deadline())
			w.call.expire(w.now)
			w.end(TimedOut)
		case &w.call.gap:
			w.check(!w.now.Before(n.gap()), "the gap fires before %v", n.gap())
			if n.state == Held {
				n.absent = time.Time{}
				w.end(Unavailable)
			} else {
				w.end(BadAnswer)
			}
		default:
			w.check(len(n.readers) == 0 && !w.now.Before(n.empty.Add(gracePeriod)), "the grace period ends")
			w.end(Erred)
		}
	}
	grace := time.Time{}
	if n.state < Ending && n.hasReader && len(n.readers) == 0 {
		grace = n.empty.Add(gracePeriod)
	}
	for _, x := range []struct {
		name string
		t    *Timer
		want time.Time
	}{{"deadline", &w.call.deadline, n.deadline()}, {"gap", &w.call.gap, n.gap()}, {"grace", &w.call.grace, grace}} {
		isRight := x.t.IsSetTo(x.want) || x.want.IsZero() && !x.t.IsSet()
		w.check(isRight, "%s: set %v to %v, want %v", x.name, x.t.IsSet(), x.t.Due(), x.want)
	}
}

func (w *callWorld) step() {
	n := &w.n
	switch k := w.r.IntN(20); {
	case n.state == Held && k < 6:
		w.dispatch()
	case n.state == Held && k == 6 && n.losses == 0 && n.absent.IsZero():
		n.absent = w.now.Add(5 * time.Second)
		w.timers.Set(&w.call.gap, n.absent)
	case k == 7 && (!w.isCalm || w.r.IntN(5) == 0):
		w.end(Erred) // cancelled
	case k == 8 || k == 9:
		w.attach()
	case k == 10:
		if r := w.reader(); r != nil {
			w.detach(r)
		}
	case k == 11:
		if r := w.reader(); r != nil && n.isStream {
			credit := n.readers[r].credit + int64(w.r.IntN(30)) - 5
			w.call.Stream.Grant(r, credit)
			n.readers[r].credit = max(n.readers[r].credit, credit)
		}
	case k < 14:
		w.now = w.now.Add(time.Duration(w.r.IntN(3000)) * time.Millisecond)
	case n.state == Running && k == 14 && w.r.IntN(3) == 0:
		w.lose()
	case n.state == Running && k == 15 && (!n.isStream || w.r.IntN(5) == 0):
		n.answered = true
		isFirst := len(n.received) == 0
		w.check(w.call.acceptResult() == isFirst, "a result is accepted: %v", !isFirst)
		w.end([]CallResult{Succeeded, Erred, Unavailable}[w.r.IntN(3)])
	case n.state == Running && n.isStream || n.state == Running && k == 16 && w.r.IntN(5) == 0:
		for k := w.r.IntN(8); k >= 0 && n.state == Running; k-- {
			w.chunk()
		}
	}
}

// A Call agrees with the text of ALT-D22 to ALT-D37 over random sequences of events, and keeps its laws.
func TestCallModel(t *testing.T) {
	reached := map[CallState]int{}
	reruns, chunks := 0, 0
	for seed := range sequences() {
		w := newCallWorld(t, seed)
		n := &w.n
		for range 60 {
			w.step()
			if n.state < Ending {
				w.pump(2)
				w.raise()
			}
			w.fire()
			reached[n.state]++
			w.check(w.call.State() == n.state && w.call.Start().Equal(n.start) && w.call.hasFailedOver == (n.losses > 0), "state %d, want %d", w.call.State(), n.state)
			w.check(w.call.Runtime() == n.rt && w.call.IsAt(n.rt) == (n.state == Running), "the Runtime of the call")
			if n.state >= Ending {
				break
			}
			if bytes := n.l.Params + callCost; n.isStream {
				for id, c := range n.received {
					if id < n.next || n.state == Running {
						bytes += c.size + 64
					}
				}
				w.check(w.call.Bytes() == int64(bytes) || n.state == Held, "%d bytes are counted, %d are held", w.call.Bytes(), bytes)
			}
		}
		if len(n.runs) > 1 {
			reruns++
			w.check(n.l.IsIdempotent && !n.l.IsPinned && len(n.runs) == 2 && !slices.ContainsFunc(n.runs[:1], func(rt *Runtime) bool { return rt.IsConnected }),
				"the call ran %d times", len(n.runs))
		}
		for _, r := range w.all {
			m := w.places[r]
			for i, id := range m.got {
				w.check(id == m.from+int64(i), "a reader from %d got %v", m.from, m.got)
				chunks++
			}
		}
	}
	if reached[Held] < 500 || reached[Running] < 500 || reached[Done] < 500 || reruns < 20 || chunks < 1000 {
		t.Fatalf("states %v, %d repeated runs, %d chunks", reached, reruns, chunks)
	}
}
