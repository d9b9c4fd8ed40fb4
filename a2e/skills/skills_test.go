// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/skills"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSet() *skills.Set {
	category := "text"
	set := a2etest.Must(skills.NewSet(&skills.Options{OverrideAuthorizer: func(_ context.Context, _ *a2e.Call, c *skills.LLMConfig) bool {
		return c.ProviderName == "good"
	}}))
	set.Add(skills.Skill{
		Definition: skills.Definition{Name: "sum", Tags: []string{"a"}, Category: &category,
			InputSchema: json.RawMessage(`{"type":"object","required":["x"]}`),
			LLMConfig:   &skills.LLMConfig{ProviderName: "p", ProviderCredentials: json.RawMessage(`{"key":"s3cret"}`), Extra: a2etest.Must(a2e.ParseMembers([]byte(`{"api_key":"s3cret"}`)))}},
		Run: func(_ context.Context, r *skills.Run) (any, error) {
			if err := r.Emit(a2e.EventStatus, map[string]string{"message": "half"}); err != nil {
				return nil, err
			}
			return map[string]int{"len": len(r.Arguments)}, nil
		}})
	set.Add(skills.Skill{Definition: skills.Definition{Name: "bad"}, Run: func(context.Context, *skills.Run) (any, error) {
		return nil, errors.New("no luck")
	}})
	set.Add(skills.Skill{Definition: skills.Definition{Name: "soft"}, Run: func(context.Context, *skills.Run) (any, error) {
		text := "soft failure"
		return &skills.Result{Error: &text}, nil
	}})
	set.Add(skills.Skill{Definition: skills.Definition{Name: "raw"}, Run: func(context.Context, *skills.Run) (any, error) {
		return json.RawMessage(`[1.0]`), nil
	}})
	set.Add(skills.Skill{Definition: skills.Definition{Name: "old", Status: skills.StatusArchived}, Run: func(context.Context, *skills.Run) (any, error) {
		return nil, nil
	}})
	return set
}

// Discovery, calls, events in the stream and in the result (A2E-113, A2E-114,
// A2E-115), and no credentials on the wire (A2E-151).
func TestSkills(t *testing.T) {
	client := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(newSet().Plugin()), &a2e.ClientOptions{Capabilities: []string{"skills"}})
	require.True(t, client.HasCapability("skill"), "the alias is answered canonically (A2E-D23)")
	c, err := skills.NewClient(client)
	require.NoError(t, err)
	ctx := t.Context()
	all, err := c.Discover(ctx, nil, nil)
	require.NoError(t, err)
	require.Len(t, all.Skills, 4)
	require.Equal(t, &skills.LLMConfig{ProviderName: "p", ProviderCredentials: json.RawMessage("{}")}, all.Skills[0].LLMConfig)
	some, err := c.Discover(ctx, &skills.DiscoverRequest{FilterTags: []string{"z", "a"}, FilterCategories: []string{"text"}}, nil)
	require.NoError(t, err)
	require.Len(t, some.Skills, 1)

	call := func(name, args string, change func(*skills.CallRequest)) (*skills.CallResponse, int, error) {
		r := new(skills.CallRequest)
		r.Name, r.Arguments = name, json.RawMessage(args)
		if change != nil {
			change(r)
		}
		n := 0
		resp, err := c.Call(ctx, r, &a2e.CallOptions{OnEvent: func(a2e.Event) { n++ }})
		return resp, n, err
	}
	resp, n, err := call("sum", `{"x":1}`, nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, resp.Data.Events, 1)
	require.JSONEq(t, `{"len":7}`, string(resp.Data.Data))
	resp, n, err = call("sum", `{"x":1}`, func(r *skills.CallRequest) { r.Streaming = new(false) })
	require.NoError(t, err)
	require.Zero(t, n)
	require.Len(t, resp.Data.Events, 1)
	resp, _, err = call("raw", `{}`, nil)
	require.NoError(t, err)
	require.Equal(t, `[1.0]`, string(resp.Data.Data))
	_, _, err = call("sum", `{}`, nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	require.ErrorContains(t, err, "arguments has a value that is not allowed: ")
	require.ErrorContains(t, err, "required")
	_, _, err = call("old", `{}`, nil)
	require.ErrorIs(t, err, a2e.ErrUnknownSkill)
	_, _, err = call("bad", `{}`, nil)
	require.ErrorIs(t, err, a2e.ErrSkill)
	require.ErrorContains(t, err, "no luck")
	resp, _, err = call("soft", `{}`, nil)
	require.ErrorIs(t, err, a2e.ErrSkill)
	require.ErrorContains(t, err, "soft failure")
	require.False(t, resp.Data.Success)
	override := func(provider string) func(*skills.CallRequest) {
		return func(r *skills.CallRequest) {
			r.LLMOverride = &skills.LLMConfig{ProviderName: provider, ProviderCredentials: json.RawMessage(`{}`)}
		}
	}
	_, _, err = call("raw", `{}`, override("good"))
	require.NoError(t, err)
	_, _, err = call("raw", `{}`, override("evil"))
	require.ErrorIs(t, err, a2e.ErrUnauthorized)
}

