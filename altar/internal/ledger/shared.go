// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

const (
	prefix = "altar/"

	// overStream notifies all Hosts of a store of destroyed sessions.
	overStream = prefix + "over"
	overTTL    = time.Hour

	maxDepth = 64
	maxTTL   = 365 * 24 * time.Hour // of leases and outcomes without an end
)

func sessionKey(id string) string      { return prefix + "session/" + id }
func ownerKey(runtimeID string) string { return prefix + "runtime/" + runtimeID }

// fulfilledPrefix begins the keys of the Runtimes that fulfil contracts in a session or in all.
func fulfilledPrefix(session string) string { return prefix + "fulfilled/" + session + "/" }

var (
	errBadRecord = errors.New("altar: store: malformed record")
	errFenced    = errors.New("altar: Host ID in use by another process")
)

// Options configure a [Shared]. All fields but the functions are required.
type Options struct {
	Store  store.Store
	HostID string // of one live process at a time
	Logger *slog.Logger

	StoreTimeout time.Duration // of each access
	LeaseTTL     time.Duration // of the lease of the Host
	OutcomeTTL   time.Duration // of the outcomes of calls
	TombstoneTTL time.Duration // of ended session ids and owners of disconnected runtime ids

	// OnBegin is called before the first access with the fulfilments in all sessions.
	OnBegin func(all []Fulfillment)

	// OnSessionEnd is called for each session that another Host ended.
	OnSessionEnd func(id string)

	// OnOwner is called after each change of the Owner.
	OnOwner func()

	// Runtimes returns the ids of the connected Runtimes. Their owners keep them.
	Runtimes func() []string

	// Go runs a function in a goroutine that the Host waits for, unless the Host has ended.
	Go func(f func(ctx context.Context))
}

// A Shared is a [Ledger] in a store. Its first use acquires the lease of the Host.
type Shared struct {
	opts     Options
	ctx      context.Context
	turn     chan struct{} // of one begin at a time; capacity 1
	started  chan struct{} // closed by begin, after the fields below are set
	cursor   uint64        // in overStream
	lease    *lease.Lease
	calls    *once.Table
	instance string
	isFenced atomic.Bool // another process has the HostID
}

// NewShared returns a Ledger in a store. The end of ctx ends all its accesses.
func NewShared(ctx context.Context, o Options) *Shared {
	return &Shared{opts: o, ctx: ctx, turn: make(chan struct{}, 1), started: make(chan struct{})}
}

func (l *Shared) logError(what string, err error) {
	l.opts.Logger.ErrorContext(l.ctx, "altar: "+what, "err", err)
}

func (l *Shared) bounded() (context.Context, context.CancelFunc) {
	return lazy.WithTimeout(l.ctx, l.opts.StoreTimeout)
}

// begin acquires the lease of this Host before any other use of the store.
func (l *Shared) begin(ctx context.Context) error {
	if err := l.Ready(); err != nil {
		return err
	}
	select {
	case <-l.started:
		return nil
	default:
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	if l.lease != nil {
		return nil
	}
	return l.acquire(ctx)
}

func (l *Shared) acquire(ctx context.Context) error {
	for { // skip the ends of sessions from before this Host had any
		list, err := l.opts.Store.Read(ctx, overStream, l.cursor, 1000)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		l.cursor = list[len(list)-1].Seq
	}
	all, err := l.fulfillments(ctx, "*")
	if err != nil {
		return err
	}
	acquired, err := lease.Acquire(ctx, l.opts.Store, lease.Options{Prefix: prefix, InstanceID: l.opts.HostID,
		TTL: min(l.opts.LeaseTTL, maxTTL), Logger: l.opts.Logger, OnLost: func(context.Context) { l.isFenced.Store(true) }, OnOwner: l.opts.OnOwner})
	if err != nil {
		return err
	}
	l.opts.OnBegin(all)
	l.lease, l.instance = acquired, string(acquired.Owner())
	l.calls = once.New(l.opts.Store, acquired, once.Options{Prefix: prefix, Retention: min(l.opts.OutcomeTTL, maxTTL),
		StoreTimeout: l.opts.StoreTimeout, MaxOutcome: -1, Logger: l.opts.Logger})
	close(l.started)
	return nil
}

// Owner implements [Ledger].
func (l *Shared) Owner() string {
	select {
	case <-l.started:
		return string(l.lease.Owner())
	default:
		return ""
	}
}

// Lease returns the lease of the Host.
func (l *Shared) Lease(ctx context.Context) (*lease.Lease, error) {
	if err := l.begin(ctx); err != nil {
		return nil, err
	}
	return l.lease, nil
}

// IsShared implements [Ledger].
func (l *Shared) IsShared() bool { return true }

// Ready implements [Ledger].
func (l *Shared) Ready() error {
	if l.isFenced.Load() {
		return errFenced
	}
	return nil
}

// Run follows the ends of sessions until the context of the Ledger ends. Then it releases the lease,
// so that other Hosts can decide about the calls of this one at once.
func (l *Shared) Run() {
	defer l.release()
	select {
	case <-l.started:
	case <-l.ctx.Done():
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(l.listen)
	owners := time.NewTicker(max(l.opts.TombstoneTTL/4, 1))
	defer owners.Stop()
	for {
		select {
		case <-owners.C:
			for _, id := range l.opts.Runtimes() {
				l.HoldOwner(id, l.opts.TombstoneTTL/4)
			}
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Shared) release() {
	l.turn <- struct{}{} // a begin has seen the end of ctx
	defer func() { <-l.turn }()
	if l.lease == nil {
		return
	}
	_ = l.calls.Close()
	ctx, cancel := lazy.WithTimeout(context.WithoutCancel(l.ctx), l.opts.StoreTimeout)
	defer cancel()
	if err := l.lease.Release(ctx); err != nil {
		l.logError("lease not released", err)
	}
}

// listen follows the sessions that other Hosts destroyed.
func (l *Shared) listen() {
	after := l.cursor
	for l.ctx.Err() == nil {
		err := l.opts.Store.Wait(l.ctx, overStream, after)
		var list []store.Record
		if err == nil {
			list, err = l.opts.Store.Read(l.ctx, overStream, after, 100)
		}
		for _, rec := range list {
			after = rec.Seq
			if instance, id, ok := strings.Cut(string(rec.Value), " "); ok && instance != l.instance {
				l.opts.OnSessionEnd(id)
			}
		}
		if err != nil && l.ctx.Err() == nil {
			l.logError("ended sessions not read", err)
			_ = retry.Sleep(l.ctx, time.Second) // an engine may fail at once
		}
	}
}

// changed reports that another Host changed the record first.
func changed(err error) bool {
	return errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound)
}

func readRecord(value []byte, into any) error {
	v, err := strictjson.Check(value, strictjson.Options{MaxDepth: maxDepth})
	if err == nil {
		err = strictjson.Decode(v, into)
	}
	if err != nil {
		return errors.Join(errBadRecord, err)
	}
	return nil
}
