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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
)

// An Environment starts episodes, such as games or simulated machines. Its methods must be safe for
// concurrent use.
type Environment interface {
	// Reset starts an episode and returns the first observation; the plugin sets its episode, step
	// and time.
	Reset(ctx context.Context, r *ResetRequest) (Episode, *Observation, error)
}

// An Episode is one run of an environment: a host implements it, and an agent gets one from [Reset].
// Its methods are called from one goroutine at a time.
type Episode interface {
	// Step does an action. An action that it does not know is [UnknownActionError].
	Step(ctx context.Context, a *Action) (*Observation, error)

	// Observe returns the current observation.
	Observe(ctx context.Context) (*Observation, error)

	// Close ends the episode.
	Close() error
}

// Optional methods of an [Environment].
type (
	// A SpaceProvider describes actions and states as JSON Schemas.
	SpaceProvider interface {
		Space(ctx context.Context) (actionSpace, stateSchema json.RawMessage, err error)
	}

	// A Planner suggests actions in a state.
	Planner interface {
		Plan(ctx context.Context, state json.RawMessage) ([]Action, error)
	}

	// A SnapshotRestorer continues an episode that a [SnapshotSaver] has saved, at the first request for
	// it. After an error, or without the environment, that request fails, the next one tries again, and the
	// saved episode is kept until it is closed.
	SnapshotRestorer interface {
		Restore(ctx context.Context, saved json.RawMessage) (Episode, error)
	}
)

// A SnapshotSaver is an [Episode] that can be saved as a JSON object. If its environment
// is a [SnapshotRestorer], it outlives the session where the host keeps snapshots. After an error,
// which the host logs, the episode is kept as it was last saved.
type SnapshotSaver interface {
	Save(ctx context.Context) (json.RawMessage, error)
}

// A Renderer is an [Episode] that can be rendered.
type Renderer interface {
	Render(ctx context.Context, mode string) (json.RawMessage, error)
}

// UnknownActionError is the error of a step with an action that does not exist.
func UnknownActionError(actionType string) error {
	return a2e.Errorf(a2e.ErrUnknownAction, "the environment knows no such action").With("action_type", wire.Clip(actionType))
}

// Options adjusts the plugin. The zero value is right for production.
type Options struct {
	// Name is the name of the plugin. Empty means "env".
	Name string

	// MaxEpisodes bounds the open episodes of a session. Zero means 100; a negative value removes
	// the bound.
	MaxEpisodes int

	// MaxBatch bounds the steps of one batch. Zero means 100; a negative value removes the bound.
	MaxBatch int

	// MaxTransitions bounds the recorded transitions of a session for env/exp/list, which take at most
	// 8 MiB, within the Limits of the host. Zero means 1000, a negative value records none. The oldest are dropped first.
	MaxTransitions int
}

// NewPlugin returns a plugin with environments by their names. Requests that no
// environment can serve, such as env/render/req where no episode is a [Renderer],
// are answered as unsupported.
func NewPlugin(environments map[string]Environment, opts *Options) (*a2e.Plugin, error) {
	for name, e := range environments {
		if e == nil {
			return nil, fmt.Errorf("env: no environment for the name %q", name)
		}
	}
	g := &gym{environments: maps.Clone(environments)}
	if opts != nil {
		g.opts = *opts
	}
	g.opts.Name = cmp.Or(g.opts.Name, Capability)
	g.opts.MaxEpisodes = option.Count(g.opts.MaxEpisodes, 100)
	g.opts.MaxBatch = option.Count(g.opts.MaxBatch, 100)
	g.opts.MaxTransitions = cmp.Or(g.opts.MaxTransitions, 1000)
	return &a2e.Plugin{
		Name: g.opts.Name, Capability: Capability, Types: Types(),
		Snapshot: &a2e.PluginSnapshot{Save: g.save, Restore: g.restore},
		Open: func(s *a2e.Session) (any, error) {
			return &episodeSet{session: s, episodes: map[string]*episode{}}, nil
		},
		Close: func(state any) { state.(*episodeSet).close() },
		Routes: []a2e.Route{
			a2e.NewRoute("env/reset/req", g.reset),
			a2e.NewRoute("env/step/req", g.step),
			a2e.NewRoute("env/observe/req", g.observe),
			a2e.NewRoute("env/close/req", g.close),
			a2e.NewRoute("env/space/req", g.space),
			a2e.NewRoute("env/render/req", g.render),
			a2e.NewRoute("env/plan/req", g.plan),
			a2e.NewRoute("env/batch_step/req", g.batch),
			a2e.NewRoute("env/exp/list/req", g.experience),
		},
	}, nil
}

