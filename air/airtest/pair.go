// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package airtest

import (
	"context"
	"net/http"
	"testing"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/kit"
)

// The AIR IDs of the two agents of [NewPair].
const (
	SenderID    = "AIR-A11C-E000-0001"
	RecipientID = "AIR-B0B0-0000-0002"
)

// memoryURL is where registry and inbox of a pair are.
const memoryURL = "http://127.0.0.1"

// PairOptions adjusts [NewPair]. Nil means the zero value.
type PairOptions struct {
	// Handler handles what the inbox receives. Nil means one that does nothing.
	Handler air.Handler

	// Inbox and Client are the options of each.
	Inbox  *air.InboxOptions
	Client *air.ClientOptions

	// Transport, if set, wraps that of the client: fault.RoundTripper of package conformance/fault injects faults.
	Transport func(http.RoundTripper) http.RoundTripper
}

// NewPair returns the inbox of one agent and a client of another one, connected in memory until the end of the test. A
// registry in memory has both agents; the DIDs are those of [RecipientID] and [SenderID].
func NewPair(t testing.TB, opts *PairOptions) (*air.Inbox, *air.Client) {
	t.Helper()
	var o PairOptions
	if opts != nil {
		o = *opts
	}
	if o.Handler == nil {
		o.Handler = air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil })
	}
	registry := &Registry{}
	documents := kit.Serve(t, "airtest", registry)
	ids := make(map[string]*air.Identity)
	for _, name := range []string{SenderID, RecipientID} {
		id, err := air.GenerateIdentity(DID(name))
		if err != nil {
			t.Fatal(err)
		}
		registry.Register(id, memoryURL+"/inbox/"+name)
		ids[name] = id
	}
	resolver := func() *air.Resolver {
		r, err := air.NewResolver(&air.ResolverOptions{RegistryURL: memoryURL, HTTPClient: documents.Client, AllowLoopback: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() }) // always succeeds
		return r
	}
	var inboxOptions air.InboxOptions
	if o.Inbox != nil {
		inboxOptions = *o.Inbox
	}
	inboxOptions.Resolver = resolver()
	inbox, err := air.NewInbox(ids[RecipientID], o.Handler, &inboxOptions)
	if err != nil {
		t.Fatal(err)
	}
	mem := kit.Serve(t, "airtest", inbox)
	mem.Wrap(o.Transport)
	var clientOptions air.ClientOptions
	if o.Client != nil {
		clientOptions = *o.Client
	}
	clientOptions.Resolver, clientOptions.HTTPClient = resolver(), mem.Client
	client, err := air.NewClient(ids[SenderID], &clientOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // always succeeds
	return inbox, client
}
