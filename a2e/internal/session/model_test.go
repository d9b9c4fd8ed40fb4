// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/sim"
)

func TestSeed(t *testing.T) {
	t.Run("session", func(t *testing.T) { sim.Seeds(t, play) })
}

func TestMutantsAreFound(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("builds the package with all mutants")
	}
	sim.Mutants(t, "../../..")
}

// A naiveCall is all that has happened to a call.
type naiveCall struct {
	call                          *session.Call
	about                         string // the name in its text
	isStarted, isReturned, isOver bool   // isOver: answered
}

func (n *naiveCall) deadline(limit time.Duration) time.Time {
	if n.call.Timeout > 0 && n.call.Timeout < limit {
		limit = n.call.Timeout
	}
	return n.call.Arrived.Add(limit)
}

// A naive is a session by the tables of section e, over the list of all calls so far.
type naive struct {
	limits    session.Limits
	state     session.State
	isOpen    bool
	id, agent string
	accepted  map[string]bool
	cancels   bool
	attempts  int
	handshake time.Time
	expiry    time.Time
	drainEnd  time.Time
	end       session.End
	all       []*naiveCall // admitted
	answered  []string     // ids
	replied   map[string]struct{}
	claimed   map[string]struct{}
	about     map[*session.Call]string
	now       time.Time
	effects   []string
}

func (n *naive) note(format string, args ...any) {
	n.effects = append(n.effects, fmt.Sprintf(format, args...))
}

func name(c *session.Call) string { return c.Owner.(string) }

func (n *naive) isAnswered(id string) bool {
	return slices.Contains(n.answered[max(len(n.answered)-n.limits.MaxAnswered, 0):], id)
}

func (n *naive) addAnswered(id string) {
	if !n.isAnswered(id) {
		n.answered = append(n.answered, id)
	}
}

// select returns the calls that f selects, in order of arrival.
func (n *naive) selected(f func(c *naiveCall) bool) (list []*naiveCall) {
	for _, c := range n.all {
		if f(c) {
			list = append(list, c)
		}
	}
	return list
}

func (n *naive) inFlight() []*naiveCall {
	return n.selected(func(c *naiveCall) bool { return !c.isOver })
}

func (n *naive) running(lane session.Lane) int64 {
	return int64(len(n.selected(func(c *naiveCall) bool { return c.isStarted && !c.isReturned && c.call.Lane == lane })))
}

// waitsFor is whether q, which is before c, keeps c from starting.
func (n *naive) waitsFor(c, q *naiveCall) bool {
	switch {
	case q.isStarted || q.isOver:
		return false
	case c.call.Lane != session.LaneControl:
		return q.call.Lane != session.LaneControl
	case c.call.IsEvent:
		return false
	case len(c.call.Names) == 0:
		return q.call.Capability == c.call.Capability
	}
	return slices.Contains(c.call.Names, q.about)
}

func (n *naive) mayStart(c *naiveCall) bool {
	for _, q := range n.all {
		if q == c {
			break
		}
		if n.waitsFor(c, q) {
			return false
		}
	}
	for _, q := range n.all {
		for _, object := range c.call.Objects {
			if q.isStarted && !q.isReturned && slices.Contains(q.call.Objects, object) {
				return false
			}
		}
	}
	switch c.call.Lane {
	case session.LaneOrdinary:
		return n.running(session.LaneOrdinary) < n.limits.MaxConcurrent
	case session.LaneControl:
		return n.running(session.LaneControl) < n.limits.MaxControl
	}
	return true
}

func (n *naive) schedule() {
	if n.state == session.StateClosed {
		return
	}
	for _, c := range n.all {
		if !c.isStarted && !c.isOver && c.deadline(n.limits.CallTimeout).After(n.now) && n.mayStart(c) {
			c.isStarted = true
			n.note("start %s", name(c.call))
		}
	}
}

func (n *naive) has(set map[string]struct{}, id string) bool { _, ok := set[id]; return ok }

