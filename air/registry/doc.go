// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry is a client of the public API of the Agent Identity Registry beyond DID
// documents: it registers and updates agents, looks up agents and names, reads trust scores, and
// records attestations. Package air does not need it: its [air.Resolver] fetches and caches the DID
// documents for sending and receiving.
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
// The secret in the response to a registration is returned once. It permits changes of the agent's
// entry; protect it like a key.
//
// # API
//
// The specification defines the address of DID documents only. The rest follows the requests and
// responses of the registry's published clients (version 0.5 of the Python client, May 2026). The
// calls of the registry's operator are not implemented.
//
// # Key rotation
//
// The published registry does not change the key of an agent: a new key requires a new registration
// with a new AIR ID. The specification mentions updated keys, and other registries may permit them.
// [Client.RotateKey] sends a new key like an update of other fields, verifies the result in the DID
// document, and returns [ErrKeyImmutable] if the registry refuses.
package registry
