// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package plugin holds the states that plugins keep for each session, and their snapshots.
package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/store"
)

// ErrSealed reports a state that is first used after the end of its session.
var ErrSealed = errors.New("plugin: session ended")

// A RestoreError reports a snapshot that cannot be restored.
type RestoreError struct{ Err error }

// Error returns the text of the cause.
func (e *RestoreError) Error() string { return "plugin: restore: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RestoreError) Unwrap() error { return e.Err }

// Hooks are the functions of a plugin for one session, and the place of its snapshots. Only Open is needed. A panic
// is an error.
type Hooks struct {
	Name    string
	Open    func() (any, error)
	Close   func(state any)
	Place   func() Place
	Save    func(ctx context.Context, state any) (json.RawMessage, error)
	Restore func(ctx context.Context, state any, object json.RawMessage) error
}

// States are those of the plugins of one session, by the keys of the plugins. The zero value is empty.
type States[K comparable] struct {
	Gates *Gates // of the host

	mu       sync.Mutex // guards everything below
	states   map[K]*entry
	isSealed bool
	key      string // of the snapshots that outlive the session, or empty
}

// An entry is the state that a plugin keeps for a session.
type entry struct {
	hooks Hooks
	place Place
	ready chan struct{} // closed with value or err set
	value any
	err   error
	isCut bool // err may be the end of the maker's context

	saves chan struct{} // full while the state is saved
	saved []byte        // the last object; guarded by saves
}

// Get returns the state of a plugin, which it makes at first use. A state that fails is made again at the next use, and
// at once for a waiting caller if the context of its maker has ended.
func (s *States[K]) Get(ctx context.Context, key K, hooks func() Hooks) (any, error) {
	for {
		st, isNew, err := s.entry(key)
		if err != nil {
			return nil, err
		}
		if isNew {
			st.hooks = hooks()
			s.open(ctx, key, st)
		}
		select {
		case <-st.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if !st.isCut || ctx.Err() != nil {
			return st.value, st.err
		}
	}
}

// entry returns the state of a plugin, or a new entry that the caller fills.
func (s *States[K]) entry(key K) (st *entry, isNew bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.states[key]; st != nil {
		return st, false, nil
	}
	if s.isSealed {
		return nil, false, ErrSealed
	}
	if s.states == nil {
		s.states = map[K]*entry{}
	}
	st = &entry{ready: make(chan struct{}), saves: make(chan struct{}, 1)}
	s.states[key] = st
	return st, true, nil
}

func (s *States[K]) open(ctx context.Context, key K, st *entry) {
	defer close(st.ready)
	what := "plugin " + st.hooks.Name
	st.err = guard.Call(what, func() (err error) {
		st.value, err = st.hooks.Open()
		return err
	})
	if st.err == nil && st.hooks.Place != nil {
		if st.err = guard.Call(what, func() error { return s.restore(ctx, st) }); st.err != nil {
			st.close()
		}
	}
	if st.err != nil {
		st.isCut = ctx.Err() != nil
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.states, key)
	}
}

// restore fills a new state from its snapshot.
func (s *States[K]) restore(ctx context.Context, st *entry) error {
	if st.place = st.hooks.Place(); st.place.KV == nil {
		return nil
	}
	if err := s.Gates.wait(ctx, st.place.Key); err != nil { // an earlier session that is still ending
		return err
	}
	object, err := st.place.Load(ctx, st.hooks.Name)
	if err == nil {
		err = st.hooks.Restore(ctx, st.value, object)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return &RestoreError{err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isSealed { // the end of the session does not save the state
		return ErrSealed
	}
	if st.place.IsSession {
		st.saved = object
	} else {
		s.key = st.place.Key
	}
	return nil
}

func (st *entry) close() {
	if st.hooks.Close != nil {
		st.hooks.Close(st.value)
	}
}

// Seal refuses new states. Until Close, the next session with the same snapshots waits for them.
func (s *States[K]) Seal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSealed && s.key != "" {
		s.Gates.begin(s.key)
	}
	s.isSealed = true
}

// Outlives reports whether there are snapshots that outlive the session.
func (s *States[K]) Outlives() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key != ""
}

// Close closes the states of a sealed session. A state whose close is slow does not delay the others.
func (s *States[K]) Close() {
	s.mu.Lock()
	states, key := s.states, s.key
	s.states = nil
	s.mu.Unlock()
	if key != "" {
		s.Gates.end(key)
	}
	var work sync.WaitGroup
	for _, st := range states {
		work.Go(func() {
			<-st.ready
			st.close()
		})
	}
	work.Wait()
}

// startSave waits for other saves of a state.
func (st *entry) startSave(ctx context.Context) error {
	select {
	case st.saves <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (st *entry) finishSave() { <-st.saves }

// Keep saves the state of a plugin, if it has changed.
func (s *States[K]) Keep(ctx context.Context, key K) error {
	s.mu.Lock()
	st := s.states[key]
	s.mu.Unlock()
	if st == nil || st.place.KV == nil {
		return nil
	}
	if err := st.startSave(ctx); err != nil {
		return err
	}
	defer st.finishSave()
	return guard.Call("snapshot", func() error { return st.save(ctx, false) })
}

// save saves a state, without force only if it has changed since the last save. An object with an error is a state
// without a part. The caller has called startSave.
func (st *entry) save(ctx context.Context, force bool) error {
	object, failure := st.hooks.Save(ctx, st.value)
	if failure != nil && object == nil || !force && bytes.Equal(object, st.saved) {
		return failure
	}
	err := st.place.Save(ctx, st.hooks.Name, object)
	if err == nil {
		st.saved = bytes.Clone(object)
	}
	return errors.Join(failure, err)
}

// Save saves all states that have snapshots. Those of sessions are removed if the session has ended.
func (s *States[K]) Save(ctx context.Context, isOver bool) error {
	return s.each(func(st *entry) error {
		if err := st.startSave(ctx); err != nil {
			return err
		}
		defer st.finishSave()
		if isOver && st.place.IsSession {
			return st.place.Save(ctx, st.hooks.Name, nil)
		}
		if err := st.save(ctx, true); err != nil {
			return fmt.Errorf("a2e: snapshot of %s: %w", st.hooks.Name, err)
		}
		return nil
	})
}

// Has reports whether the session uses the state of a plugin.
func (s *States[K]) Has(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[key] != nil
}

// Delete removes the snapshots that outlive the session. The next Keep saves the state again.
func (s *States[K]) Delete(ctx context.Context) error {
	return s.each(func(st *entry) error {
		if st.place.IsSession {
			return nil
		}
		if err := st.startSave(ctx); err != nil {
			return err
		}
		defer st.finishSave()
		st.saved = nil
		return st.place.Save(ctx, st.hooks.Name, nil)
	})
}

// each calls f for the states that have snapshots. A state whose save is slow does not delay the others.
func (s *States[K]) each(f func(st *entry) error) error {
	s.mu.Lock()
	states := maps.Clone(s.states)
	s.mu.Unlock()
	results := make(chan error, len(states))
	n := 0
	for _, st := range states {
		select {
		case <-st.ready:
		default:
			continue // not open yet
		}
		if st.err == nil && st.place.KV != nil {
			n++
			go guard.Run("snapshot", func() error { return f(st) }, func(err error) { results <- err })
		}
	}
	var errs []error
	for range n {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}
