// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package catalogue_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/learn"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/skills"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/a2e/toolkits"
	"github.com/fivewire/fivewire/a2e/tools"
)

// answering returns a client of a host that answers each request type with a body.
func answering(t *testing.T, bodies map[string]any) *a2e.Client {
	plugins := map[string]*a2e.Plugin{}
	for _, ty := range catalogue.Types() {
		body, ok := bodies[ty.Name]
		if !ok {
			continue
		}
		if plugins[ty.Capability] == nil {
			plugins[ty.Capability] = &a2e.Plugin{Name: ty.Capability, Capability: ty.Capability, Types: catalogue.Types()}
		}
		p := plugins[ty.Capability]
		p.Routes = append(p.Routes, a2e.Route{Type: ty, Handler: a2e.HandlerFunc(func(context.Context, *a2e.Call) (any, error) { return body, nil })})
	}
	h := a2etest.NewHost(t, nil)
	for _, p := range plugins {
		h.AddPlugin(p)
	}
	return a2etest.Connect(t, h, nil)
}

// An answer that reports a failure comes with an error of the client, whose details have the successful part
// (A2E-D63).
func TestAnswersOfFailuresAreErrors(t *testing.T) {
	no := "no luck"
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	c := answering(t, map[string]any{
		"proc/spawn/req":                &proc.SpawnResponse{Error: no},
		"proc/write/req":                &proc.WriteResponse{Error: no},
		"proc/kill/req":                 &proc.KillResponse{State: "running"},
		"proc/status/req":               &proc.StatusResponse{Status: "lost", Error: no},
		"tool/call/req":                 &tools.CallResponse{Data: tools.Result{ToolName: "t", Error: &no, Data: raw(`{"n":1}`)}},
		"skill/call/req":                &skills.CallResponse{Name: "s", Data: &skills.Result{Error: &no, ErrorCode: new("odd"), Data: raw(`[2]`)}},
		"chain/req":                     &chains.Response{Outputs: raw(`{"a":1}`), Error: raw(`{"code":"unknown_tool","message":"no luck","reason":"why"}`)},
		"mcp/server/register/req":       &mcp.ServerRegisterResponse{Error: no},
		"mcp/server/unregister/req":     &mcp.ServerUnregisterResponse{},
		"mcp/resource/read/req":         &mcp.ResourceReadResponse{Error: no, Contents: []json.RawMessage{raw(`{"uri":"u"}`)}},
		"mcp/resource/subscribe/req":    &mcp.ResourceSubscribeResponse{Error: no},
		"mcp/prompt/get/req":            &mcp.PromptGetResponse{Error: no},
		"planning/plan/create":          &planning.PlanCreateResponse{},
		"planning/task/add":             &planning.TaskAddResponse{},
		"planning/task/update":          &planning.TaskUpdateResponse{},
		"multi_agent/delegate":          &subagents.DelegateResponse{Accepted: new(false), Status: "RUNNING"},
		"multi_agent/await":             &subagents.AwaitResponse{Status: "FAILED", Error: &no, Result: raw(`{"half":1}`)},
		"multi_agent/terminate":         &subagents.TerminateResponse{},
		"SUBAGENT_DELEGATE_REQ":         &subagents.SubagentDelegateResponse{Accepted: new(false), Status: "RUNNING"},
		"SUBAGENT_AWAIT_REQ":            &subagents.SubagentAwaitResponse{SubagentID: "x", Status: "FAILED", Error: &no},
		"SUBAGENT_MESSAGE_REQ":          &subagents.SubagentMessageResponse{Delivered: new(false)},
		"learn/refinement/apply/req":    &learn.RefinementApplyResponse{RefinementID: "r", AppliedEdits: 2, FailedEdits: 1},
		"learn/refinement/rollback/req": &learn.RefinementRollbackResponse{Error: no},
		"toolkit/configure/req":         &toolkits.ConfigureResponse{Status: "error", Message: &no},
	})
	ctx := t.Context()
	check := func(isAnswer bool, err error, code a2e.Code, message, details string) {
		t.Helper()
		require.True(t, isAnswer)
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, []string{string(code), message}, []string{string(e.Code), e.Message})
		require.True(t, e.Remote)
		require.NotEmpty(t, e.Capability)
		if details == "" {
			require.Empty(t, e.Details)
			return
		}
		require.JSONEq(t, details, string(e.Details))
	}
	p, err := proc.NewClient(c)
	require.NoError(t, err)
	spawned, err := p.Spawn(ctx, nil, nil)
	check(spawned != nil, err, a2e.ErrRuntime, no, "")
	wrote, err := p.Write(ctx, nil, nil)
	check(wrote != nil, err, a2e.ErrRuntime, no, "")
	killed, err := p.Kill(ctx, nil, nil)
	check(killed != nil, err, a2e.ErrRuntime, "the process was not killed", `{"state":"running"}`)
	status, err := p.GetStatus(ctx, nil, nil)
	check(status != nil, err, a2e.ErrRuntime, no, `{"status":"lost"}`)

	tool, err := tools.NewClient(c)
	require.NoError(t, err)
	called, err := tool.Call(ctx, &tools.CallRequest{ToolName: "t", Arguments: raw(`{}`)}, nil)
	check(called != nil, err, a2e.ErrTool, no, `{"data":{"n":1}}`)
	skill, err := skills.NewClient(c)
	require.NoError(t, err)
	ran, err := skill.Call(ctx, nil, nil)
	check(ran != nil, err, "odd", no, `{"data":[2]}`)
	chain, err := chains.NewClient(c)
	require.NoError(t, err)
	done, err := chain.Run(ctx, nil, nil)
	check(done != nil, err, a2e.ErrUnknownTool, no, `{"outputs":{"a":1}}`)
	kits, err := toolkits.NewClient(c)
	require.NoError(t, err)
	configured, err := kits.Configure(ctx, nil, nil)
	check(configured != nil, err, a2e.ErrRuntime, no, `{"status":"error"}`)

	servers, err := mcp.NewClient(c)
	require.NoError(t, err)
	registered, err := servers.RegisterServer(ctx, nil, nil)
	check(registered != nil, err, a2e.ErrRuntime, no, "")
	removed, err := servers.UnregisterServer(ctx, nil, nil)
	check(removed != nil, err, a2e.ErrRuntime, "the server was not removed", "")
	read, err := servers.ReadResource(ctx, nil, nil)
	check(read != nil, err, a2e.ErrRuntime, no, `{"contents":[{"uri":"u"}]}`)
	subscribed, err := servers.SubscribeResource(ctx, nil, nil)
	check(subscribed != nil, err, a2e.ErrRuntime, no, "")
	prompt, err := servers.GetPrompt(ctx, nil, nil)
	check(prompt != nil, err, a2e.ErrRuntime, no, `{"messages":[]}`)

	plans, err := planning.NewClient(c)
	require.NoError(t, err)
	created, err := plans.CreatePlan(ctx, nil, nil)
	check(created != nil, err, a2e.ErrRuntime, "the plan was not created", "")
	added, err := plans.AddTask(ctx, nil, nil)
	check(added != nil, err, a2e.ErrRuntime, "the task was not added", "")
	updated, err := plans.UpdateTask(ctx, nil, nil)
	check(updated != nil, err, a2e.ErrRuntime, "the task was not updated", "")

	agents, err := subagents.NewClient(c)
	require.NoError(t, err)
	delegated, err := agents.Delegate(ctx, nil, nil)
	check(delegated != nil, err, a2e.ErrRuntime, "the task was not accepted", `{"status":"RUNNING"}`)
	awaited, err := agents.Await(ctx, nil, nil)
	check(awaited != nil, err, a2e.ErrRuntime, no, `{"status":"FAILED","result":{"half":1}}`)
	terminated, err := agents.Terminate(ctx, nil, nil)
	check(terminated != nil, err, a2e.ErrRuntime, "the subagent was not terminated", "")
	own, err := agents.DelegateSubagent(ctx, nil, nil)
	check(own != nil, err, a2e.ErrRuntime, "the task was not accepted", `{"status":"RUNNING"}`)
	failed, err := agents.AwaitSubagent(ctx, nil, nil)
	check(failed != nil, err, a2e.ErrRuntime, no, `{"status":"FAILED"}`)
	sent, err := agents.MessageSubagent(ctx, &subagents.SubagentMessageRequest{Message: subagents.Payload{Content: raw(`1`)}}, nil)
	check(sent != nil, err, a2e.ErrRuntime, "the message was not delivered", "")

	learning, err := learn.NewClient(c)
	require.NoError(t, err)
	applied, err := learning.ApplyRefinement(ctx, nil, nil)
	check(applied != nil, err, a2e.ErrRuntime, "edits failed", `{"applied_edits":2,"refinement_id":"r"}`)
	back, err := learning.RollbackRefinement(ctx, nil, nil)
	check(back != nil, err, a2e.ErrRuntime, no, "")
}
