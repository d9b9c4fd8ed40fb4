// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
)

func Example() {
	ctx := context.Background()
	net := airtest.NewNetwork(nil) // a registry and a relay on loopback
	defer net.Close()
	resolver, err := net.Resolver()
	if err != nil {
		log.Fatal(err)
	}
	alice, err := net.RegisterAgent("AIR-A11C-E000-0001")
	if err != nil {
		log.Fatal(err)
	}
	bob, err := net.RegisterAgent("AIR-B0B0-0000-0002")
	if err != nil {
		log.Fatal(err)
	}

	inbox, err := air.NewInbox(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		offer := d.Body.(*air.Offer)
		fmt.Println(offer.Description, "for", offer.Price)
		return nil
	}), &air.InboxOptions{Resolver: resolver})
	if err != nil {
		log.Fatal(err)
	}
	client, err := air.NewClient(alice, &air.ClientOptions{Resolver: resolver})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.Send(ctx, &air.Draft{To: bob.DID(), Body: &air.Offer{
		Description: "Translate a page",
		Price:       air.MinorUnits(500, "USD"),
		Expires:     time.Now().Add(time.Hour),
	}}, &air.SendOptions{Seal: true})
	if err != nil {
		log.Fatal(err)
	}
	poller, err := air.NewPoller(inbox, net.Endpoint(bob), &air.PollerOptions{AllowLoopback: true})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := poller.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: Translate a page for 500 USD
}

func ExampleCanonicalize() {
	out, err := air.Canonicalize([]byte(`{ "b": 9007199254740993, "a": "caf\u0065\u0301" }`))
	fmt.Println(string(out), err)
	// Output: {"a":"café","b":9007199254740993} <nil>
}

func ExampleSign() {
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	signed, err := air.Sign([]byte(`{"hello":"world"}`), key, air.FormSpec)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := air.NewPublicKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		log.Fatal(err)
	}
	form, err := air.Verify(signed, pub, air.FormSetAny)
	fmt.Println(form, err)
	// Output: spec <nil>
}