// refusal returns why a request is refused by A2E-D26.
func (n *naive) refusal(r *session.Call) (reason session.Reason, isSilent bool) {
	accepts := r.Capability == "" || n.accepted[r.Capability]
	isInFlight := slices.ContainsFunc(n.inFlight(), func(c *naiveCall) bool { return !c.call.IsEvent && c.call.ID == r.ID })
	isReplied := n.replied != nil && (n.has(n.replied, r.ID) || n.isAnswered(r.ID))
	if r.IsEvent {
		isServed := n.state == session.StateActive || n.state == session.StateNew && n.isOpen
		if isReplied || n.has(n.claimed, r.ID) {
			return 0, true
		}
		if !isServed || !r.HasRoute || !accepts || r.IsOverBudget || !n.hasRoom(r) || r.IsShutDown {
			n.note("drop")
			return 0, true
		}
		return session.ReasonNone, false
	}
	switch {
	case isReplied:
		return 0, true
	case n.has(n.claimed, r.ID):
		return session.ReasonInterrupted, false
	case n.state == session.StateDraining:
		return session.ReasonDraining, false
	case n.state == session.StateNew && !n.isOpen:
		return session.ReasonNoHandshake, false
	case isInFlight:
		n.note("drop")
		return 0, true
	case n.isAnswered(r.ID):
		return session.ReasonDuplicateID, false
	case !r.IsKnown && !r.HasRoute:
		return session.ReasonUnknownType, false
	case r.IsKnown && !accepts:
		return session.ReasonNotNegotiated, false
	case r.IsKnown && r.SessionID != "" && r.SessionID != n.id:
		return session.ReasonSessionID, false
	case !r.HasRoute:
		return session.ReasonUnsupported, false
	case r.IsOverBudget:
		return session.ReasonOverBudget, false
	case !n.hasRoom(r):
		return session.ReasonOverloaded, false
	case r.IsShutDown:
		return session.ReasonShutDown, false
	}
	return session.ReasonNone, false
}

func (n *naive) hasRoom(c *session.Call) bool {
	queued := int64(len(n.selected(func(q *naiveCall) bool { return !q.isStarted && !q.isOver && q.call.Lane == c.Lane })))
	if c.Lane == session.LaneWaiting {
		return queued+n.running(session.LaneWaiting) < n.limits.MaxWaiting
	}
	own := &naiveCall{call: c}
	return queued < n.limits.QueueLimit || n.mayStart(own)
}

func (n *naive) receive(r *session.Call) {
	if n.state == session.StateClosed {
		return
	}
	reason, isSilent := n.refusal(r)
	switch {
	case isSilent:
	case reason != session.ReasonNone:
		n.addAnswered(r.ID)
		n.note("refuse %s %d", name(r), reason)
	default:
		n.all = append(n.all, &naiveCall{call: r, about: n.about[r]})
		n.schedule()
	}
}

func (n *naive) finish(c *naiveCall, reason session.Reason) {
	if reason != session.ReasonNone {
		n.note("fail %s %d", name(c.call), reason)
	}
	c.isOver = true
	if !c.call.IsEvent {
		n.addAnswered(c.call.ID)
	}
	n.note("finish %s %d", name(c.call), reason)
	if n.state == session.StateDraining && len(n.inFlight()) == 0 {
		n.close(n.end)
	}
}

func (n *naive) close(end session.End) {
	if n.state == session.StateClosed {
		return
	}
	n.state = session.StateClosed
	n.note("close %d", end)
}

func (n *naive) cutOff(end session.End) {
	for _, c := range n.inFlight() {
		n.finish(c, session.ReasonEnd)
	}
	n.close(end)
}

func (n *naive) drain(timeout time.Duration, end session.End) {
	if n.state == session.StateClosed || n.state == session.StateDraining && timeout > 0 {
		return
	}
	if timeout = min(timeout, n.limits.DrainTimeout); timeout <= 0 || len(n.inFlight()) == 0 {
		if len(n.inFlight()) == 0 {
			n.close(end)
			return
		}
		n.cutOff(end)
		return
	}
	n.state, n.drainEnd, n.end = session.StateDraining, n.now.Add(timeout), end
}

