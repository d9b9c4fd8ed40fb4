// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// errKilled is the error of everything that a killed process does. It ends what the process repeats.
var errKilled = fmt.Errorf("the process of the fixture was killed: %w", store.ErrClosed)

// A gate separates a process of a fixture from its surroundings, as kill -9
// does. Its methods may be called from several goroutines.
type gate struct {
	once   sync.Once
	killed chan struct{}
}

func newGate() *gate { return &gate{killed: make(chan struct{})} }

// kill closes the gate. Nothing passes it afterwards.
func (g *gate) kill() { g.once.Do(func() { close(g.killed) }) }

// check returns errKilled if the gate is closed.
func (g *gate) check() error {
	select {
	case <-g.killed:
		return errKilled
	default:
		return nil
	}
}

// A gatedStore is the store as one process sees it. After the kill every
// operation fails without effect.
type gatedStore struct {
	store.Store
	gate *gate
}

func (s *gatedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := s.gate.check(); err != nil {
		return store.Entry{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s *gatedStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := s.gate.check(); err != nil {
		return 0, err
	}
	return s.Store.Create(ctx, key, value, ttl)
}

func (s *gatedStore) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	if err := s.gate.check(); err != nil {
		return 0, err
	}
	return s.Store.Update(ctx, key, value, rev, ttl)
}

func (s *gatedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := s.gate.check(); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key, rev)
}

func (s *gatedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	if err := s.gate.check(); err != nil {
		return func(yield func(store.Entry, error) bool) { yield(store.Entry{}, err) }
	}
	return s.Store.List(ctx, prefix)
}

func (s *gatedStore) Append(
	ctx context.Context, stream, id string, value []byte, ttl time.Duration,
) (uint64, error) {
	if err := s.gate.check(); err != nil {
		return 0, err
	}
	return s.Store.Append(ctx, stream, id, value, ttl)
}

func (s *gatedStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if err := s.gate.check(); err != nil {
		return nil, err
	}
	return s.Store.Read(ctx, stream, after, limit)
}

func (s *gatedStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if err := s.gate.check(); err != nil {
		return err
	}
	return s.Store.Ack(ctx, stream, seqs...)
}

// Wait returns at the kill.
func (s *gatedStore) Wait(ctx context.Context, stream string, after uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	returned := make(chan struct{})
	defer close(returned)
	go func() {
		select {
		case <-s.gate.killed:
			cancel(errKilled)
		case <-returned:
		}
	}()
	err := s.Store.Wait(ctx, stream, after)
	if killed := s.gate.check(); killed != nil {
		return killed
	}
	return err
}

func (s *gatedStore) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	if err := s.gate.check(); err != nil {
		return err
	}
	return s.Store.Expire(ctx, stream, ttl)
}
