// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/env"
)

type elevatorOptions struct {
	Floor int `json:"floor,omitzero" jsonmap:"default=1"`
}

type ride struct {
	Floors int `json:"floors"`
}

type elevatorState struct {
	Floor int `json:"floor"`
}

type elevator struct {
	floor    int
	isClosed *bool
}

func (e *elevator) Step(_ context.Context, actionType string, payload *ride) (float64, error) {
	if actionType != "ride" {
		return 0, env.UnknownActionError(actionType)
	}
	e.floor += payload.Floors
	return float64(payload.Floors), nil
}

func (e *elevator) State(context.Context) (*elevatorState, bool, error) {
	return &elevatorState{Floor: e.floor}, e.floor >= 9, nil
}

func (e *elevator) Close() error {
	*e.isClosed = true
	return nil
}

// The options, actions and states of a typed environment are structs, whose schemas an agent can read.
func TestTypedEnvironment(t *testing.T) {
	isClosed := false
	environment := env.Typed(func(_ context.Context, _ *env.ResetRequest, o *elevatorOptions) (env.TypedEpisode[ride, elevatorState], error) {
		return &elevator{floor: o.Floor, isClosed: &isClosed}, nil
	})
	c := a2etest.Connect(t, a2etest.NewHost(t, nil, a2etest.Must(env.NewPlugin(map[string]env.Environment{"elevator": environment}, nil))), nil)
	_, _, err := env.Reset(t.Context(), c, &env.ResetRequest{EnvName: "elevator", Options: json.RawMessage(`{"floor":"top"}`)})
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "options.floor", e.Field)
	run, obs, err := env.Reset(t.Context(), c, &env.ResetRequest{EnvName: "elevator"})
	require.NoError(t, err)
	require.JSONEq(t, `{"floor":1}`, string(obs.State))
	_, err = run.Step(t.Context(), &env.Action{ActionType: "ride"})
	require.ErrorAs(t, err, &e)
	require.Equal(t, "action.payload.floors", e.Field)
	_, err = run.Step(t.Context(), &env.Action{ActionType: "jump", Payload: json.RawMessage(`{"floors":1}`)})
	require.ErrorIs(t, err, a2e.ErrUnknownAction)
	obs, err = run.Step(t.Context(), &env.Action{ActionType: "ride", Payload: json.RawMessage(`{"floors":8}`)})
	require.NoError(t, err)
	require.JSONEq(t, `{"floor":9}`, string(obs.State))
	require.InDelta(t, 8, *obs.Reward, 0)
	require.True(t, obs.Done)
	client, err := env.NewClient(c)
	require.NoError(t, err)
	space, err := client.GetSpace(t.Context(), &env.SpaceRequest{EnvName: "elevator"}, nil)
	require.NoError(t, err)
	require.Contains(t, string(space.ActionSpace), `"floors"`)
	require.Contains(t, string(space.StateSchema), `"floor"`)
	require.NoError(t, run.Close())
	require.True(t, isClosed)
}
