// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Air-negotiation lets two agents agree on a price over a relay. One message is sealed, one is
// modified by a malicious relay, and one process crashes between acting and acknowledging.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/store"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "air-negotiation:", err)
		os.Exit(1)
	}
}

// An agent is one side of a negotiation. The inbox and the client share the threads, so sent and
// received moves form one thread. All of it is in a store, so that a new process continues after a
// crash.
type agent struct {
	name   string
	id     *air.Identity
	client *air.Client
	inbox  *air.Inbox
	poller *air.Poller
	last   *air.Delivery
}

// open makes the agent of an identity, as a process does when it starts.
func open(name string, id *air.Identity, net *airtest.Network, kv store.Store, hc *http.Client, out io.Writer) (*agent, error) {
	a := &agent{name: name, id: id}
	resolver, err := net.Resolver()
	if err != nil {
		return nil, err
	}
	threads, err := air.NewThreadStore(id.DID(), &air.ThreadStoreOptions{Store: kv})
	if err != nil {
		return nil, err
	}
	a.client, err = air.NewClient(id, &air.ClientOptions{Resolver: resolver, ThreadStore: threads})
	if err != nil {
		return nil, err
	}
	a.inbox, err = air.NewInbox(id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		// The signature, the clock, the nonce and the legality of the move are verified.
		a.last = d
		fmt.Fprintf(out, "%s got %s\n", name, describe(d))
		return nil
	}), &air.InboxOptions{
		Resolver: resolver, Persistence: air.Persistence{ThreadStore: threads, Store: kv},
		OnOutcome: func(_ context.Context, r *air.ReceiveResult) {
			// A signature that does not verify may be one of a new key, so the envelope stays at the relay
			// for a while, and each drain tries it again.
			fmt.Fprintf(out, "%s did not take an envelope: %s\n", name, string(r.Err.Code))
		},
	})
	if err != nil {
		return nil, err
	}
	a.poller, err = air.NewPoller(a.inbox, net.Endpoint(id), &air.PollerOptions{AllowLoopback: true, HTTPClient: hc})
	return a, err
}

func describe(d *air.Delivery) string {
	sealed := ""
	if d.Sealed {
		sealed = " (sealed)"
	}
	switch b := d.Body.(type) {
	case *air.Offer:
		return "an Offer of " + b.Price.String() + sealed
	case *air.Counter:
		return "a Counter of " + b.Price.String() + sealed
	case *air.Accept:
		return "an Accept of " + b.Price.String() + sealed
	}
	return air.BodyType(d.Body) + sealed
}

// tamper is a relay that changes an amount while it is switched on.
type tamper struct {
	on   atomic.Bool
	next http.Handler
}

func (t *tamper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if t.on.Load() && r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/ack") {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		body = bytes.Replace(body, []byte(`"amount_cents":300`), []byte(`"amount_cents":900`), 1)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	t.next.ServeHTTP(w, r)
}

// crash is a network that fails at every acknowledgement.
type crash struct{}

func (crash) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/ack") {
		return nil, errors.New("the process was killed")
	}
	return http.DefaultTransport.RoundTrip(r)
}

func run(ctx context.Context, out io.Writer) error {
	evil := &tamper{}
	net, err := airtest.NewNetwork(&airtest.Options{Middleware: func(next http.Handler) http.Handler {
		evil.next = next
		return evil
	}})
	if err != nil {
		return err
	}
	defer net.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	buyerID, err := net.RegisterAgent("AIR-BUYR-0000-0001")
	if err != nil {
		return err
	}
	sellerID, err := net.RegisterAgent("AIR-SELL-0000-0002")
	if err != nil {
		return err
	}
	buyer, err := open("buyer", buyerID, net, store.NewMemory(), nil, out)
	if err != nil {
		return err
	}
	// The seller's state outlives its process; here that is a store in memory, in
	// production one on disk.
	disk := store.NewMemory()
	seller, err := open("seller", sellerID, net, disk, nil, out)
	if err != nil {
		return err
	}
	hour := time.Now().Add(time.Hour)

	// The offer is sealed: the relay sees who writes to whom, not what.
	deal := buyer.client.NewNegotiation(seller.id.DID(), "", true)
	if _, err := deal.Offer(ctx, "Translate 500 words to Korean", air.MinorUnits(200, "USD"), hour); err != nil {
		return err
	}
	if _, err := seller.poller.Drain(ctx); err != nil {
		return err
	}

	// The relay changes the price of the answer. The signature tells.
	answer := seller.client.NewNegotiation(buyer.id.DID(), seller.last.Envelope.ThreadID, false)
	evil.on.Store(true)
	receipt, err := answer.Counter(ctx, "With proof-reading", air.MinorUnits(300, "USD"), hour)
	if err != nil {
		return err
	}
	if _, err := buyer.poller.Drain(ctx); err != nil {
		return err
	}

	// An honest relay delivers the same bytes, which are not a replay: a refused envelope is not
	// recorded.
	evil.on.Store(false)
	if _, err := seller.client.SendSigned(ctx, receipt.Envelope.Bytes()); err != nil {
		return err
	}
	if _, err := buyer.poller.Drain(ctx); err != nil {
		return err
	}
	if _, err := deal.Accept(ctx); err != nil {
		return err
	}

	// The seller acts on the Accept and crashes before it acknowledges. The relay delivers again;
	// the new process does not act again.
	dying, err := open("seller", sellerID, net, disk, &http.Client{Transport: crash{}}, out)
	if err != nil {
		return err
	}
	if _, err := dying.poller.Drain(ctx); err == nil {
		return errors.New("the acknowledgement should have failed")
	}
	fmt.Fprintln(out, "seller crashed before acknowledging")
	seller, err = open("seller", sellerID, net, disk, nil, out)
	if err != nil {
		return err
	}
	if _, err := seller.poller.Drain(ctx); err != nil {
		return err
	}
	for _, side := range []*air.Negotiation{deal, seller.client.NewNegotiation(buyer.id.DID(), deal.ThreadID(), false)} {
		th, err := side.Thread(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s at %s\n", th.State, th.Agreed)
	}
	return nil
}