type gym struct {
	environments map[string]Environment
	opts         Options
}

// An episodeSet holds the episodes of one session (A2E-108).
type episodeSet struct {
	session *a2e.Session

	mu       sync.Mutex
	made     int
	opening  int // episodes that are reset
	episodes map[string]*episode
	recorded []transition
	size     int // bytes of the recorded transitions
}

type episode struct {
	id   string
	name string // of the environment
	env  Environment

	busy  chan struct{} // holds one value while the environment works; guards everything below
	run   Episode       // nil before an episode of an earlier session is restored from saved
	steps int64
	done  bool
	last  json.RawMessage // the state of the last observation

	stored *savedEpisode // the last that was saved

	saved atomic.Pointer[savedEpisode] // since the last request; nil if it was not saved, but never without run
}

func newEpisode(id, name string, env Environment) *episode {
	return &episode{id: id, name: name, env: env, busy: make(chan struct{}, 1)}
}

// lock waits until the environment is idle, at most until ctx ends. The caller calls unlock after success.
func (e *episode) lock(ctx context.Context) error {
	select {
	case e.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lockRun is lock, and restores an episode of an earlier session.
func (e *episode) lockRun(ctx context.Context) error {
	if err := e.lock(ctx); err != nil || e.run != nil {
		return err
	}
	err := guard.Call("episode", func() (err error) {
		restorer, ok := e.env.(SnapshotRestorer)
		if !ok {
			return errors.New("no such environment, or one that restores no episodes")
		}
		e.run, err = restorer.Restore(ctx, e.saved.Load().Run)
		return err
	})
	if err == nil && e.run == nil {
		err = errors.New("no episode restored")
	}
	if err != nil {
		e.run = nil
		e.unlock()
		return fmt.Errorf("env: %s: %w", e.name, err)
	}
	return nil
}

func (e *episode) unlock() {
	if e.run != nil {
		e.saved.Store(nil)
	}
	<-e.busy
}

// closeRunLocked ends the run. The lock must be held.
func (e *episode) closeRunLocked() error {
	if e.run == nil {
		return nil
	}
	return e.run.Close()
}

type transition struct {
	episode string
	text    json.RawMessage
}

func (t *transition) size() int { return 64 + len(t.text) }

// close closes the episodes. It waits for those whose environment ignores the end of its context, but they do not
// delay the others (A2E-D58).
func (r *episodeSet) close() {
	r.mu.Lock()
	episodes := r.episodes
	r.episodes = nil
	r.mu.Unlock()
	var work sync.WaitGroup
	for _, e := range episodes {
		work.Go(func() {
			e.busy <- struct{}{}
			defer e.unlock()
			_ = guard.Call("episode", e.closeRunLocked)
		})
	}
	work.Wait()
}

func (g *gym) environment(name string) (Environment, error) {
	if e := g.environments[name]; e != nil {
		return e, nil
	}
	return nil, a2e.Errorf(a2e.ErrResetDenied, "there is no such environment").With("env_name", wire.Clip(name))
}

func find(call *a2e.Call, id string) (*episode, error) {
	r := call.PluginState().(*episodeSet)
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.episodes[id]; e != nil {
		return e, nil
	}
	return nil, unknownEpisode()
}

func unknownEpisode() error { return newError("unknown_episode", "there is no such episode") }

func newError(reason, text string) *a2e.Error {
	err := a2e.Errorf(a2e.ErrRuntime, "%s", text)
	err.Reason, err.Retryable = reason, false
	return err
}

func (g *gym) reset(ctx context.Context, call *a2e.Call, r *ResetRequest) (*ResetResponse, error) {
	env, err := g.environment(r.EnvName)
	if err != nil {
		return nil, err
	}
	all := call.PluginState().(*episodeSet)
	all.mu.Lock()
	if len(all.episodes)+all.opening >= g.opts.MaxEpisodes {
		all.mu.Unlock()
		return nil, a2e.Errorf(a2e.ErrResetDenied, "too many open episodes").With("env_name", wire.Clip(r.EnvName))
	}
	all.made++
	all.opening++
	e := newEpisode("ep-"+strconv.Itoa(all.made), r.EnvName, env)
	all.mu.Unlock()
	defer func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		all.opening--
	}()
	run, obs, err := env.Reset(ctx, r)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // the call is already answered, so the agent cannot use the episode
		_ = run.Close()
		return nil, context.Cause(ctx)
	}
	e.run = run
	e.fillLocked(obs)
	all.mu.Lock()
	isOpen := all.episodes != nil
	if isOpen {
		all.episodes[e.id] = e
	}
	all.mu.Unlock()
	if !isOpen { // the session has ended
		_ = run.Close()
		return nil, a2e.ErrClosed
	}
	return &ResetResponse{Obs: *obs}, nil
}

