// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

const maxPast = 16

// An epoch is one acquisition of the lease.
type epoch struct {
	owner  Owner
	ctx    context.Context
	cancel context.CancelCauseFunc

	until   time.Time         // end unless renewed; guarded by Lease.mu
	fence   *time.Timer       // ends the epoch
	entries map[string]*entry // by kind and id; guarded by Lease.mu
	stale   map[string]*entry // those without a Start; guarded by Lease.mu
}

// isLiveLocked reports whether e is current by the monotonic clock. l.mu must be
// held.
func (l *Lease) isLiveLocked(e *epoch) bool {
	return e == l.epoch && e.ctx.Err() == nil && (l.opts.Private || time.Now().Before(e.until))
}

// newEpoch acquires a new epoch and makes it current. The owner entry precedes the
// lease with a time to live, which ends after it: survivors leave the entry as it
// is until the lease exists, and a failed attempt leaves nothing permanently.
func (l *Lease) newEpoch(ctx context.Context, isFirst bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.TTL/2)
	defer cancel()
	e := &epoch{owner: Owner(l.name + "@" + randid.New("")), entries: map[string]*entry{}, stale: map[string]*entry{}}
	l.past = append(l.past[max(0, len(l.past)-maxPast):], e.owner)
	key := l.key("owner", string(e.owner))
	if !l.opts.Private {
		_, err = l.write(ctx, key, "", ownerTTL)
	}
	start := time.Now()
	if err == nil && !l.opts.Private {
		err = l.writeLease(ctx, e.owner, isFirst, false)
	}
	if err == nil {
		_, err = l.write(ctx, key, "", 0)
	}
	if err != nil {
		return fmt.Errorf("lease: acquire: %w", err)
	}
	e.ctx, e.cancel = context.WithCancelCause(l.base)
	e.until = start.Add(l.opts.TTL * 5 / 6)
	l.mu.Lock()
	l.epoch = e
	l.mu.Unlock()
	if !l.opts.Private {
		e.fence = time.AfterFunc(time.Until(e.until), func() { l.checkFence(e) })
		l.wg.Go(func() { l.receive(e) })
	}
	l.signal()
	return nil
}

// writeLease writes the lease of an owner. A renewal fails with ErrNotFound if the
// lease is absent, and every call fails with ErrLost if another process holds it,
// unless isFirst.
func (l *Lease) writeLease(ctx context.Context, owner Owner, isFirst, isRenewal bool) error {
	key := l.key("lease", l.name)
	_, err := store.Modify(ctx, l.db, key, l.opts.TTL, func(old store.Entry, found bool) ([]byte, error) {
		holder := Owner(old.Value)
		switch {
		case found && !isFirst && !slices.Contains(l.past, holder):
			return nil, ErrLost
		case isRenewal && holder != owner:
			return nil, store.ErrNotFound
		}
		return []byte(owner), nil
	})
	return err
}

// write writes a value that only this Lease writes.
func (l *Lease) write(ctx context.Context, key, value string, ttl time.Duration) (store.Revision, error) {
	e, err := store.Modify(ctx, l.db, key, ttl, func(store.Entry, bool) ([]byte, error) { return []byte(value), nil })
	return e.Revision, err
}

// checkFence ends e if it was not renewed in time.
func (l *Lease) checkFence(e *epoch) {
	l.mu.Lock()
	isLive := l.isLiveLocked(e)
	l.mu.Unlock()
	if !isLive {
		e.cancel(ErrLost)
	}
}

// runLease renews the lease until Release, and acquires a new epoch when the
// current one has ended.
func (l *Lease) runLease() {
	failures := 0
	for {
		ctx, delay := l.current().ctx, l.opts.TTL*3/10+rand.N(l.opts.TTL/15+1)
		if failures > 0 {
			ctx, delay = l.base, l.opts.TTL/30
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		err := l.renew(l.current())
		switch {
		case l.base.Err() != nil:
			return
		case errors.Is(err, ErrLost) || errors.Is(err, store.ErrClosed):
			l.lose(err)
			return
		case err == nil:
			failures = 0
			continue
		}
		failures++
		if failures == 1 {
			l.opts.Logger.WarnContext(l.base, "lease: lease not renewed", "instance", l.name, "err", err)
		}
	}
}

// renew extends e from the start of a successful renewal, or acquires a new epoch
// if e has ended.
func (l *Lease) renew(e *epoch) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(e.ctx, l.opts.TTL/3)
	defer cancel()
	err := l.writeLease(ctx, e.owner, false, true)
	l.mu.Lock()
	isLive := l.isLiveLocked(e)
	if isLive && err == nil {
		e.until = start.Add(l.opts.TTL * 5 / 6)
		e.fence.Reset(time.Until(e.until))
	}
	l.mu.Unlock()
	if errors.Is(err, ErrLost) || isLive && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	e.cancel(ErrLost)
	l.opts.Logger.WarnContext(l.base, "lease: lease expired", "instance", l.name, "err", err)
	return l.newEpoch(l.base, false)
}

// lose ends everything for good.
func (l *Lease) lose(err error) {
	l.stop(ErrLost)
	ctx := context.WithoutCancel(l.base)
	l.opts.Logger.ErrorContext(ctx, "lease: lease lost", "instance", l.name, "err", err)
	if l.opts.OnLost == nil || !errors.Is(err, ErrLost) {
		return
	}
	go func() { // not counted in wg: it may call Release
		err := guard.Call("OnLost", func() error {
			l.opts.OnLost(ctx)
			return nil
		})
		if err != nil {
			l.opts.Logger.ErrorContext(ctx, "lease: hook failed", "err", err)
		}
	}()
}

// handOver deletes the lease and wakes the other instances if work is left.
func (l *Lease) handOver(ctx context.Context, owner Owner) error {
	if l.opts.Private {
		return nil
	}
	key := l.key("lease", l.name)
	_, err := store.Modify(ctx, l.db, key, 0, func(old store.Entry, found bool) ([]byte, error) {
		if Owner(old.Value) != owner {
			return nil, store.ErrUnchanged
		}
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("lease: release: %w", err)
	}
	for range l.db.List(ctx, l.key("work", string(owner), "")) {
		alive, err := l.leases(ctx)
		for other := range alive {
			err = errors.Join(err, l.send(ctx, other, message{topic: releases}))
		}
		if err != nil {
			return fmt.Errorf("lease: release: %w", err)
		}
		break
	}
	return nil
}
