// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package once runs keyed work at most once, records its outcome, and gives the
// outcome to each repeat of the key.
//
// A claim is the record of a key. It is created before user code begins and holds
// the outcome after its end. Instances that share a store share the claims, and
// compare-and-set decides who owns one. A claim whose owner has lost its lease is
// taken over by a repeat. Without a store, a Table keeps its claims in memory.
package once

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

var (
	// ErrReused reports that the key was used with another digest.
	ErrReused = errors.New("once: key reused for another request")

	// ErrNotRetained reports that the work has ended and its outcome is not kept.
	ErrNotRetained = errors.New("once: outcome not retained")

	// ErrLost is the outcome of work that began and whose end was not recorded.
	ErrLost = errors.New("once: outcome lost")

	// ErrFailed matches the error of work that returned an error or panicked. The
	// text is recorded. Only the first caller's error unwraps to that of the work.
	ErrFailed = errors.New("once: work failed")

	// ErrBusy reports that another call runs the key and the caller does not wait: it has NoWait, or the key has
	// 64 waiters. It also reports that the store does not take the outcomes of 4,096 calls.
	ErrBusy = errors.New("once: key in progress")

	// ErrClosed reports use after Close.
	ErrClosed = errors.New("once: closed")
)

// A Key names work. Each repeat of the work has the same Key.
type Key struct {
	Principal, Scope, ID string // without an ID, each call runs and nothing is recorded

	// Aliases are further ids with the same Principal and Scope: one claim has all of
	// its ids. Empty ones are ignored.
	Aliases []string

	// Digest identifies the request. A repeat with another one gets ErrReused.
	Digest [32]byte

	// Exit, if set, has the Result of work that ends its goroutine by runtime.Goexit, since it cannot return one.
	Exit *Result

	// NoWait makes Do return ErrBusy while another call runs the key. Repeats may differ in it.
	NoWait bool

	// Pin makes Peek pin a claim that runs under AtMostOnce: if its work ends without an outcome, that is ErrLost. So
	// a repeat that the caller of Peek asks for never runs. Repeats may differ in it.
	Pin bool
}

// A Claim is the permission to run.
type Claim struct {
	Token       string      // random, and the same for all attempts of the claim
	Attempt     int         // 1 or more
	Redelivered bool        // an earlier attempt may have run
	Kept        bool        // the last attempt has ended with Retry; else its end is unknown, if there was one
	State       []byte      // Data of the last Retry
	Failed      lease.Owner // ran the last attempt, whose end is unknown
	Lost        bool        // of Peek: the instance that runs it has failed
	Dropped     bool        // of Peek: its outcome is not retained
}

// A Result is what work returns. Data is recorded also with an error.
type Result struct {
	Data   []byte
	Forget bool // delete the claim: the next call runs again
	Retry  bool // keep the claim and Data: the next call is another attempt of it
	Drop   bool // record that the work has ended without its outcome, as if Data were over MaxOutcome
}

// A Policy decides what a repeat does after the owner of a claim has failed.
type Policy int

// The policies.
const (
	AtMostOnce Policy = iota // record ErrLost as the outcome
	Repeat                   // run again
)

// A State is what is known of a key.
type State int

// The states of a key.
const (
	StateAbsent  State = iota
	StateRunning       // claimed
	StateDone          // ended
)

