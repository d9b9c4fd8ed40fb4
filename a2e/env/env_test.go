// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/env/envtest"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// planned is a counter with a Planner.
type planned struct{ envtest.Counter }

func (planned) Plan(context.Context, json.RawMessage) ([]env.Action, error) {
	return []env.Action{{ActionType: "inc"}}, nil
}

func connect(t *testing.T) *env.Client {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": envtest.Counter{}, "planned": planned{}},
		&env.Options{MaxEpisodes: 3, MaxBatch: 2, MaxTransitions: 2})))
	c, err := env.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	return c
}

func reset(t *testing.T, c *env.Client, name, options string) *env.Observation {
	resp, err := c.Reset(t.Context(), &env.ResetRequest{EnvName: name, Options: json.RawMessage(options)}, nil)
	require.NoError(t, err)
	return &resp.Obs
}

// An episode from reset to close (A2E-102, A2E-103, A2E-104, A2E-107).
func TestEpisode(t *testing.T) {
	c := connect(t)
	obs := reset(t, c, "counter", `{"start":7}`)
	require.Equal(t, "ep-1", obs.EpisodeID)
	require.JSONEq(t, `{"count":7}`, string(obs.State))
	step := func(action string) (*env.StepResponse, error) {
		return c.Step(t.Context(), &env.StepRequest{EpisodeID: obs.EpisodeID, Action: json.RawMessage(action)}, nil)
	}
	resp, err := step(`{"action_type":"inc","payload":[]}`) // the odd form of a deployed peer (A2E-D20)
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.Obs.StepNum)
	require.EqualValues(t, 1, *resp.Obs.Reward)
	var e *a2e.Error
	_, err = step(`{"action_type":"jump"}`)
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, a2e.ErrUnknownAction)
	require.JSONEq(t, `{"action_type":"jump"}`, string(e.Details))
	_, err = step(`{"payload":{}}`)
	require.ErrorAs(t, err, &e)
	require.Equal(t, "action.action_type", e.Field)
	_, err = step(`{"action_type":"inc","payload":{"amount":"2"}}`)
	require.ErrorAs(t, err, &e)
	require.Equal(t, "action.payload.amount", e.Field)

	plan, err := c.GetPlan(t.Context(), &env.PlanRequest{EpisodeID: &obs.EpisodeID}, nil)
	require.ErrorIs(t, err, a2e.ErrUnsupported, "this environment has no plans: %v", plan)
	other := reset(t, c, "planned", `{}`)
	plan, err = c.GetPlan(t.Context(), &env.PlanRequest{EpisodeID: &other.EpisodeID}, nil)
	require.NoError(t, err)
	require.Len(t, plan.SuggestedActions, 1)

	picture, err := c.Render(t.Context(), &env.RenderRequest{EpisodeID: obs.EpisodeID, Mode: "text"}, nil)
	require.NoError(t, err)
	require.JSONEq(t, `"8"`, string(picture.Render))
	seen, err := c.Observe(t.Context(), &env.ObserveRequest{EpisodeID: obs.EpisodeID}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 0, *seen.Obs.Reward)
	space, err := c.GetSpace(t.Context(), &env.SpaceRequest{EnvName: "counter"}, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"object"}`, string(space.ActionSpace))

	resp, err = step(`{"action_type":"inc","payload":{"amount":5}}`)
	require.NoError(t, err)
	require.True(t, resp.Obs.Done)
	_, err = step(`{"action_type":"inc"}`)
	require.ErrorAs(t, err, &e)
	require.Equal(t, "episode_done", e.Reason)
	require.False(t, e.Retryable)
	list, err := c.ListExperience(t.Context(), &env.ExpListRequest{EpisodeID: obs.EpisodeID, Limit: 10}, nil)
	require.NoError(t, err)
	require.Len(t, list.Episodes, 2)
	require.Contains(t, string(list.Episodes[1]), `"next_state":{"count":13}`)
	closed, err := c.Close(t.Context(), &env.CloseRequest{EpisodeID: obs.EpisodeID}, nil)
	require.NoError(t, err)
	require.True(t, *closed.Closed)
	_, err = c.Close(t.Context(), &env.CloseRequest{EpisodeID: obs.EpisodeID}, nil)
	require.ErrorAs(t, err, &e)
	require.Equal(t, "unknown_episode", e.Reason)
}

// Batches pair episodes with actions and are bounded (A2E-105, A2E-153).
func TestBatchAndLimits(t *testing.T) {
	c := connect(t)
	a, b := reset(t, c, "counter", `{}`), reset(t, c, "counter", `{"start":9}`)
	inc := json.RawMessage(`{"action_type":"inc"}`)
	resp, err := c.BatchStep(t.Context(), &env.BatchStepRequest{EpisodeIDs: []string{b.EpisodeID, a.EpisodeID}, Actions: []json.RawMessage{inc, inc}}, nil)
	require.NoError(t, err)
	require.Len(t, resp.Results, 2)
	require.Contains(t, string(resp.Results[0]), `"done":true`)
	resp, err = c.BatchStep(t.Context(), &env.BatchStepRequest{EpisodeIDs: []string{b.EpisodeID, a.EpisodeID}, Actions: []json.RawMessage{inc, inc}}, nil)
	require.NoError(t, err)
	require.Contains(t, string(resp.Results[0]), `"code":"runtime_error"`)
	require.Contains(t, string(resp.Results[1]), `{"count":2}`)
	_, err = c.BatchStep(t.Context(), &env.BatchStepRequest{EpisodeIDs: []string{"a", "b", "c"}, Actions: []json.RawMessage{inc, inc, inc}}, nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	reset(t, c, "counter", `{}`)
	_, err = c.Reset(t.Context(), &env.ResetRequest{EnvName: "counter"}, nil)
	require.ErrorIs(t, err, a2e.ErrResetDenied)
	_, err = c.Reset(t.Context(), &env.ResetRequest{EnvName: "nope"}, nil)
	require.ErrorIs(t, err, a2e.ErrResetDenied)
}

// The recorded transitions of large states and actions are bounded in bytes (A2E-153).
func TestTransitionsAreBoundedInBytes(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": envtest.Counter{}}, nil)))
	c, err := env.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	id := reset(t, c, "counter", `{}`).EpisodeID
	for i := range 12 {
		action := `{"action_type":"inc","payload":{"amount":0,"pad":"` + strings.Repeat("x", 1<<20) + `"}}`
		resp, err := c.Step(t.Context(), &env.StepRequest{EpisodeID: id, Action: json.RawMessage(action)}, nil)
		require.NoError(t, err)
		require.EqualValues(t, i+1, resp.Obs.StepNum)
	}
	list, err := c.ListExperience(t.Context(), &env.ExpListRequest{Limit: 100}, nil)
	require.NoError(t, err)
	require.Equal(t, 7, len(list.Episodes))
	require.Contains(t, string(list.Episodes[6]), `"step":12`)
}

type moody struct{ started, closed chan struct{} }

func (m *moody) Reset(ctx context.Context, r *env.ResetRequest) (env.Episode, *env.Observation, error) {
	if r.Seed != nil {
		close(m.started)
		<-ctx.Done()
	}
	return m, &env.Observation{State: json.RawMessage("{}")}, nil
}

func (m *moody) Step(_ context.Context, a *env.Action) (*env.Observation, error) {
	if a.ActionType == "fail" {
		return nil, errors.New("secret")
	}
	return &env.Observation{State: json.RawMessage("{}")}, nil
}

func (m *moody) Observe(context.Context) (*env.Observation, error) { return nil, errors.New("no") }

func (m *moody) Close() error { close(m.closed); return nil }

// A failed step of a batch does not affect the other steps and reports the error of a single step
// (A2E-105).
func TestBatchWithFailures(t *testing.T) {
	c, err := env.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{
		"moody": &moody{closed: make(chan struct{})}, "counter": envtest.Counter{}}, nil))), nil))
	require.NoError(t, err)
	reset(t, c, "moody", "{}")
	reset(t, c, "counter", `{"start":10}`)
	resp, err := c.BatchStep(t.Context(), &env.BatchStepRequest{EpisodeIDs: []string{"ep-1", "ep-1", "ep-2"},
		Actions: []json.RawMessage{json.RawMessage(`{"action_type":"go"}`), json.RawMessage(`{"action_type":"fail"}`), json.RawMessage(`{"action_type":"inc"}`)}}, nil)
	require.NoError(t, err)
	require.Len(t, resp.Results, 3)
	require.Contains(t, string(resp.Results[0]), `"env/step/resp"`)
	require.Contains(t, string(resp.Results[1]), `"runtime_error"`)
	require.NotContains(t, string(resp.Results[1]), "secret")
	require.Contains(t, string(resp.Results[2]), `"reason":"episode_done"`)
}

// An episode whose reset ended too late is closed, because the agent never received its id.
func TestLateReset(t *testing.T) {
	m := &moody{make(chan struct{}), make(chan struct{})}
	client := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"moody": m}, nil))),
		&a2e.ClientOptions{Capabilities: []string{"env"}})
	c, err := env.NewClient(client)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-m.started; cancel() }()
	seed := int64(1)
	r := new(env.ResetRequest)
	r.EnvName, r.Seed = "moody", &seed
	_, err = c.Reset(ctx, r, nil)
	require.ErrorIs(t, err, context.Canceled)
	<-m.closed
}

// A deaf environment ignores the end of contexts in the episodes that begin with the seed 1.
type deaf struct{ closed chan time.Time }

type deafEpisode struct {
	*deaf
	isDeaf bool
}

func (d *deaf) Reset(_ context.Context, r *env.ResetRequest) (env.Episode, *env.Observation, error) {
	return &deafEpisode{d, r.Seed != nil}, &env.Observation{}, nil
}

func (e *deafEpisode) Step(context.Context, *env.Action) (*env.Observation, error) {
	if e.isDeaf {
		time.Sleep(time.Hour)
	}
	return &env.Observation{}, nil
}

func (e *deafEpisode) Observe(context.Context) (*env.Observation, error) {
	return &env.Observation{}, nil
}

func (e *deafEpisode) Close() error {
	e.closed <- time.Now()
	return nil
}

// A snapshot does not wait for a busy episode beyond the end of its context, and a busy episode does not delay the end
// of the others (A2E-D58).
func TestBusyEpisodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deaf{closed: make(chan time.Time, 2)}
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Persistence: a2e.Persistence{Snapshots: store.NewMemory()}},
			a2etest.Must(env.NewPlugin(map[string]env.Environment{"deaf": d}, nil)))
		client := a2etest.Connect(t, h, nil)
		c, err := env.NewClient(client)
		require.NoError(t, err)
		for _, seed := range []*int64{new(int64(1)), nil} {
			_, err := c.Reset(t.Context(), &env.ResetRequest{EnvName: "deaf", Seed: seed}, nil)
			require.NoError(t, err)
		}
		step := json.RawMessage(`{"action_type":"go"}`)
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Step(late, &env.StepRequest{EpisodeID: "ep-1", Action: step}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		end := time.Now()
		require.NoError(t, client.Close())
		require.LessOrEqual(t, (<-d.closed).Sub(end), 20*time.Second)
		require.Greater(t, (<-d.closed).Sub(end), time.Minute)
	})
}

// Reset gives an agent an episode with the methods of one in the process.
func TestReset(t *testing.T) {
	environments := map[string]env.Environment{"counter": envtest.Counter{}}
	c := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(environments, nil))), nil)
	run, obs, err := env.Reset(t.Context(), c, &env.ResetRequest{EnvName: "counter", Options: json.RawMessage(`{"start":7}`)})
	require.NoError(t, err)
	require.JSONEq(t, `{"count":7}`, string(obs.State))
	obs, err = run.Step(t.Context(), &env.Action{ActionType: "inc", Payload: json.RawMessage(`{"amount":2}`)})
	require.NoError(t, err)
	require.JSONEq(t, `{"count":9}`, string(obs.State))
	require.EqualValues(t, 2, *obs.Reward)
	_, err = run.Step(t.Context(), &env.Action{ActionType: "jump"})
	require.ErrorIs(t, err, a2e.ErrUnknownAction)
	obs, err = run.Observe(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, obs.StepNum)
	require.NoError(t, run.Close())
	_, err = run.Observe(t.Context())
	require.ErrorIs(t, err, a2e.ErrRuntime)
	require.ErrorIs(t, run.Close(), a2e.ErrRuntime)
	_, _, err = env.Reset(t.Context(), c, &env.ResetRequest{EnvName: "other"})
	require.ErrorIs(t, err, a2e.ErrResetDenied)
}

// A slow environment counts. Its reset takes a second, and the action "ignore" an hour.
type slow struct{ envtest.Counter }

type slowRun struct{ env.Episode }

func (s slow) Reset(ctx context.Context, r *env.ResetRequest) (env.Episode, *env.Observation, error) {
	time.Sleep(time.Second)
	run, obs, err := s.Counter.Reset(ctx, r)
	return &slowRun{run}, obs, err
}

func (r *slowRun) Step(ctx context.Context, a *env.Action) (*env.Observation, error) {
	if a.ActionType == "ignore" {
		time.Sleep(time.Hour)
		return r.Observe(ctx)
	}
	return r.Episode.Step(ctx, a)
}

func (r *slowRun) Save(ctx context.Context) (json.RawMessage, error) {
	return r.Episode.(env.SnapshotSaver).Save(ctx)
}

// Episodes that are reset at once are in the bound.
func TestResetsAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"slow": slow{}}, &env.Options{MaxEpisodes: 2})))
		c := a2etest.Must(env.NewClient(a2etest.Connect(t, h, nil)))
		failed := make(chan error, 4)
		for range cap(failed) {
			go func() {
				_, err := c.Reset(t.Context(), &env.ResetRequest{EnvName: "slow"}, nil)
				failed <- err
			}()
		}
		denied := 0
		for range cap(failed) {
			if err := <-failed; err != nil {
				require.ErrorIs(t, err, a2e.ErrResetDenied)
				denied++
			}
		}
		require.Equal(t, 2, denied)
		_, err := c.Close(t.Context(), &env.CloseRequest{EpisodeID: "ep-1"}, nil)
		require.NoError(t, err)
		reset(t, c, "slow", `{}`)
	})
}

// An environment that ignores the end of its step loses its own episode only.
func TestDeafStepLosesNoOtherEpisode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Persistence: a2e.Persistence{Snapshots: store.NewMemory()}})
		h.AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"slow": slow{}}, nil)))
		opts := &a2e.ClientOptions{AgentID: "ann", Types: env.Types()}
		agent := a2etest.Connect(t, h, opts)
		c := a2etest.Must(env.NewClient(agent))
		reset(t, c, "slow", `{}`)
		reset(t, c, "slow", `{"start":5}`)
		step := func(c *env.Client, episode, action string) (*env.StepResponse, error) {
			return c.Step(t.Context(), &env.StepRequest{EpisodeID: episode, Action: json.RawMessage(`{"action_type":"` + action + `"}`)}, nil)
		}
		go func() { _, _ = step(c, "ep-1", "ignore") }()
		synctest.Wait()
		require.NoError(t, agent.Close())
		c = a2etest.Must(env.NewClient(a2etest.Connect(t, h, opts)))
		resp, err := step(c, "ep-2", "inc")
		require.NoError(t, err)
		require.JSONEq(t, `{"count":6}`, string(resp.Obs.State))
		_, err = step(c, "ep-1", "inc")
		require.ErrorIs(t, err, a2e.ErrRuntime)
		time.Sleep(time.Hour)
	})
}

// A stubborn environment counts. Its episodes from 90 to 99 are not restored while its error is set.
type stubborn struct {
	envtest.Counter
	err *error
}

func (s stubborn) Restore(ctx context.Context, saved json.RawMessage) (env.Episode, error) {
	if *s.err == nil || !strings.Contains(string(saved), `"count":9`) {
		return s.Counter.Restore(ctx, saved)
	}
	if errors.Is(*s.err, errPanic) {
		panic(*s.err)
	}
	return nil, *s.err
}

var errPanic = errors.New("panic")

// An episode that cannot be restored fails alone, is kept for the next session, and can be closed (A2E-148).
func TestRestoreFailureLosesNoOtherEpisode(t *testing.T) {
	for _, failure := range []error{errors.New("no such machine"), errPanic} {
		t.Run(failure.Error(), func(t *testing.T) {
			err := failure
			h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Persistence: a2e.Persistence{Snapshots: store.NewMemory()}})
			h.AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": stubborn{envtest.Counter{Goal: 1000}, &err}}, &env.Options{MaxEpisodes: 3})))
			opts := &a2e.ClientOptions{AgentID: "ann", Types: env.Types()}
			session := func(f func(c *env.Client, step func(episode string) (string, error))) {
				agent := a2etest.Connect(t, h, opts)
				c := a2etest.Must(env.NewClient(agent))
				f(c, func(episode string) (string, error) {
					resp, err := c.Step(t.Context(), &env.StepRequest{EpisodeID: episode, Action: json.RawMessage(`{"action_type":"inc"}`)}, nil)
					if err != nil {
						return "", err
					}
					return string(resp.Obs.State), nil
				})
				require.NoError(t, agent.Close())
			}
			session(func(c *env.Client, _ func(string) (string, error)) {
				reset(t, c, "counter", `{"start":90}`)
				reset(t, c, "counter", `{"start":5}`)
			})
			for n := range 2 {
				session(func(c *env.Client, step func(string) (string, error)) {
					for range 2 {
						_, err := step("ep-1")
						require.ErrorIs(t, err, a2e.ErrRuntime)
						_, err = c.Observe(t.Context(), &env.ObserveRequest{EpisodeID: "ep-1"}, nil)
						require.ErrorIs(t, err, a2e.ErrRuntime)
						_, err = c.Render(t.Context(), &env.RenderRequest{EpisodeID: "ep-1", Mode: "text"}, nil)
						require.ErrorIs(t, err, a2e.ErrRuntime)
					}
					require.JSONEq(t, fmt.Sprintf(`{"count":%d}`, 6+n), a2etest.Must(step("ep-2")))
					obs := reset(t, c, "counter", "{}")
					require.Equal(t, fmt.Sprintf("ep-%d", 3+n), obs.EpisodeID)
					_, err := c.Close(t.Context(), &env.CloseRequest{EpisodeID: obs.EpisodeID}, nil)
					require.NoError(t, err)
				})
			}
			err = nil
			session(func(_ *env.Client, step func(string) (string, error)) {
				require.JSONEq(t, `{"count":91}`, a2etest.Must(step("ep-1")), "it was kept")
			})
			err = failure
			session(func(c *env.Client, step func(string) (string, error)) {
				_, err := c.Close(t.Context(), &env.CloseRequest{EpisodeID: "ep-1"}, nil)
				require.NoError(t, err)
				_, err = step("ep-1")
				require.ErrorContains(t, err, "no such episode")
			})
		})
	}
}

// An episode whose environment is missing in a host, or restores no episodes there, is kept for the next one (A2E-148).
func TestEpisodeOfMissingEnvironmentIsKept(t *testing.T) {
	snapshots := store.NewMemory()
	session := func(environment env.Environment, f func(c *env.Client)) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Persistence: a2e.Persistence{Snapshots: snapshots}})
		environments := map[string]env.Environment{"other": envtest.Counter{}}
		if environment != nil {
			environments["counter"] = environment
		}
		h.AddPlugin(a2etest.Must(env.NewPlugin(environments, nil)))
		agent := a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "ann", Types: env.Types()})
		f(a2etest.Must(env.NewClient(agent)))
		require.NoError(t, agent.Close())
		require.NoError(t, h.Shutdown(t.Context())) // the snapshot is stored
	}
	step := &env.StepRequest{EpisodeID: "ep-1", Action: json.RawMessage(`{"action_type":"inc"}`)}
	session(envtest.Counter{}, func(c *env.Client) { reset(t, c, "counter", `{"start":5}`) })
	for _, environment := range []env.Environment{nil, &moody{}} {
		session(environment, func(c *env.Client) {
			_, err := c.Step(t.Context(), step, nil)
			require.ErrorIs(t, err, a2e.ErrRuntime)
			_, err = c.GetPlan(t.Context(), &env.PlanRequest{EpisodeID: new("ep-1")}, nil)
			require.ErrorIs(t, err, a2e.ErrUnsupported)
			reset(t, c, "other", "{}")
		})
	}
	session(envtest.Counter{}, func(c *env.Client) {
		resp, err := c.Step(t.Context(), step, nil)
		require.NoError(t, err)
		require.JSONEq(t, `{"count":6}`, string(resp.Obs.State))
	})
}

// The transitions of all sessions of a principal share its bounds of the host. A session drops its oldest ones, and steps
// are never refused.
func TestTransitionsOfPrincipalAreBoundedTogether(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("key")}, Limits: a2e.Limits{MaxMemoryPerPrincipal: 5 << 20}},
		a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": envtest.Counter{}}, nil)))
	large := json.RawMessage(`{"action_type":"inc","payload":{"amount":0,"x":"` + strings.Repeat("x", 1<<20) + `"}}`)
	play := func(steps, want int) *env.Client {
		c := a2etest.Must(env.NewClient(a2etest.Connect(t, h, &a2e.ClientOptions{Token: "key"})))
		obs := reset(t, c, "counter", "{}")
		for range steps {
			_, err := c.Step(t.Context(), &env.StepRequest{EpisodeID: obs.EpisodeID, Action: large}, nil)
			require.NoError(t, err)
		}
		list, err := c.ListExperience(t.Context(), &env.ExpListRequest{EpisodeID: obs.EpisodeID}, nil)
		require.NoError(t, err)
		require.Len(t, list.Episodes, want)
		return c
	}
	play(3, 3)
	play(5, 1)
	play(2, 0)
	for _, u := range h.Usage() {
		if u.Resource == "plugin_memory" && u.Scope == "principal" {
			require.Greater(t, u.Used, int64(4<<20))
			require.LessOrEqual(t, u.Used, int64(5<<20))
		}
	}
}

// An unsaved environment counts to 1000. Its episodes from 90 to 99 are saved by save while it is set.
type unsaved struct {
	envtest.Counter
	save func(ctx context.Context) (json.RawMessage, error)
}

type unsavedRun struct {
	env.Episode
	save func(ctx context.Context) (json.RawMessage, error)
}

func (u unsaved) Reset(ctx context.Context, r *env.ResetRequest) (env.Episode, *env.Observation, error) {
	run, obs, err := u.Counter.Reset(ctx, r)
	return &unsavedRun{run, u.save}, obs, err
}

func (u unsaved) Restore(ctx context.Context, saved json.RawMessage) (env.Episode, error) {
	run, err := u.Counter.Restore(ctx, saved)
	return &unsavedRun{run, u.save}, err
}

func (r *unsavedRun) Save(ctx context.Context) (json.RawMessage, error) {
	saved, err := r.Episode.(env.SnapshotSaver).Save(ctx)
	if r.save != nil && strings.Contains(string(saved), `"count":9`) {
		return r.save(ctx)
	}
	return saved, err
}

// An episode that cannot be saved fails alone, is reported, and is kept as it was last saved (A2E-148).
func TestSaveFailureLosesNoOtherEpisode(t *testing.T) {
	for name, save := range map[string]func(ctx context.Context) (json.RawMessage, error){
		"error":     func(context.Context) (json.RawMessage, error) { return nil, errors.New("no space") },
		"panic":     func(context.Context) (json.RawMessage, error) { panic("no space") },
		"Goexit":    func(context.Context) (json.RawMessage, error) { runtime.Goexit(); return nil, nil },
		"no object": func(context.Context) (json.RawMessage, error) { return json.RawMessage("7"), nil },
		"hang":      func(ctx context.Context) (json.RawMessage, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				snapshots := store.NewMemory()
				session := func(save func(ctx context.Context) (json.RawMessage, error), f func(c *env.Client, step func(episode string) string)) string {
					var log bytes.Buffer
					h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.NewTextHandler(&log, nil)), Persistence: a2e.Persistence{Snapshots: snapshots}})
					h.AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": unsaved{envtest.Counter{Goal: 1000}, save}}, nil)))
					agent := a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "ann", Types: env.Types()})
					c := a2etest.Must(env.NewClient(agent))
					f(c, func(episode string) string {
						resp, err := c.Step(t.Context(), &env.StepRequest{EpisodeID: episode, Action: json.RawMessage(`{"action_type":"inc"}`)}, nil)
						require.NoError(t, err)
						return string(resp.Obs.State)
					})
					require.NoError(t, agent.Close())
					require.NoError(t, h.Shutdown(t.Context())) // the snapshot is stored
					return log.String()
				}
				log := session(nil, func(c *env.Client, _ func(string) string) {
					reset(t, c, "counter", `{"start":90}`)
					reset(t, c, "counter", `{"start":5}`)
				})
				require.NotContains(t, log, "level=ERROR")
				log = session(save, func(c *env.Client, step func(string) string) {
					require.JSONEq(t, `{"count":91}`, step("ep-1"))
					require.JSONEq(t, `{"count":6}`, step("ep-2"))
					reset(t, c, "counter", `{"start":99}`)
				})
				require.Contains(t, log, "level=ERROR")
				require.Contains(t, log, "episode ep-1")
				require.Contains(t, log, "episode ep-3")
				require.NotContains(t, log, "episode ep-2")
				session(nil, func(c *env.Client, step func(string) string) {
					require.JSONEq(t, `{"count":91}`, step("ep-1"))
					require.JSONEq(t, `{"count":7}`, step("ep-2"))
					_, err := c.Observe(t.Context(), &env.ObserveRequest{EpisodeID: "ep-3"}, nil)
					require.ErrorContains(t, err, "no such episode")
				})
			})
		})
	}
}
