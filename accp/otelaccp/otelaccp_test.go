// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelaccp_test

import (
	"context"
	"iter"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/otelaccp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/telemetry/telemetrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A tool call in a frame is one trace from the client to the function, without content.
func TestOneTrace(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelaccp.New(&otelaccp.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	server, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Middleware: []accp.Middleware{tel.Middleware()}})
	require.NoError(t, err)
	var inner trace.SpanContext
	server.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"upper": func(ctx context.Context, args accp.Params) (accp.Value, error) {
			inner = trace.SpanContextFromContext(ctx)
			return accp.String("secret text"), nil
		},
	}))
	web := httptest.NewServer(server)
	defer web.Close()
	defer server.Close()
	client, err := accp.NewClient(web.URL+accp.FramesPath, "planner", &accp.ClientOptions{Interceptors: []accp.Interceptor{tel.Interceptor()}})
	require.NoError(t, err)
	defer client.Close()
	call := func(name string) error {
		m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: name,
			Arguments: accp.Map(accp.Param{Key: "text", Value: accp.String("secret text")})})
		require.NoError(t, err)
		_, err = client.Call(t.Context(), m, nil)
		require.Nil(t, m.Meta, "the message of the caller is not changed")
		return err
	}
	require.NoError(t, call("upper"))
	require.ErrorIs(t, call("absent"), accp.ErrToolNotFound)

	r.RequireTrace(t, "client execute_tool upper", "server execute_tool upper")
	require.Equal(t, r.Spans()["server execute_tool upper"].SpanContext().SpanID(), inner.SpanID())
	r.RequireAttribute(t, "server execute_tool upper", "gen_ai.tool.name", "upper")
	r.RequireAttribute(t, "client execute_tool absent", "error.type", string(accp.ErrToolNotFound))
	r.RequireNoContent(t, "secret text")

	registration, err := tel.Observe(server)
	require.NoError(t, err)
	session, err := tel.ObserveSession(client.Session())
	require.NoError(t, err)
	points, values := r.Metrics(t)
	require.Positive(t, points["fivewire.resource.used"])
	require.Positive(t, values["fivewire.accp.sent"])
	require.Positive(t, values["fivewire.accp.tokens_out"])
	require.NoError(t, registration.Unregister())
	require.NoError(t, session.Unregister())
}

// A fields is a propagator of one field with a trace and its span.
type fields string

func (f fields) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	s := trace.SpanContextFromContext(ctx)
	c.Set(string(f), s.TraceID().String()+s.SpanID().String())
}

func (f fields) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	traceID, err := trace.TraceIDFromHex(c.Get(string(f))[:32])
	spanID, serr := trace.SpanIDFromHex(c.Get(string(f))[32:])
	if err != nil || serr != nil {
		panic("malformed field")
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled}))
}

func (f fields) Fields() []string { return []string{string(f)} }

// Fields of other propagators become keys of metadata, which have no hyphens, and replace those of a forwarded message. A
// propagator without fields starts another trace.
func TestPropagators(t *testing.T) {
	for name, p := range map[string]propagation.TextMapPropagator{"default": nil, "hyphens": fields("X-Trace-Id"), "plain": fields("b3"),
		"none": propagation.NewCompositeTextMapPropagator()} {
		t.Run(name, func(t *testing.T) {
			r := telemetrytest.New()
			client, err := otelaccp.New(&otelaccp.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
			require.NoError(t, err)
			server, err := otelaccp.New(&otelaccp.Options{TracerProvider: r.Traces, MeterProvider: r.Meters, Propagator: p})
			require.NoError(t, err)
			if name != "none" {
				client = server
			}
			var got *accp.Message
			s, c := accptest.NewPair(t, &accptest.PairOptions{
				Server: &accp.ServerOptions{Middleware: []accp.Middleware{server.Middleware()}},
				Client: &accp.ClientOptions{Interceptors: []accp.Interceptor{client.Interceptor()}}})
			s.Handle(accp.IntentReq, "plan", accp.HandlerFunc(func(_ context.Context, _ *accp.ReplyWriter, m *accp.Message) error {
				got = m
				return nil
			}))
			_, err = c.Call(t.Context(), &accp.Message{Intent: accp.IntentReq, Op: "plan"}, nil)
			require.NoError(t, err)
			spans := r.Spans()
			if name == "none" {
				require.NotEqual(t, spans["client req:plan"].SpanContext().TraceID(), spans["server req:plan"].SpanContext().TraceID())
				return
			}
			r.RequireTrace(t, "client req:plan", "server req:plan")
			_, err = c.Call(t.Context(), &accp.Message{Intent: accp.IntentReq, Op: "plan", Meta: &accp.Meta{Ext: got.Meta.Ext}}, nil)
			require.NoError(t, err)
			require.Len(t, got.Meta.Ext, 1)
		})
	}
}

// The key traceparent costs about 36 tokens.
func TestCostOfTrace(t *testing.T) {
	with, err := accp.MeasureFrame([]byte("@a>req:b{}[mid:0123456789ab,seq:1,ts:1,traceparent:00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01]"), nil)
	require.NoError(t, err)
	without, err := accp.MeasureFrame([]byte("@a>req:b{}[mid:0123456789ab,seq:1,ts:1]"), nil)
	require.NoError(t, err)
	require.InDelta(t, 36, with.Total-without.Total, 4)
}

// A handler that panics has a span, as a failure.
func TestPanics(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelaccp.New(&otelaccp.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	require.Panics(t, func() {
		_ = tel.Middleware()(accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { panic("secret") })).
			ServeACCP(t.Context(), nil, &accp.Message{Intent: accp.IntentReq, Op: "fail"})
	})
	require.Panics(t, func() {
		call := tel.Interceptor()(func(context.Context, *accp.Message, *accp.CallOptions) iter.Seq2[*accp.Message, error] {
			return func(func(*accp.Message, error) bool) { panic("secret") }
		})
		for range call(t.Context(), &accp.Message{Intent: accp.IntentReq, Op: "fail"}, nil) {
			continue
		}
	})
	r.RequireAttribute(t, "client req:fail", "error.type", "panic")
	r.RequireAttribute(t, "server req:fail", "error.type", "panic")
}