func TestExecute(t *testing.T) {
	set := newSet()
	out, err := set.Execute(t.Context(), &a2e.Call{Message: a2e.NewMessage("chain/req", nil)}, "raw", json.RawMessage(`{}`))
	require.NoError(t, err)
	require.Equal(t, `[1.0]`, string(out))
	_, err = set.Execute(t.Context(), nil, "soft", json.RawMessage(`{}`))
	require.ErrorContains(t, err, "soft failure")
	_, err = set.Execute(t.Context(), nil, "none", json.RawMessage(`{}`))
	require.ErrorIs(t, err, a2e.ErrUnknownSkill)
	require.Panics(t, func() { set.Add(skills.Skill{}) })
	require.Panics(t, func() {
		set.Add(skills.Skill{Definition: skills.Definition{Name: "x", InputSchema: json.RawMessage(`{`)},
			Run: func(context.Context, *skills.Run) (any, error) { return nil, nil }})
	})
}

// A result that a skill hands out again and again stays as it is, and events may
// have no data (A2E-115).
func TestSharedResult(t *testing.T) {
	shared := &skills.Result{Success: true, Events: make([]a2e.Message, 0, 8)}
	set := a2etest.Must(skills.NewSet(nil))
	set.Add(skills.Skill{Definition: skills.Definition{Name: "cached"}, Run: func(_ context.Context, r *skills.Run) (any, error) {
		if err := r.Emit(a2e.EventStatus, nil); err != nil {
			return nil, err
		}
		if err := r.Emit(a2e.EventStatus, "no object"); err == nil {
			return nil, errors.New("event with data that is not an object accepted")
		}
		return shared, nil
	}})
	c, err := skills.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil))
	require.NoError(t, err)
	for range 2 {
		r := new(skills.CallRequest)
		r.Name = "cached"
		resp, err := c.Call(t.Context(), r, nil)
		require.NoError(t, err)
		require.Len(t, resp.Data.Events, 1)
		require.JSONEq(t, `{}`, string(resp.Data.Events[0].Body.(*a2e.EventBody).Data))
	}
	require.Empty(t, shared.Events)
}

// An event that is too large for the agent is the error of the skill, and not a part of the result (A2E-D57).
func TestTooLargeEventIsNoPartOfResult(t *testing.T) {
	set := a2etest.Must(skills.NewSet(nil))
	set.Add(skills.Skill{Definition: skills.Definition{Name: "talk"}, Run: func(_ context.Context, r *skills.Run) (any, error) {
		require.ErrorIs(t, r.Emit("log", map[string]string{"message": strings.Repeat("x", 5000)}), a2e.ErrTooLarge)
		return nil, r.Emit("log", map[string]string{"message": "short"})
	}})
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxOutput: 2000}}).AddPlugin(set.Plugin())
	c := a2etest.Must(skills.NewClient(a2etest.Connect(t, h, nil)))
	resp, err := c.Call(t.Context(), &skills.CallRequest{Name: "talk", Streaming: new(true)}, nil)
	require.NoError(t, err)
	require.Len(t, resp.Data.Events, 1)
}

// The result repeats the events with the numbers and in the order in which they were sent (A2E-115), also those that
// several goroutines emit, and numbers them itself if none was sent.
func TestEventsOfResultAreThoseSent(t *testing.T) {
	set := a2etest.Must(skills.NewSet(nil))
	set.Add(skills.Skill{Definition: skills.Definition{Name: "talk"}, Run: func(_ context.Context, r *skills.Run) (any, error) {
		if err := r.Call.Emit(a2e.EventStatus, map[string]int{"goroutine": -1}); err != nil {
			return nil, err
		}
		var work errgroup.Group
		for g := range 4 {
			work.Go(func() error {
				for n := range 100 {
					if err := r.Emit("log", map[string]int{"goroutine": g, "n": n}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return nil, work.Wait()
	}})
	c := a2etest.Must(skills.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, set.Plugin()), nil)))
	for _, streaming := range []bool{true, false} {
		var sent []string
		text := func(e *a2e.EventBody) string { return fmt.Sprintf("%d %s %s", e.Seq, e.Kind, e.Data) }
		resp, err := c.Call(t.Context(), &skills.CallRequest{Name: "talk", Streaming: &streaming}, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
			body := e.Header()
			sent = append(sent, text(&body))
		}})
		require.NoError(t, err)
		var repeated []string
		for i, e := range resp.Data.Events {
			body := e.Body.(*a2e.EventBody)
			repeated = append(repeated, text(body))
			if !streaming {
				require.EqualValues(t, i, body.Seq)
			}
		}
		require.Len(t, repeated, 400)
		if streaming {
			require.Equal(t, sent[1:], repeated)
		}
	}
}

// A skill in a chain sends its events as events of the chain.
func TestSkillOfChainEmits(t *testing.T) {
	set := a2etest.Must(skills.NewSet(nil))
	set.Add(skills.Skill{Definition: skills.Definition{Name: "talk"}, Run: func(_ context.Context, r *skills.Run) (any, error) {
		return 7, r.Emit("log", map[string]string{"message": "half"})
	}})
	plugin := a2etest.Must(chains.NewPlugin(&chains.Options{Skill: set.Execute}))
	c := a2etest.Must(chains.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, plugin), nil)))
	for _, streaming := range []bool{true, false} {
		var kinds []string
		resp, err := c.Run(t.Context(), &chains.Request{Streaming: &streaming, EntryNode: "a",
			Nodes: []chains.Node{{NodeID: "a", Kind: chains.NodeSkill, Name: "talk"}}}, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
			require.Equal(t, "chain/event", e.Type)
			kinds = append(kinds, e.Header().Kind)
		}})
		require.NoError(t, err)
		require.Equal(t, "7", string(resp.FinalOutput))
		if streaming {
			require.Equal(t, []string{"status", "log", "status"}, kinds)
		} else {
			require.Empty(t, kinds)
		}
	}
}