func (n *naive) tick() {
	isDue := func(t time.Time) bool { return !t.IsZero() && !t.After(n.now) }
	switch {
	case n.state == session.StateClosed:
	case n.state == session.StateNew && isDue(n.handshake):
		n.close(session.EndHandshake)
	case n.state == session.StateDraining && isDue(n.drainEnd):
		n.cutOff(n.end)
	case isDue(n.expiry):
		n.cutOff(session.EndExpired)
	default:
		for _, c := range n.inFlight() {
			if isDue(c.deadline(n.limits.CallTimeout)) {
				n.finish(c, session.ReasonDeadline)
			}
		}
		n.schedule()
	}
}

func (n *naive) shake(h *session.Handshake) session.Refusal {
	refusal := h.Refusal
	switch {
	case n.state == session.StateDraining:
		refusal = session.RefusedServer
	case refusal == session.RefusedServer, refusal == session.RefusedVersion:
	case n.state == session.StateActive && h.AgentID != n.agent:
		refusal = session.RefusedAuth
	}
	switch {
	case refusal == session.Accepted:
		if n.state == session.StateNew {
			n.state, n.id, n.agent = session.StateActive, h.SessionID, h.AgentID
		}
		n.accepted, n.cancels, n.expiry = h.Accepted, h.Cancels, h.Expires
	case n.state == session.StateNew:
		if n.attempts++; n.attempts == n.limits.MaxAttempts {
			n.cutOff(session.EndRefused)
		}
	}
	return refusal
}

// A player does the same to a session and to the model.
type player struct {
	w     *sim.World
	r     *rand.Rand
	s     *session.Session
	n     *naive
	about map[*session.Call]string // the names in the texts
	made  int
	steps int
	order []string // started calls besides the control lane, in order of their start
}

func play(w *sim.World) {
	p := &player{w: w, r: rand.New(rand.NewPCG(w.Seed(), 15))}
	limits := session.Limits{MaxConcurrent: 1 + p.r.Int64N(3), MaxControl: 1 + p.r.Int64N(2), MaxWaiting: 1 + p.r.Int64N(3),
		QueueLimit: p.r.Int64N(4), MaxAttempts: 1 + p.r.IntN(3), MaxAnswered: 1 + p.r.IntN(8), CallTimeout: 10 * time.Second,
		DrainTimeout: time.Duration(p.r.IntN(3)) * 2 * time.Second}
	isResumed := p.r.IntN(4) == 0
	start := time.Unix(1e9, 0)
	p.about = map[*session.Call]string{}
	p.n = &naive{limits: limits, now: start, about: p.about}
	var open map[string]bool
	switch p.r.IntN(4) {
	case 0:
		open = map[string]bool{"a": true}
	case 1:
		p.n.handshake = start.Add(time.Duration(1+p.r.IntN(30)) * time.Second)
	}
	p.n.isOpen, p.n.accepted = open != nil, open
	p.s = session.New(limits, open, p.n.handshake)
	if isResumed {
		p.resume()
	}
	if !isResumed && p.r.IntN(4) > 0 {
		h := p.handshake()
		if got, want := p.s.Handshake(h), p.n.shake(h); got != want {
			w.Failf("S4", "", "handshake: %d, want %d", got, want)
		}
	}
	for range 120 {
		p.step()
		if w.IsFailed() {
			return
		}
	}
}

func (p *player) resume() {
	set := func() map[string]struct{} {
		m := map[string]struct{}{}
		for range p.r.IntN(2) { // with more, the order of the map decides which id is evicted first
			m[p.id()] = struct{}{}
		}
		return m
	}
	h := p.handshake()
	h.Refusal = session.Accepted
	p.n.shake(h)
	p.n.handshake = time.Time{}
	p.n.replied, p.n.claimed = set(), set()
	p.s.Resume(h, p.n.replied, p.n.claimed)
	for id := range p.n.replied {
		p.n.addAnswered(id)
	}
}

func (p *player) id() string { return string(rune('a' + p.r.IntN(12))) }

