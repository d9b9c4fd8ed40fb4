// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/guard"
)

// The contents of a snapshot of the episodes of a session (A2E-148).
type (
	savedRoom struct {
		Made     int64             `json:"made,omitzero" jsonmap:"always"`
		Episodes []savedEpisode    `json:"episodes,omitzero" jsonmap:"always"`
		Recorded []savedTransition `json:"recorded,omitzero" jsonmap:"always"`
	}

	savedEpisode struct {
		ID    string          `json:"episode_id"`
		Env   string          `json:"env_name"`
		Steps int64           `json:"steps,omitzero" jsonmap:"always"`
		Done  bool            `json:"done,omitzero" jsonmap:"always"`
		Last  json.RawMessage `json:"last,omitzero" jsonmap:"always,object"`
		Run   json.RawMessage `json:"run" jsonmap:"object"`
	}

	savedTransition struct {
		Episode string          `json:"episode_id,omitzero" jsonmap:"always"`
		Text    json.RawMessage `json:"text" jsonmap:"object"`
	}
)

// save returns the recorded transitions and the episodes that can be saved.
func (g *gym) save(ctx context.Context, state any) (json.RawMessage, error) {
	r := state.(*episodeSet)
	r.mu.Lock()
	out := &savedRoom{Made: int64(r.made)}
	for _, t := range r.recorded {
		out.Recorded = append(out.Recorded, savedTransition{t.episode, t.text})
	}
	open := slices.SortedFunc(maps.Values(r.episodes), func(a, b *episode) int { return cmp.Compare(a.id, b.id) })
	r.mu.Unlock()
	wait, cancel := halfOf(ctx)
	defer cancel()
	kept, errs := make([]*savedEpisode, len(open)), make([]error, len(open))
	var work sync.WaitGroup
	for i, e := range open {
		work.Go(func() { kept[i], errs[i] = e.save(wait) })
	}
	work.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, k := range kept {
		if k != nil {
			out.Episodes = append(out.Episodes, *k)
		}
	}
	err := errors.Join(errs...)
	if err == nil && len(out.Episodes) == 0 && len(out.Recorded) == 0 {
		return nil, nil
	}
	object, encodeErr := a2e.EncodeModel(out)
	return object, errors.Join(err, encodeErr)
}

// halfOf returns a context for half of the time of another.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return ctx, func() {}
}

// save returns nil for an episode that ends with its session. A request that is being served may take long and has no
// answer, so save returns the state before it. Without that state it waits until ctx ends, and then omits the episode.
// An episode that cannot be saved stays as it was last saved.
func (e *episode) save(ctx context.Context) (*savedEpisode, error) {
	select {
	case e.busy <- struct{}{}:
	default:
		if kept := e.saved.Load(); kept != nil {
			return kept, nil
		}
		if e.lock(ctx) != nil {
			return nil, nil
		}
	}
	defer func() { <-e.busy }()
	if e.run == nil {
		return e.saved.Load(), nil
	}
	saver, ok := e.run.(SnapshotSaver)
	if _, back := e.env.(SnapshotRestorer); !ok || !back {
		return nil, nil
	}
	kept := &savedEpisode{ID: e.id, Env: e.name, Steps: e.steps, Done: e.done, Last: e.last}
	err := guard.CallApart("episode", func() (err error) {
		kept.Run, err = saver.Save(ctx)
		return err
	})
	if err == nil {
		_, err = a2e.EncodeModel(kept) // reports a state that is not an object
	}
	if err != nil {
		return e.stored, fmt.Errorf("env: episode %s of %s: %w", e.id, e.name, err)
	}
	e.stored = kept
	e.saved.Store(kept)
	return kept, nil
}

// restore adds the saved episodes. One whose environment is missing in this host is kept for a later session.
func (g *gym) restore(_ context.Context, state any, object json.RawMessage) error {
	in, err := a2e.DecodeModel[savedRoom](object, "")
	if err != nil {
		return err
	}
	var restored episodeSet
	for _, t := range in.Recorded {
		restored.addLocked(transition{t.Episode, t.Text}, g.opts.MaxTransitions)
	}
	r := state.(*episodeSet)
	if err := r.session.Reserve(int64(restored.size)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = int(in.Made)
	for _, kept := range in.Episodes {
		e := newEpisode(kept.ID, kept.Env, g.environments[kept.Env])
		e.steps, e.done, e.last = kept.Steps, kept.Done, kept.Last
		e.stored = &kept
		e.saved.Store(&kept)
		r.episodes[kept.ID] = e
	}
	r.recorded, r.size = restored.recorded, restored.size
	return nil
}
