// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/randid"
)

// featureEnvPush requests the changes of environments. It is a feature flag: agents list it among
// the requested capabilities although it is not a capability (A2E-D23).
const featureEnvPush = "env_push"

// Extensions, in the order in which clients name them (A2E-D54).
const (
	featureCancel = "cancel"
	featureLimits = "limits"
	featureBatch  = "batch"
	featureWindow = "window"
	featureResume = "resume"
)

var extensions = []string{featureCancel, featureLimits, featureBatch, featureWindow, featureResume}

// isFlag reports whether a requested name is a feature flag and not an extension.
func isFlag(name string) bool {
	return name == "streaming" || name == "artifacts" || name == featureEnvPush
}

// announcedLimits are what a side reads, in both handshake messages. Zero means no bound.
type announcedLimits struct {
	MaxMessageBytes int `json:"max_message_bytes"`
	MaxDepth        int `json:"max_depth"`
}

// announce returns the limits of a codec for the peer.
func (c *Codec) announce() announcedLimits { return announcedLimits{c.maxBytes(), c.maxDepth()} }

// announced returns the limits that a handshake message announces. Wrong members count as absent.
func announced(m *Message) bounds {
	v := m.Extra.object().Get("limits")
	number := func(name string) int {
		n, _ := v.Get(name).Int()
		return int(min(max(n, 0), math.MaxInt32))
	}
	return bounds{number("max_message_bytes"), number("max_depth")}
}

// capabilityAlias returns the canonical name of a capability.
func capabilityAlias(name string) string {
	switch name {
	case "learn":
		return "learning"
	case "skills":
		return "skill"
	case "subagents":
		return "multi_agent"
	}
	return name
}

// A handshakeAttempt is a handshake request and the results of its checks.
type handshakeAttempt struct {
	message   *Message
	request   *HandshakeRequest
	principal *Principal
	arrived   time.Time
	in        int // length of the line
	scope     *budget.Scope
	place     budget.Hold // of the session after the handshake
	offer     negotiation
	kept      *kept // of a session that becomes durable
	refusal   session.Refusal
}

// shake processes a handshake request. No lock is held during the call of the authenticator.
func (s *Session) shake(m *Message, arrived time.Time, in int) {
	r, ok := m.Body.(*HandshakeRequest)
	if !ok || s.isClosed() {
		return
	}
	a := &handshakeAttempt{message: m, request: r, arrived: arrived, in: in, offer: s.negotiate(r.AgentCaps)}
	s.mu.Lock()
	state, scope := s.core.State(), s.scope
	s.mu.Unlock()
	isAllowed := false
	if state != session.StateDraining {
		a.principal, isAllowed = s.host.authenticate(s.ctx, r)
	}
	switch {
	case state == session.StateDraining:
		a.refusal = session.RefusedServer
	case !isAllowed:
		a.refusal = session.RefusedAuth
	case a.offer.hasCaps && len(a.offer.caps) == 0:
		a.refusal = session.RefusedCapabilities
	}
	if isAllowed {
		a.scope = s.host.budget.Scope(s.account(a.principal))
		var err error
		if state == session.StateNew || scope != a.scope {
			a.place, err = a.scope.Reserve(budget.Items, 1)
		}
		if err == nil {
			err = s.keep(a)
		}
		if err != nil {
			a.refusal = session.RefusedServer
		}
	}
	s.finishHandshake(a)
	a.place.Release() // unless the session took it
}

// refusals are the reasons of refused handshakes on the wire.
var refusals = [...]string{
	session.RefusedAuth: RejectAuthFailed, session.RefusedCapabilities: RejectNoCaps,
	session.RefusedVersion: RejectVersionMismatch, session.RefusedServer: RejectServerError,
}

