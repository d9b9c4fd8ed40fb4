// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
)

func airRelayScript(t *testing.T, _, fixture *Input) (Step, error) {
	registry := airReadRegistry(fixture)
	resolver, err := registry.resolver(false)
	if err != nil {
		return nil, err
	}
	srv, err := newAIRRelay(fixture, resolver)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = srv.Close() })
	return func(in *Input) (Answer, error) {
		if in.Has("document") {
			return registry.step(in), nil
		}
		return airRelayRequest(in, srv, func() int { return registry.lookups })
	}, nil
}

// newAIRRelay returns a relay with a fixture.
func newAIRRelay(fixture *Input, resolver *air.Resolver) (*relay.Server, error) {
	directory := airDirectory(fixture, resolver)
	secrets := map[string]string{}
	list := fixture.ObjectOr("inboxSecrets")
	for _, name := range list.Names() {
		secrets[airMailbox(name)] = list.String(name)
	}
	return relay.NewServer(&relay.ServerOptions{
		Directory:    directory,
		AnyRecipient: directory == nil,
		PageSize:     fixture.IntOr("pageSize", 0),
		Auth: relay.Auth{
			PushSecret:         fixture.StringOr("pushSecret", ""),
			InboxSecret:        func(airID string) string { return secrets[airID] },
			Resolver:           resolver,
			AllowAnonymousPush: true,
			AllowAnonymous:     fixture.BoolOr("openInboxes", true),
		},
		Limits: relay.Limits{
			MaxMessage:       fixture.IntOr("maxBytes", 0),
			RateLimit:        fixture.IntOr("rateLimit", 0),
			AddressRateLimit: fixture.IntOr("addressLimit", 0),

			QueueLimitPerSession: fixture.Int64Or("maxQueued", 0),
			MaxMemoryPerSession:  fixture.Int64Or("maxQueuedBytes", 0),
			MaxMemory:            fixture.Int64Or("maxTotalBytes", 0),
		},
		AllowedOrigins: fixture.StringsOr("allowedOrigins"),
	})
}

// airRelayRequest does the request of a step.
func airRelayRequest(in *Input, srv http.Handler, lookups func() int) (Answer, error) {
	rq := in.Object("request")
	method, path := rq.String("method"), rq.String("path")
	body, _ := rq.WireOr("body")
	remote := rq.StringOr("remote", "192.0.2.1:1234")
	if err := in.Err(); err != nil {
		return nil, err
	}
	req, err := http.NewRequest(method, "http://relay.example"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.RemoteAddr = remote
	rq.SetHeaders("headers", req.Header)
	w := httptest.NewRecorder()
	srv.ServeHTTP(w, req)
	a := Answer{"status": w.Code, "headers": Headers(w.Header()), "lookups": lookups()}
	if w.Body.Len() > 0 {
		a["json"] = json.RawMessage(w.Body.Bytes())
	}
	return a.Optional(), nil
}

// airDirectory returns the directory that a fixture names.
func airDirectory(fixture *Input, resolver *air.Resolver) relay.Directory {
	var dids []string
	for _, agent := range fixture.Objects("agents") {
		agent.String("airId")
		dids = append(dids, agent.String("did"))
	}
	switch airWord(fixture, "directory", "agents", "none", "registry") {
	case "none":
		return nil
	case "registry":
		return relay.NewRegistryDirectory(resolver)
	}
	return relay.NewStaticDirectory(dids...)
}

// airMailbox returns the AIR ID of a mailbox that is named by it or by its DID.
func airMailbox(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }
