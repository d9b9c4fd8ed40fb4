// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otela2e_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/otela2e"
	"github.com/fivewire/fivewire/a2e/skills"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/telemetry/telemetrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The call of a tool is one trace from the agent to the function, without content.
func TestOneTrace(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otela2e.New(&otela2e.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	set := a2etest.Must(tools.NewSet(nil))
	var inner trace.SpanContext
	var correlation string
	tools.AddTool(set, "upper", "Writes in capitals", func(ctx context.Context, call *a2e.Call, in struct{ Text string }) (string, error) {
		inner, correlation = trace.SpanContextFromContext(ctx), call.CorrelationID()
		if in.Text == "" {
			return "", &a2e.Error{Code: a2e.ErrTool, Message: "secret text"}
		}
		return in.Text, nil
	}, nil)
	set.Add(tools.Tool{Definition: tools.Definition{Name: "crash"}, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { panic("secret text") }})
	host := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{tel.Middleware()}}, set.Plugin())
	client := a2etest.Connect(t, host, &a2e.ClientOptions{Interceptors: []a2e.Interceptor{tel.Interceptor()}})
	tc, err := tools.NewClient(client)
	require.NoError(t, err)
	req := &tools.CallRequest{ToolName: "upper", Arguments: []byte(`{"Text":"secret text"}`)}
	_, err = tc.Call(t.Context(), req, nil)
	require.NoError(t, err)
	require.Empty(t, req.CorrelationID, "the request of the caller is not changed")

	r.RequireTrace(t, "client execute_tool upper", "server execute_tool upper")
	require.Equal(t, r.Spans()["server execute_tool upper"].SpanContext().SpanID(), inner.SpanID())
	r.RequireAttribute(t, "server execute_tool upper", "gen_ai.tool.name", "upper")
	r.RequireAttribute(t, "client execute_tool upper", "network.protocol.name", "a2e")

	req.CorrelationID = "turn-7"
	_, err = tc.Call(t.Context(), req, nil)
	require.NoError(t, err)
	require.Equal(t, "turn-7", correlation, "a correlation id of the caller is kept")
	_, err = tc.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.NotNil(t, r.Spans()["server tool/list/req"])
	_, err = tc.Call(t.Context(), &tools.CallRequest{ToolName: "absent", Arguments: []byte(`{}`)}, nil)
	require.Error(t, err)
	r.RequireAttribute(t, "client execute_tool absent", "error.type", string(a2e.Code("unknown_tool")))
	_, err = tc.Call(t.Context(), &tools.CallRequest{ToolName: "crash", Arguments: []byte(`{}`)}, nil)
	require.Error(t, err)
	r.RequireAttribute(t, "server execute_tool crash", "error.type", "panic")
	r.RequireNoContent(t, "secret text")

	registration, err := tel.Observe(host)
	require.NoError(t, err)
	points, values := r.Metrics(t)
	require.Positive(t, points["fivewire.resource.used"])
	require.Positive(t, points["gen_ai.client.operation.duration"])
	require.Positive(t, points["gen_ai.server.request.duration"])
	require.Contains(t, values, "fivewire.a2e.dropped")
	require.NoError(t, registration.Unregister())
}

// A propagator that ignores the trace context of an agent starts another trace.
func TestPropagators(t *testing.T) {
	r := telemetrytest.New()
	agent, err := otela2e.New(&otela2e.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	server, err := otela2e.New(&otela2e.Options{TracerProvider: r.Traces, MeterProvider: r.Meters, Propagator: propagation.NewCompositeTextMapPropagator()})
	require.NoError(t, err)
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "one", "", func(context.Context, *a2e.Call, struct{}) (int, error) { return 1, nil }, nil)
	host := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{server.Middleware()}}, set.Plugin())
	client := a2etest.Connect(t, host, &a2e.ClientOptions{Interceptors: []a2e.Interceptor{agent.Interceptor()}})
	_, err = a2etest.Must(tools.NewClient(client)).Call(t.Context(), &tools.CallRequest{ToolName: "one", Arguments: []byte(`{}`)}, nil)
	require.NoError(t, err)
	spans := r.Spans()
	require.NotEqual(t, spans["client execute_tool one"].SpanContext().TraceID(), spans["server execute_tool one"].SpanContext().TraceID())
}

// A call that panics has a span, as a failure.
func TestPanics(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otela2e.New(&otela2e.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	require.Panics(t, func() {
		_, _ = tel.Interceptor()(func(context.Context, string, any, *a2e.CallOptions) (*a2e.Message, error) { panic("secret") })(
			t.Context(), "tool/list/req", nil, nil)
	})
	r.RequireAttribute(t, "client tool/list/req", "error.type", "panic")
}

// The call of a skill, and that of a chain with it, is one trace from the agent to the skill.
func TestOneTraceOfSkillsAndChains(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otela2e.New(&otela2e.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	var inner trace.SpanContext
	set := a2etest.Must(skills.NewSet(nil)).Add(skills.Skill{Definition: skills.Definition{Name: "s"}, Run: func(ctx context.Context, _ *skills.Run) (any, error) {
		inner = trace.SpanContextFromContext(ctx)
		return 1, nil
	}})
	chain := a2etest.Must(chains.NewPlugin(&chains.Options{Skill: set.Execute}))
	host := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{tel.Middleware()}}, set.Plugin(), chain)
	client := a2etest.Connect(t, host, &a2e.ClientOptions{Interceptors: []a2e.Interceptor{tel.Interceptor()}})
	_, err = a2etest.Must(skills.NewClient(client)).Call(t.Context(), &skills.CallRequest{Name: "s"}, nil)
	require.NoError(t, err)
	r.RequireTrace(t, "client skill/call/req", "server skill/call/req")
	require.Equal(t, r.Spans()["server skill/call/req"].SpanContext().SpanID(), inner.SpanID())
	_, err = a2etest.Must(chains.NewClient(client)).Run(t.Context(), &chains.Request{EntryNode: "n", Nodes: []chains.Node{{NodeID: "n", Kind: "skill", Name: "s"}}}, nil)
	require.NoError(t, err)
	r.RequireTrace(t, "client chain/req", "server chain/req")
	require.Equal(t, r.Spans()["server chain/req"].SpanContext().SpanID(), inner.SpanID())
}
