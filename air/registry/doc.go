// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry asks the Agent Identity Registry for what the public API offers
// beside DID documents: it registers agents and changes what is known of them,
// looks agents and names up, reads trust scores, and records what one agent
// attests of another. Package air does without it: to send and to receive takes
// DID documents only, and those its [air.Resolver] fetches and keeps.
//
//	reg, err := registry.NewClient(nil)
//	...
//	seed := make([]byte, ed25519.SeedSize)
//	rand.Read(seed)
//	key, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
//	...
//	r, err := reg.Register(ctx, &registry.RegisterParams{Name: "Weather", PublicKey: key})
//	...
//	id, err := air.NewIdentity(r.DID, seed)
//	...
//	err = air.SaveIdentity("agent.json", id)
//
// The secret in the answer to a registration is shown once. Whoever has it can
// change the agent's entry; keep it like a key.
//
// # Which API
//
// The specification gives the address of DID documents only. Everything else here
// follows what the published clients of the registry send and read (version 0.5 of
// the Python client, May 2026). The calls of the registry's operator are left out.
//
// # Keys that change
//
// The published registry keeps the key that an agent was registered with: a new
// key takes a new registration, with a new AIR ID. The specification, however,
// speaks of keys that are updated, and registries of one's own can allow it.
// [Client.RotateKey] asks for it in the way that other fields are updated, believes
// nothing but the DID document, and reports [ErrKeyImmutable] where the registry
// refuses.
package registry
