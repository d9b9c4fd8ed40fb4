// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelaccp_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/accp"
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

// A handler that panics has a span, as a failure.
func TestPanics(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelaccp.New(&otelaccp.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	require.Panics(t, func() {
		_ = tel.Middleware()(accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { panic("secret") })).
			ServeACCP(t.Context(), nil, &accp.Message{Intent: accp.IntentReq, Op: "fail"})
	})
	r.RequireAttribute(t, "server req:fail", "error.type", "panic")
}
