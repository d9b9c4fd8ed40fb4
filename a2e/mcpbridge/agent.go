// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore SA1019 servers still support the deprecated features of MCP

package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// client returns the MCP client of a connection. It forwards notifications (A2E-126) and requests
// of the server to the agent (A2E-127, A2E-128).
func (s *server) client(subs *acks) *sdk.Client {
	o := &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ToolListChangedHandler: func(_ context.Context, r *sdk.ToolListChangedRequest) {
			s.forgetTools()
			s.notify("notifications/tools/list_changed", r.Params)
		},
		PromptListChangedHandler: func(_ context.Context, r *sdk.PromptListChangedRequest) {
			s.notify("notifications/prompts/list_changed", r.Params)
		},
		ResourceListChangedHandler: func(_ context.Context, r *sdk.ResourceListChangedRequest) {
			s.notify("notifications/resources/list_changed", r.Params)
		},
		ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
			s.notify("notifications/resources/updated", r.Params)
		},
		LoggingMessageHandler: func(_ context.Context, r *sdk.LoggingMessageRequest) {
			s.notify("notifications/message", r.Params)
		},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			s.progress(r.Params)
		},
	}
	if !s.c.opts.DisableSampling {
		o.CreateMessageHandler = s.sample
	}
	if !s.c.opts.DisableRoots {
		o.Capabilities.RootsV2 = &sdk.RootCapabilities{}
	}
	c := sdk.NewClient(&sdk.Implementation{Name: "fivewire-a2e", Version: a2e.ProtocolVersion}, o)
	c.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "roots/list" && !s.c.opts.DisableRoots {
				return s.roots(ctx)
			}
			if p, ok := req.GetParams().(*sdk.SubscriptionsAcknowledgedParams); ok {
				subs.note(p)
			}
			return next(ctx, method, req)
		}
	})
	return c
}

// within returns a context that ends with ctx and with the server.
func (s *server) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

var errRefused = errors.New("the agent refuses")

// sample requests an answer of the agent's model.
func (s *server) sample(ctx context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
	ctx, done := s.within(ctx)
	defer done()
	p := r.Params
	q := &mcp.SampleRequest{ServerID: s.config.ServerID, MCPRequestID: a2e.NewID(), SystemPrompt: p.SystemPrompt,
		IncludeContext: p.IncludeContext, MaxTokens: &p.MaxTokens, StopSequences: p.StopSequences}
	if p.Temperature != 0 {
		q.Temperature = &p.Temperature
	}
	for _, m := range p.Messages {
		raw, err := guard.Encode(m)
		if err != nil {
			return nil, err
		}
		q.Messages = append(q.Messages, raw)
	}
	q.ModelPreferences = objectOf(p.ModelPreferences)
	q.Metadata = objectOf(p.Metadata)
	answer, err := s.session.Call(ctx, "mcp/sample/req", q)
	if err != nil {
		return nil, err
	}
	resp, ok := answer.Body.(*mcp.SampleResponse)
	switch {
	case !ok:
		return nil, a2e.ErrUnexpectedResponse
	case resp.Error != "":
		return nil, fmt.Errorf("%w: %s", errRefused, clip(resp.Error, 200))
	}
	// The content is a choice of types, which the SDK reads within its result.
	raw, err := guard.Encode(map[string]any{"role": resp.Role, "model": resp.Model, "stopReason": resp.StopReason, "content": resp.Content})
	if err != nil {
		return nil, err
	}
	var result sdk.CreateMessageResult
	if err := strictjson.Decode(raw, &result); err != nil {
		return nil, fmt.Errorf("mcpbridge: sampling: %w", err)
	}
	return &result, nil
}

// objectOf returns v as text if it is an object.
func objectOf(v any) json.RawMessage {
	raw, err := guard.Encode(v)
	if err != nil || len(raw) == 0 || raw[0] != '{' {
		return nil
	}
	return raw
}

// roots requests the roots of the agent.
func (s *server) roots(ctx context.Context) (*sdk.ListRootsResult, error) {
	ctx, done := s.within(ctx)
	defer done()
	answer, err := s.session.Call(ctx, "mcp/root/list/req", &mcp.RootListRequest{ServerID: s.config.ServerID, MCPRequestID: a2e.NewID()})
	if err != nil {
		return nil, err
	}
	resp, ok := answer.Body.(*mcp.RootListResponse)
	if !ok {
		return nil, a2e.ErrUnexpectedResponse
	}
	result := &sdk.ListRootsResult{Roots: []*sdk.Root{}}
	for _, raw := range resp.Roots {
		root, err := a2e.DecodeModel[mcp.Root](raw, "roots")
		if err != nil {
			return nil, err
		}
		result.Roots = append(result.Roots, &sdk.Root{URI: root.URI, Name: root.Name})
	}
	return result, nil
}
