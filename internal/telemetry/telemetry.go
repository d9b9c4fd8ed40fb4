// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package telemetry has what the OpenTelemetry modules of the protocols share: spans with bounded names, a histogram of
// durations, and the resources and counters of servers as metrics. Names follow the GenAI and MCP conventions. No span
// has content.
package telemetry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"iter"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The attributes of spans and metrics.
const (
	Protocol       = "network.protocol.name"
	Operation      = "gen_ai.operation.name"
	AgentID        = "gen_ai.agent.id"
	ToolName       = "gen_ai.tool.name"
	ToolCallID     = "gen_ai.tool.call.id"
	ConversationID = "gen_ai.conversation.id"
	Method         = "rpc.method"
	RequestID      = "jsonrpc.request.id"
	MessageID      = "messaging.message.id"
	ErrorType      = "error.type"
	TaskID         = "fivewire.task.id"
	Redelivered    = "fivewire.redelivered"
	Resource       = "fivewire.resource"
	Scope          = "fivewire.scope"
)

// The values of [Operation].
const (
	InvokeAgent = "invoke_agent"
	ExecuteTool = "execute_tool"
	Chat        = "chat"
)

// The metrics.
const (
	ClientDuration = "gen_ai.client.operation.duration"
	ServerDuration = "gen_ai.server.request.duration"
	UsedMetric     = "fivewire.resource.used"
	LimitMetric    = "fivewire.resource.limit"
)

// other is the value of an attribute whose values are too many.
const other = "_OTHER"

// panicked is the type of the error of a handler that has panicked.
const panicked = "panic"

// maxNames is the number of values that a part of the names of spans, or an attribute of metrics, can have.
const maxNames = 200

// maxValue is the number of bytes of such a value, and of an attribute of a span. Peers choose some of them, and spans wait in
// memory for their export.
const maxValue = 256

// Options adjust Instruments. The zero value means the providers and the propagator of package otel, or that of W3C
// where that has none.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Instruments record the spans and metrics of a protocol. They are safe for concurrent use.
type Instruments struct {
	protocol       string
	tracer         trace.Tracer
	meter          metric.Meter
	propagator     propagation.TextMapPropagator
	client, server metric.Float64Histogram

	mu    sync.Mutex
	names map[string]map[string]bool // by attribute; guarded by mu
}

// New returns the instruments of a protocol for the module with an import path.
func New(protocol, module string, o Options) (*Instruments, error) {
	traces, meters := o.TracerProvider, o.MeterProvider
	if traces == nil {
		traces = otel.GetTracerProvider()
	}
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	i := &Instruments{protocol: protocol, tracer: traces.Tracer(module), meter: meters.Meter(module), propagator: o.Propagator, names: map[string]map[string]bool{}}
	if i.propagator == nil {
		if i.propagator = otel.GetTextMapPropagator(); len(i.propagator.Fields()) == 0 {
			i.propagator = propagation.TraceContext{}
		}
	}
	var err, failed error
	i.client, err = i.meter.Float64Histogram(ClientDuration, metric.WithUnit("s"), metric.WithDescription("Duration of calls"))
	i.server, failed = i.meter.Float64Histogram(ServerDuration, metric.WithUnit("s"), metric.WithDescription("Duration of handlers"))
	return i, errors.Join(err, failed)
}

