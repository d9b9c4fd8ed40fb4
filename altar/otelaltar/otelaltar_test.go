// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelaltar_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/altar/otelaltar"
	"github.com/fivewire/fivewire/internal/telemetry/telemetrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const manifest = `{"version":"1.0.0","contracts":[{"name":"upper","description":"Writes in capitals","parameters":[{"name":"text","type":"string"}]},
	{"name":"words","description":"Streams words","streaming":true,"parameters":[]}]}`

// A call and a stream are one trace each from the client over the Host to the tool, without content.
func TestOneTrace(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelaltar.New(&otelaltar.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	contracts, err := altar.DecodeManifest([]byte(manifest))
	require.NoError(t, err)
	host, err := altar.NewHost(contracts, &altar.HostOptions{Auth: altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}})
	require.NoError(t, err)
	defer host.Close()
	runtime, err := altar.NewRuntime("text-01", &altar.RuntimeOptions{Middleware: []altar.Middleware{tel.Middleware()},
		StreamMiddleware: []altar.StreamMiddleware{tel.StreamMiddleware()}})
	require.NoError(t, err)
	var inner trace.SpanContext
	runtime.Handle("upper", altar.HandlerFunc(func(ctx context.Context, _ *altar.ToolCall) (any, error) {
		inner = trace.SpanContextFromContext(ctx)
		return "secret text", nil
	}))
	runtime.HandleStream("words", altar.StreamHandlerFunc(func(_ context.Context, _ *altar.ToolCall, out *altar.ChunkWriter) error {
		return out.Send("secret text")
	}))
	conn, err := host.Dial(&altar.Principal{ID: "runtime"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runtime.Run(ctx, conn) }()
	defer func() { stop(); <-done }()
	altartest.WaitTools(t, host, 2)

	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "me"}) },
		&altar.ClientOptions{Interceptors: []altar.Interceptor{tel.Interceptor()}})
	require.NoError(t, err)
	defer client.Close()
	session, err := client.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	_, err = session.Call(t.Context(), "upper", map[string]string{"text": "secret text"}, nil)
	require.NoError(t, err)
	words := tel.Stream(t.Context(), session, "words", map[string]string{}, nil)
	for _, err := range words {
		require.NoError(t, err)
	}
	for _, err := range words {
		require.ErrorContains(t, err, "ranged over once only")
	}
	require.Panics(t, func() {
		for range tel.Stream(t.Context(), session, "panic", map[string]string{}, nil) {
			panic("secret")
		}
	})
	_, err = session.Call(t.Context(), "absent", map[string]string{}, nil)
	require.ErrorIs(t, err, altar.ErrToolNotFound)

	r.RequireTrace(t, "client execute_tool upper", "server execute_tool text-01/upper")
	r.RequireTrace(t, "client execute_tool words", "server execute_tool text-01/words")
	require.Equal(t, r.Spans()["server execute_tool text-01/upper"].SpanContext().SpanID(), inner.SpanID())
	r.RequireAttribute(t, "server execute_tool text-01/upper", "gen_ai.tool.name", "text-01/upper")
	r.RequireAttribute(t, "server execute_tool text-01/upper", "gen_ai.conversation.id", session.ID())
	r.RequireAttribute(t, "client execute_tool panic", "error.type", "panic")
	r.RequireAttribute(t, "client execute_tool absent", "error.type", "TOOL_NOT_FOUND")
	r.RequireNoContent(t, "secret text")

	registration, err := tel.Observe(host)
	require.NoError(t, err)
	points, values := r.Metrics(t)
	require.Positive(t, points["fivewire.resource.used"])
	require.EqualValues(t, 2, values["fivewire.altar.dispatched"])
	require.NoError(t, registration.Unregister())
}

// A propagator that ignores the trace context of a client starts another trace.
func TestPropagators(t *testing.T) {
	for name, p := range map[string]propagation.TextMapPropagator{"default": nil, "none": propagation.NewCompositeTextMapPropagator()} {
		t.Run(name, func(t *testing.T) {
			r := telemetrytest.New()
			client, err := otelaltar.New(&otelaltar.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
			require.NoError(t, err)
			runtime, err := otelaltar.New(&otelaltar.Options{TracerProvider: r.Traces, MeterProvider: r.Meters, Propagator: p})
			require.NoError(t, err)
			tool := runtime.Middleware()(altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) { return nil, nil }))
			call := client.Interceptor()(func(_ context.Context, _ *altar.Session, tl string, _ any, opts *altar.CallOptions) (*altar.Result, error) {
				_, err := tool.ServeALTAR(t.Context(), &altar.ToolCall{ToolName: tl, Metadata: opts.Metadata})
				return nil, err
			})
			_, err = call(t.Context(), &altar.Session{}, "upper", nil, nil)
			require.NoError(t, err)
			if name == "default" {
				r.RequireTrace(t, "client execute_tool upper", "server execute_tool upper")
				return
			}
			spans := r.Spans()
			require.NotEqual(t, spans["client execute_tool upper"].SpanContext().TraceID(), spans["server execute_tool upper"].SpanContext().TraceID())
		})
	}
}

// A tool and a call that panic have a span, as a failure.
func TestPanics(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelaltar.New(&otelaltar.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	require.Panics(t, func() {
		_, _ = tel.Middleware()(altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) { panic("secret") })).
			ServeALTAR(t.Context(), &altar.ToolCall{ToolName: "one"})
	})
	require.Panics(t, func() {
		_ = tel.StreamMiddleware()(altar.StreamHandlerFunc(func(context.Context, *altar.ToolCall, *altar.ChunkWriter) error { panic("secret") })).
			ServeALTARStream(t.Context(), &altar.ToolCall{ToolName: "two"}, nil)
	})
	require.Panics(t, func() {
		_, _ = tel.Interceptor()(func(context.Context, *altar.Session, string, any, *altar.CallOptions) (*altar.Result, error) {
			panic("secret")
		})(
			t.Context(), &altar.Session{}, "three", nil, nil)
	})
	for _, span := range []string{"server execute_tool one", "server execute_tool two", "client execute_tool three"} {
		r.RequireAttribute(t, span, "error.type", "panic")
	}
}
