// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// A guardedStore is the user's store. A panic of one of its methods is the error of
// that call, so that locks of the server are released.
type guardedStore struct{ db store.Store }

func guarded[T any](f func() (T, error)) (v T, err error) {
	err = guard.Call("store", func() (err error) {
		v, err = f()
		return failureOf(err)
	})
	return v, err
}

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

// persist repeats a change until the store answers or this process loses its lease. Then the next owner of the work
// reads the state. The change must recognize its earlier attempts.
func (s *Server) persist(ctx context.Context, change func(ctx context.Context) error) error {
	if !s.isShared {
		if ctx.Done() != nil {
			ctx = context.WithoutCancel(ctx)
		}
		return change(ctx)
	}
	epoch := s.lease.Context()
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), outage)
		err := change(attempt)
		_, isFailure := errors.AsType[*storeFailure](err)
		isFailure = isFailure || err != nil && attempt.Err() != nil
		cancel()
		if !isFailure {
			return err
		}
		if retry.Sleep(epoch, delay) != nil {
			return fmt.Errorf("%w: %w", context.Cause(epoch), err)
		}
	}
}

func (g guardedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	return guarded(func() (store.Entry, error) { return g.db.Get(ctx, key) })
}

func (g guardedStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return guarded(func() (store.Revision, error) { return g.db.Create(ctx, key, value, ttl) })
}

func (g guardedStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return guarded(func() (store.Revision, error) { return g.db.Update(ctx, key, value, rev, ttl) })
}

func (g guardedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	return guard.Call("store", func() error { return failureOf(g.db.Delete(ctx, key, rev)) })
}

func (g guardedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		inLoop := false // a panic of the loop is not one of the store
		defer func() {
			if p := recover(); p != nil {
				if inLoop {
					panic(p)
				}
				yield(store.Entry{}, guard.Call("store", func() error { panic(p) }))
			}
		}()
		g.db.List(ctx, prefix)(func(e store.Entry, err error) bool {
			inLoop = true
			more := yield(e, failureOf(err))
			inLoop = false
			return more
		})
	}
}

func (g guardedStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return guarded(func() (uint64, error) { return g.db.Append(ctx, stream, id, value, ttl) })
}

func (g guardedStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return guarded(func() ([]store.Record, error) { return g.db.Read(ctx, stream, after, limit) })
}

func (g guardedStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	return guard.Call("store", func() error { return failureOf(g.db.Ack(ctx, stream, seqs...)) })
}

func (g guardedStore) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	return guard.Call("store", func() error { return failureOf(g.db.Expire(ctx, stream, ttl)) })
}

func (g guardedStore) Wait(ctx context.Context, stream string, after uint64) error {
	return guard.Call("store", func() error { return g.db.Wait(ctx, stream, after) })
}
