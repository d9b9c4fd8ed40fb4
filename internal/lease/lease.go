// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease makes the instances on one store known to each other, finds the unfinished
// work of failed instances, and passes messages between instances.
//
// An instance holds a lease, a key with a time to live. Each acquisition is an epoch; instance
// and epoch are the Owner that a record of unfinished work names. An epoch that has lost its
// lease never gets it back. The lease only permits an attempt: a compare-and-set on the record
// decides its owner, since a paused process does not know that it lost the lease.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// Errors of a Lease.
var (
	ErrLost   = errors.New("lease: lease lost: not renewed in time, or acquired by another process, perhaps with the same InstanceID")
	ErrClosed = errors.New("lease: released")
)

const (
	defaultTTL  = 15 * time.Second
	minTTL      = time.Second // a shorter lease may end before its renewal
	ownerTTL    = time.Hour   // of an owner without lease and entries
	maxPast     = 16
	maxVerdicts = 4096
)

// Options configure an instance.
type Options struct {
	Prefix     string        // of keys and streams, for example "arc/"; separates groups of instances
	InstanceID string        // of one live process at a time; zero means a random one
	TTL        time.Duration // of the lease, at least 1 s; zero and negative values mean 15 s
	Logger     *slog.Logger  // nil means slog.Default()

	// Private means that no other Lease uses the store and the prefix at the same time. The
	// epoch then lasts until Release, every other owner has failed, and nothing waits on the store.
	Private bool

	// OnLost, if set, is called once, in its own goroutine, when another process has acquired
	// a lease with the same InstanceID. The Lease has then ended, but for Release.
	OnLost func(ctx context.Context)

	// OnOwner, if set, is called after each change of Owner. It must not block.
	OnOwner func()
}

// An Owner is one epoch of an instance, as "instance@epoch". The zero Owner is never alive.
type Owner string

// A Lease is the membership of one process in the instances of a store. All methods are safe
// for concurrent use. Release ends it and its goroutines.
type Lease struct {
	db       store.Store
	opts     Options
	name     string // the instance in an Owner
	birth    time.Time
	base     context.Context
	stop     context.CancelCauseFunc
	wg       sync.WaitGroup
	epoch    atomic.Pointer[epoch]
	past     []Owner            // latest epochs of this Lease; used by one goroutine at a time
	due      chan struct{}      // starts a round; capacity 1
	complete chan chan struct{} // starts a round and gives the channel that it closes
	inbox    chan message       // for the functions of Listen; capacity maxInbox

	mu       sync.Mutex // guards all below and the entries of the epoch
	kinds    map[string]adoptFunc
	topics   map[string]func([]byte)
	verdicts map[Owner]time.Time // end of the verdict alive; zero for a failed owner
}

// An epoch is one acquisition of the lease.
type epoch struct {
	owner   Owner
	ctx     context.Context
	cancel  context.CancelCauseFunc
	until   atomic.Int64 // nanoseconds after Lease.birth
	fence   *time.Timer
	entries map[string]*entry // by kind and id
	stale   map[string]*entry // those without a Start
}

// Acquire acquires the lease of the instance and starts to renew it. With a given InstanceID
// it replaces the lease of an earlier process. The context bounds Acquire only.
func Acquire(ctx context.Context, db store.Store, o Options) (*Lease, error) {
	o.TTL = max(option.Or(o.TTL, defaultTTL, defaultTTL), minTTL)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	l := &Lease{db: state.Guard(db), opts: o, name: state.Join(cmp.Or(o.InstanceID, randid.New(""))), birth: time.Now(),
		due: make(chan struct{}, 1), complete: make(chan chan struct{}), inbox: make(chan message, maxInbox),
		kinds: map[string]adoptFunc{}, topics: map[string]func([]byte){}, verdicts: map[Owner]time.Time{}}
	l.base, l.stop = context.WithCancelCause(context.Background())
	if err := l.newEpoch(ctx, true); err != nil {
		l.stop(ErrClosed)
		return nil, err
	}
	l.wg.Go(l.runRounds)
	l.wg.Go(l.runInbox)
	if !o.Private {
		l.wg.Go(l.runLease)
	}
	return l, nil
}

// Owner returns the owner of the current epoch, or of the last one if that has ended. A record
// gets the Owner that Start returned instead, since an epoch may begin between the two calls.
func (l *Lease) Owner() Owner { return l.epoch.Load().owner }

