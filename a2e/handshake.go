// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// FeatureEnvPush requests the changes of environments. It is a feature flag: agents list it among
// the requested capabilities although it is not a capability (A2E-D23).
const FeatureEnvPush = "env_push"

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
	return name == "streaming" || name == "artifacts" || name == FeatureEnvPush
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

// A handshakeAttempt is a handshake request to be authenticated without the lock.
type handshakeAttempt struct {
	message *Message
	request *HandshakeRequest
	arrived time.Time
	in      int // length of the line
	scope   *budget.Scope
	place   budget.Hold // of the session after the handshake
	offer   negotiation
	kept    *kept // of a session that becomes durable
}

// startHandshakeLocked returns a handshake request to be authenticated, or nil after a refusal.
// s.mu must be held.
func (s *Session) startHandshakeLocked(m *Message, arrived time.Time, in int) *handshakeAttempt {
	r, ok := m.Body.(*HandshakeRequest)
	if !ok {
		return nil // not reached: the type is a base type
	}
	if s.state == stateDraining {
		s.refuseHandshakeLocked(m, RejectServerError, arrived, in)
		return nil
	}
	return &handshakeAttempt{message: m, request: r, arrived: arrived, in: in}
}

// authenticate authenticates and answers a handshake request. The lock is free during the call of
// the authenticator.
func (s *Session) authenticate(a *handshakeAttempt) {
	principal, ok := s.host.authenticate(s.ctx, a.request)
	a.scope = s.host.scope(s, principal)
	s.mu.Lock()
	needsPlace := ok && (s.state == stateNew || s.scope != a.scope)
	s.unlock()
	var err error
	if needsPlace {
		a.place, err = a.scope.Reserve(budget.Items, 1)
	}
	a.offer = s.negotiate(a.request.AgentCaps)
	if ok && err == nil {
		err = s.keep(a, principal)
	}
	s.mu.Lock()
	defer s.unlock()
	defer func() { a.place.Release() }() // unless the session took it
	defer func() {
		if a.kept != nil && s.kept != a.kept {
			go a.kept.discard()
		}
	}()
	if err != nil && s.state != stateClosed {
		s.refuseHandshakeLocked(a.message, RejectServerError, a.arrived, a.in)
		return
	}
	s.finishHandshakeLocked(a, principal, ok)
}

// finishHandshakeLocked answers an authenticated or refused handshake. s.mu must be held.
func (s *Session) finishHandshakeLocked(a *handshakeAttempt, principal *Principal, ok bool) {
	m, r := a.message, a.request
	switch {
	case s.state == stateClosed:
		return
	case s.state == stateDraining:
		s.refuseHandshakeLocked(m, RejectServerError, a.arrived, a.in)
		return
	case !ok, s.state == stateActive && r.AgentID != s.agentID:
		s.refuseHandshakeLocked(m, RejectAuthFailed, a.arrived, a.in)
		return
	}
	n := a.offer
	if n.hasCaps && len(n.caps) == 0 {
		s.refuseHandshakeLocked(m, RejectNoCaps, a.arrived, a.in)
		return
	}
	if s.state == stateNew {
		s.state = stateActive
		s.id = randid.UUID4Hex()
		if a.kept != nil {
			s.moveLocked(a.kept)
		}
		s.agentID = strings.Clone(r.AgentID) // the session does not keep the message
		if s.timer != nil {
			s.timer.Stop()
		}
		s.isPending.Store(false)
		s.host.removePending(s)
	}
	if s.scope != a.scope || a.place != (budget.Hold{}) {
		s.place, a.place = a.place, s.place
		s.scope = a.scope
	}
	s.caps, s.features, s.reads = n.accepted, slices.Concat(n.flags, n.agreed), bounds{}
	s.principal, s.ownerID = principal, ownerID(principal, r)
	answer := NewMessage(TypeHandshakeResponse, &HandshakeResponse{ReqID: m.ID, SessionID: s.id, AcceptedCaps: n.caps,
		MaxParallel: new(s.host.opts.Limits.MaxConcurrentPerSession)})
	if n.agreed != nil {
		_ = answer.Extra.Set("features", n.agreed)
	}
	if slices.Contains(n.agreed, featureLimits) {
		s.reads = announced(m)
		_ = answer.Extra.Set("limits", s.host.codec.announce())
	}
	s.auditLocked(m, a.arrived, a.in, s.sendLocked(answer), OutcomeOK, "")
	s.expireLocked()
}

// A negotiation is the outcome of the names that an agent requests (A2E-D23, A2E-D54).
type negotiation struct {
	caps     []Capability
	accepted map[string]bool
	hasCaps  bool     // a capability was requested
	flags    []string // feature flags
	agreed   []string // extensions; nil if none was requested
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
			n.flags = append(n.flags, strings.Clone(name))
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

// expireLocked ends the session when its principal expires. s.mu must be held.
func (s *Session) expireLocked() {
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if s.principal == nil || s.principal.Expires.IsZero() {
		return
	}
	s.expiry = time.AfterFunc(time.Until(s.principal.Expires), func() {
		s.host.log.WarnContext(s.ctx, "a2e: session ended", "session", s.ID(), "reason", "principal expired")
		s.mu.Lock()
		defer s.unlock()
		s.code = wsconn.CodeNotAllowed
		s.startDrainLocked(0)
	})
}

// refuseHandshakeLocked answers a handshake with a reason, and closes the session after
// MaxHandshakeAttempts (A2E-D22). s.mu must be held.
func (s *Session) refuseHandshakeLocked(m *Message, reason string, arrived time.Time, in int) {
	answer := NewMessage(TypeHandshakeResponse, &HandshakeResponse{ReqID: m.ID, MaxParallel: new(int64), OK: new(bool), Reason: reason})
	s.auditLocked(m, arrived, in, s.sendLocked(answer), OutcomeRefused, reason)
	if s.state != stateNew {
		return
	}
	s.attempts++
	if s.attempts >= s.host.opts.Limits.MaxHandshakeAttempts {
		s.code = wsconn.CodeNotAllowed
		s.startDrainLocked(0) // a session without handshake may have work in flight
	}
}
