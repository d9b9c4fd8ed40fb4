// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package airtest is a registry and a relay in one process, on loopback, for tests
// and examples of package air.
package airtest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Registry serves the DID documents of the agents that are put into it. The zero
// value is an empty registry. All methods may be called from several goroutines.
type Registry struct {
	mu        sync.Mutex
	documents map[string][]byte // by AIR ID
	status    int
	lookups   int
}

// Document returns a DID document such as the registry publishes. An endpoint that
// is empty leaves the inbox out.
func Document(did, publicKey, endpoint string) []byte {
	q := func(s string) string { return string(strictjson.AppendString(nil, s)) }
	key := q(did + "#key-1")
	services := ""
	if endpoint != "" {
		services = fmt.Sprintf(`{"id":%s,"type":"A2AInbox","serviceEndpoint":%s}`, q(did+"#a2a-inbox"), q(endpoint))
	}
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/ns/did/v1","https://w3id.org/security/suites/ed25519-2020/v1"],`+
		`"id":%s,"verificationMethod":[{"id":%s,"type":"Ed25519VerificationKey2020","controller":%s,"publicKeyMultibase":%s}],`+
		`"authentication":[%s],"assertionMethod":[%s],"service":[%s]}`,
		q(did), key, q(did), q(publicKey), key, key, services)
}

// Put registers an agent, or replaces what is known of it.
func (r *Registry) Put(id *air.Identity, endpoint string) {
	r.PutDocument(id.AIRID(), Document(id.DID(), id.Public().String(), endpoint))
}

// PutDocument serves any document for an AIR ID.
func (r *Registry) PutDocument(airID string, document []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.documents == nil {
		r.documents = make(map[string][]byte)
	}
	r.documents[airID] = document
}

// Fail answers every request with a status from now on; zero ends that.
func (r *Registry) Fail(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// Lookups returns how many requests came.
func (r *Registry) Lookups() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lookups
}

// ServeHTTP answers GET /api/v1/agents/{air_id}/did-document.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	rest, ok := strings.CutPrefix(req.URL.Path, "/api/v1/agents/")
	airID, ok2 := strings.CutSuffix(rest, "/did-document")
	r.mu.Lock()
	r.lookups++
	status, document := r.status, r.documents[airID]
	r.mu.Unlock()
	switch {
	case !ok || !ok2 || document == nil && status == 0:
		status = http.StatusNotFound
	case status == 0:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document) // a caller that has gone needs no answer
		return
	}
	http.Error(w, http.StatusText(status), status)
}

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

// Join makes an agent with a fresh key, with a mailbox at the relay, and
// registers it.
func (n *Network) Join(airID string) (*air.Identity, error) {
	if err := air.CheckAIRID(airID); err != nil {
		return nil, err
	}
	id, err := air.GenerateIdentity(DID(airID))
	if err != nil {
		return nil, err
	}
	n.Registry.Put(id, n.Endpoint(id))
	return id, nil
}

// Endpoint returns the address of an agent's mailbox at the relay.
func (n *Network) Endpoint(id *air.Identity) string { return n.RelayURL + "/inbox/" + id.AIRID() }

// Resolver returns a new resolver that asks the registry of the network.
func (n *Network) Resolver() (*air.Resolver, error) {
	return air.NewResolver(&air.ResolverOptions{Registry: n.RegistryURL, AllowLoopback: true})
}
