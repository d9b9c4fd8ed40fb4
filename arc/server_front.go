// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/budget"
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
		timeout := s.opts.Timing.WriteTimeout
		counted := http.HandlerFunc(func(bounded http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(&outputWriter{bounded, w, s.output.Scope(x.account(), ""), timeout}, r)
		})
		httpx.Forward(w, r, body, err, timeout, counted)
	})
}

// An outputWriter takes the memory of the large parts of a response from that of its caller. Without memory, the
// timeout is that of the whole part: the call has had its effect.
type outputWriter struct {
	http.ResponseWriter // with the timeout for each 64 KiB
	whole               http.ResponseWriter
	scope               *budget.Scope
	timeout             time.Duration
}

// Write writes a part.
func (w *outputWriter) Write(b []byte) (int, error) {
	if len(b) <= largeOutput {
		return w.ResponseWriter.Write(b)
	}
	hold, err := w.scope.Reserve(budget.Memory, int64(len(b)))
	if err == nil {
		defer hold.Release()
		return w.ResponseWriter.Write(b)
	}
	if w.timeout > 0 {
		_ = http.NewResponseController(w.whole).SetWriteDeadline(time.Now().Add(w.timeout)) // not every writer has one
	}
	return w.whole.Write(b)
}

// Flush implements [http.Flusher].
func (w *outputWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap returns the writer with the timeout for each 64 KiB.
func (w *outputWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
