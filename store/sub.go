// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"iter"
	"strings"
	"time"
)

// Sub returns a view of s that puts prefix before every key and every stream
// name of the caller, so that several users share one store. Entries are
// returned with the caller's key. No prefix may be the beginning of another one:
// end it with a separator, as in "air/inbox/".
//
// A view holds nothing, needs no closing, and lasts as long as s. The limits
// apply to prefix and key together. An empty prefix returns s itself.
func Sub(s Store, prefix string) Store {
	if prefix == "" {
		return s
	}
	if outer, ok := s.(*sub); ok {
		return &sub{outer.store, outer.prefix + prefix}
	}
	return &sub{s, prefix}
}

type sub struct {
	store  Store
	prefix string
}

func (s *sub) Get(ctx context.Context, key string) (Entry, error) {
	e, err := s.store.Get(ctx, s.prefix+key)
	return s.strip(e), err
}

func (s *sub) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (Revision, error) {
	return s.store.Create(ctx, s.prefix+key, value, ttl)
}

func (s *sub) Update(ctx context.Context, key string, value []byte, rev Revision, ttl time.Duration) (Revision, error) {
	return s.store.Update(ctx, s.prefix+key, value, rev, ttl)
}

func (s *sub) Delete(ctx context.Context, key string, rev Revision) error {
	return s.store.Delete(ctx, s.prefix+key, rev)
}

func (s *sub) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range s.store.List(ctx, s.prefix+prefix) {
			if !yield(s.strip(e), err) {
				return
			}
		}
	}
}

func (s *sub) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return s.store.Append(ctx, s.prefix+stream, id, value, ttl)
}

func (s *sub) Read(ctx context.Context, stream string, after uint64, limit int) ([]Record, error) {
	return s.store.Read(ctx, s.prefix+stream, after, limit)
}

func (s *sub) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	return s.store.Ack(ctx, s.prefix+stream, seqs...)
}

func (s *sub) Wait(ctx context.Context, stream string, after uint64) error {
	return s.store.Wait(ctx, s.prefix+stream, after)
}

func (s *sub) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	return s.store.Expire(ctx, s.prefix+stream, ttl)
}

// strip removes the prefix from the key of e. The empty key of an entry that
// accompanies an error stays empty.
func (s *sub) strip(e Entry) Entry {
	e.Key = strings.TrimPrefix(e.Key, s.prefix)
	return e
}
