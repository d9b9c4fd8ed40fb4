// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"net/http"
	"time"

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
	front.TaskOf = func(ctx context.Context, server any, taskID string) (agent, group string, ok bool, err error) {
		return server.(*Server).taskOf(ctx, taskID)
	}
	front.HasMethod = func(server any, agent, method string) bool {
		_, _, m := server.(*Server).registry.method(agent, method)
		return m != nil
	}
	front.TaskRetention = func(server any) time.Duration { return server.(*Server).opts.Persistence.TaskRetention }
}

// taskOf implements [front.TaskOf].
func (s *Server) taskOf(ctx context.Context, id string) (agent, group string, ok bool, err error) {
	agent, err = s.engine.Tasks.AgentOf(ctx, id)
	if e := s.registry.lookup(agent); e != nil {
		group = e.Group
	}
	return agent, group, agent != "", err
}

// front implements [front.New].
func (s *Server) front(opts front.Options, next http.Handler) http.Handler {
	origins := s.origins
	origins.Methods, origins.Headers = opts.Methods, "Authorization, Content-Type, traceparent, "+opts.Headers
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpx.LeaveIf(s.life.Ready(), w)
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
		httpx.Forward(w, r, body, err, s.opts.Timing.WriteTimeout, s.output.Scope(x.account(), ""), next)
	})
}
