// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/env/envtest"
	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/store"
)

// notes is a plugin whose state is one text. It counts its calls.
type notes struct {
	Text string `json:"text,omitzero" jsonmap:"always"`
}

type note struct{ text string }

type noteRequest struct {
	Text string `json:"text,omitzero" jsonmap:"always"`
}

type noteResponse struct {
	ReqID  string `json:"req_id,omitzero" jsonmap:"always"`
	Before string `json:"before,omitzero" jsonmap:"always"`
}

func notesPlugin(own store.KV) *a2e.Plugin {
	return &a2e.Plugin{Name: "notes", Capability: "notes",
		Open: func(s *a2e.Session) (any, error) {
			_ = s.AgentID() // does not deadlock
			return &note{}, nil
		},
		Snapshot: &a2e.PluginSnapshot{Store: own,
			Save: func(_ context.Context, state any) (json.RawMessage, error) {
				switch text := state.(*note).text; text {
				case "":
					return nil, nil
				case "unsaveable":
					return nil, errors.New("cannot be saved")
				default:
					return a2e.EncodeModel(&notes{text})
				}
			},
			Restore: func(_ context.Context, state any, object json.RawMessage) error {
				kept, err := a2e.DecodeModel[notes](object, "")
				if err != nil {
					return err
				}
				if kept.Text == "unloadable" {
					return errors.New("cannot be restored")
				}
				state.(*note).text = kept.Text
				return nil
			}},
		Routes: []a2e.Route{a2e.NewRoute("notes/write/req", func(_ context.Context, call *a2e.Call, r *noteRequest) (*noteResponse, error) {
			n := call.PluginState().(*note)
			before := n.text
			n.text = r.Text
			return &noteResponse{Before: before}, nil
		})},
	}
}

// visit runs one session of an agent, which writes a note and returns the previous one.
func visit(t *testing.T, h *a2e.Host, agent, text string) (string, error) {
	return visitWith(t, h, &a2e.ClientOptions{AgentID: agent}, text)
}

func visitWith(t *testing.T, h *a2e.Host, opts *a2e.ClientOptions, text string) (string, error) {
	x, y := a2e.Pipe()
	served := make(chan error, 1)
	go func() { served <- h.Serve(context.Background(), y) }()
	defer func() { <-served }()
	opts.Capabilities, opts.Types = []string{"notes"}, []a2e.Type{a2e.TypeOf[noteResponse]("notes/write/resp")}
	c := a2etest.Must(a2e.NewClient(x, opts))
	defer c.Close()
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	resp, err := a2e.CallAs[noteResponse](t.Context(), c, "notes/write/req", &noteRequest{text}, nil)
	if err != nil {
		return "", err
	}
	return resp.Before, nil
}

// Each mode keeps states where it says (A2E-148, A2E-149).
func TestSnapshotModes(t *testing.T) {
	for _, tt := range []struct {
		mode           string
		own            bool
		atHost, atOwn  bool
		rememberedNext string
	}{
		{"", false, true, false, "first"},
		{"host", true, true, false, "first"},
		{"plugin", true, false, true, "first"},
		{"plugin", false, false, false, ""},
		{"hybrid", true, false, true, "first"},
		{"hybrid", false, true, false, "first"},
	} {
		t.Run(string(tt.mode), func(t *testing.T) {
			atHost, atOwn := store.NewMemory(), store.NewMemory()
			var own store.KV
			if tt.own {
				own = atOwn
			}
			h := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: atHost, SnapshotMode: tt.mode}}).AddPlugin(notesPlugin(own))
			before, err := visit(t, h, "ann", "first")
			require.NoError(t, err)
			require.Empty(t, before)
			before, err = visit(t, h, "ann", "second")
			require.NoError(t, err)
			require.Equal(t, tt.rememberedNext, before, "a session finds what the one before left, however soon it comes")
			before, err = visit(t, h, "bob", "other")
			require.NoError(t, err)
			require.Empty(t, before, "another agent finds nothing")
			_, err = plugin.Place{KV: atHost, Key: "agent ann"}.Load(t.Context(), "notes")
			require.Equal(t, tt.atHost, err == nil)
			_, err = plugin.Place{KV: atOwn, Key: "agent ann"}.Load(t.Context(), "notes")
			require.Equal(t, tt.atOwn, err == nil)
			_, err = visit(t, h, "ann", "")
			require.NoError(t, err)
			_, err = plugin.Place{KV: atHost, Key: "agent ann"}.Load(t.Context(), "notes")
			require.ErrorIs(t, err, store.ErrNotFound, "what is empty is not kept")
		})
	}
}

