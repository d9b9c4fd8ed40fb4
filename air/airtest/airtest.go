// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package airtest is a registry and a relay in one process, on loopback, for tests
// and examples of package air.
package airtest

import (
	"net/http"
	"net/http/httptest"

	"github.com/fivewire/fivewire/air"
)

// Options adjusts a [Network]. The zero value is right.
type Options struct {
	// Relay adjusts the relay. Its mailboxes are open, since they are on loopback.
	Relay air.RelayOptions

	// Middleware, if set, stands between the network and the relay, to watch or to
	// tamper.
	Middleware func(http.Handler) http.Handler
}

// A Network is a registry and a relay that listen on loopback.
type Network struct {
	Registry *Registry
	Relay    *air.Relay

	// RegistryURL and RelayURL are their addresses.
	RegistryURL, RelayURL string

	servers []*httptest.Server
}

// NewNetwork starts a registry and a relay. Close ends them.
func NewNetwork(opts *Options) *Network {
	var o Options
	if opts != nil {
		o = *opts
	}
	n := &Network{Registry: &Registry{}, Relay: air.NewRelay(&o.Relay)}
	var relay http.Handler = n.Relay
	if o.Middleware != nil {
		relay = o.Middleware(relay)
	}
	for _, h := range []http.Handler{n.Registry, relay} {
		n.servers = append(n.servers, httptest.NewServer(h))
	}
	n.RegistryURL, n.RelayURL = n.servers[0].URL, n.servers[1].URL
	return n
}

// Close ends the streams of the relay and both servers.
func (n *Network) Close() {
	_ = n.Relay.Close() // never fails
	for _, s := range n.servers {
		s.Close()
	}
}

// DID returns the DID that an AIR ID has in the registry.
func DID(airID string) string { return "did:wba:agentidentityregistry.org:agents:" + airID }

// RegisterAgent makes an agent with a fresh key, with a mailbox at the relay, and
// registers it.
func (n *Network) RegisterAgent(airID string) (*air.Identity, error) {
	if err := air.ValidateAIRID(airID); err != nil {
		return nil, err
	}
	id, err := air.GenerateIdentity(DID(airID))
	if err != nil {
		return nil, err
	}
	n.Registry.Register(id, n.Endpoint(id))
	return id, nil
}

// Endpoint returns the address of an agent's mailbox at the relay.
func (n *Network) Endpoint(id *air.Identity) string { return n.RelayURL + "/inbox/" + id.AIRID() }

// Resolver returns a new resolver that asks the registry of the network.
func (n *Network) Resolver() (*air.Resolver, error) {
	return air.NewResolver(&air.ResolverOptions{RegistryURL: n.RegistryURL, AllowLoopback: true})
}