// finishHandshake answers a handshake.
func (s *Session) finishHandshake(a *handshakeAttempt) {
	h := &session.Handshake{SessionID: randid.UUID4Hex(), Accepted: a.offer.accepted, Refusal: a.refusal,
		Cancels: slices.Contains(a.offer.agreed, featureCancel)}
	if a.kept != nil {
		h.SessionID = a.kept.id
	}
	if id := s.ID(); id != "" {
		h.SessionID = id
	}
	if a.request != nil {
		h.AgentID = strings.Clone(a.request.AgentID) // the session does not keep the message
	}
	if a.principal != nil {
		h.Expires = a.principal.Expires.Round(0) // by the wall clock
	}
	reads, welcome := s.welcome(a, h.SessionID)
	s.step(func(core *session.Session, _ time.Time) {
		isNew := core.State() == session.StateNew
		if core.State() == session.StateClosed {
			return
		}
		refusal := core.Handshake(h)
		if refusal == session.Accepted {
			s.acceptLocked(a, h, reads, isNew)
			s.conn.add(item{message: welcome, then: s.auditLocked(a.message, a.arrived, a.in, OutcomeOK, "")})
			return
		}
		reason := refusals[refusal]
		answer := NewMessage(typeHandshakeResponse, &HandshakeResponse{ReqID: a.message.ID, MaxParallel: new(int64), OK: new(bool), Reason: reason})
		s.conn.add(item{message: answer, then: s.auditLocked(a.message, a.arrived, a.in, OutcomeRefused, reason)})
	})
	if !s.isPending.Load() {
		s.host.removePending(s)
	}
	if a.kept != nil && s.durable() != a.kept {
		go a.kept.discard()
	}
}

// welcome returns the answer to an accepted handshake, and the limits of the agent.
func (s *Session) welcome(a *handshakeAttempt, id string) (reads bounds, answer *Message) {
	answer = NewMessage(typeHandshakeResponse, &HandshakeResponse{ReqID: a.message.ID, SessionID: id, AcceptedCaps: a.offer.caps,
		MaxParallel: new(s.host.opts.Limits.MaxConcurrentPerSession)})
	if a.offer.agreed != nil {
		_ = answer.Extra.Set("features", a.offer.agreed)
	}
	if slices.Contains(a.offer.agreed, featureLimits) {
		reads = announced(a.message)
		_ = answer.Extra.Set("limits", s.conn.codec.announce())
	}
	return reads, answer
}

// acceptLocked changes the session after an accepted handshake. s.mu must be held.
func (s *Session) acceptLocked(a *handshakeAttempt, h *session.Handshake, reads bounds, isNew bool) {
	if isNew {
		s.id, s.agentID = h.SessionID, h.AgentID
		if a.kept != nil {
			s.moveLocked(a.kept)
		}
		s.isPending.Store(false)
	}
	if s.scope != a.scope || a.place != (budget.Hold{}) {
		s.place, a.place = a.place, s.place
		s.scope = a.scope
	}
	s.features = slices.Concat(a.offer.flags, a.offer.agreed)
	s.principal, s.ownerID = a.principal, ownerID(a.principal, a.request)
	s.conn.setReads(reads)
}

// A negotiation is the outcome of the names that an agent requests (A2E-D23, A2E-D54).
type negotiation struct {
	caps     []Capability
	accepted map[string]bool
	hasCaps  bool     // a capability was requested
	flags    []string // feature flags
	agreed   []string // extensions; nil if none was requested
}

// names returns the agreed names, each once.
func (n *negotiation) names() []string {
	names := slices.Concat(n.flags, n.agreed)
	for i := range n.caps {
		names = append(names, n.caps[i].Capability)
	}
	return names
}

// negotiate selects the served names of those that an agent requests.
func (s *Session) negotiate(names []string) (n negotiation) {
	n.accepted = map[string]bool{}
	for _, name := range names {
		switch i := slices.Index(extensions, name); {
		case i >= 0:
			if n.agreed == nil {
				n.agreed = []string{}
			}
			if slices.Contains(s.extensions, name) && !slices.Contains(n.agreed, name) {
				n.agreed = append(n.agreed, extensions[i])
			}
		case isFlag(name):
			if !slices.Contains(n.flags, name) {
				n.flags = append(n.flags, strings.Clone(name))
			}
		default:
			n.hasCaps = true
			name = capabilityAlias(name)
			if p := s.host.plugin(name); p != nil && !n.accepted[name] {
				name = p.Capability // not the text of the message
				n.accepted[name] = true
				n.caps = append(n.caps, Capability{Capability: name, Enabled: new(true), Metadata: p.metadata()})
			}
		}
	}
	return n
}
