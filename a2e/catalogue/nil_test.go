// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package catalogue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/learn"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/record"
	"github.com/fivewire/fivewire/a2e/skills"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/a2e/toolkits"
	"github.com/fivewire/fivewire/a2e/tools"
)

// A constructor with a nil argument fails with an error that names it.
func TestNilArgumentsAreErrors(t *testing.T) {
	host := a2etest.NewHost(t, nil)
	agent, _ := a2e.Pipe()
	defer agent.Close()
	cases := map[string]func() error{
		"serve":          func() error { return host.Serve(t.Context(), nil) },
		"serve listener": func() error { return host.ServeListener(t.Context(), nil) },
		"start command":  func() error { _, err := a2e.StartCommand(nil, nil); return err },
		"new client":     func() error { _, err := a2e.NewClient(nil, nil); return err },
		"interceptor": func() error {
			_, err := a2e.NewClient(agent, &a2e.ClientOptions{Interceptors: []a2e.Interceptor{nil}})
			return err
		},
		"middleware": func() error {
			_, err := a2e.NewHost(&a2e.HostOptions{Middleware: []a2e.Middleware{nil}, Auth: a2e.Auth{AllowAnonymous: true}})
			return err
		},
		"http handler": func() error { _, err := a2e.NewHTTPHandler(nil, nil); return err },
		"websocket":    func() error { _, err := a2e.NewWebSocketHandler(nil, nil); return err },
		"verifier": func() error {
			_, err := a2e.BearerAuthenticator(nil).Authenticate(t.Context(), &a2e.HandshakeRequest{AuthToken: "x"})
			return err
		},
		"keys":             func() error { _, err := a2e.APIKeyAuthenticator(nil); return err },
		"principal":        func() error { _, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"key": nil}); return err },
		"call":             func() error { _, err := a2e.CallAs[a2e.Pong](t.Context(), nil, "ping", nil, nil); return err },
		"chains":           func() error { _, err := chains.NewClient(nil); return err },
		"env":              func() error { _, err := env.NewClient(nil); return err },
		"env plugin":       func() error { _, err := env.NewPlugin(map[string]env.Environment{"x": nil}, nil); return err },
		"env reset":        func() error { _, _, err := env.Reset(t.Context(), nil, nil); return err },
		"learn":            func() error { _, err := learn.NewClient(nil); return err },
		"mcp":              func() error { _, err := mcp.NewClient(nil); return err },
		"mcp bridge":       func() error { _, err := mcp.NewBridge(nil, nil); return err },
		"memory":           func() error { _, err := memory.NewClient(nil); return err },
		"memory open":      func() error { _, err := memory.Open(t.Context(), nil, "x"); return err },
		"planning":         func() error { _, err := planning.NewClient(nil); return err },
		"proc":             func() error { _, err := proc.NewClient(nil); return err },
		"skills":           func() error { _, err := skills.NewClient(nil); return err },
		"subagents":        func() error { _, err := subagents.NewClient(nil); return err },
		"subagents plugin": func() error { _, err := subagents.NewPlugin(nil, nil); return err },
		"toolkits":         func() error { _, err := toolkits.NewClient(nil); return err },
		"tools":            func() error { _, err := tools.NewClient(nil); return err },
		"tools call":       func() error { _, err := tools.CallAs[int](t.Context(), nil, "x", nil, nil); return err },
		"record":           func() error { _, err := record.Read(nil); return err },
		"replay":           func() error { return record.Replay(t.Context(), nil, nil, nil) },
		"replay recording": func() error { return record.Replay(t.Context(), agent, nil, nil) },
	}
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			var err error
			require.NotPanics(t, func() { err = f() })
			require.Error(t, err)
			require.NotContains(t, err.Error(), "panic")
		})
	}
}

// A plugin, a route and a tool without their function panic where the program adds them.
func TestNilFunctionsPanicWhenAdded(t *testing.T) {
	route := a2e.NewRoute[struct{}, struct{}]("demo/greet/req", nil)
	event := a2e.NewEventRoute[struct{}]("demo/greet", nil)
	set := a2etest.Must(tools.NewSet(nil))
	cases := map[string]struct {
		add  func()
		want string
	}{
		"plugin": {func() { a2etest.NewHost(t, nil).AddPlugin(nil) }, "a2e: add plugin: no plugin"},
		"route": {func() {
			a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{route}})
		},
			`a2e: no handler of demo/greet/req of plugin "demo"`},
		"event": {func() {
			a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{event}})
		},
			`a2e: no handler of demo/greet of plugin "demo"`},
		"tool": {func() { tools.AddTool[struct{}, int](set, "count", "", nil, nil) }, `tools: the tool "count" does nothing`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { require.PanicsWithValue(t, c.want, c.add) })
	}
}
