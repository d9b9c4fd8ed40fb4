// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fivewire/fivewire/a2e"
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
	for _, e := range open {
		kept, err := e.save(ctx, wait)
		if err != nil {
			return nil, err
		}
		if kept != nil {
			out.Episodes = append(out.Episodes, *kept)
		}
	}
	if len(out.Episodes) == 0 && len(out.Recorded) == 0 {
		return nil, nil
	}
	return a2e.EncodeModel(out)
}

// halfOf returns a context for half of the time of another.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return ctx, func() {}
}

// save returns nil for an episode that ends with its session. A request that is being served may take long and has no
// answer, so save returns the state before it. Without that state it waits until wait ends, and then omits the episode
// so that the others are saved.
func (e *episode) save(ctx, wait context.Context) (*savedEpisode, error) {
	select {
	case e.busy <- struct{}{}:
	default:
		if kept := e.saved.Load(); kept != nil {
			return kept, nil
		}
		if e.lock(wait) != nil {
			return nil, ctx.Err()
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
	run, err := saver.Save(ctx)
	if err != nil {
		return nil, fmt.Errorf("env: %s: %w", e.name, err)
	}
	kept := &savedEpisode{e.id, e.name, e.steps, e.done, e.last, run}
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
		e.saved.Store(&kept)
		r.episodes[kept.ID] = e
	}
	r.recorded, r.size = restored.recorded, restored.size
	return nil
}
