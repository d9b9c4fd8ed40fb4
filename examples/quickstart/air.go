// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
)

// showAIR lets two registered agents agree on a price over a relay, every message
// signed and one of them sealed.
func showAIR(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "\nAIR: signed envelopes between registered agents")
	heading(out, "A negotiation over a relay")

	// A registry and a relay in this process. Real ones are found by their names.
	network, err := airtest.NewNetwork(nil)
	if err != nil {
		return err
	}
	defer network.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	resolver, err := network.Resolver()
	if err != nil {
		return err
	}
	buyer, err := joinAIR("buyer", "AIR-BUYR-0000-0001", network, resolver, out)
	if err != nil {
		return err
	}
	seller, err := joinAIR("seller", "AIR-SELL-0000-0002", network, resolver, out)
	if err != nil {
		return err
	}

	// The relay stores a sealed offer that it cannot read.
	deal := buyer.client.NewNegotiation(seller.did, "", true)
	hour := time.Now().Add(time.Hour)
	if _, err := deal.Offer(ctx, "translate 500 words", air.MinorUnits(200, "USD"), hour); err != nil {
		return err
	}
	if _, err := seller.mail.Drain(ctx); err != nil {
		return err
	}
	answer := seller.client.NewNegotiation(buyer.did, deal.ThreadID(), false)
	if _, err := answer.Counter(ctx, "with proof-reading", air.MinorUnits(300, "USD"), hour); err != nil {
		return err
	}
	if _, err := buyer.mail.Drain(ctx); err != nil {
		return err
	}
	if _, err := deal.Accept(ctx); err != nil {
		return err
	}
	if _, err := seller.mail.Drain(ctx); err != nil {
		return err
	}
	thread, err := answer.Thread(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "both agree: %s at %s\n", thread.State, thread.Agreed)
	return nil
}

// An airAgent is one side: what it sends with, and where its mail arrives.
type airAgent struct {
	did    string
	client *air.Client
	mail   *air.Poller
}

func joinAIR(name, id string, network *airtest.Network, resolver *air.Resolver, out io.Writer) (*airAgent, error) {
	identity, err := network.RegisterAgent(id)
	if err != nil {
		return nil, err
	}
	a := &airAgent{did: identity.DID()}
	threads, err := air.NewThreadStore(a.did, nil) // sent and received moves form one thread
	if err != nil {
		return nil, err
	}
	if a.client, err = air.NewClient(identity, &air.ClientOptions{Resolver: resolver, ThreadStore: threads}); err != nil {
		return nil, err
	}
	inbox, err := air.NewInbox(identity, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		// The signature, the clock and the state of the thread are checked already.
		fmt.Fprintf(out, "%-6s got %s, sealed: %t\n", name, air.BodyType(d.Body), d.Sealed)
		return nil
	}), &air.InboxOptions{Resolver: resolver, Persistence: air.Persistence{ThreadStore: threads}})
	if err != nil {
		return nil, err
	}
	a.mail, err = air.NewPoller(inbox, network.Endpoint(identity), &air.PollerOptions{AllowLoopback: true})
	return a, err
}
