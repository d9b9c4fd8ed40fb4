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
)

func airRelayScript(t *testing.T, _, fixture *Input) (Step, error) {
	registry := airReadRegistry(fixture)
	directory, err := airDirectory(fixture, registry)
	if err != nil {
		return nil, err
	}
	secrets := map[string]string{}
	list := fixture.ObjectOr("inboxSecrets")
	for _, name := range list.Names() {
		secrets[airMailbox(name)] = list.String(name)
	}
	fixture.noOption("air", "addressLimit", "maxQueuedBytes", "maxTotalBytes", "allowedOrigins")
	relay := air.NewRelay(&air.RelayOptions{
		Directory:   directory,
		PushSecret:  fixture.StringOr("pushSecret", ""),
		InboxSecret: func(recipient string) string { return secrets[airMailbox(recipient)] },
		OpenInboxes: fixture.BoolOr("openInboxes", true),
		RateLimit:   fixture.IntOr("rateLimit", 0),
		PageSize:    fixture.IntOr("pageSize", 0),
		MaxBytes:    fixture.IntOr("maxBytes", 0),
		MaxQueued:   fixture.IntOr("maxQueued", 0),
	})
	t.Cleanup(func() { _ = relay.Close() })
	return func(in *Input) (Answer, error) {
		if in.Has("document") {
			return registry.step(in), nil
		}
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
		relay.ServeHTTP(w, req)
		return Answer{"status": w.Code, "headers": Headers(w.Header()), "json": json.RawMessage(w.Body.Bytes()),
			"lookups": registry.lookups}.Optional(), nil
	}, nil
}

// airDirectory returns the directory that a fixture names.
func airDirectory(fixture *Input, registry *airRegistry) (air.Directory, error) {
	var dids []string
	for _, agent := range fixture.Objects("agents") {
		agent.String("airId")
		dids = append(dids, agent.String("did"))
	}
	switch airWord(fixture, "directory", "agents", "none", "registry") {
	case "none":
		return nil, nil
	case "registry":
		resolver, err := registry.resolver(false)
		if err != nil {
			return nil, err
		}
		return air.RegistryDirectory(resolver), nil
	}
	return air.StaticDirectory(dids...), nil
}

// airMailbox returns the AIR ID of a mailbox that is named by it or by its DID.
func airMailbox(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }
