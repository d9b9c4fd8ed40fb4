// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"context"
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// treeRoutes serve the older family SUBAGENT_* with the same subagents (A2E-D49).
func (k *keeper) treeRoutes() []a2e.Route {
	return []a2e.Route{
		a2e.NewRoute("SUBAGENT_SPAWN_REQ", k.treeSpawn),
		a2e.NewRoute("SUBAGENT_DELEGATE_REQ", k.treeDelegate),
		a2e.NewRoute("SUBAGENT_AWAIT_REQ", k.treeAwait),
		a2e.NewRoute("SUBAGENT_LIST_REQ", k.treeList),
		a2e.NewRoute("SUBAGENT_MESSAGE_REQ", k.message),
		a2e.NewRoute("SUBAGENT_MERGE_REQ", k.treeMerge),
		quiet("SUBAGENT_CANCEL_REQ", func(c *crew, r *TerminateRequest) error {
			return c.report(r.SubagentID, StatusCancelled)
		}),
		quiet("SUBAGENT_TERMINATE_REQ", func(c *crew, r *TerminateRequest) error {
			return c.report(r.SubagentID, StatusTerminated)
		}),
	}
}

// quiet returns a route of a request without a response type: only a failure is answered.
func quiet[Req any](name string, fn func(c *crew, r *Req) error) a2e.Route {
	return a2e.Route{Type: a2e.TypeOf[Req](name), Handler: a2e.HandlerFunc(func(_ context.Context, call *a2e.Call) (any, error) {
		r, ok := call.Message.Body.(*Req)
		if !ok {
			return nil, a2e.ErrNextPlugin
		}
		if err := fn(call.PluginState().(*crew), r); err != nil {
			return nil, err
		}
		return a2e.NoResponse, nil
	})}
}

// report stops a subagent and sends an event to the agent.
func (c *crew) report(id, status string) error {
	status, err := c.stop(id, status)
	if err != nil {
		return err
	}
	return c.session.Send(c.session.Context(), "SUBAGENT_EVENT",
		&SubagentEvent{SubagentID: id, Event: "status", Content: json.RawMessage(`{"status":"` + status + `"}`)})
}

func (k *keeper) treeSpawn(_ context.Context, call *a2e.Call, r *SubagentSpawnRequest) (*SubagentSpawnResponse, error) {
	parent := ""
	if r.ParentAgentID != nil {
		parent = *r.ParentAgentID
	}
	a, err := k.add(call.PluginState().(*crew), &r.Agent, parent)
	if err != nil {
		return nil, err
	}
	return &SubagentSpawnResponse{SubagentID: a.id, Status: StatusReady}, nil
}

func (k *keeper) treeDelegate(_ context.Context, call *a2e.Call, r *SubagentDelegateRequest) (*SubagentDelegateResponse, error) {
	if _, err := k.begin(call.PluginState().(*crew), r.SubagentID, &r.Task); err != nil {
		return nil, err
	}
	return &SubagentDelegateResponse{Status: StatusRunning}, nil
}

func (k *keeper) treeAwait(ctx context.Context, call *a2e.Call, r *AwaitRequest) (*SubagentAwaitResponse, error) {
	a, err := call.PluginState().(*crew).wait(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	return &SubagentAwaitResponse{SubagentID: a.id, Status: a.status, Result: a.result, Error: textOrNil(a.err)}, nil
}

func (k *keeper) treeList(_ context.Context, call *a2e.Call, _ *ListRequest) (*SubagentListResponse, error) {
	return &SubagentListResponse{Subagents: call.PluginState().(*crew).infos()}, nil
}

// treeMerge joins the results of subagents in one object by their ids. Other strategies need a
// model and are left to the runner.
func (k *keeper) treeMerge(_ context.Context, call *a2e.Call, r *SubagentMergeRequest) (*SubagentMergeResponse, error) {
	c := call.PluginState().(*crew)
	c.mu.Lock()
	defer c.mu.Unlock()
	var merged a2e.OrderedObject[json.RawMessage]
	isMerged := make(map[*agent]bool)
	for _, id := range r.SubagentIDs {
		a, err := c.findLocked(id)
		if err != nil {
			return nil, err
		}
		if isMerged[a] {
			continue
		}
		isMerged[a] = true
		result := a.result
		if result == nil {
			result = json.RawMessage("null")
		}
		merged = append(merged, a2e.Member[json.RawMessage]{Name: id, Value: result})
	}
	text, err := merged.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return &SubagentMergeResponse{MergedResult: text}, nil
}
