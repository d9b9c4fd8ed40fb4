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
	net, err := airtest.NewNetwork(nil) // a registry and a relay on loopback
	if err != nil {
		log.Fatal(err)
	}
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

	got := make(chan string)
	seller, err := air.NewAgent(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		switch body := d.Body.(type) { // every agent may send every type
		case *air.Offer:
			got <- fmt.Sprint(body.Description, " for ", body.Price)
		default:
			return air.Reject(air.ErrUnsupportedBody, "only offers")
		}
		return nil
	}), &air.AgentOptions{Resolver: resolver})
	if err != nil {
		log.Fatal(err)
	}
	defer seller.Close()
	buyer, err := air.NewAgent(alice, nil, &air.AgentOptions{Resolver: resolver})
	if err != nil {
		log.Fatal(err)
	}
	defer buyer.Close()

	_, err = buyer.Send(ctx, bob.DID(), &air.Offer{
		Description: "Translate a page",
		Price:       air.MinorUnits(500, "USD"),
		Expires:     time.Now().Add(time.Hour),
	}, &air.SendOptions{Seal: true})
	if err != nil {
		log.Fatal(err)
	}
	go seller.Run(ctx) // fetches from the relay in its document
	fmt.Println(<-got)
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
	form, err := air.Verify(signed, pub, "")
	fmt.Println(form, err)
	// Output: spec <nil>
}
