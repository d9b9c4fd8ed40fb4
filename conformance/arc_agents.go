// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc"
)

// arcCounters are the counters of a fixture. They outlive its servers.
type arcCounters struct {
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

// add counts one more and returns the new count. A killed process counts
// nothing.
func (c *arcCounters) add(g *gate, name string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := g.check(); err != nil {
		return 0, err
	}
	c.counts[name]++
	return c.counts[name], nil
}

func (c *arcCounters) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[name]
}

// arcFurtherAgents are the agents that most fixtures have besides the plain
// ones, in one process.
type arcFurtherAgents struct {
	gate     *gate
	counters *arcCounters
}

func (a *arcFurtherAgents) register(s *arc.Server) {
	s.Register(arc.Agent{AgentInfo: arcFixtureInfo("steps-01"), ExcludedMethods: arcTaskOnly, TaskHandler: arc.TaskHandlerFunc(a.steps)})
	s.Register(arc.Agent{AgentInfo: arcFixtureInfo("twice-01"), ExcludedMethods: arcTaskOnly, TaskHandler: arc.TaskHandlerFunc(arcTwiceTask)})
	s.Register(arc.Agent{AgentInfo: arcFixtureInfo("drip-01"), ChatHandler: arc.ChatHandlerFunc(arcDripChat)})
	s.Register(arc.Agent{AgentInfo: arcFixtureInfo("tally-01"), ChatHandler: arc.ChatReplyFunc(arcTallyChat)})
	s.Register(arc.Agent{
		AgentInfo:       arcFixtureInfo("more-01"),
		ExcludedMethods: arcTaskOnly,
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			return arcRemoteError(ctx, &arc.Error{Code: arc.ErrPermissionDenied, Message: run.Message().Text()})
		}),
		Methods: map[string]arc.Handler{
			"debug.flaky": arc.HandlerFunc(a.flaky),
			"debug.remote": arc.HandlerFunc(func(ctx context.Context, call *arc.Call) (any, error) {
				e, err := arcDebugError(call)
				if err != nil {
					return nil, err
				}
				return nil, arcRemoteError(ctx, e)
			}),
			"debug.opaque": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return arcOpaque{}, nil }),
		},
	})
}

// steps runs the task of steps-01.
func (a *arcFurtherAgents) steps(ctx context.Context, run *arc.TaskRun) error {
	words := strings.Split(run.Message().Text(), " ")
	for _, word := range words {
		_, err := arc.Step(ctx, run, word, func(ctx context.Context, _ string) (int, error) {
			n, err := a.counters.add(a.gate, "step "+word)
			if err != nil {
				return 0, err
			}
			return n, arcPause(ctx, time.Second)
		})
		if err != nil {
			return err
		}
		if err := run.AddMessage(ctx, arc.AgentText("did "+word)); err != nil {
			return err
		}
	}
	counts := make([]string, len(words))
	for i, word := range words {
		counts[i] = word + "=" + strconv.Itoa(a.counters.get("step "+word))
	}
	return run.AddArtifact(ctx, arcArtifact("counts", strings.Join(counts, " ")))
}

func (a *arcFurtherAgents) flaky(_ context.Context, call *arc.Call) (any, error) {
	var p struct {
		Key   string   `json:"key"`
		Times int      `json:"times"`
		Code  arc.Code `json:"code"`
	}
	if err := call.Decode(&p); err != nil {
		return nil, err
	}
	n, err := a.counters.add(a.gate, "flaky "+p.Key)
	if err != nil {
		return nil, err
	}
	if n <= p.Times {
		return nil, &arc.Error{Code: p.Code, Message: "flaky"}
	}
	return map[string]int{"calls": n}, nil
}

// arcPause waits, or returns the cause of the end of ctx.
func arcPause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func arcTwiceTask(ctx context.Context, run *arc.TaskRun) error {
	var answers []string
	for i, question := range []string{"First?", "Second?"} {
		if i > 0 {
			if err := arcPause(ctx, 5*time.Second); err != nil {
				return err
			}
		}
		if err := run.AddMessage(ctx, arc.AgentText(question)); err != nil {
			return err
		}
		m, err := run.WaitInput(ctx, "text")
		if err != nil {
			return err
		}
		answers = append(answers, m.Text())
	}
	return run.AddArtifact(ctx, arcArtifact("answers", strings.Join(answers, " / ")))
}

func arcDripChat(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	text := turn.Message.Text()
	if !turn.Stream {
		return out.Send(text)
	}
	for i, piece := range strings.SplitAfter(text, " ") {
		if i > 0 {
			if err := arcPause(ctx, time.Second); err != nil {
				return err
			}
		}
		if err := out.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

func arcTallyChat(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
	if turn.Message.Text() == "fail" {
		return nil, &arc.Error{Code: arc.ErrInvalidChatMessage}
	}
	history, err := turn.History(ctx)
	if err != nil {
		return nil, err
	}
	if err := arcPause(ctx, 100*time.Millisecond); err != nil {
		return nil, err
	}
	return arc.AgentText(strconv.Itoa(len(history))), nil
}

// arcRemoteError asks another server by a client of the package. That server
// answers with e, and the client's error is returned wrapped.
func arcRemoteError(ctx context.Context, e *arc.Error) error {
	remote, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		return err
	}
	remote.Handle("b-01", "debug.fail", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return nil, e }))
	defer func() { _ = remote.Close() }()
	c, err := arc.NewClient("https://b.test/arc", "more-01", &arc.ClientOptions{
		HTTPClient: &http.Client{Transport: handlerTransport{remote}},
	})
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, "b-01", "debug.fail", json.RawMessage(`{}`), nil)
	return fmt.Errorf("asking b: %w", err)
}

// A handlerTransport answers requests by a handler in the same process.
type handlerTransport struct{ handler http.Handler }

func (t handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	t.handler.ServeHTTP(w, req)
	return w.Result(), nil
}

// arcOpaque cannot be encoded.
type arcOpaque struct{}

func (arcOpaque) MarshalJSON() ([]byte, error) { panic("an opaque value") }
