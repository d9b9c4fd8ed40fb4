// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelair

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/telemetry"
)

// Options adjust a [Telemetry], which copies them. Nil fields mean the providers and the propagator of package otel,
// or W3C Trace Context where that has no propagator.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Telemetry has the wrappers of the clients, inboxes and relays of a program. It is safe for concurrent use.
type Telemetry struct{ i *telemetry.Instruments }

// New returns the wrappers.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	i, err := telemetry.New("air", "github.com/fivewire/fivewire/air/otelair", telemetry.Options(o))
	return &Telemetry{i}, err
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*air.Error](err); ok {
		return string(e.Code)
	}
	return ""
}

func errorType(err error) string { return telemetry.TypeOf(err, codeOf) }

// linkOf returns the link of the spans of an envelope. A signed envelope has no room for a trace context, so the spans
// of sender and recipient have a link to one context, which is derived from its id.
func linkOf(id string) []trace.Link { return []trace.Link{{SpanContext: telemetry.Derived("air", id)}} }

// Interceptor records each message of a client.
func (t *Telemetry) Interceptor() air.Interceptor {
	return func(next air.SendFunc) air.SendFunc {
		return func(ctx context.Context, draft *air.Draft, opts *air.SendOptions) (*air.Receipt, error) {
			own := *draft
			own.ID = cmp.Or(own.ID, air.NewID())
			ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindProducer, Method: "send " + air.BodyType(own.Body), Links: linkOf(own.ID),
				Attributes: attributesOf(own.ID, own.ThreadID)})
			var receipt *air.Receipt
			err := span.Run(ctx, errorType, func() (err error) {
				receipt, err = next(ctx, &own, opts)
				return err
			})
			return receipt, err
		}
	}
}

func attributesOf(id, thread string) []attribute.KeyValue {
	list := []attribute.KeyValue{attribute.String(telemetry.MessageID, id)}
	if thread != "" {
		list = append(list, attribute.String(telemetry.ConversationID, thread))
	}
	return list
}

// Middleware records each envelope that an inbox passes to its handler.
func (t *Telemetry) Middleware() air.Middleware {
	return func(next air.Handler) air.Handler {
		return air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
			ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindConsumer, Method: "process " + air.BodyType(d.Body),
				Links:      linkOf(d.Envelope.ID),
				Attributes: append(attributesOf(d.Envelope.ID, d.Envelope.ThreadID), attribute.Bool(telemetry.Redelivered, d.Redelivered))})
			return span.Run(ctx, errorType, func() error { return next.ServeAIR(ctx, d) })
		})
	}
}

// actionOf returns the action of a path in either dialect: /inbox/{r}, /inbox/{r}/pull, /pull/{r}.
func actionOf(path string) string {
	for _, action := range []string{"pull", "ack"} {
		if strings.HasSuffix(path, "/"+action) || strings.HasPrefix(path, "/"+action+"/") {
			return action
		}
	}
	return "push"
}

// RelayMiddleware records each request of a relay, as a part of the trace of its caller.
func (t *Telemetry) RelayMiddleware() relay.Middleware {
	return func(next relay.Handler) relay.Handler {
		return relay.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			ctx := t.i.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
			ctx, span := t.i.Start(ctx, telemetry.Call{Kind: trace.SpanKindServer, Method: "relay " + actionOf(r.URL.Path)})
			return span.Run(ctx, errorType, func() error { return next.ServeRelay(w, r.WithContext(ctx)) })
		})
	}
}

// Observe makes the result of Usage of an inbox a metric, until the registration ends.
func (t *Telemetry) Observe(in *air.Inbox) (metric.Registration, error) {
	return t.i.Observe(func() []telemetry.Row { return telemetry.Rows(in.Usage()) }, nil)
}

// ObserveRelay makes the results of Usage and Stats of a relay metrics, until the registration ends.
func (t *Telemetry) ObserveRelay(s *relay.Server) (metric.Registration, error) {
	return t.i.Observe(func() []telemetry.Row {
		st := s.Stats()
		rows := telemetry.Rows(s.Usage())
		for name, n := range map[string]int64{"queued": st.Queued, "queued_bytes": st.QueuedBytes, "mailboxes": st.Mailboxes} {
			rows = append(rows, telemetry.Row{Resource: name, Scope: "all", Used: n, Limit: -1})
		}
		return rows
	}, func() map[string]int64 {
		st := s.Stats()
		var refusals int64
		for _, n := range st.Refusals {
			refusals += n
		}
		return map[string]int64{"pushes": st.Pushes, "pulls": st.Pulls, "acks": st.Acks, "refusals": refusals}
	})
}
