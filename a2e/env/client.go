// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the environments of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// Reset sends "env/reset/req" and returns the answer.
func (c *Client) Reset(ctx context.Context, r *ResetRequest, opts *a2e.CallOptions) (*ResetResponse, error) {
	return a2e.CallAs[ResetResponse](ctx, c.client, "env/reset/req", r, opts)
}

// Step sends "env/step/req" and returns the answer.
func (c *Client) Step(ctx context.Context, r *StepRequest, opts *a2e.CallOptions) (*StepResponse, error) {
	return a2e.CallAs[StepResponse](ctx, c.client, "env/step/req", r, opts)
}

// Observe sends "env/observe/req" and returns the answer.
func (c *Client) Observe(ctx context.Context, r *ObserveRequest, opts *a2e.CallOptions) (*ObserveResponse, error) {
	return a2e.CallAs[ObserveResponse](ctx, c.client, "env/observe/req", r, opts)
}

// Close sends "env/close/req" and returns the answer.
func (c *Client) Close(ctx context.Context, r *CloseRequest, opts *a2e.CallOptions) (*CloseResponse, error) {
	return a2e.CallAs[CloseResponse](ctx, c.client, "env/close/req", r, opts)
}

// GetSpace sends "env/space/req" and returns the answer.
func (c *Client) GetSpace(ctx context.Context, r *SpaceRequest, opts *a2e.CallOptions) (*SpaceResponse, error) {
	return a2e.CallAs[SpaceResponse](ctx, c.client, "env/space/req", r, opts)
}

// Render sends "env/render/req" and returns the answer.
func (c *Client) Render(ctx context.Context, r *RenderRequest, opts *a2e.CallOptions) (*RenderResponse, error) {
	return a2e.CallAs[RenderResponse](ctx, c.client, "env/render/req", r, opts)
}

// GetPlan sends "env/plan/req" and returns the answer.
func (c *Client) GetPlan(ctx context.Context, r *PlanRequest, opts *a2e.CallOptions) (*PlanResponse, error) {
	return a2e.CallAs[PlanResponse](ctx, c.client, "env/plan/req", r, opts)
}

// BatchStep sends "env/batch_step/req" and returns the answer.
func (c *Client) BatchStep(ctx context.Context, r *BatchStepRequest, opts *a2e.CallOptions) (*BatchStepResponse, error) {
	return a2e.CallAs[BatchStepResponse](ctx, c.client, "env/batch_step/req", r, opts)
}

// ListExperience sends "env/exp/list/req" and returns the answer.
func (c *Client) ListExperience(ctx context.Context, r *ExpListRequest, opts *a2e.CallOptions) (*ExpListResponse, error) {
	return a2e.CallAs[ExpListResponse](ctx, c.client, "env/exp/list/req", r, opts)
}

// Reset starts an episode of an environment of the host, and returns its first observation. Its
// methods may be called from one goroutine at a time. Close fails if the host does not know the episode.
func Reset(ctx context.Context, c *a2e.Client, r *ResetRequest) (Episode, *Observation, error) {
	client, err := NewClient(c)
	if err != nil {
		return nil, nil, err
	}
	answer, err := client.Reset(ctx, r, nil)
	if err != nil {
		return nil, nil, err
	}
	return &remoteEpisode{client: client, id: answer.Obs.EpisodeID}, &answer.Obs, nil
}

type remoteEpisode struct {
	client *Client
	id     string
}

func (e *remoteEpisode) Step(ctx context.Context, a *Action) (*Observation, error) {
	action, err := a2e.EncodeModel(a)
	if err != nil {
		return nil, err
	}
	answer, err := e.client.Step(ctx, &StepRequest{EpisodeID: e.id, Action: action}, nil)
	if err != nil {
		return nil, err
	}
	return &answer.Obs, nil
}

func (e *remoteEpisode) Observe(ctx context.Context) (*Observation, error) {
	answer, err := e.client.Observe(ctx, &ObserveRequest{EpisodeID: e.id}, nil)
	if err != nil {
		return nil, err
	}
	return &answer.Obs, nil
}

func (e *remoteEpisode) Close() error {
	_, err := e.client.Close(context.Background(), &CloseRequest{EpisodeID: e.id}, nil)
	return err
}
