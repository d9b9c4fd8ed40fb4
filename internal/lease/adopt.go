// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

const (
	maxAdoptions = 8
	maxBatch     = 4096 // entries in random order
)

// Found is the state of a record that the function of Adopt met.
type Found int

// The values of Found. The zero value is invalid.
const (
	// Taken means that the record names the new owner by this call, and the
	// work runs here. Finish has to be called at its end.
	Taken Found = 1 + iota
	// Held means that the record has a live owner, or that the work already
	// runs in this process.
	Held
	// Ended means that the work has ended and everything that follows from its
	// end was repeated.
	Ended
	// Absent means that there is no record. Its Create may still land.
	Absent
)

type adoptFunc func(ctx context.Context, id string, from, to Owner) (Found, error)

// Adopt registers the take-over of a kind and starts a round. For each index entry
// of a failed owner f is called, for one id never twice at once. It reads the
// record and, if that is unfinished and its owner is not Alive, whichever owner
// that is, replaces the owner by to with a compare-and-set; a lost one means
// reading again. A record that names to is Taken unless its work runs here: an
// earlier compare-and-set had an unknown outcome.
//
// After an error f is called again in the next round. Its context ends with the
// epoch of to. A later function for the same kind replaces the earlier one.
func (l *Lease) Adopt(kind string, f func(ctx context.Context, id string, from, to Owner) (Found, error)) {
	l.mu.Lock()
	l.kinds[statekey.Join(kind)] = f
	l.mu.Unlock()
	l.signal()
}

// WaitRecovered waits until a round that begins after the call is complete: each
// entry that a failed owner had left was passed to the function of its kind.
func (l *Lease) WaitRecovered(ctx context.Context) error {
	done := make(chan struct{})
	l.mu.Lock()
	l.waiters = append(l.waiters, done)
	l.mu.Unlock()
	l.signal()
	select {
	case <-done:
		return nil
	case <-l.base.Done():
		return context.Cause(l.base)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// signal makes a round due.
func (l *Lease) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// A round passes the entries of failed owners to the functions of their kinds.
type round struct {
	*Lease
	epoch *epoch
	kinds map[string]adoptFunc
}

// A task is an adoption. Without a key it repeats one with an unknown outcome.
type task struct {
	name, id string
	from     Owner
	old      store.Entry
}

// runRounds runs a round every third of TTL and after each signal.
func (l *Lease) runRounds() {
	tick := time.NewTicker(l.opts.TTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-l.base.Done():
			return
		case <-tick.C:
		case <-l.wake:
		}
		l.mu.Lock()
		r := &round{Lease: l, epoch: l.epoch, kinds: maps.Clone(l.kinds)}
		waiters := l.waiters
		l.waiters = nil
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.epoch.ctx, 2*l.opts.TTL)
		err := r.run(ctx)
		cancel()
		if err == nil {
			for _, done := range waiters {
				close(done)
			}
			continue
		}
		l.mu.Lock()
		l.waiters = append(l.waiters, waiters...)
		l.mu.Unlock()
		if r.epoch.ctx.Err() == nil {
			l.opts.Logger.WarnContext(l.base, "lease: round failed", "instance", l.name, "err", err)
		}
	}
}

// run lists owners, then leases: an owner entry without a time to live had a lease
// before. Then it lists the entries of owners without a lease.
func (r *round) run(ctx context.Context) error {
	var tasks []task
	r.mu.Lock()
	for _, it := range r.epoch.stale {
		tasks = append(tasks, task{name: it.name, id: it.id, from: it.from})
	}
	r.mu.Unlock()
	r.adoptAll(ctx, tasks)
	owners := map[Owner]store.Entry{} // in random order
	prefix := r.key("owner", "")
	for o, err := range r.db.List(ctx, prefix) {
		if err != nil {
			return err
		}
		owners[Owner(o.Key[len(prefix):])] = o
	}
	alive, err := r.leases(ctx)
	if err != nil {
		return err
	}
	for owner, o := range owners {
		if owner == r.epoch.owner || alive[owner] {
			continue
		}
		if err := r.takeOver(ctx, owner, o); err != nil {
			return err
		}
	}
	return nil
}

