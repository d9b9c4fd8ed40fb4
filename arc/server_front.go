// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A caller is the result of an authentication by a front.
type caller struct {
	server    *Server
	principal *Principal
	fault     *Error
	badToken  bool
}

// maxFrontDepth bounds the nesting of a body.
const maxFrontDepth = 64

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
		if r.ContentLength != 0 {
			httpx.Bound(w, r, s.opts.Timing.ReadTimeout)
		}
		if origins.CORS(w, r) {
			return
		}
		if err := origins.Check(r); err != nil {
			http.Error(w, "the origin is not allowed", http.StatusForbidden)
			return
		}
		if _, err := httpx.CheckRequest(r, nil, "Traceparent"); err != nil {
			http.Error(w, "no header field may occur twice", http.StatusBadRequest)
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
		if err == nil && len(body) > 0 {
			_, err = strictjson.Check(body, strictjson.Options{MaxDepth: maxFrontDepth})
		}
		if err != nil {
			http.Error(w, "the body is not JSON in order, or too large", statusOf(err))
			return
		}
		in.Data, in.caller = nil, &caller{s, x.principal, fault, x.badToken}
		r = r.WithContext(context.WithValue(r.Context(), front.RequestKey{}, &in))
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(httpx.Bounded(w, s.opts.Timing.WriteTimeout), r)
	})
}
