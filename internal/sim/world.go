// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

const (
	leak       = "leak"          // the invariant of goroutines that do not end
	settleTime = 2 * time.Minute // without faults before the end of a run
	maxEvents  = 1 << 20         // of a run
)

// A World is one run: nodes, their store and its clock, their network, and the faults. Its methods
// are safe for concurrent use within the run.
type World struct {
	seed    uint64
	swarm   swarm
	start   time.Time
	disk    *disk
	network *network
	isCalm  atomic.Bool // no faults
	clients sync.WaitGroup
	keep    func(id string) bool // selects faults; nil means all

	mu       sync.Mutex        // guards all below
	drawTime time.Duration     // of the draws
	draws    map[uint64]uint64 // number, by key
	reserved map[int64]bool    // nanoseconds of events in the future
	nodes    []*Node
	events   []event
	faults   []injected
	history  []Operation
	bounds   []bound
	failure  *Failure
}

// A Use is a row of the table of use that the instances of a package have.
type Use struct {
	Resource, Scope string
	Used, Limit     int64 // a negative Limit is no limit
}

// Uses returns the table of use of a package, each row with an extra use.
func Uses[Row ~struct {
	Resource, Scope string
	Used, Limit     int64
}](table []Row, extra int64) (uses []Use) {
	for _, row := range table {
		u := Use(row)
		u.Used += extra
		uses = append(uses, u)
	}
	return uses
}

// A bound is an invariant of the use of resources.
type bound struct {
	invariant string
	usage     func(i Instance) []Use
}

// Bound holds the running instances to an invariant after each operation of a client, and whenever CheckBounds is called:
// no use is beyond its limit.
func (w *World) Bound(invariant string, usage func(i Instance) []Use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bounds = append(w.bounds, bound{invariant, usage})
}

// CheckBounds holds the instances to the invariants of Bound.
func (w *World) CheckBounds() {
	w.mu.Lock()
	bounds := w.bounds
	w.mu.Unlock()
	for _, b := range bounds {
		for _, n := range w.allNodes() {
			for _, u := range b.usage(n.Instance()) {
				if u.Limit >= 0 && u.Used > u.Limit {
					w.Failf(b.invariant, n.Name(), "%s of %s: %d used, limit %d", u.Resource, u.Scope, u.Used, u.Limit)
				}
			}
		}
	}
}

// An event is one element of the trace.
type event struct {
	at                     time.Duration
	node, op, name, result string
}

// String returns an event as a line of text.
func (e event) String() string {
	return fmt.Sprintf("%14.9fs %-8s %-7s %s %s", e.at.Seconds(), e.node, e.op, e.name, e.result)
}

// An injected value is a fault of the run with an id that is the same in a run with fewer faults.
type injected struct {
	id   string
	at   time.Duration
	text string
}

// A Failure is the first violated invariant of a run.
type Failure struct {
	Invariant string
	Node      string // empty: no node in particular
	Text      string
}

// An Operation is one call of a client. Answer is empty if the outcome is unknown.
type Operation struct {
	Client     int
	Start, End time.Duration // since the beginning of the run
	Name       string
	Answer     string
	Err        error
}

// newWorld returns the World of a seed.
func newWorld(seed uint64, keep func(id string) bool) *World {
	w := &World{seed: seed, start: time.Now(), keep: keep, draws: map[uint64]uint64{}, reserved: map[int64]bool{}}
	w.swarm = drawSwarm(seed, slices.Concat(storeKinds, nodeKinds))
	w.disk = newDisk(w)
	w.network = newNetwork(w)
	return w
}

// Seed returns the seed of the run.
func (w *World) Seed() uint64 { return w.seed }

// Now returns the time since the beginning of the run.
func (w *World) Now() time.Duration { return time.Since(w.start) }

// draw returns a random number from the seed, the time, and the key of a decision. So it does not depend on
// the order of the decisions of one nanosecond, which the runtime chooses.
func (w *World) draw(parts ...string) uint64 {
	key := uint64(fnvBasis)
	for _, part := range parts {
		key = hash(key, part)
	}
	return w.drawKey(key)
}

// Draw returns a random number from the seed, the time, and the parts, for a decision of the profile.
func (w *World) Draw(parts ...string) uint64 { return w.draw(parts...) }

func (w *World) drawKey(key uint64) uint64 {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	if now != w.drawTime {
		w.drawTime = now
		clear(w.draws)
	}
	w.draws[key]++
	return mix(mix(w.seed^mix(uint64(now))) ^ key ^ w.draws[key]<<56)
}

const fnvBasis = 14695981039346656037

