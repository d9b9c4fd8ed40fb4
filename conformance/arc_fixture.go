// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
)

// The agents and fixtures of the ARC reference, section g.1.

var arcTaskOnly = []string{arc.MethodTaskNotification}

// arcFixtures are the fixtures of a serve_script. The first four have the plain
// agents only.
var arcFixtures = []string{
	"open", "auth", "limits", "rate",
	"more", "resume", "window", "small", "timed", "python", "durable", "pair",
}

// arcFixtureOptions returns the options of a server of that fixture.
func arcFixtureOptions(fixture string) (*arc.ServerOptions, error) {
	o := &arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, ID: "arc-server", Path: "/arc", Webhook: &arc.WebhookOptions{}, Timing: arc.Timing{Heartbeat: -1}}
	const window, resume, lease = 10 * time.Minute, 60500 * time.Millisecond, 10 * time.Second
	switch fixture {
	case "open", "more":
	case "auth":
		o.Auth = arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(arcFixtureToken))}
	case "limits":
		o.Limits.MaxMessage = 1024
	case "rate":
		o.Limits.RequestRate, o.Limits.RequestBurst = 1, 3
		o.Limits.RateKey = func(call *arc.Call) string { return call.RequestAgent }
	case "resume":
		o.Persistence.EnableResume, o.Persistence.StreamRetention = true, resume
	case "window":
		o.Persistence.ResultTTL = window
	case "small":
		o.Limits.MaxTasks, o.Limits.MaxTasksPerPrincipal = 1, 1
		o.Limits.TaskQueueLimit, o.Limits.TaskQueueLimitPerPrincipal = 2, 2
	case "timed":
		o.Timing.TaskTimeout, o.Timing.InputTimeout = time.Minute, 2*time.Minute
	case "python":
		o.ProfileFor = func(_ http.Header, requestAgent string) arc.Profile {
			if strings.HasPrefix(requestAgent, "py-") {
				return arc.ProfilePythonSDK
			}
			return ""
		}
	case "durable":
		o.Persistence.LeaseTTL = lease
	case "pair":
		o.Persistence.LeaseTTL, o.Persistence.ResultTTL, o.Persistence.EnableResume, o.Persistence.StreamRetention = lease, window, true, resume
		o.Webhook.Static = []arc.StaticWebhook{{ID: "all", CallbackURL: "https://hooks.test/all", TargetAgent: "ops-01"}}
	default:
		if slices.Contains(arcFixtures, fixture) {
			return nil, fmt.Errorf("package arc has no options for the fixture %q", fixture)
		}
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

// arcFixtureInfo describes an agent: its capability is the word before the dash.
func arcFixtureInfo(id string) arc.AgentInfo {
	word, _, _ := strings.Cut(id, "-")
	return arc.AgentInfo{AgentID: id, Version: "1.0.0", Status: "active", Capabilities: []string{word}}
}

// arcFixtureAgents registers the agents that every fixture has.
func arcFixtureAgents(s *arc.Server) {
	s.Register(arc.Agent{
		AgentInfo:           arcFixtureInfo("echo-01"),
		TaskHandler:         arc.TaskHandlerFunc(arcEchoTask),
		ChatHandler:         arc.ChatHandlerFunc(arcEchoChat),
		NotificationHandler: arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }),
		Methods: map[string]arc.Handler{
			"debug.echo": arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
				return map[string]any{"params": call.Params, "method": call.Method,
					"requestAgent": call.RequestAgent, "traceId": call.TraceID}, nil
			}),
			"debug.fail": arc.HandlerFunc(arcDebugFail),
			"debug.panic": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
				panic("requested by debug.panic")
			}),
			"debug.list": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return []int{1}, nil }),
		},
	})
	s.Register(arc.Agent{AgentInfo: arcFixtureInfo("ask-01"), ExcludedMethods: arcTaskOnly, TaskHandler: arc.TaskHandlerFunc(arcAskTask)})
	s.Register(arc.Agent{
		AgentInfo:       arcFixtureInfo("slow-01"),
		ExcludedMethods: arcTaskOnly,
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}),
	})
	s.Register(arc.Agent{
		AgentInfo:       arcFixtureInfo("fail-01"),
		ExcludedMethods: append([]string{arc.MethodChatMessage, arc.MethodChatEnd}, arcTaskOnly...),
		TaskHandler: arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
			return &arc.Error{Code: arc.ErrTaskExecutionFailed, Message: "boom"}
		}),
		ChatHandler: arc.ChatHandlerFunc(arcFailChat),
	})
	s.Register(arc.Agent{
		AgentInfo:      arcFixtureInfo("once-01"),
		StatelessChats: true,
		ChatHandler: arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			return arc.AgentText("once: " + turn.Message.Text()), nil
		}),
	})
}

func arcEchoTask(ctx context.Context, run *arc.TaskRun) error {
	text := run.Message().Text()
	if err := run.AddArtifact(ctx, arcArtifact("echo", text)); err != nil {
		return err
	}
	return run.AddMessage(ctx, arc.AgentText(text))
}

func arcArtifact(name, text string) *arc.Artifact {
	return &arc.Artifact{ID: "artifact-1", Name: name, Parts: []arc.Part{arc.TextPart(text)}}
}

func arcEchoChat(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	for piece := range strings.SplitAfterSeq("echo: "+turn.Message.Text(), " ") {
		if piece == "" {
			continue
		}
		if err := out.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

func arcAskTask(ctx context.Context, run *arc.TaskRun) error {
	if err := run.AddMessage(ctx, arc.AgentText("Which one?")); err != nil {
		return err
	}
	m, err := run.WaitInput(ctx, "text")
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, arcArtifact("answer", run.Message().Text()+" / "+m.Text()))
}

func arcFailChat(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
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
}

func arcDebugFail(_ context.Context, call *arc.Call) (any, error) {
	e, err := arcDebugError(call)
	if err != nil {
		return nil, err
	}
	return nil, e
}

// arcDebugError returns the error that the params of debug.fail describe.
func arcDebugError(call *arc.Call) (*arc.Error, error) {
	var p struct {
		Code    arc.Code        `json:"code"`
		Message string          `json:"message"`
		Details json.RawMessage `json:"details"`
	}
	if err := call.Decode(&p); err != nil {
		return nil, err
	}
	return &arc.Error{Code: p.Code, Message: p.Message, Details: p.Details}, nil
}
