// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/store"
)

// A guardedStore is the store of the user. A panic of one of its methods is the error of that call, so that locks are
// released, and a call ends after the longest outage.
type guardedStore struct{ db store.Store }

// A storeFailure is an error after which the state of the store is unknown: the change may have been made, or may
// still be made.
type storeFailure struct{ error }

func (f *storeFailure) Unwrap() error { return f.error }

func failureOf(err error) error {
	for _, answer := range []error{nil, store.ErrNotFound, store.ErrExists, store.ErrConflict, store.ErrDuplicate, store.ErrInvalid,
		store.ErrCorrupt, store.ErrClosed} {
		if errors.Is(err, answer) {
			return err
		}
	}
	return &storeFailure{err}
}

func guarded[T any](ctx context.Context, f func(ctx context.Context) (T, error)) (v T, err error) {
	ctx, cancel := lazy.WithTimeout(ctx, outage)
	defer cancel()
	err = guard.Call("store", func() (err error) {
		v, err = f(ctx)
		return err
	})
	return v, failureOf(err)
}

type none struct{}

func (g guardedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	return guarded(ctx, func(ctx context.Context) (store.Entry, error) { return g.db.Get(ctx, key) })
}

func (g guardedStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return guarded(ctx, func(ctx context.Context) (store.Revision, error) { return g.db.Create(ctx, key, value, ttl) })
}

func (g guardedStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return guarded(ctx, func(ctx context.Context) (store.Revision, error) { return g.db.Update(ctx, key, value, rev, ttl) })
}

func (g guardedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	_, err := guarded(ctx, func(ctx context.Context) (none, error) { return none{}, g.db.Delete(ctx, key, rev) })
	return err
}

func (g guardedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return guard.Seq("store", func(yield func(store.Entry, error) bool) {
		g.db.List(ctx, prefix)(func(e store.Entry, err error) bool { return yield(e, failureOf(err)) })
	})
}

func (g guardedStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return guarded(ctx, func(ctx context.Context) (uint64, error) { return g.db.Append(ctx, stream, id, value, ttl) })
}

func (g guardedStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return guarded(ctx, func(ctx context.Context) ([]store.Record, error) { return g.db.Read(ctx, stream, after, limit) })
}

func (g guardedStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	_, err := guarded(ctx, func(ctx context.Context) (none, error) { return none{}, g.db.Ack(ctx, stream, seqs...) })
	return err
}

func (g guardedStore) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	_, err := guarded(ctx, func(ctx context.Context) (none, error) { return none{}, g.db.Expire(ctx, stream, ttl) })
	return err
}

func (g guardedStore) Wait(ctx context.Context, stream string, after uint64) error {
	return guard.Call("store", func() error { return g.db.Wait(ctx, stream, after) })
}
