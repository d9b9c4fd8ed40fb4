// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package airtest has an inbox and a client in memory, a registry and a relay on loopback, and scripted inboxes for tests
// and examples of programs that use package air.
//
//	inbox, client := airtest.NewPair(t, &airtest.PairOptions{Handler: handler})
//	receipt, err := client.Send(ctx, &air.Draft{To: airtest.DID(airtest.RecipientID), Body: offer}, nil)
//	...
//	network, err := airtest.NewNetwork(nil)
//	alice, err := network.RegisterAgent("AIR-A11C-E000-0001")
package airtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/hook"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/relay"
)

// Options adjusts a [Network].
type Options struct {
	// Relay adjusts the relay. Auth.AllowAnonymous is set: mailboxes without a secret are open.
	Relay relay.ServerOptions

	// Middleware, if set, wraps the relay, to observe or to modify requests.
	Middleware func(http.Handler) http.Handler
}

// A Network is a registry and a relay that listen on loopback.
type Network struct {
	Registry *Registry
	Relay    *relay.Server

	// RegistryURL and RelayURL are their addresses.
	RegistryURL, RelayURL string

	servers []*httptest.Server
}

// NewNetwork starts a registry and a relay. Close ends them.
func NewNetwork(opts *Options) (*Network, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Relay.Auth.AllowAnonymous = true
	o.Relay.AnyRecipient = o.Relay.Directory == nil
	srv, err := relay.NewServer(&o.Relay)
	if err != nil {
		return nil, err
	}
	n := &Network{Registry: &Registry{}, Relay: srv}
	var handler http.Handler = n.Relay
	if o.Middleware != nil {
		handler = o.Middleware(handler)
	}
	for _, h := range []http.Handler{n.Registry, handler} {
		n.servers = append(n.servers, httptest.NewServer(h))
	}
	n.RegistryURL, n.RelayURL = n.servers[0].URL, n.servers[1].URL
	return n, nil
}

// Close ends the streams of the relay and both servers.
func (n *Network) Close() {
	_ = n.Relay.Close() // never fails
	for _, s := range n.servers {
		s.Close()
	}
}

// DID returns the DID of an AIR ID in the registry.
func DID(airID string) string { return "did:wba:agentidentityregistry.org:agents:" + airID }

// RegisterAgent returns a new agent with a new key and a mailbox at the relay, and registers it.
func (n *Network) RegisterAgent(airID string) (*air.Identity, error) {
	if !name.IsAIRID(airID) {
		return nil, air.Errorf(air.ErrBadAIRID, "want AIR-XXXX-XXXX-XXXX")
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

// Resolver returns a new resolver of the registry of the network.
func (n *Network) Resolver() (*air.Resolver, error) {
	return air.NewResolver(&air.ResolverOptions{RegistryURL: n.RegistryURL, AllowLoopback: true})
}

// Vector runs an operation of the conformance vectors that concerns no exported function of package
// air. An unknown operation is an error.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) { return hook.Vector(op, in) }

// SetResolverJitter replaces the source of the numbers, from 0 up to 1, for the jitter of a cache.
func SetResolverJitter(o *air.ResolverOptions, random func() float64) { hook.Jitter(o, random) }

// SetPollerJitter replaces the source of the numbers, from 0 up to 1, for the jitter of polls.
func SetPollerJitter(o *air.PollerOptions, random func() float64) { hook.Jitter(o, random) }
