// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fivewire/fivewire/internal/telemetry/telemetrytest"
)

func newInstruments(t *testing.T) (*Instruments, *telemetrytest.Recorder) {
	t.Helper()
	r := telemetrytest.New()
	i, err := New("test", "github.com/fivewire/fivewire/test", Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	return i, r
}

// 10,000 methods, targets and types of errors make few names and labels.
func TestNamesAreBounded(t *testing.T) {
	i, r := newInstruments(t)
	for n := range 10_000 {
		id := fmt.Sprint(n)
		ctx, span := i.Start(t.Context(), Call{Method: "m" + id, Target: "t" + id})
		span.Finish(ctx, "e"+id)
		ctx, span = i.Start(t.Context(), Call{Method: "m", Operation: ExecuteTool, Target: "t" + id})
		span.Finish(ctx, "")
	}
	r.RequireNames(t, 2*maxNames+3)
	points, _ := r.Metrics(t)
	require.LessOrEqual(t, points[ServerDuration], int64(2*maxNames+3))
	require.NotNil(t, r.Spans()["internal "+ExecuteTool], "a name without its target")
}

// A peer that sends long names, each another one, makes no long texts.
func TestValuesAreShort(t *testing.T) {
	i, r := newInstruments(t)
	for n := range 10 {
		name := fmt.Sprint(n) + strings.Repeat("\u00e9", 1<<19)
		ctx, span := i.Start(t.Context(), Call{Method: name, Target: name, Attributes: []attribute.KeyValue{attribute.String(ToolName, name)}})
		span.Finish(ctx, name)
	}
	spans := r.Spans()
	require.Len(t, spans, 1)
	for name, span := range spans {
		require.Equal(t, "internal "+other, name)
		for _, a := range span.Attributes() {
			require.LessOrEqual(t, len(a.Value.AsString()), maxValue, a.Key)
			require.True(t, utf8.ValidString(a.Value.AsString()), a.Key)
		}
	}
	require.Empty(t, i.names[Method], "names that are too long are not kept")
}

// Without options the trace context of W3C is used.
func TestInjectAndExtract(t *testing.T) {
	i, r := newInstruments(t)
	ctx, span := i.Start(t.Context(), Call{Kind: trace.SpanKindClient, Method: "a"})
	fields := propagation.MapCarrier{}
	i.Inject(ctx, fields)
	require.Contains(t, fields, "traceparent")
	child, inner := i.Start(i.Extract(context.Background(), fields), Call{Kind: trace.SpanKindServer, Method: "b"})
	inner.Finish(child, "")
	span.Finish(ctx, "")
	r.RequireTrace(t, "client a", "server b")
}

// A propagator of the options without fields reads and writes nothing.
func TestPropagatorWithoutFields(t *testing.T) {
	r := telemetrytest.New()
	i, err := New("test", "github.com/fivewire/fivewire/test",
		Options{TracerProvider: r.Traces, MeterProvider: r.Meters, Propagator: propagation.NewCompositeTextMapPropagator()})
	require.NoError(t, err)
	ctx, span := i.Start(t.Context(), Call{Kind: trace.SpanKindClient, Method: "a"})
	defer span.Finish(ctx, "")
	fields := propagation.MapCarrier{}
	i.Inject(ctx, fields)
	require.Empty(t, fields)
	fields["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	require.False(t, trace.SpanContextFromContext(i.Extract(context.Background(), fields)).IsValid())
}

func TestTypeOf(t *testing.T) {
	none := func(error) string { return "" }
	for want, err := range map[string]error{"": nil, "canceled": fmt.Errorf("x: %w", context.Canceled), "timeout": context.DeadlineExceeded, other: io.EOF} {
		require.Equal(t, want, TypeOf(err, none))
	}
	require.Equal(t, "CODE", TypeOf(errors.New("secret"), func(error) string { return "CODE" }))
}

// Rows and counters are read at each collection, until the registration ends.
func TestObserve(t *testing.T) {
	i, r := newInstruments(t)
	n := int64(0)
	registration, err := i.Observe(func() []Row { return []Row{{"memory", "all", 5, -1}, {"memory", "principal", 2, 9}} },
		func() map[string]int64 { n++; return map[string]int64{"calls": n} })
	require.NoError(t, err)
	points, values := r.Metrics(t)
	require.EqualValues(t, 2, points[UsedMetric])
	require.EqualValues(t, 2, points[LimitMetric])
	require.EqualValues(t, 2, values["fivewire.test.calls"])
	require.NoError(t, registration.Unregister())
	points, _ = r.Metrics(t)
	require.Zero(t, points[UsedMetric])
}

func TestDerived(t *testing.T) {
	a, b := Derived("air", "1"), Derived("air", "2")
	require.True(t, a.IsValid())
	require.NotEqual(t, a.TraceID(), b.TraceID())
	require.Equal(t, a, Derived("air", "1"))
}

// A handler that panics has a span and a duration, as a failure.
func TestRun(t *testing.T) {
	i, r := newInstruments(t)
	none := func(error) string { return "" }
	for name, f := range map[string]func() error{"ok": func() error { return nil }, "bad": func() error { panic("secret") }} {
		ctx, span := i.Start(t.Context(), Call{Method: name})
		func() {
			defer func() { _ = recover() }()
			require.NoError(t, span.Run(ctx, none, f))
		}()
	}
	r.RequireNames(t, 2)
	require.Empty(t, r.Spans()["internal ok"].Status().Code)
	r.RequireAttribute(t, "internal bad", ErrorType, "panic")
	r.RequireNoContent(t, "secret")
	points, _ := r.Metrics(t)
	require.EqualValues(t, 2, points[ServerDuration])
}