// Context returns the context of the current epoch. It ends with the cause ErrLost when the
// epoch ends and with ErrClosed on Release. After an outage of the store a new epoch with
// another Context begins, and the functions of Adopt get the work of the earlier one.
func (l *Lease) Context() context.Context { return l.epoch.Load().ctx }

// Alive reports whether owner holds its lease. Owner must come from a record. True is cached
// for a tenth of TTL, false permanently.
func (l *Lease) Alive(ctx context.Context, owner Owner) (bool, error) {
	if e := l.epoch.Load(); owner == e.owner || l.opts.Private {
		return owner == e.owner && l.isLive(e), nil
	}
	l.mu.Lock()
	until, isKnown := l.verdicts[owner]
	l.mu.Unlock()
	now := time.Now()
	if isKnown && (until.IsZero() || now.Before(until)) {
		return !until.IsZero(), nil
	}
	name := owner[:max(0, strings.LastIndexByte(string(owner), '@'))]
	e, err := l.db.Get(ctx, l.key("lease", string(name)))
	if err == nil {
		e, err = store.Content(e)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	until = time.Time{}
	if err == nil && string(e.Value) == string(owner) {
		until = now.Add(l.opts.TTL / 10)
	}
	return l.setVerdict(owner, until), nil
}

// setVerdict caches the end of a lease, zero for a failed owner, which stays failed.
func (l *Lease) setVerdict(owner Owner, until time.Time) (isAlive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.verdicts) >= maxVerdicts {
		clear(l.verdicts)
	}
	if old, isKnown := l.verdicts[owner]; isKnown && old.IsZero() {
		return false
	}
	l.verdicts[owner] = until
	return !until.IsZero()
}

// Release ends the epoch and hands its unfinished work to the other instances at once. It
// waits for the goroutines of the lease. If ctx ends first, the lease is left to expire, and
// Release returns the error of ctx.
func (l *Lease) Release(ctx context.Context) error {
	l.stop(ErrClosed)
	done := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.handOver(ctx, l.Owner()); err != nil {
		return fmt.Errorf("lease: release: %w", err)
	}
	return nil
}

