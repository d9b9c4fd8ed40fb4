// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"net/http"

	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/httpx"
)

// A caller is the result of an authentication by a front.
type caller struct {
	server    *Server
	principal *Principal
	fault     *Error
	badToken  bool
}

func init() {
	front.New = func(server any, opts front.Options, next http.Handler) http.Handler {
		return server.(*Server).front(opts, next)
	}
}

// front implements [front.New].
func (s *Server) front(opts front.Options, next http.Handler) http.Handler {
	origins := s.origins
	origins.Methods, origins.Headers = opts.Methods, "Authorization, Content-Type, traceparent, "+opts.Headers
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !origins.Admits(w, r, s.opts.Timing.ReadTimeout, "Traceparent") {
			return
		}
		in := requestOf(r)
		x := &exchange{in: &in, agent: s.opts.ID}
		fault, err := s.receive(w, r, x, opts.PassRefused)
		defer x.body.Release()
		isRefused := fault != nil && (err != nil || !opts.PassRefused || x.principal != nil || s.opts.Auth.Authenticator == nil)
		if isRefused {
			a := s.failure(x, fault)
			status := s.statusFor(r.Context(), fault)
			errorHeaders(w.Header(), a, status)
			http.Error(w, fault.Message, status)
			return
		}
		body := in.Data
		in.Data, in.caller = nil, &caller{s, x.principal, fault, x.badToken}
		r = r.WithContext(context.WithValue(r.Context(), front.RequestKey{}, &in))
		httpx.Forward(w, r, body, err, s.opts.Timing.WriteTimeout, next)
	})
}
