// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// agentCardPath is where, below the endpoint, the agent card is served.
const agentCardPath = "/.well-known/a2a-agent-card.json"

// serveDiscovery serves the plain HTTP paths for discovery (ARC-060). It reports
// whether the path is one of them.
func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request) bool {
	o := &s.opts
	base := path.Dir(o.Path)
	var body func() ([]byte, int)
	switch p := r.URL.Path; {
	case (p == path.Join(base, "agent-info") || p == o.Path+"/info") && !o.Auth.DisableDiscovery:
		body = func() ([]byte, int) { return s.agentInfo(r.URL.Query().Get("agentId")) }
	case p == path.Join(base, "health") && o.EnableHealth:
		body = s.health
	case p == o.Path+agentCardPath && o.AgentCard != nil:
		body = func() ([]byte, int) { return o.AgentCard, http.StatusOK }
	default:
		return false
	}
	if s.origins.CORS(w, r) {
		return true
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		s.discovered(w, discoveryFault(&Error{Code: ErrInvalidRequest, Message: "Invalid request: only GET and HEAD are allowed"}), http.StatusMethodNotAllowed)
		return true
	}
	if o.Auth.RequireForDiscovery {
		x := &exchange{startTime: time.Now(), agent: o.ID, in: &ServerRequest{Authorization: one(r.Header, "Authorization"),
			Header: r.Header, RemoteAddr: r.RemoteAddr}}
		x.req.Method = r.URL.Path
		if _, fault := s.authenticate(r.Context(), x); fault != nil {
			a := &ServerResponse{Error: fault, InvalidToken: x.badToken, RetryAfter: x.retryAfter}
			status := fault.Code.HTTPStatus()
			errorHeaders(h, a, status)
			s.audit(r.Context(), x, a)
			s.discovered(w, discoveryFault(fault), status)
			return true
		}
	}
	b, status := body()
	s.discovered(w, b, status)
	return true
}

func (s *Server) discovered(w http.ResponseWriter, b []byte, status int) {
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // an error means that the caller disconnected
}

// agentInfo is the answer of /agent-info (ARC-D67).
func (s *Server) agentInfo(id string) ([]byte, int) {
	agents := s.registry.all()
	if id == "" && len(agents) == 1 {
		id = agents[0].AgentID
	}
	if id != "" {
		e := s.registry.lookup(id)
		if e == nil {
			return discoveryFault(agentFault(ErrAgentNotFound, id)), http.StatusNotFound
		}
		return s.written(s.infoOf(e).MarshalJSON())
	}
	o := wire.Open(nil)
	o.Text("server", s.opts.ID)
	o.Text("status", "active")
	o.Object("endpoints")
	o.Text("arc", s.opts.Path)
	o.End()
	o.Object("registeredAgents")
	for i, e := range agents {
		info, err := s.infoOf(e).MarshalJSON()
		if err != nil {
			return s.written(nil, err)
		}
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.B = append(append(strictjson.AppendString(o.B, e.AgentID), ':'), info...)
	}
	o.End()
	o.Int("totalAgents", int64(len(agents)))
	return o.Close(), http.StatusOK
}

// written is a body, or the failure to write it, which only raw JSON in the
// Extra of an agent's info can cause.
func (s *Server) written(b []byte, err error) ([]byte, int) {
	if err != nil {
		return discoveryFault(s.internal(context.Background(), nil, err)), http.StatusInternalServerError
	}
	return b, http.StatusOK
}

func discoveryFault(e *Error) []byte {
	o := wire.Open(nil)
	o.Raw("error", e.append(nil))
	return o.Close()
}

// infoOf returns the public description of an agent.
func (s *Server) infoOf(e *agentEntry) AgentInfo {
	info := e.AgentInfo
	info.Endpoint = s.opts.Path
	s.registry.mu.RLock()
	defer s.registry.mu.RUnlock()
	info.SupportedMethods = e.names
	return info
}

// health is the answer of /health: how the agents are.
func (s *Server) health() ([]byte, int) {
	status, code := "healthy", http.StatusOK
	if s.Ready() != nil {
		status, code = "draining", http.StatusServiceUnavailable
	}
	o := wire.Open(nil)
	o.Text("status", status)
	o.Text("server", s.opts.ID)
	o.Int("agents", int64(len(s.registry.all())))
	return o.Close(), code
}

// An AgentStatus is the load and health of an agent of a [Server] (ARC-181).
type AgentStatus struct {
	ID            string
	Group         string
	Healthy       bool
	InFlight      int // running calls, tasks included
	MaxConcurrent int // zero means no bound
}

// Agents returns the state of all agents, in the order of their registration.
func (s *Server) Agents() []AgentStatus {
	var list []AgentStatus
	for _, e := range s.registry.all() {
		if l, ok := s.engine.Router.Load(e.AgentID); ok {
			list = append(list, AgentStatus{ID: l.ID, Group: l.Group, Healthy: l.IsHealthy, InFlight: l.Busy, MaxConcurrent: l.Capacity})
		}
	}
	return list
}

// capabilities serves agent.getCapabilities.
func (s *Server) capabilities(e *agentEntry) Handler {
	return HandlerFunc(func(_ context.Context, call *Call) (any, error) {
		info := s.infoOf(e)
		return call.ready(info.MarshalJSON())
	})
}