// hash adds a text to a hash by FNV-1a.
func hash(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h * 1099511628211
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// chance returns a random number from 0 up to 1.
func (w *World) chance(parts ...string) float64 { return float64(w.draw(parts...)>>11) / (1 << 53) }

// between returns a random duration.
func (w *World) between(low, high time.Duration, parts ...string) time.Duration {
	return low + time.Duration(w.draw(parts...)%uint64(high-low+1))
}

// moment returns a delay of at least d whose end is at a nanosecond without another event.
func (w *World) moment(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := int64(time.Since(w.start))
	at := now + int64(max(1, d))
	for w.reserved[at] {
		at++
	}
	w.reserved[at] = true
	return time.Duration(at - now)
}

// Sleep waits for d or the end of ctx, until a nanosecond without another event.
func (w *World) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(w.moment(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Event adds an event to the trace. Two runs of a seed must have the same events.
func (w *World) Event(node, op, name, result string) {
	at := w.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) < maxEvents {
		w.events = append(w.events, event{at, node, op, name, result})
	}
}

// Failf notes that an invariant is violated. The first violation of a run counts.
func (w *World) Failf(invariant, node, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	isJudged := *onlyFlag == "" || *onlyFlag == invariant || invariant == leak
	if w.failure == nil && isJudged {
		w.failure = &Failure{invariant, node, fmt.Sprintf(format, args...)}
	}
}

// IsFailed reports whether an invariant is violated.
func (w *World) IsFailed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure != nil
}

// Call makes one operation of a client and records it. The function returns the answer.
func (w *World) Call(client int, name string, f func() (string, error)) (string, error) {
	o := Operation{Client: client, Start: w.Now(), Name: name}
	o.Answer, o.Err = f()
	o.End = w.Now()
	w.CheckBounds()
	result := "ok " + o.Answer
	if o.Err != nil {
		result = "error"
	}
	w.Event(fmt.Sprint("client", client), "call", name, result)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, o)
	return o.Answer, o.Err
}

// History returns the operations in the order of their ends.
func (w *World) History() []Operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.history)
}

// A Client makes operations in the time of the faults.
type Client struct {
	*rand.Rand // from the seed, for this client
	ID         int
	Context    context.Context // ends with the faults
}

// Play lets clients make operations under faults for a time, with pauses of up to pause between the
// operations of a client. It returns when all clients have ended their last operation.
func (w *World) Play(d time.Duration, clients int, pause time.Duration, operation func(c *Client)) {
	ctx, cancel := context.WithCancel(context.Background())
	for i := range clients {
		c := &Client{Rand: rand.New(rand.NewPCG(w.seed, uint64(100+i))), ID: i, Context: ctx}
		w.clients.Go(func() {
			for w.Sleep(ctx, time.Duration(c.Int64N(int64(pause)))) == nil {
				operation(c)
			}
		})
	}
	w.playFaults(ctx, d)
	cancel()
	w.calm()
	w.clients.Wait()
}

// calm ends all faults: crashed nodes start again, and paused ones resume.
func (w *World) calm() {
	w.isCalm.Store(true)
	for _, n := range w.allNodes() {
		n.Resume()
		if !n.isUp() {
			n.Restart()
		}
	}
	w.network.heal()
}

// IsCalm reports whether the time of the faults has ended.
func (w *World) IsCalm() bool { return w.isCalm.Load() }

// IsClockWrong reports whether the clock of the store has an offset, drifts or jumps in this run.
func (w *World) IsClockWrong() bool { return slices.Contains(w.swarm.kinds, kindClock) }

// HasFault reports whether the run has one of these kinds of faults of the store or the network.
func (w *World) HasFault(actions ...fault.Action) bool {
	return slices.ContainsFunc(w.swarm.kinds, func(k kind) bool { return slices.Contains(actions, fault.Action(k)) })
}

// IsLate reports whether a change of a key may have been made after the end of its call.
func (w *World) IsLate(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.faults, func(f injected) bool {
		return strings.Contains(f.text, string(fault.LandLater)) && strings.HasSuffix(f.text, " "+key)
	})
}

// FaultCount returns the number of faults until this moment.
func (w *World) FaultCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.faults)
}

// Settle waits for two minutes without faults, and for the time by which the clock of the store went back:
// leases last so much longer.
func (w *World) Settle() {
	w.disk.mu.Lock()
	back := max(0, -w.disk.jumped)
	w.disk.mu.Unlock()
	_ = w.Sleep(context.Background(), settleTime+back)
}

// close ends all nodes and waits for their changes in doubt.
func (w *World) close() {
	w.calm()
	w.clients.Wait()
	for _, n := range w.allNodes() {
		n.Crash()
	}
	w.network.close()
	time.Sleep(settleTime) // changes in doubt are repeated for a minute
	for _, n := range w.allNodes() {
		n.wait()
	}
}

func (w *World) allNodes() []*Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.nodes)
}

// permit decides whether a fault is injected, and notes it.
func (w *World) permit(id, text string) bool {
	if w.isCalm.Load() || w.keep != nil && !w.keep(id) {
		return false
	}
	at := w.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, injected{id, at, text})
	return true
}

// A swarm has the faults of a run and their rates. A third of the runs has one kind, a third two or
// three, and a third all.
type swarm struct {
	kinds []kind
	rates map[kind]float64
}

// A kind is a kind of fault of the world: an action of the store or of the network, or one of those below.
type kind string