// fillLocked completes an observation and records it. The lock must be held if the episode is shared.
func (e *episode) fillLocked(obs *Observation) {
	obs.EpisodeID, obs.StepNum = e.id, e.steps
	if obs.Reward == nil {
		obs.Reward = new(float64)
	}
	if obs.CreatedAt == nil {
		now := wire.Timestamp(time.Now())
		obs.CreatedAt = &now
	}
	if obs.Done {
		e.done = true
	}
	e.last = obs.State
}

func (g *gym) step(ctx context.Context, call *a2e.Call, r *StepRequest) (*StepResponse, error) {
	obs, err := g.stepOne(ctx, call, r.EpisodeID, r.Action, "action")
	if err != nil {
		return nil, err
	}
	return &StepResponse{Obs: *obs}, nil
}

func (g *gym) stepOne(ctx context.Context, call *a2e.Call, id string, raw json.RawMessage, path string) (*Observation, error) {
	e, err := find(call, id)
	if err != nil {
		return nil, err
	}
	action, err := a2e.DecodeModel[Action](raw, path)
	if err != nil {
		return nil, err
	}
	if err := e.lockRun(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	if e.done {
		return nil, newError("episode_done", "the episode is over")
	}
	before := e.last
	obs, err := e.run.Step(ctx, action)
	if err != nil {
		return nil, err
	}
	e.steps++
	e.fillLocked(obs)
	g.record(call.PluginState().(*episodeSet), e, before, raw, obs)
	return obs, nil
}

// record keeps a transition for env/exp/list (A2E-107).
func (g *gym) record(r *episodeSet, e *episode, before, action json.RawMessage, obs *Observation) {
	if g.opts.MaxTransitions < 0 {
		return
	}
	var m a2e.Members
	for _, kv := range []struct {
		name  string
		value any
	}{{"episode_id", e.id}, {"step", obs.StepNum}, {"state", orEmpty(before)}, {"action", orEmpty(action)},
		{"reward", *obs.Reward}, {"next_state", orEmpty(obs.State)}, {"done", obs.Done}} {
		if m.Set(kv.name, kv.value) != nil {
			return
		}
	}
	text, _ := m.MarshalJSON()
	t := transition{episode: e.id, text: text}
	if r.session.Reserve(int64(t.size())) != nil && !r.exchange(t.size()) {
		return
	}
	r.mu.Lock()
	size := r.size
	r.addLocked(t, g.opts.MaxTransitions)
	size = r.size - size
	r.mu.Unlock()
	_ = r.session.Reserve(int64(size - t.size()))
}

// exchange drops the oldest transitions for one of n bytes, and reports whether the session has the space.
func (r *episodeSet) exchange(n int) bool {
	r.mu.Lock()
	size := r.size
	for len(r.recorded) > 0 && size-r.size < n {
		r.dropLocked()
	}
	size -= r.size
	r.mu.Unlock()
	if r.session.Reserve(int64(n-size)) != nil {
		_ = r.session.Reserve(-int64(size))
		return false
	}
	return true
}

// maxRecorded bounds the bytes of the transitions of a session, so that an answer has space for all.
const maxRecorded = 8 << 20

// addLocked adds a transition, and drops the oldest above the bounds. r.mu must be held.
func (r *episodeSet) addLocked(t transition, limit int) {
	r.recorded = append(r.recorded, t)
	r.size += t.size()
	for len(r.recorded) > max(limit, 0) || r.size > maxRecorded {
		r.dropLocked()
	}
}

// dropLocked drops the oldest transition. r.mu must be held.
func (r *episodeSet) dropLocked() {
	r.size -= r.recorded[0].size()
	r.recorded[0] = transition{}
	r.recorded = r.recorded[1:]
}

func orEmpty(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("{}")
	}
	return raw
}

