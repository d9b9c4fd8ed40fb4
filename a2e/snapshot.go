// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Snapshots keep what plugins want to find again after a restart: one JSON object
// under the name of a plugin and a key (A2E-148). Any engine of package store
// holds them. All methods may be called from several goroutines.
type Snapshots struct {
	kv store.KV
}

// NewSnapshots returns snapshots in kv.
func NewSnapshots(kv store.KV) *Snapshots { return &Snapshots{kv: kv} }

// A SnapshotMode says who keeps the states of plugins (A2E-149).
type SnapshotMode string

// Modes of snapshots.
const (
	// SnapshotHost keeps all of them with the host.
	SnapshotHost SnapshotMode = "host"

	// SnapshotPlugin keeps those of plugins that have a place of their own, there.
	SnapshotPlugin SnapshotMode = "plugin"

	// SnapshotHybrid keeps them where the plugin says, and those of plugins that
	// say nothing with the host.
	SnapshotHybrid SnapshotMode = "hybrid"
)

// A PluginSnapshot lets the states of a plugin outlive their sessions: what Save
// returns when a session ends is given to Restore in the next session of the
// same agent (A2E-148).
type PluginSnapshot struct {
	// Save returns a state as a JSON object, or nil if there is nothing to
	// keep; then what was kept is removed. It may run beside handlers.
	Save func(ctx context.Context, state any) (json.RawMessage, error)

	// Restore fills a state that Open has just made. With an error the plugin
	// serves nothing in this session, so that nothing is overwritten.
	Restore func(ctx context.Context, state any, object json.RawMessage) error

	// Store is where the plugin wants its snapshots to be kept; see [SnapshotMode].
	Store *Snapshots
}

// snapshotTime bounds how long the end of a session waits for its store.
const snapshotTime = 10 * time.Second

// snapshotsOf returns where the states of a plugin are kept, or nil.
func (h *Host) snapshotsOf(p *Plugin) *Snapshots {
	switch {
	case p.Snapshot == nil || p.Snapshot.Save == nil || p.Snapshot.Restore == nil:
		return nil
	case h.opts.Persistence.SnapshotMode == SnapshotPlugin, h.opts.Persistence.SnapshotMode == SnapshotHybrid && p.Snapshot.Store != nil:
		return p.Snapshot.Store
	}
	return h.opts.Persistence.Snapshots
}

// restore fills a fresh state with what an earlier session left.
func (s *Session) restore(ctx context.Context, p *Plugin, state any) error {
	kept := s.host.snapshotsOf(p)
	if kept == nil {
		return nil
	}
	key := s.AgentID()
	if s.host.opts.Persistence.SnapshotKey != nil {
		key = s.host.opts.Persistence.SnapshotKey(s)
	}
	if key == "" {
		return nil
	}
	if err := s.host.saves.wait(ctx, key); err != nil { // a session that is just ending
		return err
	}
	object, err := kept.Load(ctx, p.Name, key)
	if err == nil {
		err = p.Snapshot.Restore(ctx, state, object)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.host.log.Error("a2e: snapshot cannot be restored", "plugin", p.Name, "err", err)
		return reasoned(ErrRuntime, ReasonInternal, "the state of the last session cannot be restored")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stateClosed { // nobody waits for what it would leave
		return ErrClosed
	}
	s.snapshotKey = key
	return nil
}

// SaveSnapshots keeps the states of all plugins that can be saved now, as the
// end of the session does.
func (s *Session) SaveSnapshots(ctx context.Context) error {
	return s.eachSnapshot(func(p *Plugin, kept *Snapshots, key string, state any) error {
		object, err := p.Snapshot.Save(ctx, state)
		switch {
		case err != nil:
			return fmt.Errorf("a2e: snapshot of %s: %w", p.Name, err)
		case object == nil:
			return kept.Delete(ctx, p.Name, key)
		}
		return kept.Save(ctx, p.Name, key, object)
	})
}

// DeleteSnapshots removes what earlier sessions of the agent left. The states of
// this one stay as they are, and are kept when it ends.
func (s *Session) DeleteSnapshots(ctx context.Context) error {
	return s.eachSnapshot(func(p *Plugin, kept *Snapshots, key string, _ any) error {
		return kept.Delete(ctx, p.Name, key)
	})
}

// eachSnapshot calls f for the states of the session that can be saved.
func (s *Session) eachSnapshot(f func(p *Plugin, kept *Snapshots, key string, state any) error) error {
	s.mu.Lock()
	key, states := s.snapshotKey, maps.Clone(s.states)
	s.mu.Unlock()
	if key == "" {
		return nil
	}
	var errs []error
	for p, state := range states {
		kept := s.host.snapshotsOf(p)
		if kept == nil {
			continue
		}
		select {
		case <-state.ready:
		default:
			continue // not open yet
		}
		if state.err == nil {
			errs = append(errs, calmly(func() error { return f(p, kept, key, state.value) }))
		}
	}
	return errors.Join(errs...)
}

// calmly makes an error of a panic.
func calmly(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a2e: the plugin panicked: %v", p)
		}
	}()
	return f()
}

// saving counts the sessions of each key that are ending, so that the next one
// finds what they leave. The zero value is empty.
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

// key spells plugin and key so that no key can get out of its plugin, whatever
// engine stands behind.
func (s *Snapshots) key(plugin, key string) string {
	return "a2e/snapshot/" + hex.EncodeToString([]byte(plugin)) + ":" + hex.EncodeToString([]byte(key))
}

// Save keeps an object in place of the one before.
func (s *Snapshots) Save(ctx context.Context, plugin, key string, object json.RawMessage) error {
	v, err := strictjson.Check(object, strictjson.Options{MaxDepth: 10000})
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
	v, err := strictjson.Check(e.Value, strictjson.Options{MaxDepth: 10000})
	if err != nil {
		return nil, fmt.Errorf("a2e: snapshot %s: %w", clip(key, 100), err)
	}
	return json.RawMessage(v), nil
}

// Delete removes an object. Removing what is not there succeeds.
func (s *Snapshots) Delete(ctx context.Context, plugin, key string) error {
	return s.kv.Delete(ctx, s.key(plugin, key), 0)
}
