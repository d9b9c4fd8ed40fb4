// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package telemetrytest records spans and metrics for the tests of the OpenTelemetry modules.
package telemetrytest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A Recorder has the spans and the metrics of a program.
type Recorder struct {
	Traces *sdktrace.TracerProvider
	Meters *sdkmetric.MeterProvider
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

// New returns a Recorder.
func New() *Recorder {
	r := &Recorder{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	r.Traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	r.Meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	return r
}

// Spans returns the ended spans by their kinds and names; of several equal ones, the last.
func (r *Recorder) Spans() map[string]sdktrace.ReadOnlySpan {
	out := make(map[string]sdktrace.ReadOnlySpan)
	for _, s := range r.spans.Ended() {
		out[s.SpanKind().String()+" "+s.Name()] = s
	}
	return out
}

// RequireTrace fails the test unless all of these spans have ended and are in one trace, each the child of its predecessor.
func (r *Recorder) RequireTrace(t testing.TB, names ...string) {
	t.Helper()
	spans := r.Spans()
	for i, name := range names {
		require.NotNil(t, spans[name], "%s of %v", name, spans)
		require.Equal(t, spans[names[0]].SpanContext().TraceID(), spans[name].SpanContext().TraceID(), name)
		if i > 0 {
			require.Equal(t, spans[names[i-1]].SpanContext().SpanID(), spans[name].Parent().SpanID(), name)
		}
	}
}

// RequireAttribute fails the test unless a span has a text as an attribute.
func (r *Recorder) RequireAttribute(t testing.TB, span, key, value string) {
	t.Helper()
	s := r.Spans()[span]
	require.NotNil(t, s, span)
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			require.Equal(t, value, a.Value.String(), key)
			return
		}
	}
	t.Errorf("%s has no attribute %s", span, key)
}

// RequireNoContent fails the test if a text is in any part of a span.
func (r *Recorder) RequireNoContent(t testing.TB, content string) {
	t.Helper()
	for _, s := range r.spans.Ended() {
		text, err := json.Marshal(tracetest.SpanStubFromReadOnlySpan(s))
		require.NoError(t, err)
		require.NotContains(t, string(text), content)
	}
}

// RequireNames fails the test if the spans have more different names than a number.
func (r *Recorder) RequireNames(t testing.TB, maximum int) {
	t.Helper()
	require.LessOrEqual(t, len(r.Spans()), maximum)
	require.NotEmpty(t, r.spans.Ended())
}

// Metrics returns the numbers of points of the metrics by their names, and the values of counters.
func (r *Recorder) Metrics(t testing.TB) (points, values map[string]int64) {
	t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &data))
	points, values = make(map[string]int64), make(map[string]int64)
	for _, scope := range data.ScopeMetrics {
		require.True(t, strings.HasPrefix(scope.Scope.Name, "github.com/fivewire/fivewire/"))
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				points[m.Name] = int64(len(d.DataPoints))
			case metricdata.Gauge[int64]:
				points[m.Name] = int64(len(d.DataPoints))
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					values[m.Name] += p.Value
				}
			}
		}
	}
	return points, values
}
