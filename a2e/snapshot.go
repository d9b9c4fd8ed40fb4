// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/store"
)

// Snapshots keep the data of plugins across restarts: one JSON object for each name of a plugin and
// key (A2E-148). Any engine of package store holds them. All methods are safe for concurrent use.
type Snapshots struct {
	kv store.KV
}

// NewSnapshots returns snapshots in kv.
func NewSnapshots(kv store.KV) *Snapshots { return &Snapshots{kv: kv} }

// A SnapshotMode selects the store of the states of plugins (A2E-149).
type SnapshotMode string

// Modes of snapshots.
const (
	// SnapshotHost keeps all of them with the host.
	SnapshotHost SnapshotMode = "host"

	// SnapshotPlugin keeps the states of plugins with their own store there, and no others.
	SnapshotPlugin SnapshotMode = "plugin"

	// SnapshotHybrid keeps states in the store of the plugin, and those of plugins without a store
	// with the host.
	SnapshotHybrid SnapshotMode = "hybrid"
)

// A PluginSnapshot makes the states of a plugin outlive their sessions: the object that Save
// returns at the end of a session is passed to Restore in the next session of the same agent
// (A2E-148).
type PluginSnapshot struct {
	// Save returns a state as a JSON object, or nil to remove the stored object. It may run
	// concurrently with handlers.
	Save func(ctx context.Context, state any) (json.RawMessage, error)

	// Restore fills a state that Open has just made. After an error the plugin serves nothing in
	// this session, so that the stored object is not overwritten.
	Restore func(ctx context.Context, state any, object json.RawMessage) error

	// Store is the plugin's own store of snapshots; see [SnapshotMode].
	Store *Snapshots

	// ForSession keeps the state for its durable session only: it moves with the session to another
	// process (A2E-D67), and ends with it.
	ForSession bool
}

// snapshotTime bounds the wait for the store at the end of a session.
const snapshotTime = 10 * time.Second

// snapshotsOf returns the store of the states of a plugin, or nil.
func (h *Host) snapshotsOf(p *Plugin) *Snapshots {
	switch {
	case p.Snapshot == nil || p.Snapshot.Save == nil || p.Snapshot.Restore == nil || p.Snapshot.ForSession:
		return nil
	case h.opts.Persistence.SnapshotMode == SnapshotPlugin, h.opts.Persistence.SnapshotMode == SnapshotHybrid && p.Snapshot.Store != nil:
		return p.Snapshot.Store
	}
	return h.opts.Persistence.Snapshots
}

// A snapshotPlace is where the state of a plugin is kept. The zero place keeps nothing.
type snapshotPlace struct {
	kept      *Snapshots
	key       string
	isSession bool // the state ends with its durable session
}

// placeOf returns the place of the state of a plugin. Without one for the agent, the state of a durable
// session moves with it.
func (s *Session) placeOf(p *Plugin) snapshotPlace {
	s.mu.Lock()
	k := s.kept
	s.unlock()
	if place := (snapshotPlace{kept: s.host.snapshotsOf(p), key: s.OwnerID()}); place.kept != nil {
		if s.host.opts.Persistence.SnapshotKey != nil {
			place.key = s.host.opts.Persistence.SnapshotKey(s)
		}
		if place.key != "" {
			return place
		}
	}
	if k != nil && p.Snapshot != nil && p.Snapshot.Save != nil && p.Snapshot.Restore != nil {
		return snapshotPlace{k.durable.snapshots, "session/" + k.key, true}
	}
	return snapshotPlace{}
}

// restore fills a new state from the snapshot of an earlier session, or of the failed host.
func (s *Session) restore(ctx context.Context, p *Plugin, state *pluginState) error {
	state.place = s.placeOf(p)
	if state.place.kept == nil {
		return nil
	}
	key := state.place.key
	if err := s.host.saves.wait(ctx, key); err != nil { // an earlier session that is still ending
		return err
	}
	object, err := state.place.kept.Load(ctx, p.Name, key)
	if err == nil {
		err = p.Snapshot.Restore(ctx, state.value, object)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.host.log.ErrorContext(ctx, "a2e: snapshot not restored", "plugin", p.Name, "err", err)
		return reasoned(ErrRuntime, ReasonInternal, "the state of the last session cannot be restored")
	}
	s.mu.Lock()
	defer s.unlock()
	if s.state == stateClosed { // the end of the session does not save the state
		return ErrClosed
	}
	if !state.place.isSession {
		s.snapshotKey = key
	}
	return nil
}

// saveDurable saves the state of a plugin of a durable session after a request (A2E-D67).
func (s *Session) saveDurable(ctx context.Context, p *Plugin) {
	if p.Snapshot == nil {
		return
	}
	s.mu.Lock()
	k, state := s.kept, s.states[p]
	s.unlock()
	if k == nil || state == nil || state.place.kept == nil {
		return
	}
	state.saves.Lock()
	defer state.saves.Unlock()
	err := guard.Call("snapshot", func() error {
		object, err := p.Snapshot.Save(ctx, state.value)
		if err != nil || bytes.Equal(object, state.saved) {
			return err
		}
		if object == nil {
			err = state.place.kept.Delete(ctx, p.Name, state.place.key)
		} else {
			err = state.place.kept.Save(ctx, p.Name, state.place.key, object)
		}
		if err == nil {
			state.saved = bytes.Clone(object)
		}
		return err
	})
	if err != nil {
		s.host.log.ErrorContext(ctx, "a2e: snapshot not saved", "plugin", p.Name, "err", err)
	}
}

