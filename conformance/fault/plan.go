// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package fault injects faults into stores, connections, HTTP requests and child processes, and runs
// functions for a time to find leaks. It serves the tests of an agent, a server or a storage engine.
//
// A store with faults keeps the contract of package store: an injected error is never one of its
// answers, and another writer really makes the change of a conflict. A connection with faults behaves like a
// bad network: bytes are late, lost, cut, doubled or changed.
//
//	plan := &fault.Plan{Seed: 1, Rules: []fault.Rule{
//		{Action: fault.ErrorAfter, Op: "update", Probability: 0.1},
//		{Action: fault.LandLater, Op: "append", Match: "tasks/", Limit: 3},
//	}}
//	defer plan.Close()
//	server := newServer(fault.Store(store.NewMemory(), plan))
//
// A Plan is JSON, so that a failure can be reported and repeated. Log returns the injected faults.
//
// All waiting uses package time, so it takes no time in a bubble of testing/synctest. Close
// ends the goroutines of a Plan; a bubble needs that.
package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

var (
	// ErrInjected is the error of every injected fault except Crash.
	ErrInjected = errors.New("fault: injected error")

	// ErrCrashed is the error of each call after Crash. It wraps [store.ErrClosed], so that
	// the loops of the crashed process end.
	ErrCrashed = fmt.Errorf("fault: process crashed: %w", store.ErrClosed)
)

// An Action is a kind of fault. A rule with an unknown one has no effect.
type Action string

const (
	// ErrorBefore returns an error instead of the call. It is the action of the zero Rule.
	ErrorBefore Action = "error-before"

	// ErrorAfter makes the call and returns an error instead of its answer. A list yields up
	// to 8 entries before the error.
	ErrorAfter Action = "error-after"

	// LandLater returns an error at once and makes the change later. It applies to changes
	// only. If 1,024 changes are pending already, the fault is an ErrorBefore.
	LandLater Action = "land-later"

	// Hang does not answer until the context or the deadline of the call ends, or Rule.Delay has
	// passed. The call is not made.
	Hang Action = "hang"

	// Conflict lets another writer make a change right before the call, so the store itself
	// refuses a call that depends on the earlier state. It applies to changes only.
	Conflict Action = "conflict"

	// Delay delays the call.
	Delay Action = "delay"

	// Full refuses a create, an update or an append, as on a full disk. The call is not made.
	Full Action = "full"

	// Drop loses the bytes of a send or a receive without an error, refuses a connection, or
	// ends a request without sending it.
	Drop Action = "drop"

	// Cut closes the connection. That of a request loses its response.
	Cut Action = "cut"

	// HalfClose closes the direction of sending of a connection.
	HalfClose Action = "half-close"

	// Truncate sends or receives only the first part of the bytes, and closes the connection.
	// That of a request cuts the body of the response.
	Truncate Action = "truncate"

	// Corrupt flips one bit of the bytes, or of the body of the response.
	Corrupt Action = "corrupt"

	// Duplicate sends the bytes or the request twice, like the retry of a proxy.
	Duplicate Action = "duplicate"

	// Reorder sends the bytes after those of the next send, or at the close. A request is
	// sent after the end of the next one, or after Delay.
	Reorder Action = "reorder"
)

var errorTexts = map[Action]string{
	ErrorBefore: "error before the call",
	ErrorAfter:  "error after the call",
	LandLater:   "change in transit",
	Hang:        "no answer",
	Full:        "no space left on device",
}

// The operations, as in Rule.Op. Those of a store have the names of its methods in lower case.
const (
	opGet    = "get"
	opCreate = "create"
	opUpdate = "update"
	opDelete = "delete"
	opList   = "list"
	opAppend = "append"
	opRead   = "read"
	opAck    = "ack"
	opWait   = "wait"
	opExpire = "expire"

	opDial    = "dial" // the name is the address
	opAccept  = "accept"
	opSend    = "send"
	opReceive = "receive"
	opRequest = "request" // the name is the path of the URL

	writes  = opCreate + "|" + opUpdate + "|" + opAppend
	changes = writes + "|" + opDelete + "|" + opAck + "|" + opExpire
)

