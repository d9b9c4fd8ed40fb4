// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
)

// Feature flags, which agents put among the capabilities they ask for without
// being any (A2E-D23).
const (
	FeatureStreaming = "streaming"
	FeatureArtifacts = "artifacts"
	FeatureEnvPush   = "env_push"
	FeatureCancel    = "cancel"
)

func isFeature(name string) bool {
	switch name {
	case FeatureStreaming, FeatureArtifacts, FeatureEnvPush, FeatureCancel:
		return true
	}
	return false
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

// handshake judges a handshake request. It is called with mu held.
func (s *Session) handshake(m *Message, arrived time.Time, in int) {
	r, ok := m.Body.(*HandshakeRequest)
	if !ok {
		return // not reached: the type is a base type
	}
	if s.state == stateDraining {
		s.refuseHandshake(m, RejectServerError, arrived, in)
		return
	}
	s.mu.Unlock() // an authenticator may take its time
	principal, good := s.host.authenticate(s.ctx, r)
	s.mu.Lock()
	switch {
	case s.state == stateClosed:
		return
	case s.state == stateDraining:
		s.refuseHandshake(m, RejectServerError, arrived, in)
		return
	case !good, s.state == stateActive && r.AgentID != s.agentID:
		s.refuseHandshake(m, RejectAuthFailed, arrived, in)
		return
	}
	var caps []Capability
	accepted := map[string]bool{}
	var features []string
	asked := false
	for _, name := range r.AgentCaps {
		if isFeature(name) {
			if !slices.Contains(features, name) {
				features = append(features, strings.Clone(name))
			}
			continue
		}
		asked = true
		name = capabilityAlias(name)
		if p := s.host.plugin(name); p != nil && !accepted[name] {
			name = p.Capability // not the text of the message
			accepted[name] = true
			caps = append(caps, Capability{Capability: name, Enabled: true, Metadata: p.metadata()})
		}
	}
	if asked && len(caps) == 0 {
		s.refuseHandshake(m, RejectNoCaps, arrived, in)
		return
	}
	if s.state == stateNew {
		s.state = stateActive
		s.id = randid.UUID4Hex()
		s.agentID = strings.Clone(r.AgentID) // the session does not keep the message
		if s.timer != nil {
			s.timer.Stop()
		}
	}
	s.caps, s.features, s.principal = accepted, features, principal
	answer := NewMessage(TypeHandshakeResponse, &HandshakeResponse{ReqID: m.ID, SessionID: s.id, AcceptedCaps: caps,
		MaxParallel: int64(s.host.limits.MaxConcurrent), OK: true})
	if slices.Contains(features, FeatureCancel) {
		_ = answer.Extra.Set("features", []string{FeatureCancel})
	}
	s.audit(newAudit(s.auditID(), m, arrived, in, s.send(answer)))
}

// refuseHandshake answers a handshake with a reason, and closes the session at
// one attempt too many (A2E-D22).
func (s *Session) refuseHandshake(m *Message, reason string, arrived time.Time, in int) {
	answer := NewMessage(TypeHandshakeResponse, &HandshakeResponse{ReqID: m.ID, Reason: reason})
	record := newAudit(s.auditID(), m, arrived, in, s.send(answer))
	record.failed(reason)
	s.audit(record)
	if s.state != stateNew {
		return
	}
	s.attempts++
	if most := s.host.limits.MaxHandshakeAttempts; most > 0 && s.attempts >= most {
		s.startDrain(0) // there is work where requests are served without handshake
	}
}

// handshakeOver closes a session that did not get through the handshake in time.
func (s *Session) handshakeOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stateNew {
		s.close()
	}
}

func (s *Session) auditID() string {
	if s.id != "" && s.host.opts.AuditSessionID != "" {
		return s.host.opts.AuditSessionID
	}
	return s.id
}

// audit hands a record out. A sink that panics fails nothing (A2E-145).
func (s *Session) audit(r AuditRecord) {
	if !s.audited() {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.host.log.Warn("a2e: audit sink panicked", "panic", p)
		}
	}()
	s.host.opts.Audit(r)
}

// audited reports whether anybody wants the records.
func (s *Session) audited() bool { return s.host.opts.Audit != nil }
