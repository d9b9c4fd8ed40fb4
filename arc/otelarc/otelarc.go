// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelarc

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/telemetry"
)

// Options adjust a [Telemetry], which copies them. Nil fields mean the providers and the propagator of package otel,
// or W3C Trace Context where that has no propagator.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Telemetry has the wrappers of the clients, servers and handlers of a program. It is safe for concurrent use.
type Telemetry struct{ i *telemetry.Instruments }

// New returns the wrappers.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	i, err := telemetry.New("arc", "github.com/fivewire/fivewire/arc/otelarc", telemetry.Options(o))
	return &Telemetry{i}, err
}

// operationOf returns the operation of a method.
func operationOf(method string) string {
	switch {
	case strings.HasPrefix(method, "chat."):
		return telemetry.Chat
	case method == arc.MethodTaskCreate:
		return telemetry.InvokeAgent
	}
	return ""
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*arc.Error](err); ok {
		return e.Code.Name()
	}
	return ""
}

func errorType(err error) string { return telemetry.TypeOf(err, codeOf) }

// start starts the span of a request of a client, which joins the workflow of the request to the trace.
func (t *Telemetry) start(ctx context.Context, out *arc.ClientRequest) (context.Context, *telemetry.Span) {
	if out.TraceID != "" && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = contextOf(ctx, out.TraceID)
	}
	ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindClient, Operation: operationOf(out.Method), Method: out.Method,
		Target: out.TargetAgent, Attributes: attributesOf(out.TargetAgent, out.ID)})
	if id := span.SpanContext().TraceID(); out.TraceID == "" && id.IsValid() {
		out.TraceID = id.String()
	}
	if out.Header == nil {
		out.Header = http.Header{}
	}
	t.i.Inject(ctx, propagation.HeaderCarrier(out.Header))
	return ctx, span
}

func attributesOf(agent string, id arc.ID) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String(telemetry.AgentID, agent), attribute.String(telemetry.RequestID, string(id))}
}

// Interceptor records each call of a client.
func (t *Telemetry) Interceptor() arc.Interceptor {
	return func(next arc.CallFunc) arc.CallFunc {
		return func(ctx context.Context, out *arc.ClientRequest) (*arc.Response, error) {
			ctx, span := t.start(ctx, out)
			var res *arc.Response
			err := span.Run(ctx, errorType, func() (err error) {
				res, err = next(ctx, out)
				return err
			})
			return res, err
		}
	}
}

// StreamInterceptor records each stream of a client. A stream that its reader leaves is no error.
func (t *Telemetry) StreamInterceptor() arc.StreamInterceptor {
	return func(next arc.StreamFunc) arc.StreamFunc {
		return func(ctx context.Context, out *arc.ClientRequest) iter.Seq2[*arc.ChatEvent, error] {
			return func(yield func(*arc.ChatEvent, error) bool) {
				ctx, span := t.start(ctx, out)
				telemetry.RunStream(ctx, span, errorType, next(ctx, out), yield)
			}
		}
	}
}

// Middleware records each call of a handler, as a part of the trace of its caller. The context of a task that a call
// creates leads to the span of the call.
func (t *Telemetry) Middleware() arc.Middleware {
	return func(next arc.Handler) arc.Handler {
		return arc.HandlerFunc(func(ctx context.Context, call *arc.Call) (any, error) {
			ctx = t.i.Extract(ctx, propagation.HeaderCarrier(call.Header))
			if !trace.SpanContextFromContext(ctx).IsValid() {
				ctx = contextOf(ctx, call.TraceID)
			}
			ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindServer, Operation: operationOf(call.Method), Method: call.Method,
				Target: call.Agent, Attributes: attributesOf(call.Agent, call.ID)})
			var out any
			err := span.Run(ctx, errorType, func() (err error) {
				out, err = next.ServeARC(ctx, call)
				return err
			})
			return out, err
		})
	}
}

// TaskHandler records each run of a task. The span belongs to the trace of the request that created the task, also in
// another process, and has a link to the span of the request that started the run, which it outlives.
func (t *Telemetry) TaskHandler(next arc.TaskHandler) arc.TaskHandler {
	return arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		c := telemetry.Call{Kind: trace.SpanKindInternal, Operation: telemetry.InvokeAgent, Method: "task",
			Attributes: []attribute.KeyValue{attribute.String(telemetry.TaskID, run.ID()), attribute.Bool(telemetry.Redelivered, run.Redelivered())}}
		if call := arc.CallFromContext(ctx); call != nil {
			c.Target = call.Agent
			c.Attributes = append(c.Attributes, attribute.String(telemetry.AgentID, call.Agent))
		}
		cause := trace.SpanContextFromContext(ctx)
		if cause.IsValid() {
			c.Links = []trace.Link{{SpanContext: cause}}
		}
		workflow := contextOf(ctx, arc.TraceIDFromContext(ctx))
		if trace.SpanContextFromContext(workflow).TraceID() != cause.TraceID() { // another process, or a later request
			ctx = workflow
		}
		ctx, span := t.i.Start(ctx, c)
		return span.Run(ctx, errorType, func() error { return next.ServeTask(ctx, run) })
	})
}

// NotificationHandler records each notification that a webhook receives, as a part of the trace of the task.
func (t *Telemetry) NotificationHandler(next arc.NotificationHandler) arc.NotificationHandler {
	return arc.NotificationHandlerFunc(func(ctx context.Context, n *arc.Notification) error {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = contextOf(ctx, arc.TraceIDFromContext(ctx))
		}
		ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindConsumer, Method: arc.MethodTaskNotification,
			Attributes: []attribute.KeyValue{attribute.String(telemetry.TaskID, n.TaskID)}})
		return span.Run(ctx, errorType, func() error { return next.ServeNotification(ctx, n) })
	})
}

// Observe makes the result of Usage of a server a metric, until the registration ends.
func (t *Telemetry) Observe(s *arc.Server) (metric.Registration, error) {
	return t.i.Observe(func() []telemetry.Row { return telemetry.Rows(s.Usage()) }, nil)
}

// contextOf returns ctx in the trace of a workflow, whose id is the traceId, or a hash of it, as in the header traceparent
// of the requests of the workflow. Without the id of a span, the sampler decides as for a trace that begins here.
func contextOf(ctx context.Context, traceID string) context.Context {
	if traceID == "" {
		return ctx
	}
	id, _ := trace.TraceIDFromHex(wire.W3CTraceID(traceID)) // always valid
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, Remote: true}))
}
