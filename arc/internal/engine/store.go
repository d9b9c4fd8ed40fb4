// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/store"
)

// A boundedStore is the store of the user. A call ends after the longest outage, and a failure after which the state of the
// store is unknown is a storeFailure.
type boundedStore struct{ db store.Store }

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

func bounded[T any](ctx context.Context, f func(ctx context.Context) (T, error)) (v T, err error) {
	ctx, cancel := lazy.WithTimeout(ctx, outage)
	defer cancel()
	v, err = f(ctx)
	return v, failureOf(err)
}

type none struct{}

func (b boundedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	return bounded(ctx, func(ctx context.Context) (store.Entry, error) { return b.db.Get(ctx, key) })
}

func (b boundedStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return bounded(ctx, func(ctx context.Context) (store.Revision, error) { return b.db.Create(ctx, key, value, ttl) })
}

func (b boundedStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return bounded(ctx, func(ctx context.Context) (store.Revision, error) { return b.db.Update(ctx, key, value, rev, ttl) })
}

func (b boundedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	_, err := bounded(ctx, func(ctx context.Context) (none, error) { return none{}, b.db.Delete(ctx, key, rev) })
	return err
}

func (b boundedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		b.db.List(ctx, prefix)(func(e store.Entry, err error) bool { return yield(e, failureOf(err)) })
	}
}

func (b boundedStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return bounded(ctx, func(ctx context.Context) (uint64, error) { return b.db.Append(ctx, stream, id, value, ttl) })
}

func (b boundedStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return bounded(ctx, func(ctx context.Context) ([]store.Record, error) { return b.db.Read(ctx, stream, after, limit) })
}

func (b boundedStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	_, err := bounded(ctx, func(ctx context.Context) (none, error) { return none{}, b.db.Ack(ctx, stream, seqs...) })
	return err
}

func (b boundedStore) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	_, err := bounded(ctx, func(ctx context.Context) (none, error) { return none{}, b.db.Expire(ctx, stream, ttl) })
	return err
}

func (b boundedStore) Wait(ctx context.Context, stream string, after uint64) error {
	return b.db.Wait(ctx, stream, after)
}
