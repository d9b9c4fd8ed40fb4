// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDepth bounds the nesting of a body.
const maxDepth = 64

// addrKey is the key of the address of the client in a context.
type addrKey struct{}

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
	origins := &httpx.Origins{AllowedOrigins: s.opts.AllowedOrigins, AllowedHosts: s.opts.AllowedHosts,
		Methods: "GET, POST, DELETE", Headers: "Authorization, Content-Type, " + a2a.SvcParamVersion + ", " + a2a.SvcParamExtensions}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origins.CORS(w, r) {
			return
		}
		if err := origins.Check(r); err != nil {
			http.Error(w, "the origin is not allowed", http.StatusForbidden)
			return
		}
		if _, err := httpx.CheckRequest(r, nil); err != nil {
			http.Error(w, "no header field may occur twice", http.StatusBadRequest)
			return
		}
		body, err := httpx.Body(w, r, int64(s.opts.MaxMessage), s.opts.ReadTimeout)
		if err == nil && len(body) > 0 {
			_, err = strictjson.Check(body, strictjson.Options{MaxDepth: maxDepth})
		}
		if err != nil {
			status := http.StatusBadRequest
			if refusal, ok := errors.AsType[*httpx.Error](err); ok {
				status = refusal.Status
			}
			http.Error(w, "the body is not JSON in order, or too large", status)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), addrKey{}, r.RemoteAddr))
		if v := r.URL.Query().Get(a2a.SvcParamVersion); v != "" && r.Header.Get(a2a.SvcParamVersion) == "" {
			r.Header.Set(a2a.SvcParamVersion, v)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(&boundedWriter{w, http.NewResponseController(w), s.opts.WriteTimeout}, r)
	})
}

// maxPart is the largest part of a response under one deadline.
const maxPart = 64 << 10

// A boundedWriter bounds the time in which each part of a response is written. net/http removes the deadline
// afterwards.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (w *boundedWriter) setDeadline() {
	if w.timeout > 0 {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // not every writer has one
	}
}

// Write writes the parts of b.
func (w *boundedWriter) Write(b []byte) (written int, err error) {
	for err == nil && written < len(b) {
		w.setDeadline()
		var n int
		n, err = w.ResponseWriter.Write(b[written:min(written+maxPart, len(b))])
		written += n
	}
	return written, err
}

// Flush sends the written parts.
func (w *boundedWriter) Flush() {
	w.setDeadline()
	_ = w.control.Flush() // its error is that of the next Write
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
