// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// An instance is the membership of a process in those that share a store, with their claims and their durable queue. It
// begins in the background.
type instance struct {
	db      store.Store
	options lease.Options
	claimed once.Options

	ready  chan struct{} // closed when the fields below are set
	lease  *lease.Lease
	claims *once.Table
	box    *outbox.Outbox
}

func newInstance(db store.Store, claimed once.Options, o lease.Options) *instance {
	return &instance{db: db, options: o, claimed: claimed, ready: make(chan struct{})}
}

// start acquires a lease in the background and then calls started.
func (i *instance) start(l *life.Life, started func()) {
	_ = l.Go("lease", func(ctx context.Context) {
		for delay := 100 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
			acquired, err := lease.Acquire(ctx, i.db, i.options)
			if err == nil {
				i.lease = acquired
				break
			}
			if retry.Sleep(ctx, delay) != nil {
				return
			}
			i.options.Logger.WarnContext(ctx, "air: lease not acquired", "err", err)
		}
		i.claims = once.New(i.db, i.lease, i.claimed)
		i.box = outbox.New(i.db, i.lease, outbox.Options{Prefix: i.options.Prefix, Logger: i.options.Logger})
		close(i.ready)
		started()
	})
}

var errNoLease = errors.New("air: no lease acquired yet")

// check returns an error while the process has no lease.
func (i *instance) check() error {
	select {
	case <-i.ready:
	default:
		return errNoLease
	}
	if err := context.Cause(i.lease.Context()); err != nil {
		return fmt.Errorf("air: no lease: %w", err)
	}
	return nil
}

// wait waits for the lease.
func (i *instance) wait(ctx context.Context) error {
	timeout := time.NewTimer(storeTimeout)
	defer timeout.Stop()
	select {
	case <-i.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return errNoLease
	}
}

// release ends the membership. Other processes take over at once.
func (i *instance) release(ctx context.Context) {
	select {
	case <-i.ready:
		_ = i.box.Shutdown(ctx)
		_ = i.claims.Shutdown(ctx)
		_ = i.lease.Release(ctx)
	default:
	}
}

// abandon ends the background work and keeps the membership.
func (i *instance) abandon() {
	select {
	case <-i.ready:
		_ = i.claims.Close()
	default:
	}
}