// takeOver adopts the entries of an owner. The owner entry gets a time to live once
// there are none, and loses it if more have landed.
func (r *round) takeOver(ctx context.Context, owner Owner, o store.Entry) error {
	var tasks []task
	hasEntries := false
	prefix := r.key("work", string(owner), "")
	for old, err := range r.db.List(ctx, prefix) {
		if err == nil && !hasEntries {
			// The lease may have been acquired after the list of leases.
			isAlive, err := r.readAlive(ctx, owner)
			if err != nil || isAlive {
				return err
			}
		}
		if err != nil {
			return err
		}
		hasEntries = true
		t := task{name: old.Key[len(prefix):], from: owner, old: old}
		if r.kindOf(t) == nil {
			continue
		}
		tasks = append(tasks, t)
		if len(tasks) == maxBatch {
			r.adoptAll(ctx, tasks)
			tasks = tasks[:0]
		}
	}
	r.adoptAll(ctx, tasks)
	if hasEntries == o.Expires.IsZero() {
		return nil
	}
	return r.setTTL(ctx, o, ownerTTL)
}

func (r *round) kindOf(t task) adoptFunc {
	kind, _, _ := strings.Cut(t.name, "/")
	return r.kinds[kind]
}

// adoptAll runs tasks in random order, up to 8 at a time.
func (r *round) adoptAll(ctx context.Context, tasks []task) {
	rand.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	var g errgroup.Group
	g.SetLimit(maxAdoptions)
	for _, t := range tasks {
		g.Go(func() error {
			if err := r.adopt(ctx, t); err != nil && ctx.Err() == nil {
				r.opts.Logger.WarnContext(ctx, "lease: adoption failed", "instance", r.name, "work", t.name, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// adopt runs one task. An entry without a record stays for a while, since the
// Create of the record may still land.
func (r *round) adopt(ctx context.Context, t task) error {
	if t.old.Key == "" && t.from == "" {
		r.mu.Lock()
		it := r.epoch.stale[t.name]
		r.mu.Unlock()
		if it != nil {
			r.clean(ctx, r.epoch, it)
		}
		return nil
	}
	if t.old.Key != "" {
		old, err := r.db.Get(ctx, t.old.Key)
		if errors.Is(err, store.ErrNotFound) {
			return nil // another instance was faster
		}
		if err == nil {
			t.old = old
			old, err = store.Content(old)
		}
		if err != nil {
			return err
		}
		t.id = string(old.Value)
	}
	found, err := r.call(ctx, t)
	switch {
	case err != nil || t.old.Key == "":
		return err
	case found != Absent:
		return r.db.Delete(ctx, t.old.Key, t.old.Revision)
	case t.old.Expires.IsZero():
		return r.setTTL(ctx, t.old, absentTTL)
	}
	return nil
}

// call calls the function of the kind with an own index entry. After an error the
// own entry stays, since the change of the record may still be made.
func (r *round) call(ctx context.Context, t task) (found Found, err error) {
	it, err := r.hold(ctx, r.epoch, t.name, t.id)
	if err != nil {
		return 0, err
	}
	r.setPending(it, t.from)
	err = guard.Call("adoption", func() error {
		found, err = r.kindOf(t)(r.epoch.ctx, t.id, t.from, r.epoch.owner)
		return err
	})
	if err == nil && (found < Taken || found > Absent) {
		err = fmt.Errorf("adoption returned %d", found)
	}
	if err == nil {
		r.setPending(it, "")
	}
	if err == nil && found == Taken {
		r.clean(ctx, r.epoch, it) // if the function has called Finish
	} else {
		r.drop(ctx, r.epoch, it)
	}
	return found, err
}

func (r *round) setPending(it *entry, from Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it.from = from
}

// setTTL gives an entry without a time to live one, or removes it. Another
// instance may have been faster.
func (r *round) setTTL(ctx context.Context, e store.Entry, ttl time.Duration) error {
	if !e.Expires.IsZero() {
		ttl = 0
	}
	_, err := r.db.Update(ctx, e.Key, e.Value, e.Revision, ttl)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// leases returns the owners that hold a lease.
func (l *Lease) leases(ctx context.Context) (map[Owner]bool, error) {
	alive := map[Owner]bool{}
	if l.opts.Private {
		return alive, nil
	}
	for e, err := range l.db.List(ctx, l.key("lease", "")) {
		if err == nil {
			e, err = store.Content(e)
		}
		if err != nil {
			return nil, err
		}
		alive[Owner(e.Value)] = true
	}
	return alive, nil
}
