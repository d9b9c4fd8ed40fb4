// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/registry"
)

// An agent registers with its own key and becomes an [air.Identity].
func ExampleClient_Register() {
	srv := httptest.NewServer(&airtest.Registry{})
	defer srv.Close()
	ctx := context.Background()
	reg, err := registry.NewClient(&registry.Options{RegistryURL: srv.URL, AllowLoopback: true})
	if err != nil {
		log.Fatal(err)
	}
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	key, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	if err != nil {
		log.Fatal(err)
	}
	r, err := reg.Register(ctx, &registry.RegisterParams{
		Name: "Weather", PublicKey: key, Capabilities: []string{"forecast"},
		Services: []registry.Service{registry.InboxService("https://relay.example/inbox/weather")},
	})
	if err != nil {
		log.Fatal(err)
	}
	id, err := air.NewIdentity(r.DID, seed)
	if err != nil {
		log.Fatal(err)
	}
	doc, err := reg.GetDocument(ctx, id.AIRID())
	if err != nil {
		log.Fatal(err)
	}
	inbox, err := doc.Inbox(id.DID(), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(inbox.URL, r.Secret != "")
	// Output: https://relay.example/inbox/weather true
}
