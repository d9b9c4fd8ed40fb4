// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/arc"
)

// The agents and fixtures of the ARC reference, section g.1.

var arcTaskOnly = []string{arc.MethodTaskNotification}

// arcFixtureOptions are the options of a server of that fixture.
func arcFixtureOptions(fixture string) (*arc.ServerOptions, error) {
	o := &arc.ServerOptions{ID: "arc-server", Path: "/arc", Timing: arc.Timing{Heartbeat: -1}}
	switch fixture {
	case "open":
	case "auth":
		o.Verifier = arc.TokenVerifierFunc(arcFixtureToken)
	case "limits":
		o.Limits.MaxMessage = 1024
	case "rate":
		o.Limits.RateLimit = &arc.RateLimit{PerSecond: 1, Burst: 3}
	default:
		return nil, fmt.Errorf("there is no fixture %q", fixture)
	}
	return o, nil
}

func arcFixtureToken(_ context.Context, token string) (*arc.Principal, error) {
	p := &arc.Principal{ID: token}
	scope := ""
	switch token {
	case "full", "bound":
		scope = "arc.task.controller arc.chat.controller arc.agent.caller arc.task.notify arc.agent.receiver"
	case "task":
		scope = "arc.task.controller arc.agent.caller"
	case "chat":
		scope = "arc.chat.controller arc.agent.caller"
	case "caller":
		scope = "arc.agent.caller"
	case "expired":
		return nil, arc.ErrTokenExpired
	default:
		return nil, arc.ErrTokenInvalid
	}
	if token == "bound" {
		p.AgentID = "agent-a"
	}
	p.Scopes = strings.Fields(scope)
	return p, nil
}

// arcFixtureAgents registers the five agents.
func arcFixtureAgents(s *arc.Server) {
	info := func(id string) arc.AgentInfo {
		word, _, _ := strings.Cut(id, "-")
		return arc.AgentInfo{AgentID: id, Version: "1.0.0", Status: "active", Capabilities: []string{word}}
	}
	s.Register(arc.Agent{
		AgentInfo: info("echo-01"),
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			text := run.Message().Text()
			if err := run.AddArtifact(ctx, &arc.Artifact{ID: "artifact-1", Name: "echo", Parts: []arc.Part{arc.TextPart(text)}}); err != nil {
				return err
			}
			return run.AddMessage(ctx, arc.AgentText(text))
		}),
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			for piece := range strings.SplitAfterSeq("echo: "+turn.Message.Text(), " ") {
				if piece == "" {
					continue
				}
				if err := out.Send(piece); err != nil {
					return err
				}
			}
			return nil
		}),
		NotificationHandler: arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }),
		Methods: map[string]arc.Handler{
			"debug.echo": arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
				return map[string]any{"params": call.Params, "method": call.Method, "requestAgent": call.RequestAgent, "traceId": call.TraceID}, nil
			}),
			"debug.fail": arc.HandlerFunc(arcDebugFail),
			"debug.panic": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
				panic("asked for by debug.panic")
			}),
			"debug.list": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return []int{1}, nil }),
		},
	})
	s.Register(arc.Agent{
		AgentInfo:       info("ask-01"),
		ExcludedMethods: arcTaskOnly,
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			if err := run.AddMessage(ctx, arc.AgentText("Which one?")); err != nil {
				return err
			}
			m, err := run.WaitInput(ctx, "text")
			if err != nil {
				return err
			}
			return run.AddArtifact(ctx, &arc.Artifact{ID: "artifact-1", Name: "answer",
				Parts: []arc.Part{arc.TextPart(run.Message().Text() + " / " + m.Text())}})
		}),
	})
	s.Register(arc.Agent{
		AgentInfo:       info("slow-01"),
		ExcludedMethods: arcTaskOnly,
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}),
	})
	s.Register(arc.Agent{
		AgentInfo:       info("fail-01"),
		ExcludedMethods: append([]string{arc.MethodChatMessage, arc.MethodChatEnd}, arcTaskOnly...),
		TaskHandler: arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
			return &arc.Error{Code: arc.ErrTaskExecutionFailed, Message: "boom"}
		}),
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			details, err := json.Marshal(map[string]string{"chatId": turn.ChatID})
			if err != nil {
				return err
			}
			if turn.Stream {
				if err := out.Send("partial "); err != nil {
					return err
				}
			}
			return &arc.Error{Code: arc.ErrChatTimeout, Message: "too slow", Details: details}
		}),
	})
	s.Register(arc.Agent{
		AgentInfo:      info("once-01"),
		StatelessChats: true,
		ChatHandler: arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			return arc.AgentText("once: " + turn.Message.Text()), nil
		}),
	})
}

func arcDebugFail(_ context.Context, call *arc.Call) (any, error) {
	var p struct {
		Code    arc.Code        `json:"code"`
		Message string          `json:"message"`
		Details json.RawMessage `json:"details"`
	}
	if err := call.Decode(&p); err != nil {
		return nil, err
	}
	return nil, &arc.Error{Code: p.Code, Message: p.Message, Details: p.Details}
}
