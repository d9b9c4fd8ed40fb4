// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/store"
)

// Values of SnapshotMode of [Persistence] (A2E-149).
const (
	snapshotHost   = "host"
	snapshotPlugin = "plugin"
	snapshotHybrid = "hybrid"
)

// A PluginSnapshot makes the states of a plugin outlive their sessions: the object that Save
// returns at the end of a session is passed to Restore in the next session of the same agent
// (A2E-148).
type PluginSnapshot struct {
	// Save returns a state as a JSON object, or nil to remove the stored object. It may run
	// concurrently with handlers. Its result after the end of ctx is dropped. In a durable session it is
	// called after each request of the plugin, before the answer; an unchanged object is not stored again.
	// An object that is returned with an error is stored, and the error is logged: it is a state without a part.
	Save func(ctx context.Context, state any) (json.RawMessage, error)

	// Restore fills a state that Open has just made. After an error the plugin serves nothing in
	// this session, so that the stored object is not overwritten.
	Restore func(ctx context.Context, state any, object json.RawMessage) error

	// Store is the plugin's own store of snapshots; see SnapshotMode of [Persistence].
	Store store.KV

	// ForSession keeps the state for its durable session only: it moves with the session to another
	// process (A2E-D67), and ends with it.
	ForSession bool
}

// snapshotTime bounds the wait for the store at the end of a session.
const snapshotTime = 10 * time.Second

// stateOf returns the state of a plugin for this session, making it at first use.
func (s *Session) stateOf(ctx context.Context, p *Plugin) (any, error) {
	if p.Open == nil {
		return nil, nil
	}
	state, err := s.states.Get(ctx, p, func() plugin.Hooks { return s.hooks(p) })
	restore, isRestore := errors.AsType[*plugin.RestoreError](err)
	switch {
	case errors.Is(err, plugin.ErrMoved):
		s.durable().loseTo(err)
		return nil, ErrClosed
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case isRestore && isOverloaded(restore.Err):
		return nil, restore.Err
	case isRestore:
		s.host.log.ErrorContext(ctx, "a2e: snapshot not restored", "plugin", p.Name, "err", restore.Err)
		return nil, reasoned(ErrRuntime, ReasonInternal, "the state of the last session cannot be restored")
	case errors.Is(err, plugin.ErrSealed):
		return nil, ErrClosed
	}
	return state, err
}

// isOverloaded reports whether an error is that of [Session.Reserve] over a bound.
func isOverloaded(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == ReasonOverloaded
}

// hooks returns the functions of a plugin for this session.
func (s *Session) hooks(p *Plugin) plugin.Hooks {
	h := plugin.Hooks{Name: p.Name, Open: func() (any, error) { return p.Open(s) }, Close: func(state any) { s.closeState(p, state) }}
	if p.Snapshot != nil && p.Snapshot.Save != nil && p.Snapshot.Restore != nil {
		h.Save = func(ctx context.Context, state any) (json.RawMessage, error) { return s.saveState(ctx, p, state) }
		h.Restore = p.Snapshot.Restore
		h.Place = func() plugin.Place { return s.placeOf(p) }
	}
	return h
}

// saveState calls Save of a plugin. It does not wait for one that ignores the end of ctx.
func (s *Session) saveState(ctx context.Context, p *Plugin, state any) (json.RawMessage, error) {
	var object json.RawMessage
	returned, name := make(chan error, 1), "snapshot of plugin "+p.Name
	go guard.Run(name, func() (err error) {
		object, err = p.Snapshot.Save(ctx, state)
		return err
	}, func(err error) { returned <- err })
	select {
	case err := <-returned:
		return object, err
	case <-ctx.Done():
	}
	if work, err := s.host.life.Start(context.Background(), life.Idle); err == nil { // lists it
		work.Cut(context.Cause(ctx))
		go work.Run(name, func(context.Context) error { <-returned; return nil }, func(error) {})
	}
	return nil, context.Cause(ctx)
}