// A state that cannot be restored is not overwritten, and a state that cannot be saved does not
// delay the end of the session (A2E-148).
func TestSnapshotFailures(t *testing.T) {
	kept := store.NewMemory()
	h := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: kept}}).AddPlugin(notesPlugin(nil))
	_, err := visit(t, h, "ann", "unloadable")
	require.NoError(t, err)
	for range 2 {
		_, err = visit(t, h, "ann", "new")
		require.ErrorIs(t, err, a2e.ErrRuntime)
	}
	object, err := plugin.Place{KV: kept, Key: "agent ann"}.Load(t.Context(), "notes")
	require.NoError(t, err)
	require.JSONEq(t, `{"text":"unloadable"}`, string(object))
	require.NoError(t, plugin.Place{KV: kept, Key: "agent ann"}.Save(t.Context(), "notes", nil))
	_, err = visit(t, h, "ann", "good")
	require.NoError(t, err)
	_, err = visit(t, h, "ann", "unsaveable")
	require.NoError(t, err)
	before, err := visit(t, h, "ann", "x")
	require.NoError(t, err)
	require.Equal(t, "good", before, "the one before is still there")
	secretive := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: kept, SnapshotKey: func(*a2e.Session) string { return "" }}}).AddPlugin(notesPlugin(nil))
	before, err = visit(t, secretive, "ann", "y")
	require.NoError(t, err)
	require.Empty(t, before)
}

// A session can be saved and cleared while it lasts (A2E-148).
func TestSnapshotNow(t *testing.T) {
	kept := store.NewMemory()
	h := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: kept, SnapshotKey: func(s *a2e.Session) string { return "team" }}})
	h.AddPlugin(notesPlugin(nil)).AddPlugin(&a2e.Plugin{Name: "keeper", Capability: "notes", Routes: []a2e.Route{
		a2e.NewRoute("notes/keep/req", func(ctx context.Context, call *a2e.Call, _ *noteRequest) (*noteResponse, error) {
			return nil, call.Session.SaveSnapshots(ctx)
		}),
		a2e.NewRoute("notes/clear/req", func(ctx context.Context, call *a2e.Call, _ *noteRequest) (*noteResponse, error) {
			return nil, call.Session.DeleteSnapshots(ctx)
		}),
	}})
	c := connect(t, h, "notes")
	for _, step := range []string{"notes/keep/req", "notes/write/req", "notes/keep/req"} {
		_, err := c.Call(t.Context(), step, &noteRequest{"now"}, nil)
		require.NoError(t, err)
	}
	object, err := plugin.Place{KV: kept, Key: "team"}.Load(t.Context(), "notes")
	require.NoError(t, err)
	require.JSONEq(t, `{"text":"now"}`, string(object))
	_, err = c.Call(t.Context(), "notes/clear/req", &noteRequest{}, nil)
	require.NoError(t, err)
	_, err = plugin.Place{KV: kept, Key: "team"}.Load(t.Context(), "notes")
	require.ErrorIs(t, err, store.ErrNotFound)
}

// Deleted snapshots are those of all plugins, also of one that cannot restore its own and of one that was not used.
func TestDeletedSnapshotsAreOfAllPlugins(t *testing.T) {
	kept := store.NewMemory()
	h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Persistence: a2e.Persistence{Snapshots: kept}}, notesPlugin(nil))
	for _, isUsed := range []bool{true, false} {
		_, err := visit(t, h, "ann", "unloadable")
		require.NoError(t, err)
		c := a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "ann"})
		if isUsed {
			_, err = c.Call(t.Context(), "notes/write/req", &noteRequest{}, nil)
			require.ErrorIs(t, err, a2e.ErrRuntime)
		}
		require.NoError(t, h.Sessions()[0].DeleteSnapshots(t.Context()))
		_, err = plugin.Place{KV: kept, Key: "agent ann"}.Load(t.Context(), "notes")
		require.ErrorIs(t, err, store.ErrNotFound)
		require.NoError(t, c.Close())
		before, err := visit(t, h, "ann", "")
		require.NoError(t, err)
		require.Empty(t, before)
	}
}

func connect(t *testing.T, h *a2e.Host, caps ...string) *a2e.Client {
	x, y := a2e.Pipe()
	serve(t, h, y)
	c := a2etest.Must(a2e.NewClient(x, &a2e.ClientOptions{AgentID: "ann", Capabilities: caps, Types: append(planning.Types(), env.Types()...)}))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	return c
}

// A state belongs to the principal, whatever agent id a session claims (A2E-D22).
func TestSnapshotsAreOfTheirPrincipal(t *testing.T) {
	keys := a2etest.Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"key of ann": {ID: "ann"}, "key of bob": {ID: "bob"}}))
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys},
		Persistence: a2e.Persistence{Snapshots: store.NewMemory()}}, notesPlugin(nil))
	for _, step := range []struct{ key, agent, before string }{
		{"key of ann", "one", ""}, {"key of bob", "one", ""}, {"key of ann", "two", "by key of ann"},
	} {
		before, err := visitWith(t, h, &a2e.ClientOptions{AgentID: step.agent, Token: step.key}, "by "+step.key)
		require.NoError(t, err)
		require.Equal(t, step.before, before, step)
	}
}

