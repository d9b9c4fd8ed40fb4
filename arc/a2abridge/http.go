// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"errors"
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
)

// JSONRPCHandler returns a handler for the JSON-RPC binding, for one path.
func (s *Server) JSONRPCHandler() http.Handler {
	return s.checked(a2asrv.NewJSONRPCHandler(s, a2asrv.WithTransportKeepAlive(s.opts.Heartbeat)))
}

// RESTHandler returns a handler for the HTTP+JSON binding, for the paths of that binding: use
// [http.StripPrefix] in front of it for a base path.
func (s *Server) RESTHandler() http.Handler {
	return s.checked(a2asrv.NewRESTHandler(s, a2asrv.WithTransportKeepAlive(s.opts.Heartbeat)))
}

// checked returns a handler that checks what the handlers of the SDK do not.
func (s *Server) checked(next http.Handler) http.Handler {
	opts := front.Options{Methods: "GET, POST, DELETE", Headers: a2a.SvcParamVersion + ", " + a2a.SvcParamExtensions, PassRefused: true}
	return front.New(s.engine, opts, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := r.URL.Query().Get(a2a.SvcParamVersion); v != "" && r.Header.Get(a2a.SvcParamVersion) == "" {
			r.Header.Set(a2a.SvcParamVersion, v)
		}
		next.ServeHTTP(w, r)
	}))
}

// NewCard returns the card of an agent that is served under the URLs of a [Server.JSONRPCHandler] and of a
// [Server.RESTHandler]; an empty URL is omitted. Skills are the capabilities of the agent. The card is
// not signed, and names no security scheme.
func NewCard(info arc.AgentInfo, jsonrpcURL, restURL string) (*a2a.AgentCard, error) {
	card := &a2a.AgentCard{Name: info.Name, Description: info.Description, Version: info.Version,
		Capabilities:      a2a.AgentCapabilities{Streaming: true},
		DefaultInputModes: []string{"text/plain", "application/json", "application/octet-stream"},
		Skills:            []a2a.AgentSkill{}}
	if card.Name == "" {
		card.Name = info.AgentID
	}
	if card.Description == "" {
		card.Description = info.Prompt
	}
	if card.Version == "" {
		card.Version = "1"
	}
	card.DefaultOutputModes = card.DefaultInputModes
	for _, name := range info.Capabilities {
		card.Skills = append(card.Skills, a2a.AgentSkill{ID: name, Name: name, Description: name, Tags: []string{name}})
	}
	if jsonrpcURL != "" {
		card.SupportedInterfaces = append(card.SupportedInterfaces, a2a.NewAgentInterface(jsonrpcURL, a2a.TransportProtocolJSONRPC))
	}
	if restURL != "" {
		card.SupportedInterfaces = append(card.SupportedInterfaces, a2a.NewAgentInterface(restURL, a2a.TransportProtocolHTTPJSON))
	}
	if card.Name == "" || len(card.SupportedInterfaces) == 0 {
		return nil, errors.New("a2abridge: card: no name or no URL")
	}
	return card, nil
}