// keepsSnapshots reports whether the end of the session saves the states of its plugins. A process
// that has lost the session does not: the states are with the next owner.
func (s *Session) keepsSnapshots() bool {
	s.mu.Lock()
	defer s.unlock()
	if s.kept != nil {
		return s.kept.ctx.Err() == nil
	}
	return s.snapshotKey != ""
}

// SaveSnapshots saves the states of all plugins that can be saved now, as the end of the session
// does.
func (s *Session) SaveSnapshots(ctx context.Context) error {
	return s.eachSnapshot(func(p *Plugin, kept *Snapshots, key string, state any) error {
		object, err := p.Snapshot.Save(ctx, state)
		switch {
		case s.isOver(key):
			return kept.Delete(ctx, p.Name, key)
		case err != nil:
			return fmt.Errorf("a2e: snapshot of %s: %w", p.Name, err)
		case object == nil:
			return kept.Delete(ctx, p.Name, key)
		}
		return kept.Save(ctx, p.Name, key, object)
	})
}

// DeleteSnapshots removes the snapshots of earlier sessions of the agent. The states of this
// session are not changed, and are saved when it ends.
func (s *Session) DeleteSnapshots(ctx context.Context) error {
	return s.eachSnapshot(func(p *Plugin, kept *Snapshots, key string, _ any) error {
		return kept.Delete(ctx, p.Name, key)
	})
}

// isOver reports whether a key is that of a durable session that has ended.
func (s *Session) isOver(key string) bool {
	s.mu.Lock()
	k := s.kept
	s.unlock()
	return k != nil && k.isOver() && key == "session/"+k.key
}

// eachSnapshot calls f for the states of the session that can be saved.
func (s *Session) eachSnapshot(f func(p *Plugin, kept *Snapshots, key string, state any) error) error {
	s.mu.Lock()
	states := maps.Clone(s.states)
	s.unlock()
	var errs []error
	for p, state := range states {
		select {
		case <-state.ready:
		default:
			continue // not open yet
		}
		if state.err == nil && state.place.kept != nil {
			place := state.place
			errs = append(errs, guard.Call("snapshot", func() error { return f(p, place.kept, place.key, state.value) }))
		}
	}
	return errors.Join(errs...)
}

// saving counts the ending sessions of each key, so that the next session waits for their
// snapshots. The zero value is empty.
type saving struct {
	mu    sync.Mutex
	gates map[string]*gate
}

type gate struct {
	n    int
	free chan struct{}
}

func (g *saving) begin(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates == nil {
		g.gates = map[string]*gate{}
	}
	if g.gates[key] == nil {
		g.gates[key] = &gate{free: make(chan struct{})}
	}
	g.gates[key].n++
}

func (g *saving) end(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[key].n--; g.gates[key].n == 0 {
		close(g.gates[key].free)
		delete(g.gates, key)
	}
}

func (g *saving) wait(ctx context.Context, key string) error {
	g.mu.Lock()
	gate := g.gates[key]
	g.mu.Unlock()
	if gate == nil {
		return nil
	}
	select {
	case <-gate.free:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// key encodes plugin and key so that no key can refer to another plugin, for any engine.
func (s *Snapshots) key(plugin, key string) string {
	return "a2e/snapshot/" + hex.EncodeToString([]byte(plugin)) + ":" + hex.EncodeToString([]byte(key))
}

// Save stores an object and replaces an earlier one.
func (s *Snapshots) Save(ctx context.Context, plugin, key string, object json.RawMessage) error {
	v, err := wire.CheckJSON(object)
	if err != nil || !v.IsObject() {
		return fmt.Errorf("a2e: snapshot %s: not a JSON object", clip(key, 100))
	}
	name := s.key(plugin, key)
	for {
		e, err := s.kv.Get(ctx, name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			_, err = s.kv.Create(ctx, name, v, 0)
		case err == nil:
			_, err = s.kv.Update(ctx, name, v, e.Revision, 0)
		}
		if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		return err
	}
}

// Load returns an object, or [store.ErrNotFound].
func (s *Snapshots) Load(ctx context.Context, plugin, key string) (json.RawMessage, error) {
	e, err := s.kv.Get(ctx, s.key(plugin, key))
	if err != nil {
		return nil, err
	}
	v, err := wire.CheckJSON(e.Value)
	if err != nil {
		return nil, fmt.Errorf("a2e: snapshot %s: %w", clip(key, 100), err)
	}
	return json.RawMessage(v), nil
}

// Delete removes an object. A missing object is not an error.
func (s *Snapshots) Delete(ctx context.Context, plugin, key string) error {
	return s.kv.Delete(ctx, s.key(plugin, key), 0)
}
