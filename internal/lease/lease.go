// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease makes the instances on one store known to each other, finds the
// unfinished work of failed instances, and passes messages between instances.
//
// An instance holds a lease, a key with a time to live. Each acquisition is an
// epoch; instance and epoch are the Owner that a record of unfinished work names.
// An epoch that has lost its lease never gets it back. The lease only permits an
// attempt: a compare-and-set on the record decides its owner, since a paused
// process does not know that its lease has expired.
package lease

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

var (
	// ErrLost reports that the epoch has ended: the lease was not renewed in time, or
	// another process has acquired it. It is the cause of the end of the Context.
	ErrLost = errors.New("lease: lease lost")

	// ErrClosed reports use after Release.
	ErrClosed = errors.New("lease: released")
)

const (
	defaultTTL  = 15 * time.Second
	ownerTTL    = time.Hour        // of an owner without lease and entries
	absentTTL   = 10 * time.Minute // of an entry without a record
	maxVerdicts = 4096
)

// Options configure an instance.
type Options struct {
	// Prefix precedes every key and stream name, for example "arc/". Instances
	// with different prefixes do not see each other.
	Prefix string

	// InstanceID is the name of the instance. Zero means a random one. A given
	// one belongs to one live process at a time.
	InstanceID string

	// TTL is the time to live of the lease. Zero means 15 s; a negative value
	// means Private.
	TTL time.Duration

	// Private means that no other Lease uses the store and the prefix at the same
	// time. The epoch then lasts until Release, every other owner counts as
	// failed, and nothing waits on the store.
	Private bool

	// Logger gets the log records. Nil means slog.Default().
	Logger *slog.Logger

	// OnLost, if set, is called once, in its own goroutine, when another
	// process has acquired a lease with the same InstanceID.
	OnLost func(ctx context.Context)
}

// An Owner is one epoch of an instance, in the form "instance@epoch". The zero
// Owner is never alive.
type Owner string

// A Lease is the membership of one process in the instances of a store. All
// methods are safe for concurrent use. Release ends it and its goroutines.
type Lease struct {
	db   store.Store
	opts Options
	name string // the instance in an Owner
	base context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup
	past []Owner       // latest epochs of this Lease; used by one goroutine at a time
	wake chan struct{} // a round is due; capacity 1

	inbox chan message // for the functions of Listen

	mu       sync.Mutex // guards all below
	epoch    *epoch
	kinds    map[string]adoptFunc
	topics   map[string]func([]byte)
	verdicts map[Owner]time.Time // alive until; zero for a failed owner
	waiters  []chan struct{}     // of WaitRecovered
}

// Acquire acquires the lease of the instance and starts to renew it. With a given
// InstanceID it replaces the lease of an earlier process. The context bounds
// Acquire only.
func Acquire(ctx context.Context, db store.Store, o Options) (*Lease, error) {
	o.Private = o.Private || o.TTL < 0
	if o.TTL <= 0 {
		o.TTL = defaultTTL
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.InstanceID = cmp.Or(o.InstanceID, randid.New(""))
	l := &Lease{
		db: db, opts: o, name: statekey.Join(o.InstanceID),
		wake: make(chan struct{}, 1), inbox: make(chan message, maxInbox),
		kinds: map[string]adoptFunc{}, topics: map[string]func([]byte){}, verdicts: map[Owner]time.Time{},
	}
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

// Owner returns the owner of the current epoch, or of the last one if that has
// ended. A record gets the Owner that Start returned instead, since another epoch
// may begin between the two calls.
func (l *Lease) Owner() Owner { return l.current().owner }

// Context returns the context of the current epoch. It ends with the cause ErrLost
// when the epoch ends and with ErrClosed on Release. After an outage of the store
// a new epoch with another Context begins, and the work of the earlier one comes
// back through the functions of Adopt.
func (l *Lease) Context() context.Context { return l.current().ctx }

func (l *Lease) current() *epoch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// Alive reports whether owner holds its lease. Owner must come from a record. True
// is cached for a tenth of TTL, false permanently.
func (l *Lease) Alive(ctx context.Context, owner Owner) (bool, error) {
	l.mu.Lock()
	until, isKnown := l.verdicts[owner]
	isOwn, isLive := owner == l.epoch.owner, l.isLiveLocked(l.epoch)
	l.mu.Unlock()
	if isOwn || l.opts.Private {
		return isOwn && isLive, nil
	}
	if isKnown && (until.IsZero() || time.Now().Before(until)) {
		return !until.IsZero(), nil
	}
	return l.readAlive(ctx, owner)
}

// readAlive is Alive without the cache.
func (l *Lease) readAlive(ctx context.Context, owner Owner) (bool, error) {
	if l.opts.Private {
		return false, nil
	}
	now := time.Now()
	name := owner[:max(0, strings.LastIndexByte(string(owner), '@'))]
	e, err := l.db.Get(ctx, l.key("lease", string(name)))
	if err == nil {
		e, err = store.Content(e)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	var until time.Time
	if err == nil && string(e.Value) == string(owner) {
		until = now.Add(l.opts.TTL / 10)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.verdicts) >= maxVerdicts {
		clear(l.verdicts)
	}
	l.verdicts[owner] = until
	return !until.IsZero(), nil
}

// key joins parts that need no replacement.
func (l *Lease) key(parts ...string) string {
	return l.opts.Prefix + strings.Join(parts, "/")
}

// Release ends the epoch and hands its unfinished work to the other instances at
// once. It waits for the goroutines of the lease. If ctx ends before, the lease
// is left to expire, and Release returns the error of ctx.
func (l *Lease) Release(ctx context.Context) error {
	l.stop(ErrClosed)
	ended := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return l.handOver(ctx, l.current().owner)
	case <-ctx.Done():
		return ctx.Err()
	}
}