func (g *gym) observe(ctx context.Context, call *a2e.Call, r *ObserveRequest) (*ObserveResponse, error) {
	e, err := find(call, r.EpisodeID)
	if err != nil {
		return nil, err
	}
	if err := e.lockRun(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	obs, err := e.run.Observe(ctx)
	if err != nil {
		return nil, err
	}
	e.fillLocked(obs)
	return &ObserveResponse{Obs: *obs}, nil
}

func (g *gym) close(ctx context.Context, call *a2e.Call, r *CloseRequest) (*CloseResponse, error) {
	e, err := find(call, r.EpisodeID)
	if err != nil {
		return nil, err
	}
	if err := e.lock(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	all := call.PluginState().(*episodeSet)
	all.mu.Lock()
	isOpen := all.episodes[e.id] == e
	delete(all.episodes, e.id)
	all.mu.Unlock()
	if !isOpen { // closed while the request waited
		return nil, unknownEpisode()
	}
	if err := e.closeRunLocked(); err != nil {
		return nil, err
	}
	return &CloseResponse{}, nil
}

func (g *gym) space(ctx context.Context, _ *a2e.Call, r *SpaceRequest) (*SpaceResponse, error) {
	env, err := g.environment(r.EnvName)
	if err != nil {
		return nil, err
	}
	spacer, ok := env.(SpaceProvider)
	if !ok {
		return nil, a2e.ErrNextPlugin
	}
	actions, states, err := spacer.Space(ctx)
	if err != nil {
		return nil, err
	}
	return &SpaceResponse{ActionSpace: orEmpty(actions), StateSchema: orEmpty(states)}, nil
}

func (g *gym) render(ctx context.Context, call *a2e.Call, r *RenderRequest) (*RenderResponse, error) {
	e, err := find(call, r.EpisodeID)
	if err != nil {
		return nil, err
	}
	if err := e.lockRun(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	renderer, ok := e.run.(Renderer)
	if !ok {
		return nil, a2e.ErrNextPlugin
	}
	picture, err := renderer.Render(ctx, r.Mode)
	if err != nil {
		return nil, err
	}
	return &RenderResponse{Render: picture}, nil
}

func (g *gym) plan(ctx context.Context, call *a2e.Call, r *PlanRequest) (*PlanResponse, error) {
	if r.EpisodeID == nil {
		return nil, a2e.SchemaViolation("episode_id", a2e.ReasonRequired)
	}
	e, err := find(call, *r.EpisodeID)
	if err != nil {
		return nil, err
	}
	planner, ok := e.env.(Planner)
	if !ok {
		return nil, a2e.ErrNextPlugin
	}
	if err := e.lock(ctx); err != nil {
		return nil, err
	}
	state := e.last
	e.unlock()
	if r.State != nil {
		state = r.State
	}
	actions, err := planner.Plan(ctx, state)
	if err != nil {
		return nil, err
	}
	return &PlanResponse{SuggestedActions: actions}, nil
}

// batch steps several episodes, one after the other. A failed step is replaced by an error message,
// so that results and episodes pair up.
func (g *gym) batch(ctx context.Context, call *a2e.Call, r *BatchStepRequest) (*BatchStepResponse, error) {
	if len(r.EpisodeIDs) > g.opts.MaxBatch {
		return nil, a2e.SchemaViolation("episode_ids", a2e.ReasonValue)
	}
	resp := &BatchStepResponse{Results: []json.RawMessage{}}
	for i, id := range r.EpisodeIDs {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		m := a2e.NewMessage("env/step/resp", nil)
		obs, err := g.stepOne(ctx, call, id, r.Actions[i], "actions["+strconv.Itoa(i)+"]")
		if err == nil {
			m.Body = &StepResponse{ReqID: call.Message.ID, Obs: *obs}
		} else {
			m.Type, m.Body = "error", failed(call, err)
		}
		raw, err := (&a2e.Codec{}).Append(nil, m)
		if err != nil {
			return nil, err
		}
		resp.Results = append(resp.Results, raw)
	}
	return resp, nil
}

// failed returns the error of a step as a single step would answer it.
func failed(call *a2e.Call, err error) *a2e.ErrorBody {
	e := a2e.Errorf(a2e.ErrRuntime, "the handler failed")
	var wire *a2e.Error
	if errors.As(err, &wire) {
		own := *wire
		e = &own
	}
	if e.Field != "" {
		e = e.With("field", e.Field)
	}
	if e.Reason != "" {
		e = e.With("reason", e.Reason)
	}
	return &a2e.ErrorBody{ReqID: call.Message.ID, Code: string(e.Code), Message: e.Message, Detail: e.Details, Retryable: e.Retryable, CapabilityName: Capability}
}

func (g *gym) experience(_ context.Context, call *a2e.Call, r *ExpListRequest) (*ExpListResponse, error) {
	all := call.PluginState().(*episodeSet)
	all.mu.Lock()
	defer all.mu.Unlock()
	resp := &ExpListResponse{}
	for _, t := range all.recorded {
		if int64(len(resp.Episodes)) >= int64(r.Limit) {
			break
		}
		if r.EpisodeID == "" || r.EpisodeID == t.episode {
			resp.Episodes = append(resp.Episodes, t.text)
		}
	}
	return resp, nil
}