func (p *player) handshake() *session.Handshake {
	h := &session.Handshake{AgentID: "x", SessionID: "s", Accepted: map[string]bool{"a": true}, Cancels: p.r.IntN(2) == 0}
	switch p.r.IntN(8) {
	case 0:
		h.AgentID = "y"
	case 1:
		h.Refusal = session.Refusal(1 + p.r.IntN(4))
	case 2:
		h.Accepted = map[string]bool{"a": true, "b": true}
	case 3:
		h.Expires = p.n.now.Add(time.Duration(1+p.r.IntN(20)) * time.Second)
	}
	return h
}

func (p *player) request() *session.Call {
	p.made++
	c := &session.Call{ID: p.id(), Owner: fmt.Sprint("c", p.made), Arrived: p.n.now, Capability: "a",
		IsKnown: true, HasRoute: true}
	p.about[c] = []string{"p", "q"}[p.r.IntN(2)]
	c.Text = fmt.Appendf(nil, `{"x":[1,{"%s":"y"},"%s"]}`, "p", p.about[c])
	switch p.r.IntN(5) {
	case 0:
		c.Lane = session.LaneWaiting
	case 1:
		c.Lane = session.LaneControl
		if p.r.IntN(3) > 0 {
			c.Names = []string{[]string{"p", "q"}[p.r.IntN(2)]}
		}
	}
	if p.r.IntN(3) == 0 {
		c.Objects = []string{[]string{"o1", "o2"}[p.r.IntN(2)]}
	}
	if p.r.IntN(3) == 0 {
		c.Timeout = time.Duration(1+p.r.IntN(16)) * time.Second
	}
	switch p.r.IntN(16) {
	case 0:
		c.Capability = "b"
	case 1:
		c.SessionID = []string{"s", "t"}[p.r.IntN(2)]
	case 2:
		c.HasRoute = false
	case 3:
		c.IsKnown, c.Capability = false, ""
	case 4:
		c.IsKnown, c.HasRoute, c.Capability = false, false, ""
	case 5:
		c.IsOverBudget = true
	case 6:
		c.IsShutDown = true
	case 7, 8:
		c.IsEvent = true
	}
	return c
}

// pick returns a call that f selects, or nil.
func (p *player) pick(f func(c *naiveCall) bool) *naiveCall {
	if list := p.n.selected(f); len(list) > 0 {
		return list[p.r.IntN(len(list))]
	}
	return nil
}

// step does one thing.
func (p *player) step() {
	n, s := p.n, p.s
	what := ""
	switch k := p.r.IntN(20); {
	case k < 8:
		r := p.request()
		what = "receive " + name(r)
		n.receive(r)
		s.Receive(n.now, r)
	case k < 12:
		if c := p.pick(func(c *naiveCall) bool { return c.isStarted && !c.isReturned }); c != nil {
			what = "answer " + name(c.call)
			if got, want := s.Answer(c.call), !c.isOver; got != want {
				p.w.Failf("S2", "", "answer of %s: %t, want %t", name(c.call), got, want)
			}
			if !c.isOver {
				n.finish(c, session.ReasonNone)
			}
		}
	case k < 14:
		if c := p.pick(func(c *naiveCall) bool { return c.isStarted && !c.isReturned && c.isOver }); c != nil {
			what = "return " + name(c.call)
			c.isReturned = true
			n.schedule()
			s.Return(n.now, c.call)
		}
	case k < 16:
		what = "tick"
		n.now = n.now.Add(time.Duration(p.r.IntN(3000)) * time.Millisecond)
		if p.r.IntN(4) == 0 {
			what = "late"
			break
		}
		if due := s.Due(); due.IsZero() || due.After(n.now) {
			what = "time"
			before := len(n.effects)
			if n.tick(); len(n.effects) > before {
				p.w.Failf("S3", "", "Due is %v at %v, but there is %q", due, n.now, n.effects[before:])
			}
			break
		}
		n.tick()
		s.Tick(n.now)
	case k == 16:
		id := p.id()
		what = "cancel " + id
		c := p.pick(func(c *naiveCall) bool { return !c.isOver && !c.call.IsEvent && c.call.ID == id })
		if n.state == session.StateClosed {
			break
		}
		if c == nil {
			n.note("drop")
		} else {
			n.finish(c, session.ReasonCancelled)
			n.schedule()
		}
		s.Cancel(n.now, id)
	case k == 17:
		h := p.handshake()
		what = "handshake"
		if n.state == session.StateClosed {
			break
		}
		if got, want := s.Handshake(h), n.shake(h); got != want {
			p.w.Failf("S4", "", "handshake: %d, want %d", got, want)
		}
	case k == 18 && p.r.IntN(3) == 0:
		timeout := time.Duration(p.r.IntN(3)) * time.Second
		what = fmt.Sprint("drain ", timeout)
		n.drain(timeout, session.EndAgent)
		s.Drain(n.now, timeout, session.EndAgent)
	case k == 19 && p.r.IntN(4) == 0:
		p.rare()
		return
	}
	p.compare(what)
}

