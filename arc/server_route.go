// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// route finds the instance that handles a call, and may take a place there.
func (s *Server) route(ctx context.Context, call *Call, follows bool) *Error {
	router := s.engine.Router
	e := call.entry
	if e.AgentID == call.TargetAgent { // no group
		call.Agent = e.AgentID
		if follows {
			return nil
		}
		if _, err := router.Take(e.AgentID, "", true); err != nil {
			return asError(err)
		}
		call.x.place.Enter(router, e.AgentID)
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
	id, err := router.Take(call.TargetAgent, bound, !follows)
	if err != nil {
		return asError(err)
	}
	call.Agent = id
	if !follows {
		call.x.place.Enter(router, id)
	}
	if call.entry = s.registry.lookup(id); call.entry != nil {
		call.method = (*call.entry.methods.Load())[call.Method]
	}
	if call.entry == nil || call.method == nil {
		return methodFault(call.TargetAgent, call.Method)
	}
	return nil
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

// boundTo returns the instance that owns the work that a call to a group is
// about.
func (s *Server) boundTo(ctx context.Context, call *Call, kind, id string) (string, error) {
	owner, err := s.engine.Router.OwnerOf(ctx, call.x.request(call), kind, id)
	if l, isKnown := s.engine.Router.Load(owner); err == nil && owner != "" && !(isKnown && l.IsHealthy) {
		return s.unavailableOwner(ctx, call, kind, id, owner)
	}
	switch {
	case err != nil || owner != "":
		return owner, err
	case kind != "taskId":
		return s.bindAgain(ctx, call, id)
	}
	// A task that was started under the name of its agent.
	agent, err := s.engine.Tasks.AgentOf(ctx, id)
	if err != nil || agent == "" {
		return "", err
	}
	if e := s.registry.lookup(agent); e != nil && e.Group == call.TargetAgent {
		return agent, nil
	}
	return "", nil
}

// unavailableOwner returns an instance that takes no calls if it has the task or chat of a call. The binding of one that
// has been removed is removed, too, so that its id may be used again. A custom handler may have work that the server does
// not know.
func (s *Server) unavailableOwner(ctx context.Context, call *Call, kind, id, owner string) (string, error) {
	if call.method.builtin != ofTasks && call.method.builtin != ofChats {
		return owner, nil
	}
	q := call.x.request(call)
	q.Agent = owner
	var isFound bool
	var err error
	if kind == "chatId" {
		isFound, err = s.engine.Chats.Has(ctx, q, id)
	} else {
		var agent string
		agent, err = s.engine.Tasks.AgentOf(ctx, id)
		isFound = agent != ""
	}
	if isFound || err != nil {
		return owner, err
	}
	return "", s.engine.Router.UnbindWork(ctx, q, kind, id)
}

// bindAgain returns the instance that has a chat, which may be open for longer than its binding lasts.
func (s *Server) bindAgain(ctx context.Context, call *Call, id string) (string, error) {
	q := call.x.request(call)
	for _, q.Agent = range s.engine.Router.Members(call.TargetAgent) {
		isFound, err := s.engine.Chats.Has(ctx, q, id)
		if err == nil && isFound {
			err = s.engine.Router.BindWork(ctx, q, "chatId", id)
		}
		if err != nil || isFound {
			return q.Agent, err
		}
	}
	return "", nil
}

// bindResult binds the work that a custom handler of an instance began.
func (s *Server) bindResult(ctx context.Context, call *Call, body []byte) error {
	v := strictjson.Value(body)
	for _, kind := range [][2]string{{"task", "taskId"}, {"chat", "chatId"}} {
		if id, _ := v.Get(kind[0]).Get(kind[1]).Text(); id != "" {
			return s.engine.Router.BindWork(ctx, call.x.request(call), kind[1], id)
		}
	}
	return nil
}
