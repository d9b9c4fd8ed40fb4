// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package airtest_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
)

// An inbox and a client whose responses are lost: the client repeats its envelope, and the handler gets it once.
func ExampleNewPair() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Cut, Op: "request", Limit: 2}}}
	defer plan.Close()
	received := make(chan air.Body, 10)
	_, client := airtest.NewPair(t, &airtest.PairOptions{
		Handler:   air.HandlerFunc(func(_ context.Context, d *air.Delivery) error { received <- d.Body; return nil }),
		Client:    &air.ClientOptions{Retry: &air.RetryPolicy{Base: time.Millisecond}},
		Transport: func(next http.RoundTripper) http.RoundTripper { return fault.RoundTripper(next, plan) },
	})
	offer := &air.Offer{Description: "a page", Price: air.MinorUnits(500, "USD"), Expires: time.Now().Add(time.Hour)}
	_, err := client.Send(context.Background(), &air.Draft{To: airtest.DID(airtest.RecipientID), Body: offer}, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println((<-received).(*air.Offer).Description, len(received), "lost:", plan.Count(fault.Cut))
	// Output: a page 0 lost: 2
}

// An inbox that is busy, and then accepts the envelope by the script.
func ExampleNewPeer() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	peer := airtest.NewPeer(t, airtest.Receive("a page"), airtest.SendStatus(http.StatusServiceUnavailable, http.Header{"Retry-After": {"0"}}, ""),
		airtest.Receive("a page"), airtest.SendStatus(http.StatusAccepted, nil, "{}"))
	_, client := airtest.NewPair(t, &airtest.PairOptions{Client: &air.ClientOptions{Retry: &air.RetryPolicy{Base: time.Millisecond}},
		Transport: func(http.RoundTripper) http.RoundTripper { return peer.Transport }})
	offer := &air.Offer{Description: "a page", Price: air.MinorUnits(500, "USD"), Expires: time.Now().Add(time.Hour)}
	receipt, err := client.Send(context.Background(), &air.Draft{To: airtest.DID(airtest.RecipientID), Body: offer}, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(receipt.Status, receipt.Attempts)
	// Output: 202 2
}
