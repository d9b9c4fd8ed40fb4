// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"iter"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/store"
)

// Guard returns db with methods that return a panic of db as their error: a call without an answer. So do
// [GuardKV] and [GuardLog]. A guarded or nil db is returned as it is.
func Guard(db store.Store) store.Store {
	switch db.(type) {
	case nil, guardedStore:
		return db
	}
	return guardedStore{guardedKV{db}, guardedLog{db}}
}

// GuardKV is [Guard] for entries.
func GuardKV(db store.KV) store.KV {
	switch db.(type) {
	case nil, guardedStore, guardedKV:
		return db
	}
	return guardedKV{db}
}

// GuardLog is [Guard] for streams.
func GuardLog(db store.Log) store.Log {
	switch db.(type) {
	case nil, guardedStore, guardedLog:
		return db
	}
	return guardedLog{db}
}

type guardedStore struct {
	guardedKV
	guardedLog
}

type guardedKV struct{ kv store.KV }

func (g guardedKV) Get(ctx context.Context, key string) (e store.Entry, err error) {
	err = guard.Call("store", func() (err error) {
		e, err = g.kv.Get(ctx, key)
		return err
	})
	return e, err
}

func (g guardedKV) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (rev store.Revision, err error) {
	err = guard.Call("store", func() (err error) {
		rev, err = g.kv.Create(ctx, key, value, ttl)
		return err
	})
	return rev, err
}

func (g guardedKV) Update(ctx context.Context, key string, value []byte, old store.Revision, ttl time.Duration) (rev store.Revision, err error) {
	err = guard.Call("store", func() (err error) {
		rev, err = g.kv.Update(ctx, key, value, old, ttl)
		return err
	})
	return rev, err
}

func (g guardedKV) Delete(ctx context.Context, key string, rev store.Revision) error {
	return guard.Call("store", func() error { return g.kv.Delete(ctx, key, rev) })
}

func (g guardedKV) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return guard.Seq("store", func(yield func(store.Entry, error) bool) { g.kv.List(ctx, prefix)(yield) })
}

type guardedLog struct{ log store.Log }

func (g guardedLog) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (seq uint64, err error) {
	err = guard.Call("store", func() (err error) {
		seq, err = g.log.Append(ctx, stream, id, value, ttl)
		return err
	})
	return seq, err
}

func (g guardedLog) Read(ctx context.Context, stream string, after uint64, limit int) (page []store.Record, err error) {
	err = guard.Call("store", func() (err error) {
		page, err = g.log.Read(ctx, stream, after, limit)
		return err
	})
	return page, err
}

func (g guardedLog) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	return guard.Call("store", func() error { return g.log.Ack(ctx, stream, seqs...) })
}

func (g guardedLog) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	return guard.Call("store", func() error { return g.log.Expire(ctx, stream, ttl) })
}

func (g guardedLog) Wait(ctx context.Context, stream string, after uint64) error {
	return guard.Call("store", func() error { return g.log.Wait(ctx, stream, after) })
}
