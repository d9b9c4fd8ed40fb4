// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fivewire/fivewire/a2e"
)

// A TypedEpisode is one run of a [Typed] environment, with the payload of actions and the state as models. Its
// methods are called from one goroutine at a time.
type TypedEpisode[A, S any] interface {
	// Step does an action and returns its reward. An unknown type is [UnknownActionError].
	Step(ctx context.Context, actionType string, payload *A) (reward float64, err error)

	// State returns the current state, and whether the episode has ended.
	State(ctx context.Context) (state *S, isDone bool, err error)

	// Close ends the episode.
	Close() error
}

// Typed returns an environment whose options O, payloads A and states S are structs with json tags. A member that does
// not fit its field is a schema violation. The environment is a [SpaceProvider] with the JSON Schemas of A and S.
func Typed[O, A, S any](reset func(ctx context.Context, r *ResetRequest, options *O) (TypedEpisode[A, S], error)) Environment {
	return &typed[O, A, S]{reset}
}

type typed[O, A, S any] struct {
	reset func(ctx context.Context, r *ResetRequest, options *O) (TypedEpisode[A, S], error)
}

func (e *typed[O, A, S]) Reset(ctx context.Context, r *ResetRequest) (Episode, *Observation, error) {
	options, err := a2e.DecodeModel[O](orEmpty(r.Options), "options")
	if err != nil {
		return nil, nil, err
	}
	own, err := e.reset(ctx, r, options)
	if err != nil {
		return nil, nil, err
	}
	run := &typedEpisode[A, S]{own}
	obs, err := run.Observe(ctx)
	if err != nil {
		_ = own.Close()
		return nil, nil, err
	}
	return run, obs, nil
}

func (e *typed[O, A, S]) Space(context.Context) (actionSpace, stateSchema json.RawMessage, err error) {
	if actionSpace, err = schemaOf[A](); err == nil {
		stateSchema, err = schemaOf[S]()
	}
	return actionSpace, stateSchema, err
}

func schemaOf[T any]() (json.RawMessage, error) {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(schema)
}

type typedEpisode[A, S any] struct{ TypedEpisode[A, S] }

func (e *typedEpisode[A, S]) Step(ctx context.Context, a *Action) (*Observation, error) {
	payload, err := a2e.DecodeModel[A](orEmpty(a.Payload), "action.payload")
	if err != nil {
		return nil, err
	}
	reward, err := e.TypedEpisode.Step(ctx, a.ActionType, payload)
	if err != nil {
		return nil, err
	}
	obs, err := e.Observe(ctx)
	if err == nil {
		obs.Reward = &reward
	}
	return obs, err
}

func (e *typedEpisode[A, S]) Observe(ctx context.Context) (*Observation, error) {
	state, isDone, err := e.State(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := a2e.EncodeModel(state)
	return &Observation{State: raw, Done: isDone}, err
}
