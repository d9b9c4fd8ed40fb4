// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const (
	maxAdoptions = 8    // at once
	maxBatch     = 4096 // adoptions in random order
	maxRetired   = 64   // visited in a round
)

var errInDoubt = errors.New("lease: entry may still be created")

// Found is the state of a record that the function of Adopt met. Zero is invalid.
type Found int

const (
	// Taken means that the record names the new owner by this call and the work runs here.
	// It needs a Finish.
	Taken Found = 1 + iota
	// Held means that the record has a live owner, which may be the new owner if the work runs here.
	Held
	// Ended means that the work has ended and all that follows from its end was repeated.
	Ended
	// Absent means that there is no record. Its Create may still land.
	Absent
)

type adoptFunc func(ctx context.Context, id string, from, to Owner) (Found, error)

// An entry is an index entry of an epoch, present in the store or not.
type entry struct {
	name   string // kind and id, as in the key
	id     string
	starts int            // Starts without Finish; guarded by Lease.mu
	from   Owner          // of an adoption with an unknown outcome; guarded by Lease.mu
	lock   chan struct{}  // full during changes in the store; capacity 1
	rev    store.Revision // zero if absent or in doubt; used by the holder of lock
	doubt  time.Time      // of the last change in doubt; used by the holder of lock
}

// Start writes the index entry of a work item, before its record is created, and returns the
// owner that the record must name. It fails with ErrLost while no epoch is current; after an
// error the record must not be created. If ctx derives from Context, the owner is of its epoch.
//
// Starts of one item are counted: each successful Start, and each function of Adopt that
// returned Taken, needs one Finish, and the last Finish deletes the entry. So a Start whose
// record exists already is undone by Finish, and a record that is created while another
// goroutine finishes the same id keeps its entry. A further Start writes the entry again, so that its record may name
// the owner even if the clock of the store jumped and another instance removed the entry, or is about to.
func (l *Lease) Start(ctx context.Context, kind, id string) (Owner, error) {
	e := l.epoch.Load()
	if _, err := l.hold(ctx, e, state.Join(kind, id), id); err != nil {
		return "", fmt.Errorf("lease: start: %w", err)
	}
	return e.owner, nil
}

// Finish removes the index entry of a work item of owner, after the record ended and all that
// follows from its end was done, or after the record was certainly not created. A deletion that
// fails is repeated in the background. Finish of an epoch that has ended does nothing: take-over
// removes its entries.
func (l *Lease) Finish(ctx context.Context, owner Owner, kind, id string) error {
	e := l.epoch.Load()
	if owner != e.owner || e.ctx.Err() != nil {
		return nil
	}
	if !l.drop(ctx, e, state.Join(kind, id)) {
		return fmt.Errorf("lease: finish: %s %q not started", kind, id)
	}
	return nil
}

// hold counts a Start and makes sure that the store has the entry. After a change in doubt the
// entry gets a new revision, so that an earlier deletion cannot remove it.
func (l *Lease) hold(ctx context.Context, e *epoch, name, id string) (*entry, error) {
	if !l.isLive(e) || ctx.Err() != nil { // ctx may be that of an earlier epoch
		return nil, cmp.Or(context.Cause(l.base), context.Cause(ctx), ErrLost)
	}
	l.mu.Lock()
	it := e.entries[name]
	if it == nil {
		it = &entry{name: name, id: id, lock: make(chan struct{}, 1)}
		e.entries[name] = it
	}
	it.starts++
	isHeld := it.starts > 1 && !l.opts.Private
	delete(e.stale, name)
	l.mu.Unlock()
	err := it.change(ctx, func() (err error) {
		if it.rev == 0 || isHeld { // if the clock of the store jumped, another instance may have taken it over
			it.rev, err = l.writeEntry(ctx, e, it)
		}
		return err
	})
	if err != nil {
		l.drop(ctx, e, name)
	}
	return it, err
}

// writeEntry writes an entry, whose lock must be held.
func (l *Lease) writeEntry(ctx context.Context, e *epoch, it *entry) (store.Revision, error) {
	rev, err := l.write(ctx, l.key("work", string(e.owner), it.name), it.id, 0)
	if errors.Is(err, store.ErrUnknown) {
		it.doubt = time.Now()
	}
	return rev, err
}

// drop undoes hold, and reports false if nothing was started.
func (l *Lease) drop(ctx context.Context, e *epoch, name string) bool {
	l.mu.Lock()
	it := e.entries[name]
	isStarted := it != nil && it.starts > 0
	if isStarted {
		it.starts--
	}
	if isStarted && it.starts == 0 {
		e.stale[name] = it
	}
	l.mu.Unlock()
	if isStarted {
		if err := l.clean(ctx, e, it); err != nil && l.opts.Private {
			l.signal() // no other round is due
		}
	}
	return isStarted
}