// actionOps has the operations of each action; empty means all.
var actionOps = map[Action]string{
	ErrorBefore: "", ErrorAfter: "", Hang: "", Delay: "", LandLater: changes + "|" + opRequest, Conflict: changes, Full: writes,
	Drop: "dial|accept|send|receive|request", Cut: "dial|accept|send|receive|request", HalfClose: "send|receive",
	Truncate: "send|receive|request", Corrupt: "send|receive|request", Duplicate: "send|request", Reorder: "send|request",
}

const (
	maxLandings = 1024
	maxEntries  = 8
	maxLog      = 4096
)

// A Rule selects calls and gives them a fault. The zero Rule makes every call fail with ErrorBefore.
type Rule struct {
	Action Action `json:"action,omitempty"`

	// Op selects operations, with a vertical bar between two: "update|append". Empty means all.
	Op string `json:"op,omitempty"`

	// Match selects the calls whose name begins with it: key, stream, prefix of a list, address, or path of a URL.
	Match string `json:"match,omitempty"`

	// When, if set, selects calls in addition to Op and Match. It may run concurrently.
	When func(op, name string) bool `json:"-"`

	// After is the number of selected calls before the first that may have a fault. Of the
	// others, each one may have a fault, or one of each Every ones.
	After int `json:"after,omitempty"`
	Every int `json:"every,omitempty"`

	// Probability is that of a fault in a selected call. Zero means 1; a negative value
	// switches the rule off.
	Probability float64 `json:"probability,omitempty"`

	// Limit is the maximum number of faults. Zero means no limit.
	Limit int `json:"limit,omitempty"`

	// Delay is the maximum of the random delay of LandLater and Delay and the limit of Reorder, where
	// zero means 1 s, and the duration of a Hang, where zero means 10 s. ErrorBefore and ErrorAfter wait for
	// Delay, or until the context ends, before they return. JSON has nanoseconds.
	Delay time.Duration `json:"delay,omitempty"`

	// Rival makes the change of a Conflict, on the store below the faults. Nil means that an
	// update or a delete meets an entry that was written again with the value it had, and
	// that other operations have no conflict.
	Rival func(ctx context.Context, s store.Store, name string) error `json:"-"`
}

func hasOp(ops, op string) bool {
	for o := range strings.SplitSeq(ops, "|") {
		if o == op {
			return true
		}
	}
	return false
}

func (r *Rule) selects(op, name string) bool {
	ops, isKnown := actionOps[cmp.Or(r.Action, ErrorBefore)]
	switch {
	case !isKnown, r.Probability < 0, ops != "" && !hasOp(ops, op):
		return false
	case r.Op != "" && !hasOp(r.Op, op) || !strings.HasPrefix(name, r.Match):
		return false
	case r.Action == Conflict && r.Rival == nil && op != opUpdate && op != opDelete:
		return false
	}
	return r.When == nil || r.When(op, name)
}

// A Plan is the faults of one process: of its view of one or several stores. The exported fields
// are set before its first use. The rules are tried in their order, and the first that applies
// decides; after Delay and Conflict the next ones are tried too. The Seed and the order of the
// calls decide everything random. All methods may be called concurrently.
type Plan struct {
	Seed  uint64 `json:"seed,omitempty"`
	Rules []Rule `json:"rules"`

	// OnFault, if set, is called with each fault before its injection, and may change its Delay and
	// Entries. After false, the call has no fault by this rule. It must not call the Plan.
	OnFault func(f *Fault) bool `json:"-"`

	mu       sync.Mutex
	random   *rand.Rand     // nil before the first call
	calls    int            // number
	selected []int          // calls, by rule
	injected []int          // faults, by rule
	counts   map[Action]int // faults that took effect
	log      []Fault        // the newest, at most maxLog
	resumed  chan struct{}  // nil unless paused
	crashed  bool
	active   map[*call]struct{} // calls in progress, one for each caller
	landings []*landing         // pending, at most maxLandings
}

