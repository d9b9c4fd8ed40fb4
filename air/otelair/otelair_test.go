// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelair_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/otelair"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/telemetry/telemetrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The spans of sender and recipient have a link to one context, and nothing of the content.
func TestLinks(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelair.New(&otelair.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	network, err := airtest.NewNetwork(&airtest.Options{Relay: relay.ServerOptions{Middleware: []relay.Middleware{tel.RelayMiddleware()}}})
	require.NoError(t, err)
	defer network.Close()
	resolver, err := network.Resolver()
	require.NoError(t, err)
	defer resolver.Close()
	alice, err := network.RegisterAgent("AIR-A11C-E000-0001")
	require.NoError(t, err)
	bob, err := network.RegisterAgent("AIR-B0B0-0000-0002")
	require.NoError(t, err)

	client, err := air.NewClient(alice, &air.ClientOptions{Resolver: resolver, Interceptors: []air.Interceptor{tel.Interceptor()}})
	require.NoError(t, err)
	defer client.Close()
	body := &air.Offer{Description: "secret text", Price: air.MinorUnits(500, "USD"), Expires: time.Now().Add(time.Hour)}
	receipt, err := client.Send(t.Context(), &air.Draft{To: bob.DID(), Body: body}, nil)
	require.NoError(t, err)

	received := 0
	inbox, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { received++; return nil }),
		&air.InboxOptions{Resolver: resolver, Middleware: []air.Middleware{tel.Middleware()}})
	require.NoError(t, err)
	defer inbox.Close()
	poller, err := air.NewPoller(inbox, network.Endpoint(bob), &air.PollerOptions{AllowLoopback: true})
	require.NoError(t, err)
	defer poller.Close()
	_, err = poller.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, received)

	sent, handled := r.Spans()["producer send Offer"], r.Spans()["consumer process Offer"]
	require.NotNil(t, sent)
	require.NotNil(t, handled)
	require.Equal(t, sent.Links()[0].SpanContext, handled.Links()[0].SpanContext)
	require.NotEqual(t, sent.SpanContext().TraceID(), handled.SpanContext().TraceID())
	r.RequireAttribute(t, "consumer process Offer", "messaging.message.id", receipt.Envelope.ID)
	r.RequireAttribute(t, "producer send Offer", "messaging.message.id", receipt.Envelope.ID)
	for _, action := range []string{"push", "pull", "ack"} {
		require.NotNil(t, r.Spans()["server relay "+action], action)
	}
	r.RequireNoContent(t, "secret text")

	first, err := tel.Observe(inbox)
	require.NoError(t, err)
	second, err := tel.ObserveRelay(network.Relay)
	require.NoError(t, err)
	points, values := r.Metrics(t)
	require.Positive(t, points["fivewire.resource.used"])
	require.EqualValues(t, 1, values["fivewire.air.pushes"])
	require.NoError(t, first.Unregister())
	require.NoError(t, second.Unregister())
}

// A handler that panics has a span, as a failure.
func TestPanics(t *testing.T) {
	r := telemetrytest.New()
	tel, err := otelair.New(&otelair.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	require.Panics(t, func() {
		_ = tel.Middleware()(air.HandlerFunc(func(context.Context, *air.Delivery) error { panic("secret") })).
			ServeAIR(t.Context(), &air.Delivery{Envelope: &air.Envelope{ID: "m"}, Body: &air.Offer{}})
	})
	require.Panics(t, func() {
		_ = tel.RelayMiddleware()(relay.HandlerFunc(func(http.ResponseWriter, *http.Request) error { panic("secret") })).
			ServeRelay(nil, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pull", http.NoBody))
	})
	require.Panics(t, func() {
		_, _ = tel.Interceptor()(func(context.Context, *air.Draft, *air.SendOptions) (*air.Receipt, error) { panic("secret") })(
			t.Context(), &air.Draft{Body: &air.Offer{}}, nil)
	})
	r.RequireAttribute(t, "producer send Offer", "error.type", "panic")
	r.RequireAttribute(t, "consumer process Offer", "error.type", "panic")
	r.RequireAttribute(t, "server relay pull", "error.type", "panic")
}

// The action of a span is that of the path, in both dialects. The client refuses a message without a body.
func TestNames(t *testing.T) {
	for path, want := range map[string]string{"/inbox/AIR-A": "push", "/inbox/AIR-A/pull": "pull", "/pull/AIR-A": "pull",
		"/inbox/AIR-A/ack": "ack", "/ack/AIR-A": "ack"} {
		r := telemetrytest.New()
		tel, err := otelair.New(&otelair.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
		require.NoError(t, err)
		relayed := tel.RelayMiddleware()(relay.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil }))
		require.NoError(t, relayed.ServeRelay(nil, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)))
		require.NotNil(t, r.Spans()["server relay "+want], path)
		_, client := airtest.NewPair(t, &airtest.PairOptions{Client: &air.ClientOptions{Interceptors: []air.Interceptor{tel.Interceptor()}}})
		for _, draft := range []*air.Draft{nil, {}} {
			_, err = client.Send(t.Context(), draft, nil)
			require.ErrorContains(t, err, "body is missing")
		}
	}
}