// clean deletes an unused entry by its revision, but not while a creation in doubt could follow the deletion. After
// an error the next round repeats it.
func (l *Lease) clean(ctx context.Context, e *epoch, it *entry) error {
	return it.change(ctx, func() (err error) {
		l.mu.Lock()
		isUsed := it.starts > 0 || it.from != "" || e.entries[it.name] != it
		l.mu.Unlock()
		if isUsed {
			return nil
		}
		if time.Since(it.doubt) < state.LandTime {
			return errInDoubt
		}
		rev := it.rev
		it.rev = 0
		if rev == 0 {
			rev, err = l.writeEntry(ctx, e, it)
		}
		if err == nil {
			err = l.db.Delete(ctx, l.key("work", string(e.owner), it.name), rev)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil && it.starts == 0 {
			delete(e.entries, it.name)
			delete(e.stale, it.name)
		}
		return err
	})
}

// change calls f with the lock of an entry.
func (it *entry) change(ctx context.Context, f func() error) error {
	if ctx.Err() != nil { // select may choose the lock
		return context.Cause(ctx)
	}
	select {
	case it.lock <- struct{}{}:
		defer func() { <-it.lock }()
		return f()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Adopt registers the take-over of a kind and starts a round. For each index entry of a failed
// owner f is called, for one id never twice at once. It reads the record and, if that is
// unfinished and its owner is not Alive, whichever owner that is, replaces the owner by to with
// a compare-and-set; a lost one means reading again. A record that names to is Taken unless its
// work runs here: an earlier compare-and-set had an unknown outcome.
//
// After an error f is called again in the next round, for example if work of the id that has
// lost its record still runs here. The context of f ends with the epoch of to. A later function
// for the same kind replaces the earlier one.
func (l *Lease) Adopt(kind string, f func(ctx context.Context, id string, from, to Owner) (Found, error)) {
	l.mu.Lock()
	l.kinds[state.Join(kind)] = f
	l.mu.Unlock()
	l.signal()
}

// WaitRecovered waits until a round that begins after the call is complete: each entry that a
// failed owner had left was passed to the function of its kind.
func (l *Lease) WaitRecovered(ctx context.Context) error {
	var complete chan struct{}
	for requests := l.complete; ; requests = nil {
		select {
		case complete = <-requests:
		case <-complete:
			return nil
		case <-l.base.Done():
			return context.Cause(l.base)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// signal makes a round due.
func (l *Lease) signal() {
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// runRounds runs a round every third of TTL, after each signal, and for WaitRecovered. If
// Private, no other instance can fail, so only a round that was not whole is repeated.
func (l *Lease) runRounds() {
	tick := time.NewTicker(l.opts.TTL / 3)
	defer tick.Stop()
	complete := make(chan struct{})
	for {
		select {
		case <-l.base.Done():
			return
		case <-tick.C:
		case <-l.due:
		case l.complete <- complete:
		}
		l.mu.Lock()
		r := &round{Lease: l, epoch: l.epoch.Load(), kinds: maps.Clone(l.kinds)}
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.epoch.ctx, 2*l.opts.TTL)
		err := r.run(ctx)
		cancel()
		if err == nil {
			close(complete)
			complete = make(chan struct{})
		} else if r.epoch.ctx.Err() == nil {
			l.opts.Logger.WarnContext(l.base, "lease: round failed", "instance", l.name, "err", err)
		}
		if l.opts.Private && err == nil && !r.hasFailures.Load() {
			tick.Stop()
		} else {
			tick.Reset(l.opts.TTL / 3)
		}
	}
}

// A round passes the entries of failed owners to the functions of their kinds.
type round struct {
	*Lease
	epoch       *epoch
	kinds       map[string]adoptFunc
	hasFailures atomic.Bool
}

// run lists owners before holders, since an owner entry without a time to live had a lease
// before. Then it repeats the changes in doubt of this epoch and lists the entries of owners
// without a lease. Retired owners, to which an entry may have landed late, come last, and a round
// visits at most maxRetired of them.
func (r *round) run(ctx context.Context) error {
	owners := map[Owner]store.Entry{}
	prefix := r.key("owner", "")
	for o, err := range r.db.List(ctx, prefix) {
		if err != nil {
			return err
		}
		owners[Owner(o.Key[len(prefix):])] = o
	}
	holders, err := r.holders(ctx)
	if err != nil {
		return err
	}
	if !holders[r.epoch.owner] && !r.opts.Private {
		return ErrLost // the next renewal fails
	}
	var tasks []func() error
	r.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(r.epoch.stale)) {
		it := r.epoch.stale[name]
		from := it.from
		tasks = append(tasks, func() error {
			if from == "" {
				return r.clean(ctx, r.epoch, it)
			}
			_, err := r.ask(ctx, it.name, it.id, from)
			return err
		})
	}
	r.mu.Unlock()
	r.runAll(ctx, tasks)
	order := slices.Sorted(maps.Keys(owners))
	randid.Rand().Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, isRetired := range []bool{false, true} {
		visits := 0
		for _, owner := range order {
			o := owners[owner]
			if owner == r.epoch.owner || holders[owner] || isRetired == o.Expires.IsZero() {
				continue
			}
			if visits++; isRetired && visits > maxRetired {
				break
			}
			err = errors.Join(err, r.takeOver(ctx, owner, o))
		}
	}
	return err
}

// Owners returns the owners that hold a lease, its own included, in the order of their names. A Private lease has none.
func (l *Lease) Owners(ctx context.Context) ([]Owner, error) {
	holders, err := l.holders(ctx)
	return slices.Sorted(maps.Keys(holders)), err
}

// holders returns the owners that hold a lease.
func (l *Lease) holders(ctx context.Context) (map[Owner]bool, error) {
	holders := map[Owner]bool{}
	if l.opts.Private {
		return holders, nil
	}
	for e, err := range l.db.List(ctx, l.key("lease", "")) {
		if err == nil {
			e, err = store.Content(e)
		}
		if err != nil {
			return nil, err
		}
		if len(e.Value) > 0 {
			holders[Owner(e.Value)] = true
		}
	}
	return holders, nil
}

// takeOver adopts the entries of an owner without a lease. The owner entry gets a time to live
// once there are none, and loses it if more have landed. An owner with a time to live is left
// to the next round, since its lease may have been acquired after the list of leases.
func (r *round) takeOver(ctx context.Context, owner Owner, o store.Entry) error {
	var tasks []func() error
	isRetired, hasEntries := !o.Expires.IsZero(), false
	if !isRetired {
		r.setVerdict(owner, time.Time{}) // the function must not use an earlier verdict
	}
	prefix := r.key("work", string(owner), "")
	for old, err := range r.db.List(ctx, prefix) {
		if err != nil {
			return err
		}
		hasEntries = true
		if isRetired {
			return r.setTTL(ctx, o, 0)
		}
		name := old.Key[len(prefix):]
		if r.kindOf(name) != nil {
			tasks = append(tasks, func() error { return r.adopt(ctx, name, old.Key, owner) })
		}
		if len(tasks) == maxBatch {
			r.runAll(ctx, tasks)
			tasks = tasks[:0]
		}
	}
	r.runAll(ctx, tasks)
	if isRetired || hasEntries {
		return nil
	}
	return r.setTTL(ctx, o, ownerTTL)
}

func (r *round) kindOf(name string) adoptFunc {
	kind, _, _ := strings.Cut(name, "/")
	return r.kinds[kind]
}

// runAll runs tasks in random order, up to 8 at once, and logs their errors.
func (r *round) runAll(ctx context.Context, tasks []func() error) {
	randid.Rand().Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	var g errgroup.Group
	g.SetLimit(maxAdoptions)
	for _, task := range tasks {
		g.Go(func() error {
			err := task()
			if err != nil {
				r.hasFailures.Store(true)
			}
			if err != nil && !errors.Is(err, errInDoubt) && ctx.Err() == nil {
				r.opts.Logger.WarnContext(ctx, "lease: adoption failed", "instance", r.name, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// adopt adopts one entry. An entry without a record stays for a while, since the Create of the
// record may still land.
func (r *round) adopt(ctx context.Context, name, key string, from Owner) error {
	old, err := r.db.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil // another instance was faster
	}
	content := old
	if err == nil {
		content, err = store.Content(old)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	found, err := r.ask(ctx, name, string(content.Value), from)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", key, err)
	case found != Absent:
		return r.db.Delete(ctx, key, old.Revision)
	case old.Expires.IsZero():
		return r.setTTL(ctx, old, state.LandTime)
	}
	return nil
}

// ask calls the function of the kind with an own index entry. After an error the own entry
// stays and the next round repeats ask, since the change of the record may still be made.
func (r *round) ask(ctx context.Context, name, id string, from Owner) (found Found, err error) {
	it, err := r.hold(ctx, r.epoch, name, id)
	if err != nil {
		return 0, err
	}
	r.setPending(it, from)
	err = guard.Call("adoption", func() error {
		found, err = r.kindOf(name)(r.epoch.ctx, id, from, r.epoch.owner)
		return err
	})
	if err == nil && (found < Taken || found > Absent) {
		err = fmt.Errorf("adoption returned %d", found)
	}
	if err == nil {
		r.setPending(it, "")
	}
	if err == nil && found == Taken {
		return found, nil
	}
	r.drop(ctx, r.epoch, name)
	return found, err
}

func (r *round) setPending(it *entry, from Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it.from = from
}

// setTTL sets the time to live of an entry, unless another instance was faster.
func (r *round) setTTL(ctx context.Context, e store.Entry, ttl time.Duration) error {
	_, err := r.db.Update(ctx, e.Key, e.Value, e.Revision, ttl)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
