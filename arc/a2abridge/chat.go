// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
)

// isChat reports whether a message is for the chats of an agent: it names no task, and the agent has chats only.
func (s *Server) isChat(req *a2a.SendMessageRequest) bool {
	agent := s.opts.Tenants[req.Tenant]
	return req.Message != nil && req.Message.TaskID == "" &&
		!front.HasMethod(s.engine, agent, arc.MethodTaskCreate) && front.HasMethod(s.engine, agent, arc.MethodChatStart)
}

// chat gives a message to the chat that its contextId names, or to a new one, and returns the answer.
func (s *Server) chat(ctx context.Context, req *a2a.SendMessageRequest) (*a2a.Message, error) {
	m := req.Message
	message, err := messageOf(m)
	switch {
	case err != nil:
		return nil, err
	case req.Config != nil && req.Config.PushConfig != nil:
		return nil, fmt.Errorf("%w: the agent has no tasks", a2a.ErrPushNotificationNotSupported)
	}
	start := call{method: arc.MethodChatStart, tenant: req.Tenant, key: "chat.start/" + m.ID,
		params: &arc.StartChatParams{ChatID: m.ContextID, InitialMessage: message}}
	res, err := s.result(ctx, start)
	if m.ContextID != "" && hasBegun(err) {
		res, err = s.result(ctx, call{method: arc.MethodChatMessage, tenant: req.Tenant, key: "chat.message/" + m.ID,
			params: &arc.ChatMessageParams{ChatID: m.ContextID, Message: message}})
	}
	if err != nil {
		return nil, refusalOf(arc.MethodChatMessage, err)
	}
	answer := res.Chat
	out := fromMessage(cmp.Or(answer.Message, arc.AgentText("")), a2a.TaskInfo{ContextID: answer.ID}, 0)
	out.ID = cmp.Or(messageID(answer.Message), m.ID+"-answer")
	return out, nil
}

// hasBegun reports whether the error of chat.start is that of an id in use.
func hasBegun(err error) bool {
	e, ok := errors.AsType[*arc.Error](err)
	return ok && e.Code == arc.ErrInvalidParams && bytes.Contains(e.Details, []byte(`"chatId"`))
}

// result makes a call and returns its result, or the *arc.Error of the arc.Server.
func (s *Server) result(ctx context.Context, c call) (*arc.Result, error) {
	in, err := s.request(ctx, c)
	if err != nil {
		return nil, err
	}
	res := s.engine.ServeMessage(ctx, in, nil)
	if res.Error != nil {
		return nil, res.Error
	}
	answer, err := arc.DecodeResponse(res.Data, "")
	if err != nil {
		return nil, err
	}
	return arc.DecodeResult(c.method, answer.Result)
}
