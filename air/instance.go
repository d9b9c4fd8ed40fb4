// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// An instance is the membership of a process in those that share a store, and their durable queue. It
// begins in the background.
type instance struct {
	ready chan struct{} // closed when lease and box are set
	lease *lease.Lease
	box   *outbox.Outbox
}

// start acquires a lease in the background and then calls started.
func (i *instance) start(l *life.Life, db store.Store, o lease.Options, started func()) {
	_ = l.Go("lease", func(ctx context.Context) {
		for delay := 100 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
			acquired, err := lease.Acquire(ctx, db, o)
			if err == nil {
				i.lease = acquired
				break
			}
			if retry.Sleep(ctx, delay) != nil {
				return
			}
			o.Logger.WarnContext(ctx, "air: lease not acquired", "err", err)
		}
		i.box = outbox.New(db, i.lease, outbox.Options{Prefix: o.Prefix, Logger: o.Logger})
		close(i.ready)
		started()
	})
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
		return errors.New("air: no lease acquired yet")
	}
}

// current returns the lease.
func (i *instance) current(ctx context.Context) (*lease.Lease, error) {
	if err := i.wait(ctx); err != nil {
		return nil, err
	}
	return i.lease, nil
}

// release ends the membership. Other processes take over at once.
func (i *instance) release(ctx context.Context) {
	select {
	case <-i.ready:
		_ = i.box.Shutdown(ctx)
		_ = i.lease.Release(ctx)
	default:
	}
}
