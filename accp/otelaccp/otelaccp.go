// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelaccp

import (
	"context"
	"errors"
	"iter"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/telemetry"
)

// Options adjust a [Telemetry], which copies them. Nil fields mean the providers and the propagator of package otel,
// or W3C Trace Context where that has no propagator.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Telemetry has the wrappers of the clients and servers of a program. It is safe for concurrent use.
type Telemetry struct{ i *telemetry.Instruments }

// New returns the wrappers.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	i, err := telemetry.New("accp", "github.com/fivewire/fivewire/accp/otelaccp", telemetry.Options(o))
	return &Telemetry{i}, err
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*accp.Error](err); ok {
		return string(e.Code)
	}
	return ""
}

func errorType(err error) string { return telemetry.TypeOf(err, codeOf) }

// frame is the trace context of a message, in the metadata of its frame.
type frame struct{ meta *accp.Meta }

// Get returns a value, or "".
func (f frame) Get(key string) string {
	if f.meta == nil {
		return ""
	}
	return f.meta.Ext.Text(keyOf(key))
}

// Set sets a value.
func (f frame) Set(key, value string) {
	f.meta.Ext = f.meta.Ext.Set(keyOf(key), accp.String(value))
}

// keyOf returns the key of metadata for a field of a propagator. Keys have no hyphens.
func keyOf(field string) string { return strings.ReplaceAll(field, "-", "_") }

// Keys returns the keys of all values.
func (f frame) Keys() (keys []string) {
	if f.meta != nil {
		for _, p := range f.meta.Ext {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

func callOf(kind trace.SpanKind, m *accp.Message) telemetry.Call {
	c := telemetry.Call{Kind: kind, Method: string(m.Intent) + ":" + m.Op}
	if m.Op == profile.OpTool {
		c.Operation = telemetry.ExecuteTool
		if c.Target = m.Params.Text("tool_name"); c.Target != "" {
			c.Attributes = append(c.Attributes, attribute.String(telemetry.ToolName, c.Target))
		}
	}
	if m.Meta != nil && m.Meta.MID != "" {
		c.Attributes = append(c.Attributes, attribute.String(telemetry.MessageID, m.Meta.MID))
	}
	if m.Meta != nil && m.Meta.SID != "" {
		c.Attributes = append(c.Attributes, attribute.String(telemetry.ConversationID, m.Meta.SID))
	}
	return c
}

// Interceptor records each call of a client until its last answer. The trace context is the key traceparent in the
// metadata of the frame, about 36 tokens.
func (t *Telemetry) Interceptor() accp.Interceptor {
	return func(next accp.CallFunc) accp.CallFunc {
		return func(ctx context.Context, m *accp.Message, opts *accp.CallOptions) iter.Seq2[*accp.Message, error] {
			return func(yield func(*accp.Message, error) bool) {
				ctx, span := t.i.Start(ctx, callOf(trace.SpanKindClient, m))
				telemetry.RunStream(ctx, span, errorType, next(ctx, t.withTrace(ctx, m), opts), yield)
			}
		}
	}
}

// withTrace returns a message with the trace context of ctx.
func (t *Telemetry) withTrace(ctx context.Context, m *accp.Message) *accp.Message {
	own, meta := *m, accp.Meta{}
	if m.Meta != nil {
		meta = *m.Meta
		meta.Ext = append(accp.Params{}, m.Meta.Ext...)
	}
	if (frame{&meta}).Get("traceparent") != "" {
		return m
	}
	t.i.Inject(ctx, frame{&meta})
	own.Meta = &meta
	return &own
}

// Middleware records each message that a server handles, as a part of the trace of its caller.
func (t *Telemetry) Middleware() accp.Middleware {
	return func(next accp.Handler) accp.Handler {
		return accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			ctx, span := t.i.Start(t.i.Extract(ctx, frame{m.Meta}), callOf(trace.SpanKindServer, m))
			return span.Run(ctx, errorType, func() error { return next.ServeACCP(ctx, w, m) })
		})
	}
}

// Observe makes the result of Usage of a server a metric, until the registration ends.
func (t *Telemetry) Observe(s *accp.Server) (metric.Registration, error) {
	return t.i.Observe(func() []telemetry.Row { return telemetry.Rows(s.Usage()) }, nil)
}

// ObserveSession makes the result of Stats of a session metrics, until the registration ends. A program registers few
// sessions, such as the one of a client: their metrics have no other label.
func (t *Telemetry) ObserveSession(s *accp.Session) (metric.Registration, error) {
	return t.i.Observe(nil, func() map[string]int64 {
		st := s.Stats()
		return map[string]int64{"sent": st.Sent, "received": st.Received, "delivered": st.Delivered, "rejected": st.Rejected, "expired": st.Expired,
			"cancelled": st.Cancelled, "dropped_parts": st.DroppedParts, "checkpoints": st.Checkpoints, "tokens_in": st.TokensIn,
			"tokens_out": st.TokensOut, "over_budget": st.OverBudget}
	})
}
