// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelaltar

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/telemetry"
)

// Options adjust a [Telemetry], which copies them. Nil fields mean the providers and the propagator of package otel,
// or W3C Trace Context where that has no propagator.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Telemetry has the wrappers of the clients, Hosts and Runtimes of a program. It is safe for concurrent use.
type Telemetry struct{ i *telemetry.Instruments }

// New returns the wrappers.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	i, err := telemetry.New("altar", "github.com/fivewire/fivewire/altar/otelaltar", telemetry.Options(o))
	return &Telemetry{i}, err
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*altar.Error](err); ok {
		return string(e.Code)
	}
	return ""
}

func errorType(err error) string { return telemetry.TypeOf(err, codeOf) }

// start starts the span of a call of a client, whose options carry its trace context to the Runtime.
func (t *Telemetry) start(ctx context.Context, s *altar.Session, tool string, opts *altar.CallOptions) (context.Context, *telemetry.Span, *altar.CallOptions) {
	ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindClient, Operation: telemetry.ExecuteTool, Method: "call", Target: tool,
		Attributes: []attribute.KeyValue{attribute.String(telemetry.ToolName, tool), attribute.String(telemetry.ConversationID, s.ID())}})
	var o altar.CallOptions
	if opts != nil {
		o = *opts
	}
	metadata := maps.Clone(o.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	t.i.Inject(ctx, propagation.MapCarrier(metadata))
	o.Metadata = metadata
	return ctx, span, &o
}

// Interceptor records each call of a client.
func (t *Telemetry) Interceptor() altar.Interceptor {
	return func(next altar.CallFunc) altar.CallFunc {
		return func(ctx context.Context, s *altar.Session, tool string, params any, opts *altar.CallOptions) (*altar.Result, error) {
			ctx, span, opts := t.start(ctx, s, tool, opts)
			var r *altar.Result
			err := span.Run(ctx, errorType, func() (err error) {
				r, err = next(ctx, s, tool, params, opts)
				return err
			})
			return r, err
		}
	}
}

// Stream is altar.Session.Stream with a span, because interceptors wrap calls with one result only. A stream that its
// reader leaves is no error.
func (t *Telemetry) Stream(ctx context.Context, s *altar.Session, tool string, params any, opts *altar.CallOptions) iter.Seq2[json.RawMessage, error] {
	return guard.Once(func(yield func(json.RawMessage, error) bool) {
		ctx, span, opts := t.start(ctx, s, tool, opts)
		telemetry.RunStream(ctx, span, errorType, s.Stream(ctx, tool, params, opts), yield)
	}, errStreamUsed)
}

// errStreamUsed reports a stream that is ranged over a second time.
var errStreamUsed = errors.New("otelaltar: a stream can be ranged over once only")

// serve starts the span of a tool, as a part of the trace of its caller.
func (t *Telemetry) serve(ctx context.Context, call *altar.ToolCall) (context.Context, *telemetry.Span) {
	ctx = t.i.Extract(ctx, propagation.MapCarrier(call.Metadata))
	return t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindServer, Operation: telemetry.ExecuteTool, Method: "call", Target: call.ToolName,
		Attributes: []attribute.KeyValue{attribute.String(telemetry.ToolName, call.ToolName), attribute.String(telemetry.ToolCallID, call.InvocationID),
			attribute.String(telemetry.ConversationID, call.SessionID)}})
}

// Middleware records each call of a tool of a Runtime that has one result.
func (t *Telemetry) Middleware() altar.Middleware {
	return func(next altar.Handler) altar.Handler {
		return altar.HandlerFunc(func(ctx context.Context, call *altar.ToolCall) (any, error) {
			ctx, span := t.serve(ctx, call)
			var out any
			err := span.Run(ctx, errorType, func() (err error) {
				out, err = next.ServeALTAR(ctx, call)
				return err
			})
			return out, err
		})
	}
}

// StreamMiddleware records each call of a tool of a Runtime that answers in chunks.
func (t *Telemetry) StreamMiddleware() altar.StreamMiddleware {
	return func(next altar.StreamHandler) altar.StreamHandler {
		return altar.StreamHandlerFunc(func(ctx context.Context, call *altar.ToolCall, out *altar.ChunkWriter) error {
			ctx, span := t.serve(ctx, call)
			return span.Run(ctx, errorType, func() error { return next.ServeALTARStream(ctx, call, out) })
		})
	}
}

// Observe makes the results of Usage and Stats of a Host metrics, until the registration ends.
func (t *Telemetry) Observe(h *altar.Host) (metric.Registration, error) {
	return t.i.Observe(func() []telemetry.Row {
		s := h.Stats()
		rows := telemetry.Rows(h.Usage())
		for name, n := range map[string]int{"connections": s.Connections, "runtimes": s.Runtimes, "sessions": s.Sessions, "calls": s.InFlight,
			"stored_results": s.StoredResults} {
			rows = append(rows, telemetry.Row{Resource: name, Scope: "all", Used: int64(n), Limit: -1})
		}
		return rows
	}, func() map[string]int64 {
		s := h.Stats()
		return map[string]int64{"dispatched": int64(s.Dispatched), "rejected": int64(s.Rejected), "succeeded": int64(s.Succeeded),
			"failed": int64(s.Failed), "chunks": int64(s.Chunks), "dropped": int64(s.Dropped), "invalid_frames": int64(s.InvalidFrames)}
	})
}
