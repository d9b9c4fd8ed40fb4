// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"iter"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A spread value gives the answers of the store distinct nanoseconds where many calls end at one: at the end
// of a pause and at the end of a context.
type spread struct {
	store store.Store
	node  *Node
}

// wait delays the answer of a call by its name.
func (s *spread) wait(ctx context.Context, op, name string) {
	if ctx.Err() != nil || s.node.isResumed() {
		time.Sleep(s.node.w.moment(s.node.w.between(time.Microsecond, time.Millisecond, "spread", s.node.name, op, name)))
	}
}

func (s *spread) Get(ctx context.Context, key string) (store.Entry, error) {
	defer s.wait(ctx, "get", key)
	return s.store.Get(ctx, key)
}

func (s *spread) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	defer s.wait(ctx, "create", key)
	return s.store.Create(ctx, key, value, ttl)
}

func (s *spread) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	defer s.wait(ctx, "update", key)
	return s.store.Update(ctx, key, value, rev, ttl)
}

func (s *spread) Delete(ctx context.Context, key string, rev store.Revision) error {
	defer s.wait(ctx, "delete", key)
	return s.store.Delete(ctx, key, rev)
}

func (s *spread) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		isFirst := true
		for e, err := range s.store.List(ctx, prefix) {
			if isFirst || err != nil {
				s.wait(ctx, "list", prefix)
			}
			isFirst = false
			if !yield(e, err) {
				return
			}
		}
		if isFirst {
			s.wait(ctx, "list", prefix)
		}
	}
}

func (s *spread) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	defer s.wait(ctx, "append", stream+id)
	return s.store.Append(ctx, stream, id, value, ttl)
}

func (s *spread) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	defer s.wait(ctx, "read", stream)
	return s.store.Read(ctx, stream, after, limit)
}

func (s *spread) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	defer s.wait(ctx, "ack", stream)
	return s.store.Ack(ctx, stream, seqs...)
}

func (s *spread) Wait(ctx context.Context, stream string, after uint64) error {
	defer s.wait(ctx, "wait", stream)
	return s.store.Wait(ctx, stream, after)
}

func (s *spread) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	defer s.wait(ctx, "expire", stream)
	return s.store.Expire(ctx, stream, ttl)
}