// rare does what happens at most once.
func (p *player) rare() {
	n, s := p.n, p.s
	switch p.r.IntN(3) {
	case 0:
		if n.state == session.StateActive {
			for _, c := range n.selected(func(c *naiveCall) bool { return !c.isStarted && !c.isOver }) {
				c.isOver = true
				n.note("finish %s %d", name(c.call), session.ReasonInterrupted)
			}
		}
		s.HandOver()
		p.compare("hand over")
	case 1:
		n.replied, n.claimed = nil, nil
		s.Recovered()
		p.compare("recovered")
	case 2:
		if n.state == session.StateNew && len(n.inFlight()) == 0 {
			n.close(session.EndEvicted)
			s.Evict(session.EndEvicted)
		}
		p.compare("evict")
	}
}

func (p *player) compare(what string) {
	var got []string
	for _, e := range p.s.Effects() {
		text := ""
		switch e.Do {
		case session.DoStart:
			text = "start " + name(e.Call)
			p.checkStart(e.Call)
		case session.DoRefuse:
			text = fmt.Sprintf("refuse %s %d", name(e.Call), e.Reason)
		case session.DoFail:
			text = fmt.Sprintf("fail %s %d", name(e.Call), e.Reason)
		case session.DoFinish:
			text = fmt.Sprintf("finish %s %d", name(e.Call), e.Reason)
		case session.DoDrop:
			text = "drop"
		case session.DoClose:
			text = fmt.Sprintf("close %d", e.End)
		}
		got = append(got, text)
	}
	want := p.n.effects
	p.n.effects = nil
	p.steps++
	p.w.Event(fmt.Sprintf("%03d", p.steps), what, strings.Join(want, ", "), "")
	if !slices.Equal(got, want) {
		p.w.Failf("S1", "", "%s: effects [%s], want [%s]", what, strings.Join(got, ", "), strings.Join(want, ", "))
	}
	if p.s.State() != p.n.state || p.s.InFlight() != len(p.n.inFlight()) {
		p.w.Failf("S1", "", "%s: state %d with %d calls, want %d with %d", what, p.s.State(), p.s.InFlight(), p.n.state, len(p.n.inFlight()))
	}
	p.checkLaws()
}

// checkStart holds the order of arrival of the calls that take turns.
func (p *player) checkStart(c *session.Call) {
	if c.Lane == session.LaneControl {
		return
	}
	var number int
	fmt.Sscanf(name(c), "c%d", &number)
	if n := len(p.order); n > 0 {
		var last int
		fmt.Sscanf(p.order[n-1], "c%d", &last)
		if number < last {
			p.w.Failf("S5", "", "%s starts after %s", name(c), p.order[n-1])
		}
	}
	p.order = append(p.order, name(c))
}

// checkLaws holds the bounds of slots and objects (A2E-D27).
func (p *player) checkLaws() {
	objects := map[string]int{}
	handlers := p.n.selected(func(c *naiveCall) bool { return c.isStarted && !c.isReturned })
	ordinary := int64(0)
	for _, c := range handlers {
		if c.call.Lane == session.LaneOrdinary {
			ordinary++
		}
		for _, o := range c.call.Objects {
			objects[o]++
			if objects[o] > 1 {
				p.w.Failf("S6", "", "%d handlers of object %s", objects[o], o)
			}
		}
	}
	if ordinary > p.n.limits.MaxConcurrent {
		p.w.Failf("S6", "", "%d handlers, at most %d", ordinary, p.n.limits.MaxConcurrent)
	}
}
