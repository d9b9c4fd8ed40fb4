// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/store"
)

// deliveries returns functions that send a message over a relay, fetch and handle it. Each has a sender and a recipient;
// the outboxes, the mailboxes and the ledgers are in one store.
func deliveries(b *testing.B, db store.Store, n int) []func(context.Context) error {
	e := environment{Store: db}
	registry := new(airtest.Registry)
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: e.web(b, registry), AllowLoopback: true, Logger: quiet})
	require.NoError(b, err)
	b.Cleanup(func() { _ = resolver.Close() })
	mail, err := relay.NewServer(&relay.ServerOptions{
		Auth: relay.Auth{AllowAnonymous: true}, AnyRecipient: true, Logger: quiet,
		Limits:      relay.Limits{RateLimit: -1, AddressRateLimit: -1, RequestRate: -1},
		Persistence: relay.Persistence{Store: store.Sub(db, "relay/"), SingleInstance: true},
	})
	require.NoError(b, err)
	b.Cleanup(func() { _ = mail.Close() })
	url := e.web(b, mail)
	agent := func(i int) *air.Identity {
		id, err := air.GenerateIdentity(airtest.DID(airID(i)))
		require.NoError(b, err)
		registry.Register(id, url+"/inbox/"+id.AIRID())
		return id
	}
	calls := make([]func(context.Context) error, n)
	for i := range calls {
		alice, bob := agent(2*i), agent(2*i+1)
		handled := 0
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			handled++
			return nil
		}), &air.InboxOptions{
			Resolver: resolver, BodyTypes: []string{"note"}, Logger: quiet, Limits: air.Limits{MaxItems: -1, MaxItemsPerPrincipal: -1},
			Persistence: air.Persistence{Store: store.Sub(db, fmt.Sprintf("inbox/%d/", i)), SingleInstance: true},
		})
		require.NoError(b, err)
		b.Cleanup(func() { _ = in.Close() })
		poller, err := air.NewPoller(in, url+"/inbox/"+bob.AIRID(), &air.PollerOptions{AllowLoopback: true, Logger: quiet})
		require.NoError(b, err)
		b.Cleanup(func() { _ = poller.Close() })
		client, err := air.NewClient(alice, &air.ClientOptions{Resolver: resolver, BodyTypes: []string{"note"}, Logger: quiet, Outbox: db})
		require.NoError(b, err)
		b.Cleanup(func() { _ = client.Close() })
		calls[i] = func(ctx context.Context) error {
			before := handled
			_, err := client.Send(ctx, &air.Draft{To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"text":"hello","type":"note"}`)}}, nil)
			if err == nil {
				_, err = poller.Drain(ctx)
			}
			if err == nil && handled != before+1 {
				err = errors.New("not handled")
			}
			return err
		}
		require.NoError(b, calls[i](b.Context()))
	}
	return calls
}

func BenchmarkAIRDelivery(b *testing.B) {
	for _, engine := range engines[:2] {
		b.Run(engine.name, func(b *testing.B) {
			deliver := deliveries(b, engineFor(b, engine.name), 1)[0]
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, deliver(b.Context()))
			}
		})
	}
}

// The base writes four values one after the other: one of the outbox, one of the relay and two of the ledger.
func BenchmarkPairAIRDelivery(b *testing.B) {
	const callers = 16
	calls := deliveries(b, engineFor(b, "SQLite"), callers)
	db, value := engineFor(b, "SQLite"), make([]byte, 500)
	var next atomic.Int64
	pair.RatioCallers(b, callers, func(seq int64) error { return calls[seq%callers](b.Context()) }, func(int64) error {
		for range 4 {
			if _, err := db.Create(b.Context(), fmt.Sprint("key/", next.Add(1)), value, time.Hour); err != nil {
				return err
			}
		}
		return nil
	})
}