// handOver deletes the lease and wakes the other instances if work is left.
func (l *Lease) handOver(ctx context.Context, owner Owner) error {
	key := l.key("lease", l.name)
	_, err := store.Modify(ctx, l.db, key, 0, func(old store.Entry, found bool) ([]byte, error) {
		if Owner(old.Value) != owner {
			return nil, store.ErrUnchanged
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	for range l.db.List(ctx, l.key("work", string(owner), "")) {
		holders, err := l.holders(ctx)
		for _, other := range slices.Sorted(maps.Keys(holders)) {
			err = errors.Join(err, l.send(ctx, other, releases, nil))
		}
		return err
	}
	_, err = l.write(ctx, l.key("owner", string(owner)), "", ownerTTL)
	return err
}

// isLive reports whether e is current by the monotonic clock.
func (l *Lease) isLive(e *epoch) bool {
	return e.ctx.Err() == nil && (l.opts.Private || int64(time.Since(l.birth)) < e.until.Load())
}

// extend sets the end of e after a renewal that began at start, and returns the time left.
func (l *Lease) extend(e *epoch, start time.Time) time.Duration {
	end := start.Add(l.opts.TTL - l.opts.TTL/6)
	e.until.Store(int64(end.Sub(l.birth)))
	return time.Until(end)
}

// newEpoch acquires a new epoch. The owner entry precedes the lease with a time to live, which
// ends after it: survivors leave the entry as it is until then, and it expires after a failure.
func (l *Lease) newEpoch(ctx context.Context, isFirst bool) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.TTL/2)
	defer cancel()
	e := &epoch{owner: Owner(l.name + "@" + randid.New("")), entries: map[string]*entry{}, stale: map[string]*entry{}}
	l.past = append(l.past[max(0, len(l.past)-maxPast):], e.owner)
	key := l.key("owner", string(e.owner))
	_, err := l.write(ctx, key, "", ownerTTL)
	start := time.Now()
	if err == nil {
		err = l.acquire(ctx, e.owner, isFirst)
	}
	if err == nil {
		_, err = l.write(ctx, key, "", 0)
	}
	if err != nil {
		return fmt.Errorf("lease: acquire: %w", err)
	}
	e.ctx, e.cancel = context.WithCancelCause(l.base)
	left := l.extend(e, start)
	isNew := l.epoch.Swap(e) != nil
	l.signal()
	if !l.opts.Private {
		e.fence = time.AfterFunc(left, func() {
			if !l.isLive(e) {
				e.cancel(ErrLost)
			}
		})
		l.wg.Go(func() { l.receive(e) })
	}
	if isNew && l.opts.OnOwner != nil {
		l.call(ctx, "OnOwner", l.opts.OnOwner)
	}
	return nil
}

// acquire writes the lease of a new owner. A Create of the lease names no owner: it may be made
// after its attempt has failed, when the lease of a later owner has expired. The Update that
// names the owner fails if a later owner came first.
func (l *Lease) acquire(ctx context.Context, owner Owner, isFirst bool) error {
	for {
		_, err := store.Modify(ctx, l.db, l.key("lease", l.name), l.opts.TTL, func(_ store.Entry, found bool) ([]byte, error) {
			if found {
				return nil, store.ErrUnchanged
			}
			return []byte{}, nil
		})
		if err == nil {
			err = l.writeLease(ctx, owner, isFirst, false)
		}
		if !errors.Is(err, store.ErrNotFound) { // it has expired since the Create
			return err
		}
	}
}

// writeLease updates the lease with an owner. It returns ErrLost if another process holds the
// lease, unless isFirst, and ErrNotFound if the lease has expired, or isRenewal and the lease
// names an earlier owner or none.
func (l *Lease) writeLease(ctx context.Context, owner Owner, isFirst, isRenewal bool) error {
	key := l.key("lease", l.name)
	_, err := store.Modify(ctx, l.db, key, l.opts.TTL, func(old store.Entry, found bool) ([]byte, error) {
		holder := Owner(old.Value)
		switch {
		case holder != "" && !isFirst && !slices.Contains(l.past, holder):
			return nil, ErrLost
		case !found, isRenewal && holder != owner:
			return nil, store.ErrNotFound
		}
		return []byte(owner), nil
	})
	return err
}

// runLease renews the lease, and acquires a new epoch when the current one has ended.
func (l *Lease) runLease() {
	for failures := 0; ; failures++ {
		if failures == 0 {
			_ = retry.Sleep(l.Context(), l.opts.TTL/10*3+time.Duration(randid.Rand().Int64N(int64(l.opts.TTL/15)+1)))
		} else {
			_ = retry.Sleep(l.base, l.opts.TTL/30)
		}
		err := l.renew(l.epoch.Load())
		switch {
		case l.base.Err() != nil:
			return
		case err == nil:
			failures = -1
		case errors.Is(err, ErrLost), errors.Is(err, store.ErrClosed):
			l.lose(err)
			return
		case failures == 0:
			l.opts.Logger.WarnContext(l.base, "lease: lease not renewed", "instance", l.name, "err", err)
		}
	}
}

// renew extends e, or acquires a new epoch if e has ended.
func (l *Lease) renew(e *epoch) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(e.ctx, l.opts.TTL/3)
	defer cancel()
	err := l.writeLease(ctx, e.owner, false, true)
	isLive := l.isLive(e)
	switch {
	case isLive && err == nil:
		e.fence.Reset(l.extend(e, start))
		return nil
	case errors.Is(err, ErrLost), isLive && !errors.Is(err, store.ErrNotFound), l.base.Err() != nil:
		return err
	}
	e.cancel(ErrLost)
	return l.newEpoch(l.base, false)
}

// lose ends everything permanently.
func (l *Lease) lose(err error) {
	l.stop(ErrLost)
	ctx := context.WithoutCancel(l.base)
	l.opts.Logger.ErrorContext(ctx, "lease: lease lost", "instance", l.name, "err", err)
	if l.opts.OnLost != nil && errors.Is(err, ErrLost) {
		go l.call(ctx, "OnLost", func() { l.opts.OnLost(ctx) }) // outside wg, since it may call Release
	}
}

// call calls a function and logs its panic.
func (l *Lease) call(ctx context.Context, what string, f func()) {
	err := guard.Call(what, func() error {
		f()
		return nil
	})
	if err != nil {
		l.opts.Logger.ErrorContext(ctx, "lease: function failed", "instance", l.name, "err", err)
	}
}

// write writes a value that only this Lease writes.
func (l *Lease) write(ctx context.Context, key, value string, ttl time.Duration) (store.Revision, error) {
	e, err := store.Modify(ctx, l.db, key, ttl, func(store.Entry, bool) ([]byte, error) { return []byte(value), nil })
	return e.Revision, err
}

// key joins parts that need no replacement.
func (l *Lease) key(parts ...string) string { return l.opts.Prefix + strings.Join(parts, "/") }
