// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otela2e

import (
	"context"
	"errors"
	"reflect"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/telemetry"
)

// Options adjust a [Telemetry], which copies them. Nil fields mean the providers and the propagator of package otel,
// or W3C Trace Context where that has no propagator.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Telemetry has the wrappers of the agents and hosts of a program. It is safe for concurrent use.
type Telemetry struct{ i *telemetry.Instruments }

// New returns the wrappers.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	i, err := telemetry.New("a2e", "github.com/fivewire/fivewire/a2e/otela2e", telemetry.Options(o))
	return &Telemetry{i}, err
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*a2e.Error](err); ok {
		return string(e.Code)
	}
	return ""
}

func errorType(err error) string { return telemetry.TypeOf(err, codeOf) }

// carrier is the trace context of a request, which is its correlation_id.
const carrier = "traceparent"

// withTrace returns a request whose correlation_id is the trace context of ctx. One that has a correlation_id, or no such
// member, is returned unchanged.
func (t *Telemetry) withTrace(ctx context.Context, body any) any {
	fields := propagation.MapCarrier{}
	t.i.Inject(ctx, fields)
	v := reflect.ValueOf(body)
	if fields[carrier] == "" || v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return body
	}
	id := v.Elem().FieldByName("CorrelationID")
	if !id.IsValid() || id.Kind() != reflect.String || id.String() != "" {
		return body
	}
	own := reflect.New(v.Elem().Type())
	own.Elem().Set(v.Elem())
	own.Elem().FieldByName("CorrelationID").SetString(fields[carrier])
	return own.Interface()
}

// operationOf returns the operation of a type of message, and the tool of a call.
func operationOf(msgType string, tool func() string) (operation, target string) {
	if msgType != "tool/call/req" {
		return "", ""
	}
	return telemetry.ExecuteTool, tool()
}

// toolOf returns the tool of a request.
func toolOf(body any) string {
	if v := reflect.Indirect(reflect.ValueOf(body)); v.Kind() == reflect.Struct {
		if name := v.FieldByName("ToolName"); name.IsValid() && name.Kind() == reflect.String {
			return name.String()
		}
	}
	return ""
}

// Interceptor records each call of a client.
func (t *Telemetry) Interceptor() a2e.Interceptor {
	return func(next a2e.CallFunc) a2e.CallFunc {
		return func(ctx context.Context, msgType string, body any, opts *a2e.CallOptions) (*a2e.Message, error) {
			c := telemetry.Call{Kind: trace.SpanKindClient, Method: msgType}
			c.Operation, c.Target = operationOf(msgType, func() string { return toolOf(body) })
			if c.Target != "" {
				c.Attributes = []attribute.KeyValue{attribute.String(telemetry.ToolName, c.Target)}
			}
			ctx, span := t.i.Start(ctx, c)
			var answer *a2e.Message
			err := span.Run(ctx, errorType, func() (err error) {
				answer, err = next(ctx, msgType, t.withTrace(ctx, body), opts)
				if answer != nil {
					span.SetAttributes(attribute.String(telemetry.RequestID, answer.ReqID()))
				}
				return err
			})
			return answer, err
		}
	}
}

// Middleware records each request that a host handles, as a part of the trace of its caller if the correlation_id is a
// trace context.
func (t *Telemetry) Middleware() a2e.Middleware {
	return func(next a2e.Handler) a2e.Handler {
		return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (any, error) {
			ctx = t.i.Extract(ctx, propagation.MapCarrier{carrier: call.StringMember("correlation_id")})
			c := telemetry.Call{Kind: trace.SpanKindServer, Method: call.Message.Type, Attributes: []attribute.KeyValue{
				attribute.String(telemetry.RequestID, call.Message.ID), attribute.String(telemetry.ConversationID, call.Session.ID())}}
			c.Operation, c.Target = operationOf(call.Message.Type, func() string { return call.StringMember("tool_name") })
			if c.Target != "" {
				c.Attributes = append(c.Attributes, attribute.String(telemetry.ToolName, c.Target))
			}
			ctx, span := t.i.Start(ctx, c)
			var out any
			err := span.Run(ctx, errorType, func() (err error) {
				out, err = next.ServeA2E(ctx, call)
				return err
			})
			return out, err
		})
	}
}

// Observe makes the results of Usage and Stats of a host metrics, until the registration ends.
func (t *Telemetry) Observe(h *a2e.Host) (metric.Registration, error) {
	return t.i.Observe(func() []telemetry.Row {
		return append(telemetry.Rows(h.Usage()), telemetry.Row{Resource: "requests", Scope: "all", Used: int64(h.Stats().InFlight), Limit: -1})
	}, func() map[string]int64 { return map[string]int64{"dropped": int64(h.Stats().Dropped)} })
}
