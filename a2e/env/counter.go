// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// Counter is the smallest environment: a number that the action "inc" raises by
// payload.amount (1 if it is not given) until it reaches Goal. The reward is
// the amount. The option "start" of a reset says where it begins.
type Counter struct {
	Goal int64 // zero means 10
}

// Reset begins at options.start.
func (c Counter) Reset(_ context.Context, r *ResetRequest) (Episode, *Observation, error) {
	options := a2e.New[counterOptions]()
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
	Start int64 `a2e:"start"`
}

type counterPayload struct {
	Amount int64 `a2e:"amount,default=1"`
}

type counting struct{ goal, n int64 }

func (c *counting) see(reward *float64) *Observation {
	return &Observation{State: json.RawMessage(`{"count":` + strconv.FormatInt(c.n, 10) + `}`), Done: c.n >= c.goal, Reward: reward}
}

func (c *counting) Step(_ context.Context, a *Action) (*Observation, error) {
	if a.ActionType != "inc" {
		return nil, UnknownActionError(a.ActionType)
	}
	in := a2e.New[counterPayload]()
	if a.Payload != nil {
		var err error
		if in, err = a2e.DecodeModel[counterPayload](a.Payload, "action.payload"); err != nil {
			return nil, err
		}
	}
	if in.Amount > 0 && c.n > math.MaxInt64-in.Amount || in.Amount < 0 && c.n < math.MinInt64-in.Amount {
		return nil, a2e.SchemaViolation("action.payload.amount", a2e.ReasonValue)
	}
	c.n += in.Amount
	reward := float64(in.Amount)
	return c.see(&reward), nil
}

func (c *counting) Observe(context.Context) (*Observation, error) { return c.see(nil), nil }

func (c *counting) Close() error { return nil }

// savedCount is an episode between two sessions.
type savedCount struct {
	Goal int64 `a2e:"goal"`
	N    int64 `a2e:"count"`
}

// Save returns the count and the goal.
func (c *counting) Save(context.Context) (json.RawMessage, error) {
	return a2e.EncodeModel(&savedCount{Goal: c.goal, N: c.n})
}

// Restore goes on where an episode was saved.
func (Counter) Restore(_ context.Context, saved json.RawMessage) (Episode, error) {
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