// Plans and episodes outlive their sessions (A2E-148).
func TestPluginsSaveThemselves(t *testing.T) {
	kept := store.NewMemory()
	h := func() *a2e.Host { // a new process each time
		return a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: kept}}).AddPlugin(a2etest.Must(planning.NewPlugin(nil))).
			AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": envtest.Counter{}}, nil)))
	}
	c := connect(t, h(), "planning", "env")
	ask := func(msgType string, body any) string {
		m, err := c.Call(t.Context(), msgType, body, nil)
		require.NoError(t, err)
		text, err := (&a2e.Codec{}).Append(nil, m)
		require.NoError(t, err)
		return string(text)
	}
	ask("planning/plan/create", &planning.PlanCreateRequest{Name: "p", Columns: []string{"a", "b"}})
	ask("planning/task/add", &planning.TaskAddRequest{PlanID: "plan-1", Title: "t", Metadata: json.RawMessage(`{"n":123456789012345678901}`)})
	reset := new(env.ResetRequest)
	reset.EnvName = "counter"
	ask("env/reset/req", reset)
	step := &env.StepRequest{EpisodeID: "ep-1", Action: json.RawMessage(`{"action_type":"inc","payload":{"amount":4}}`)}
	ask("env/step/req", step)
	before := ask("planning/plan/board", &planning.PlanBoardRequest{})
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { // another host does not wait for the end of this session
		_, err1 := plugin.Place{KV: kept, Key: "agent ann"}.Load(t.Context(), "env")
		_, err2 := plugin.Place{KV: kept, Key: "agent ann"}.Load(t.Context(), "planning")
		return err1 == nil && err2 == nil
	}, 10*time.Second, time.Millisecond)
	object, err := plugin.Place{KV: kept, Key: "agent ann"}.Load(t.Context(), "planning")
	require.NoError(t, err)
	require.Contains(t, string(object), "123456789012345678901")

	c = connect(t, h(), "planning", "env")
	after := ask("planning/plan/board", &planning.PlanBoardRequest{})
	_, before, _ = strings.Cut(before, `"boards":`)
	_, after, _ = strings.Cut(after, `"boards":`)
	require.Equal(t, before, after)
	require.Contains(t, ask("planning/task/add", &planning.TaskAddRequest{PlanID: "plan-1", Title: "u"}), `"task_id":"task-2"`)
	require.Contains(t, ask("env/step/req", step), `{"count":8}`)
	require.Contains(t, ask("env/exp/list/req", new(env.ExpListRequest)), `"next_state":{"count":4}`)
}

// A Save that ignores its context keeps the states of no other plugin, and is listed.
func TestSlowSaveDelaysNoOtherPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := time.Hour
		deaf := &a2e.Plugin{Name: "deaf", Capability: "demo", Open: func(*a2e.Session) (any, error) { return &struct{}{}, nil },
			Snapshot: &a2e.PluginSnapshot{Save: func(context.Context, any) (json.RawMessage, error) {
				time.Sleep(wait)
				return json.RawMessage("{}"), nil
			}, Restore: func(context.Context, any, json.RawMessage) error { return errors.New("nothing is stored") }},
			Routes: []a2e.Route{a2e.NewRoute("demo/ask/req", func(context.Context, *a2e.Call, *noteRequest) (*noteResponse, error) { return nil, nil })}}
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Persistence: a2e.Persistence{Snapshots: store.NewMemory()}}, notesPlugin(nil), deaf)
		agent, host := a2e.Pipe()
		served := make(chan error, 1)
		go func() { served <- h.Serve(context.Background(), host) }()
		c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{AgentID: "ann", Capabilities: []string{"notes", "demo"}}))
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		for _, name := range []string{"demo/ask/req", "notes/write/req"} {
			_, err = c.Call(t.Context(), name, &noteRequest{"first"}, nil)
			require.NoError(t, err)
		}
		start := time.Now()
		require.NoError(t, c.Close())
		require.NoError(t, <-served)
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		before, err := visit(t, h, "ann", "second")
		require.NoError(t, err)
		require.Equal(t, "first", before)
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		time.Sleep(2 * time.Second)
		require.Equal(t, "snapshot of plugin deaf", h.Stuck()[0].Type)
		time.Sleep(time.Hour)
		require.Empty(t, h.Stuck())
		wait = 0
		_, err = a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "ann"}).Call(t.Context(), "demo/ask/req", &noteRequest{}, nil)
		require.NoError(t, err, "the late object is not stored")
	})
}