const (
	kindCrash     kind = "crash"
	kindPause     kind = "pause"
	kindClock     kind = "clock"
	kindLateWait  kind = "late-wait"
	kindPartition kind = "partition"
)

var storeKinds = []kind{
	kind(fault.ErrorBefore), kind(fault.ErrorAfter), kind(fault.LandLater), kind(fault.Hang),
	kind(fault.Conflict), kind(fault.Delay), kind(fault.Full), kindLateWait,
}

var nodeKinds = []kind{kindCrash, kindPause, kindClock}

func drawSwarm(seed uint64, all []kind) swarm {
	r := rand.New(rand.NewPCG(seed, 2))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n := len(all)
	switch r.IntN(3) {
	case 0:
		n = 1
	case 1:
		n = 2 + r.IntN(2)
	}
	s := swarm{kinds: all[:n], rates: map[kind]float64{}}
	slices.Sort(s.kinds)
	for _, k := range s.kinds {
		s.rates[k] = []float64{0.02, 0.05, 0.1, 0.25}[r.IntN(4)]
		if n > 3 {
			s.rates[k] /= 4
		}
	}
	return s
}

// rules returns the rules of the store for one start of a node.
func (w *World) rules(node string) []fault.Rule {
	var rules []fault.Rule
	for _, k := range w.swarm.kinds {
		rate := w.swarm.rates[k]
		r := fault.Rule{Action: fault.Action(k), Delay: 5 * time.Second}
		switch {
		case k == kindLateWait:
			r.Action, r.Op = fault.Delay, "wait"
		case !slices.Contains(storeKinds, k):
			continue
		case k == kind(fault.Conflict):
			rate, r.Op = min(0.8, 4*rate), "update|delete"
			r.Rival = func(_ context.Context, _ store.Store, key string) error { return w.disk.touch(key) }
		case k == kind(fault.ErrorBefore) || k == kind(fault.ErrorAfter):
			r.Delay = 0
		case k == kind(fault.Hang):
			r.Delay = 15 * time.Second
		}
		r.When = func(op, name string) bool {
			return !w.isCalm.Load() && w.chance("fault", node, string(k), op, name) < rate
		}
		rules = append(rules, r)
	}
	return rules
}

// A disturbance is a fault of a node, the clock or the network at a time of the run.
type disturbance struct {
	id    string
	at    time.Duration
	kind  kind
	node  int
	other int
	len   time.Duration
}

// disturbances draws the faults of a run that lasts d.
func (w *World) disturbances(d time.Duration) (list []disturbance) {
	r := rand.New(rand.NewPCG(w.seed, 3))
	for _, k := range w.swarm.kinds {
		if k != kindPartition && !slices.Contains(nodeKinds, k) {
			continue
		}
		for i := range 1 + r.IntN(6) {
			list = append(list, disturbance{
				id: fmt.Sprintf("%s%d", k, i), at: time.Duration(r.Int64N(int64(d))), kind: k, node: r.IntN(1 << 16),
				other: r.IntN(1 << 16), len: time.Duration(r.Int64N(int64(40 * time.Second))),
			})
		}
	}
	slices.SortFunc(list, func(a, b disturbance) int { return cmp.Compare(a.at, b.at) })
	return list
}

// playFaults carries the faults of nodes, clock and network out and returns after d.
func (w *World) playFaults(ctx context.Context, d time.Duration) {
	end := w.Now() + d
	for _, f := range w.disturbances(d) {
		_ = w.Sleep(ctx, end-d+f.at-w.Now())
		w.disturb(ctx, f)
	}
	_ = w.Sleep(ctx, end-w.Now())
}

func (w *World) disturb(ctx context.Context, f disturbance) {
	nodes := w.allNodes()
	if len(nodes) == 0 {
		return
	}
	n, other := nodes[f.node%len(nodes)], nodes[f.other%len(nodes)]
	what := fmt.Sprintf("%s %s for %v", f.kind, n.name, f.len)
	switch {
	case f.kind == kindClock:
		what = fmt.Sprintf("clock of the store jumps by %v", f.jump())
	case f.kind == kindPartition:
		what = fmt.Sprintf("partition from %s to %s for %v", n.name, other.name, f.len)
	}
	if !w.permit(f.id, what) {
		return
	}
	w.Event(n.name, "fault", f.id, strings.TrimSpace(string(f.kind)))
	var undo func()
	switch f.kind {
	case kindCrash:
		n.Crash()
		undo = n.Restart
	case kindPause:
		n.Pause()
		undo = n.Resume
	case kindPartition:
		w.network.cut(n.name, other.name)
		undo = func() { w.network.join(n.name, other.name) }
	case kindClock:
		w.disk.jump(f.jump())
		return
	}
	w.clients.Go(func() {
		if w.Sleep(ctx, f.len) == nil {
			undo()
		}
	})
}

// jump returns the jump of the clock of a disturbance: up to a minute forward or back.
func (f disturbance) jump() time.Duration { return 3*f.len - time.Minute }
