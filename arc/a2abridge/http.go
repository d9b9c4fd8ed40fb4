// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

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
