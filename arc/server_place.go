// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// place finds the instance that handles a call, and may take a place there.
func (s *Server) place(ctx context.Context, call *Call, follows bool) *Error {
	router := s.registry.router
	e := call.entry
	if e.AgentID == call.TargetAgent { // no group
		call.Agent = e.AgentID
		if follows {
			return nil
		}
		if _, err := router.take(e.AgentID, "", true); err != nil {
			return asError(err)
		}
		call.out.place = e.AgentID
		return nil
	}
	kind, key := workOf(call)
	bound := ""
	if key != "" {
		var err error
		if bound, err = s.boundTo(ctx, call, kind, key); err != nil {
			return s.internal(ctx, call, err)
		}
	}
	id, err := router.take(call.TargetAgent, bound, !follows)
	if err != nil {
		return asError(err)
	}
	call.Agent = id
	if !follows {
		call.out.place = id
	}
	if call.entry = s.registry.lookup(id); call.entry != nil {
		call.method = (*call.entry.methods.Load())[call.Method]
	}
	if call.entry == nil || call.method == nil {
		return methodFault(call.TargetAgent, call.Method)
	}
	return nil
}

// releasePlace releases the place of a call. A started task keeps its place until its end.
func (s *Server) releasePlace(x *exchange) {
	if x.place != "" && !x.keeps {
		s.registry.router.Done(x.place)
	}
}

// workOf returns the task or chat of a call to a group. Params have no other
// influence on routing (ARC-008).
func workOf(call *Call) (kind, key string) {
	v, err := wire.Check(call.Params)
	if err != nil {
		return "", ""
	}
	for _, kind := range []string{"taskId", "chatId"} {
		if id, _ := v.Get(kind).Text(); id != "" && len(id) <= wire.MaxID {
			return kind, id
		}
	}
	return "", ""
}

// groupKey makes the key of a group's binding: work is bound per caller.
func groupKey(call *Call, kind, id string) string { return kind + ":" + hashOf(call.principalID(), id) }

func (c *Call) principalID() string {
	if c.Principal == nil {
		return ""
	}
	return c.Principal.ID
}

// boundTo returns the instance that owns the work that a call to a group is
// about.
func (s *Server) boundTo(ctx context.Context, call *Call, kind, id string) (string, error) {
	owner, err := s.registry.router.owner(ctx, call.TargetAgent, groupKey(call, kind, id))
	if err != nil || owner != "" || kind != "taskId" {
		return owner, err
	}
	// A task that was started under the name of its agent.
	agent, err := s.tasks.agentOf(ctx, id)
	if err != nil || agent == "" {
		return "", err
	}
	if e := s.registry.lookup(agent); e != nil && e.Group == call.TargetAgent {
		return agent, nil
	}
	return "", nil
}

// bindWork remembers which instance of a group has the work that a call began.
func (s *Server) bindWork(ctx context.Context, call *Call, kind, id string) error {
	if call.Agent == call.TargetAgent || id == "" {
		return nil
	}
	owner, err := s.registry.router.bind(ctx, call.TargetAgent, groupKey(call, kind, id), call.Agent)
	if err == nil && owner != call.Agent && kind == "chatId" {
		return chatTaken() // another instance was faster
	}
	return err
}

// bindResult binds the work that a custom handler of an instance began.
func (s *Server) bindResult(ctx context.Context, call *Call, body []byte) error {
	v := strictjson.Value(body)
	for _, kind := range [][2]string{{"task", "taskId"}, {"chat", "chatId"}} {
		if id, _ := v.Get(kind[0]).Get(kind[1]).Text(); id != "" {
			return s.bindWork(ctx, call, kind[1], id)
		}
	}
	return nil
}