// A Fault is one injected fault, with the number of its call among those of the Plan, and the
// operation and the name of the call.
type Fault struct {
	Call   int       `json:"call"`
	Time   time.Time `json:"time"`
	Op     string    `json:"op"`
	Name   string    `json:"name"`
	Action Action    `json:"action"`

	Delay   time.Duration `json:"delay,omitempty"`
	Entries int           `json:"entries,omitempty"` // of a list before an ErrorAfter
}

// A call is the part of a call that Crash ends.
type call struct{ cancel context.CancelFunc }

// A decision is the faults of one call.
type decision struct {
	slow    time.Duration
	rivals  []func(ctx context.Context, s store.Store, name string) error
	fails   bool // with action
	action  Action
	delay   time.Duration
	entries int    // of a list before an ErrorAfter
	random  uint64 // of Truncate and Corrupt
}

// decide draws the faults of a call.
func (p *Plan) decide(op, name string) (d decision) {
	selected := make([]bool, len(p.Rules))
	for i := range p.Rules {
		selected[i] = p.Rules[i].selects(op, name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.random == nil {
		p.random = rand.New(rand.NewPCG(p.Seed, 0))
		p.selected, p.injected = make([]int, len(p.Rules)), make([]int, len(p.Rules))
	}
	p.calls++
	for i := range p.Rules {
		if selected[i] && !d.fails {
			p.drawLocked(i, &d, Fault{Call: p.calls, Time: time.Now(), Op: op, Name: name})
		}
	}
	return d
}

// drawLocked applies the rule i to a call that it selects. p.mu must be held.
func (p *Plan) drawLocked(i int, d *decision, f Fault) {
	r := &p.Rules[i]
	p.selected[i]++
	isHit := r.Probability == 0 || p.random.Float64() < r.Probability
	n := p.selected[i] - r.After
	if !isHit || n <= 0 || r.Every > 1 && n%r.Every != 0 || r.Limit > 0 && p.injected[i] >= r.Limit {
		return
	}
	f.Action = cmp.Or(r.Action, ErrorBefore)
	f.Delay = r.Delay
	switch f.Action {
	case Delay, LandLater:
		f.Delay = p.drawDelayLocked(r.Delay)
	case Hang:
		f.Delay = cmp.Or(r.Delay, 10*time.Second)
	case Truncate, Corrupt:
		d.random = p.random.Uint64()
	case ErrorBefore, ErrorAfter:
		f.Entries = p.random.IntN(maxEntries + 1)
	}
	if p.OnFault != nil && !p.OnFault(&f) {
		return
	}
	p.injected[i]++
	p.log = append(p.log[max(0, len(p.log)-maxLog+1):], f)
	switch f.Action {
	case Delay:
		d.slow += f.Delay
	case Conflict:
		d.rivals = append(d.rivals, r.Rival)
	default:
		d.fails, d.action, d.delay, d.entries = true, f.Action, f.Delay, f.Entries
	}
}

// drawDelayLocked returns a random delay of at least a nanosecond. p.mu must be held.
func (p *Plan) drawDelayLocked(limit time.Duration) time.Duration {
	limit = max(1, cmp.Or(limit, time.Second))
	return 1 + time.Duration(p.random.Int64N(int64(limit)))
}

// Count returns the number of faults of a kind that took effect.
func (p *Plan) Count(a Action) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[a]
}

func (p *Plan) addCount(a Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = map[Action]int{}
	}
	p.counts[a]++
}

// Log returns the injected faults in their order, the newest 4,096.
func (p *Plan) Log() []Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}
