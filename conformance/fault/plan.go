// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package fault injects faults into a store: errors before and after a change, changes that
// arrive after their error, hangs, conflicts, delays, crashes and pauses. A store with faults
// keeps the contract of package store: an injected error is never one of its answers, and
// another writer really makes the change of a conflict.
//
//	plan := &fault.Plan{Seed: 1, Rules: []fault.Rule{
//		{Kind: fault.ErrorAfter, Ops: fault.Update, Rate: 0.1},
//		{Kind: fault.LateLanding, Ops: fault.Append, Prefix: "tasks/", Limit: 3},
//	}}
//	defer plan.Close()
//	server := newServer(fault.Store(store.NewMemory(), plan))
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

// An Op is a set of operations of a store, such as Update|Append.
type Op uint16

// The operations are named like the methods of [store.Store].
const (
	Get Op = 1 << iota
	Create
	Update
	Delete
	List
	Append
	Read
	Ack
	Wait
	Expire
)

const changes = Create | Update | Delete | Append | Ack | Expire

// A Kind is a kind of fault.
type Kind uint8

const (
	// ErrorBefore returns an error instead of the call.
	ErrorBefore Kind = iota

	// ErrorAfter makes the call and returns an error instead of its answer. A List yields up
	// to 8 entries before the error.
	ErrorAfter

	// LateLanding returns an error at once and makes the change later. It applies to changes
	// only. If 1,024 changes are pending already, the fault is an ErrorBefore.
	LateLanding

	// Hang does not answer until the context of the call ends, or Rule.Delay has passed. The
	// call is not made.
	Hang

	// Conflict lets another writer make a change right before the call, so the store itself
	// refuses a call that depends on the earlier state. It applies to changes only.
	Conflict

	// Slow delays the call.
	Slow

	kinds
)

var kindNames = [kinds]string{
	ErrorBefore: "error before the call",
	ErrorAfter:  "error after the call",
	LateLanding: "change in transit",
	Hang:        "no answer",
}

const (
	maxLandings = 1024
	maxEntries  = 8
)

// A Rule selects calls and gives them a fault. The zero Rule makes every call fail with ErrorBefore.
type Rule struct {
	Kind Kind

	// Ops selects operations. Zero means all.
	Ops Op

	// Prefix selects the calls whose key or stream, or the prefix of a List, begins with it.
	Prefix string

	// Match, if set, selects calls in addition to Ops and Prefix. It may run concurrently.
	Match func(op Op, name string) bool

	// Rate is the probability of a fault in a selected call. Zero means 1; a negative value
	// switches the rule off.
	Rate float64

	// Skip is the number of selected calls before the first that may have a fault.
	Skip int

	// Limit is the maximum number of faults. Zero means no limit.
	Limit int

	// Delay is the maximum of the random delay of LateLanding and Slow, where zero means 1 s,
	// and the duration of a Hang, where zero means 10 s. ErrorBefore and ErrorAfter wait for
	// Delay, or until the context ends, before they return.
	Delay time.Duration

	// Rival makes the change of a Conflict, on the store below the faults. Nil means that an
	// Update or a Delete meets an entry that was written again with the value it had, and
	// that other operations have no conflict.
	Rival func(ctx context.Context, s store.Store, name string) error
}

func (r *Rule) selects(op Op, name string) bool {
	switch {
	case r.Kind >= kinds, r.Rate < 0, r.Ops != 0 && r.Ops&op == 0, !strings.HasPrefix(name, r.Prefix):
		return false
	case (r.Kind == LateLanding || r.Kind == Conflict) && op&changes == 0:
		return false
	case r.Kind == Conflict && r.Rival == nil && op&(Update|Delete) == 0:
		return false
	}
	return r.Match == nil || r.Match(op, name)
}

// A Plan is the faults of one process: of its view of one or several stores. Seed and Rules
// are set before its first use. The rules are tried in their order, and the first that applies
// decides; after Slow and Conflict the next ones are tried too. The Seed and the order of the
// calls decide everything random. All methods may be called concurrently.
type Plan struct {
	Seed  uint64
	Rules []Rule

	mu       sync.Mutex
	random   *rand.Rand    // nil before the first call
	selected []int         // calls, by rule
	injected []int         // faults, by rule
	counts   [kinds]int    // faults, by kind
	resumed  chan struct{} // nil unless paused
	crashed  bool
	calls    map[*call]struct{} // in progress, one for each caller
	landings []*landing         // pending, at most maxLandings
}

// A call is the part of a call that Crash ends.
type call struct{ cancel context.CancelFunc }

// A decision is the faults of one call.
type decision struct {
	slow    time.Duration
	rivals  []func(ctx context.Context, s store.Store, name string) error
	fails   bool // with kind
	kind    Kind
	delay   time.Duration
	entries int // of a List before an ErrorAfter
}

// decide draws the faults of a call.
func (p *Plan) decide(op Op, name string) (d decision) {
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
	for i := range p.Rules {
		if selected[i] && !d.fails {
			p.drawLocked(i, &d)
		}
	}
	return d
}

// drawLocked applies the rule i to a call that it selects. p.mu must be held.
func (p *Plan) drawLocked(i int, d *decision) {
	r := &p.Rules[i]
	p.selected[i]++
	isHit := r.Rate == 0 || p.random.Float64() < r.Rate
	if !isHit || p.selected[i] <= r.Skip || r.Limit > 0 && p.injected[i] >= r.Limit {
		return
	}
	p.injected[i]++
	switch r.Kind {
	case Slow:
		d.slow += p.drawDelayLocked(r.Delay)
	case Conflict:
		d.rivals = append(d.rivals, r.Rival)
	case LateLanding:
		d.fails, d.kind, d.delay = true, r.Kind, p.drawDelayLocked(r.Delay)
	case Hang:
		d.fails, d.kind, d.delay = true, r.Kind, cmp.Or(r.Delay, 10*time.Second)
	default:
		d.fails, d.kind, d.delay, d.entries = true, r.Kind, r.Delay, p.random.IntN(maxEntries+1)
	}
}

// drawDelayLocked returns a random delay of at least a nanosecond. p.mu must be held.
func (p *Plan) drawDelayLocked(limit time.Duration) time.Duration {
	limit = max(1, cmp.Or(limit, time.Second))
	return 1 + time.Duration(p.random.Int64N(int64(limit)))
}

// Count returns the number of faults of a kind that were injected.
func (p *Plan) Count(k Kind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k >= kinds {
		return 0
	}
	return p.counts[k]
}

func (p *Plan) addCount(k Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[k]++
}