// closeState closes a state. A panic of the plugin does not affect the other plugins.
func (s *Session) closeState(p *Plugin, value any) {
	if p.Close == nil {
		return
	}
	name := "plugin " + p.Name
	run := func(context.Context) error {
		err := guard.Call(name, func() error { p.Close(value); return nil })
		if err != nil {
			logFailure(s.ctx, s.host.log, slog.LevelWarn, "a2e: plugin state not closed", err, "plugin", p.Name)
		}
		return nil
	}
	w, err := s.host.life.Start(context.Background(), life.Idle)
	if err != nil { // a shutdown, which waits for the session
		_ = run(s.ctx)
		return
	}
	w.Cut(ErrClosed) // the session has ended
	w.Run(name, run, func(error) {})
}

// placeOf returns the place of the state of a plugin. Without one for the agent, the state of a durable
// session moves with it.
func (s *Session) placeOf(p *Plugin) plugin.Place {
	o := &s.host.opts.Persistence
	kv := o.Snapshots
	if o.SnapshotMode == snapshotPlugin || o.SnapshotMode == snapshotHybrid && p.Snapshot.Store != nil {
		kv = p.Snapshot.Store
	}
	if kv != nil && !p.Snapshot.ForSession {
		key := s.OwnerID()
		if o.SnapshotKey != nil {
			key = o.SnapshotKey(s)
		}
		if key != "" {
			return plugin.Place{KV: kv, Key: key}
		}
	}
	if k := s.durable(); k != nil {
		return plugin.Place{KV: k.durable.db, Key: "session/" + k.key, IsSession: true, Term: k.term, TTL: storeKeep}
	}
	return plugin.Place{}
}

// eachPlace calls f for the plugins whose states move with the durable session, used or not.
func (s *Session) eachPlace(f func(place plugin.Place, name string) error) (err error) {
	for _, p := range s.host.plugins {
		if p.Snapshot == nil {
			continue
		}
		err = errors.Join(err, guard.Call("snapshot", func() error {
			place := s.placeOf(p)
			if !place.IsSession {
				return nil
			}
			return f(place, p.Name)
		}))
	}
	return err
}

// saveDurable saves the state of a plugin of a durable session after a request, also one that was canceled (A2E-D67).
func (s *Session) saveDurable(p *Plugin) {
	if p.Snapshot == nil || s.durable() == nil {
		return
	}
	ctx, cancel := lazy.WithTimeout(s.ctx, snapshotTime)
	defer cancel()
	err := s.states.Keep(ctx, p)
	switch {
	case errors.Is(err, plugin.ErrMoved):
		s.durable().loseTo(err)
	case err != nil && !s.isClosed(): // the end of the session saves it, or a later owner has it
		s.host.log.ErrorContext(ctx, "a2e: snapshot not saved", "plugin", p.Name, "err", err)
	}
}

// keepsSnapshots reports whether the end of the session saves the states of its plugins. A process
// that has lost the session does not: the states are with the next owner.
func (s *Session) keepsSnapshots() bool {
	if k := s.durable(); k != nil {
		return k.ctx.Err() == nil
	}
	return s.states.Outlives()
}

// SaveSnapshots saves the states of all plugins that can be saved now, as the end of the session
// does.
func (s *Session) SaveSnapshots(ctx context.Context) error {
	k := s.durable()
	isOver := k != nil && k.isOver()
	err := s.states.Save(ctx, isOver)
	if isOver && k.term > 0 { // an earlier owner may have used other plugins
		err = errors.Join(err, s.eachPlace(func(place plugin.Place, name string) error { return place.Save(ctx, name, nil) }))
	}
	return err
}

// DeleteSnapshots removes the snapshots of earlier sessions of the agent. The states of this
// session are not changed, and are saved when it ends, those of a durable session after the next request.
func (s *Session) DeleteSnapshots(ctx context.Context) error {
	err := s.states.Delete(ctx)
	for _, p := range s.host.plugins {
		if p.Snapshot == nil || s.states.Has(p) {
			continue
		}
		err = errors.Join(err, guard.Call("snapshot", func() error {
			if place := s.placeOf(p); place.KV != nil && !place.IsSession {
				return place.Save(ctx, p.Name, nil)
			}
			return nil
		}))
	}
	return err
}