// bounded returns a value of an attribute, or other if that is too long or the attribute has too many.
func (i *Instruments) bounded(key, value string) string {
	if len(value) > maxValue {
		return other
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	values := i.names[key]
	switch {
	case values[value]:
	case len(values) >= maxNames:
		return other
	case values == nil:
		i.names[key] = map[string]bool{value: true}
	default:
		values[value] = true
	}
	return value
}

// A Call is the work of a span.
type Call struct {
	Kind      trace.SpanKind
	Operation string // of the GenAI conventions; may be empty
	Method    string // of the protocol
	Target    string // agent or tool, for the name of the span; may be empty

	// Attributes are those of the span only; long texts are cut. Links are further causes.
	Attributes []attribute.KeyValue
	Links      []trace.Link
}

// A Span is a call that was started.
type Span struct {
	trace.Span
	i      *Instruments
	begin  time.Time
	isPeer bool // of a client
	labels []attribute.KeyValue
}

// Start starts the span of a call.
func (i *Instruments) Start(ctx context.Context, c Call) (context.Context, *Span) {
	method := i.bounded(Method, c.Method)
	name := cmp.Or(c.Operation, method)
	if c.Target != "" {
		if target := i.bounded(AgentID, c.Target); target != other {
			name += " " + target
		}
	}
	s := &Span{i: i, begin: time.Now(), isPeer: c.Kind == trace.SpanKindClient || c.Kind == trace.SpanKindProducer,
		labels: []attribute.KeyValue{attribute.String(Protocol, i.protocol), attribute.String(Method, method)}}
	if c.Operation != "" {
		s.labels = append(s.labels, attribute.String(Operation, c.Operation))
	}
	attributes := append(make([]attribute.KeyValue, 0, len(s.labels)+len(c.Attributes)), s.labels...)
	for _, a := range c.Attributes {
		if a.Value.Type() == attribute.STRING && len(a.Value.AsString()) > maxValue {
			a = a.Key.String(strings.ToValidUTF8(strings.Clone(a.Value.AsString()[:maxValue]), ""))
		}
		attributes = append(attributes, a)
	}
	ctx, s.Span = i.tracer.Start(ctx, name, trace.WithSpanKind(c.Kind), trace.WithAttributes(attributes...), trace.WithLinks(c.Links...))
	return ctx, s
}

// Finish ends the span of a call. The error type is empty for success.
func (s *Span) Finish(ctx context.Context, errorType string) {
	if errorType != "" {
		errorType = s.i.bounded(ErrorType, errorType)
		s.labels = append(s.labels, attribute.String(ErrorType, errorType))
		s.SetAttributes(attribute.String(ErrorType, errorType))
		s.SetStatus(codes.Error, "")
	}
	s.End()
	histogram := s.i.server
	if s.isPeer {
		histogram = s.i.client
	}
	histogram.Record(ctx, time.Since(s.begin).Seconds(), metric.WithAttributes(s.labels...))
}

// Run calls f and ends the span of a call with the type of its error, or with panicked if f panics.
func (s *Span) Run(ctx context.Context, typeOf func(err error) string, f func() error) error {
	errorType := panicked
	defer func() { s.Finish(ctx, errorType) }()
	err := f()
	errorType = typeOf(err)
	return err
}

// RunStream is [Span.Run] for a stream, which it yields. The last error of the stream is that of the call. A stream
// that its reader leaves is no error.
func RunStream[V any](ctx context.Context, s *Span, typeOf func(err error) string, stream iter.Seq2[V, error], yield func(V, error) bool) {
	_ = s.Run(ctx, typeOf, func() (last error) {
		for v, err := range stream {
			last = err
			if !yield(v, err) {
				break
			}
		}
		return last
	})
}

// TypeOf returns the type of an error: the end of a context, or the code that a function finds in it.
func TypeOf(err error, code func(err error) string) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return cmp.Or(code(err), other)
}

// Inject writes the trace context of ctx to a carrier.
func (i *Instruments) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	i.propagator.Inject(ctx, c)
}

// Extract returns ctx with the trace context of a carrier.
func (i *Instruments) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	return i.propagator.Extract(ctx, c)
}

// Derived returns the context that stands for an object with an id, for links between spans that no message connects.
func Derived(kind, id string) trace.SpanContext {
	sum := sha256.Sum256([]byte(kind + " " + id))
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID(sum[:16]), SpanID: trace.SpanID(sum[16:24]), Remote: true})
}

// A Row is the use of a resource in a scope.
type Row struct {
	Resource, Scope string
	Used, Limit     int64
}

// Observe makes the resources and the counters of a server metrics, until the registration ends. Counters have values that
// only grow; their names are those of the first call.
func (i *Instruments) Observe(rows func() []Row, counters func() map[string]int64) (metric.Registration, error) {
	used, err := i.meter.Int64ObservableGauge(UsedMetric, metric.WithDescription("Use of a resource"))
	limit, failed := i.meter.Int64ObservableGauge(LimitMetric, metric.WithDescription("Bound of a resource; -1 means none"))
	err = errors.Join(err, failed)
	instruments := []metric.Observable{used, limit}
	counts := map[string]metric.Int64ObservableCounter{}
	if counters != nil {
		for name := range counters() {
			counts[name], failed = i.meter.Int64ObservableCounter("fivewire." + i.protocol + "." + name)
			err = errors.Join(err, failed)
			instruments = append(instruments, counts[name])
		}
	}
	if err != nil {
		return nil, err
	}
	protocol := attribute.String(Protocol, i.protocol)
	return i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if rows != nil {
			for _, r := range rows() {
				labels := metric.WithAttributes(protocol, attribute.String(Resource, r.Resource), attribute.String(Scope, r.Scope))
				o.ObserveInt64(used, r.Used, labels)
				o.ObserveInt64(limit, r.Limit, labels)
			}
		}
		if counters != nil {
			for name, n := range counters() {
				if c, ok := counts[name]; ok {
					o.ObserveInt64(c, n, metric.WithAttributes(protocol))
				}
			}
		}
		return nil
	}, instruments...)
}

// Rows returns the rows of a server.
func Rows[U ~struct {
	Resource, Scope string
	Used, Limit     int64
}](list []U) []Row {
	rows := make([]Row, len(list))
	for i, u := range list {
		rows[i] = Row(u)
	}
	return rows
}
