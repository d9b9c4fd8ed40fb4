// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package envtest has a small environment for tests and examples.
package envtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// Counter is a minimal environment: a number that the action "inc" raises by payload.amount, 1 by
// default, until it reaches Goal. The reward is the amount. The option "start" of a reset sets the
// first value.
type Counter struct {
	Goal int64 // zero means 10
}

// Reset starts an episode at options.start.
func (c Counter) Reset(_ context.Context, r *env.ResetRequest) (env.Episode, *env.Observation, error) {
	options := &counterOptions{}
	if r.Options != nil {
		var err error
		if options, err = a2e.DecodeModel[counterOptions](r.Options, "options"); err != nil {
			return nil, nil, err
		}
	}
	run := &counting{goal: c.Goal, n: options.Start}
	if run.goal == 0 {
		run.goal = 10
	}
	return run, run.see(nil), nil
}

// Space describes actions and states.
func (Counter) Space(context.Context) (actionSpace, stateSchema json.RawMessage, err error) {
	return json.RawMessage(`{"type":"object"}`), json.RawMessage(`{"type":"object"}`), nil
}

type counterOptions struct {
	Start int64 `json:"start,omitzero" jsonmap:"always"`
}

type counterPayload struct {
	Amount *int64 `json:"amount,omitzero" jsonmap:"default=1"`
}

type counting struct{ goal, n int64 }

func (c *counting) see(reward *float64) *env.Observation {
	return &env.Observation{State: json.RawMessage(`{"count":` + strconv.FormatInt(c.n, 10) + `}`), Done: c.n >= c.goal, Reward: reward}
}

func (c *counting) Step(_ context.Context, a *env.Action) (*env.Observation, error) {
	if a.ActionType != "inc" {
		return nil, env.UnknownActionError(a.ActionType)
	}
	amount := int64(1)
	if a.Payload != nil {
		in, err := a2e.DecodeModel[counterPayload](a.Payload, "action.payload")
		if err != nil {
			return nil, err
		}
		amount = *in.Amount
	}
	if amount > 0 && c.n > math.MaxInt64-amount || amount < 0 && c.n < math.MinInt64-amount {
		return nil, a2e.SchemaViolation("action.payload.amount", a2e.ReasonValue)
	}
	c.n += amount
	reward := float64(amount)
	return c.see(&reward), nil
}

func (c *counting) Observe(context.Context) (*env.Observation, error) { return c.see(nil), nil }

func (c *counting) Close() error { return nil }

// savedCount is an episode between two sessions.
type savedCount struct {
	Goal int64 `json:"goal,omitzero" jsonmap:"always"`
	N    int64 `json:"count,omitzero" jsonmap:"always"`
}

// Save returns the count and the goal.
func (c *counting) Save(context.Context) (json.RawMessage, error) {
	return a2e.EncodeModel(&savedCount{Goal: c.goal, N: c.n})
}

// Restore continues a saved episode.
func (Counter) Restore(_ context.Context, saved json.RawMessage) (env.Episode, error) {
	in, err := a2e.DecodeModel[savedCount](saved, "")
	if err != nil {
		return nil, err
	}
	return &counting{goal: in.Goal, n: in.N}, nil
}

// Render returns the count as text.
func (c *counting) Render(_ context.Context, mode string) (json.RawMessage, error) {
	if mode != "text" {
		return nil, fmt.Errorf("mode %q cannot be drawn", wire.Clip(mode))
	}
	return json.RawMessage(strconv.Quote(strconv.FormatInt(c.n, 10))), nil
}