// Options configure a Table. Zero is the default; a negative value removes a bound.
type Options struct {
	// Prefix precedes each key in the store, for example "arc/". A process has one
	// Table for each scope of the keys with a prefix of a store.
	Prefix string

	// Retention is how long an outcome is kept. Zero means 24 h in a store and 5 min
	// in memory; a negative value keeps none. A record stays in a store for 10 min at
	// least, but it is of no effect after Retention.
	Retention time.Duration

	// RetryTTL is how long a claim that Retry keeps stays. Zero and negative values mean an
	// hour more than Retention.
	RetryTTL time.Duration

	// StoreTimeout bounds each access to the store before work begins, and the wait for
	// the record of an outcome under Repeat and in a repeat. Zero means 10 s, and no bound for the record.
	StoreTimeout time.Duration

	// MaxOutcome bounds the data of an outcome. Larger data is not retained. Zero
	// means 1 MiB.
	MaxOutcome int

	// MaxBytes and MaxCount bound the outcomes and the kept claims of a principal in
	// memory. Each one counts its data, its names and 64 bytes a name. Zero means 16 MiB
	// and 20,000. Beyond, the oldest data is removed first, and then the oldest outcomes.
	MaxBytes, MaxCount int

	// TotalBytes and TotalCount bound the outcomes of all principals in memory. Zero
	// means 64 MiB and 100,000. Beyond, the principal of the newest loses data first.
	TotalBytes, TotalCount int

	// Logger gets the log records. Nil means slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults(isDurable bool) Options {
	if isDurable {
		o.Retention = cmp.Or(o.Retention, 24*time.Hour)
	}
	o.Retention = cmp.Or(o.Retention, 5*time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	bounds := []*int{&o.MaxOutcome, &o.MaxBytes, &o.MaxCount, &o.TotalBytes, &o.TotalCount}
	for i, standard := range []int{1 << 20, 16 << 20, 20_000, 64 << 20, 100_000} {
		*bounds[i] = option.Count(*bounds[i], standard)
	}
	return o
}

// A Table holds claims. Its methods are safe for concurrent use.
type Table struct {
	db    store.KV // nil: in memory
	lease interface {
		Owner() lease.Owner
		Context() context.Context
		Alive(ctx context.Context, o lease.Owner) (bool, error)
	}
	opts   Options
	start  time.Time
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	timer  *time.Timer // of refresh; nil in memory

	mu         sync.Mutex        // guards all below
	entries    map[name]*entry   // by each of their names
	running    map[*entry]bool   // those with a claim in the store
	ending     int               // those whose end is being stored
	idle       chan struct{}     // closed as soon as nothing is in the last two; nil without Shutdown
	all        queue             // of outcomes in memory
	principals map[string]*queue // the same by principal
	isClosed   bool
}

// New returns a Table on db. Instances that share db have each their lease l. With a
// nil db the claims are in memory, and l is ignored.
func New(db store.KV, l *lease.Lease, o Options) *Table {
	t := &Table{db: state.GuardKV(db), lease: l, opts: o.withDefaults(db != nil), start: time.Now()}
	t.entries, t.running, t.principals = map[name]*entry{}, map[*entry]bool{}, map[string]*queue{}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	if db != nil {
		t.timer = time.AfterFunc(t.ttl(&record{})/2, t.refresh)
	}
	return t
}

// Shutdown refuses new calls, and closes t as soon as all work has ended and its end is stored; in memory, at
// once. At the end of ctx it closes t and returns the cause.
func (t *Table) Shutdown(ctx context.Context) error {
	t.mu.Lock()
	t.isClosed = true
	if t.idle == nil {
		t.idle = make(chan struct{})
		t.leaveLocked()
	}
	idle := t.idle
	t.mu.Unlock()
	defer t.Close()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.ctx.Done():
		return ErrClosed
	}
}

// leaveLocked reports to Shutdown that nothing is left to do. t.mu must be held.
func (t *Table) leaveLocked() {
	if t.idle != nil && len(t.running) == 0 && t.ending == 0 {
		select {
		case <-t.idle:
		default:
			close(t.idle)
		}
	}
}

// Close ends the waiting of all calls with ErrClosed, and the goroutines of t. It does
// not end work: a call that runs returns the outcome of its work.
func (t *Table) Close() error {
	t.mu.Lock()
	t.isClosed = true
	t.cancel(ErrClosed)
	t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.wg.Wait()
	return nil
}

// entryBytes is the memory of a retained outcome besides its data and names.
const entryBytes = 704

// Size returns the bytes of the outcomes that t holds in memory.
func (t *Table) Size() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(t.all.bytes) + int64(t.all.count)*entryBytes
}
