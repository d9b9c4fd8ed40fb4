// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/budget"
)

// sessionOver is the notification of an ended session for the Cluster.
type sessionOver struct{ id, how string }

// A session is a session of the core with the parts that only the Host uses.
type session struct {
	core.Session

	h         *Host
	info      SessionInfo
	forwarded bool // calls of it went to other Hosts
	saving    bool // its end is being written to the store
	unsaved   bool // the end has changed during the write
	scope     *budget.Scope
	place     budget.Hold
}

// sessionOf returns the session of the core with its additions.
func sessionOf(s *core.Session) *session {
	if s == nil {
		return nil
	}
	return s.Data.(*session)
}

// session returns a live session, or nil.
func (h *Host) session(id string) *session { return sessionOf(h.sessions.Find(id)) }

// fired is the expiry of a session.
func (s *session) fired(now time.Time) {
	if h := s.h; h.ledger != nil && h.opts.Timing.SlidingSessionTTL && s.Kind == core.OwnSession && !h.closed {
		h.background(func() { h.expire(s) })
		return
	}
	s.h.endSession(s, "expired", ReasonSessionExpired, nil, now)
}

// createSession makes a session (ALT-090 to ALT-095).
func (h *Host) createSession(hc *hostConn, m *CreateSession) {
	h.lock()
	if hc.isClosed || !h.clientOnly(hc, m) {
		h.unlock()
		return
	}
	h.unlock()

	var security *SecurityContext
	var err *Error
	fault := h.guard("SecurityContextResolver", func() (err error) {
		security, err = h.opts.Auth.SecurityContextResolver(h.ctx, hc.identity, m.SecurityContext)
		return err
	})
	if fault != nil {
		err = h.refusal("SecurityContextResolver", fault, ReasonDenied, "the security context is not granted")
	}

	now := h.lock()
	defer h.unlock()
	if hc.isClosed {
		return
	}
	p := hc.identity.principal()
	if err == nil && h.draining {
		err = errDraining()
	}
	made := &session{Session: core.Session{Principal: p}, h: h}
	if err == nil {
		err = h.reserveSession(made, hc.budgetKey())
	}
	if err != nil {
		h.auditLocked(now, &AuditRecord{Operation: "session.refused", SessionID: m.SessionID, CorrelationID: m.CorrelationID, Error: err}, hc)
		h.answer(hc, m, err)
		return
	}
	isKept := false
	defer func() {
		if !isKept {
			made.place.Release()
		}
	}()
	id := h.sessions.PickID(m.SessionID, validIdentifier, h.opts.newSessionID, now)
	if id == "" {
		h.answer(hc, m, Errorf(ErrInternal, "", "the Host has no free session id"))
		return
	}
	ttl, start := h.sessionTTL(m), now
	if h.ledger != nil {
		r := &ledger.Session{Name: p.Name, Tenant: p.Tenant, TTL: int64(ttl), Expires: now.Add(ttl).UnixNano(), Security: (*ledger.Security)(security), Metadata: m.Metadata}
		h.unlock()
		stored, l, fault := h.storeSession(id, r)
		now = h.lock()
		id = stored
		if !h.isStored(hc, m, id, l, fault, ttl, now) {
			return
		}
	}
	s := h.session(id) // a client may have used it already, see summon
	if s == nil {
		s = h.newSession(id, p, core.OwnSession, ttl, start)
		s.scope, s.place, isKept = h.budget.Scope(hc.budgetKey(), id), made.place, true
		s.info = SessionInfo{ID: id, Metadata: m.Metadata}
		if security != nil {
			s.info.SecurityContext = *security
		}
		h.sessions.Add(&s.Session)
	}
	h.reply(hc, m, &SessionCreated{SessionID: id, TTLSeconds: int64(ttl / time.Second)})
	h.auditLocked(now, &AuditRecord{Operation: "session.created", SessionID: id, CorrelationID: m.CorrelationID}, hc)
	h.askAll(s, now)
}

// sessionTTL returns the lifetime of a new session.
func (h *Host) sessionTTL(m *CreateSession) time.Duration {
	longest := h.opts.Timing.MaxSessionTTL
	switch {
	case m.TTLSeconds <= 0:
		return min(h.opts.Timing.SessionTTL, longest)
	case m.TTLSeconds < int64(longest/time.Second):
		return time.Duration(m.TTLSeconds) * time.Second
	}
	return longest
}

// isStored answers a client whose session was not stored, or has ended since. Otherwise it reports true.
func (h *Host) isStored(hc *hostConn, m *CreateSession, id string, l *core.Look, fault error, ttl time.Duration, now time.Time) bool {
	destroyed := l != nil && h.sessions.Looked(id, l)
	switch {
	case fault != nil:
		h.logError("session not stored", fault)
		h.answer(hc, m, Errorf(ErrInternal, "", "the Host cannot store the session"))
		return false
	case hc.isClosed:
		return false
	case destroyed || h.session(id) == nil && h.sessions.IsUsed(id, now): // another client knew the id
		h.reply(hc, m, &SessionCreated{SessionID: id, TTLSeconds: int64(ttl / time.Second)})
		return false
	}
	return true
}

// newSession makes a session without entering it anywhere.
func (h *Host) newSession(id string, p core.Principal, kind core.SessionKind, ttl time.Duration, now time.Time) *session {
	s := &session{Session: core.Session{ID: id, Principal: p, Kind: kind, TTL: ttl}, h: h, info: SessionInfo{ID: id}}
	s.Data = s
	var expires time.Time
	if kind != core.ProbeSession {
		expires = now.Add(ttl)
	}
	h.sessions.Init(&s.Session, expires, s)
	return s
}

// reserveSession charges a session to its principal, whose key is that of the budget.
func (h *Host) reserveSession(s *session, key string) *Error {
	s.scope = h.budget.Scope(key, s.ID)
	place, err := s.scope.Reserve(budget.Items, 1)
	s.place = place
	return overBudget(ErrAuthorizationFailed, ReasonQuotaExceeded, err)
}

// askAll sends a RequestFulfillment for a new session to the connected Runtimes.
func (h *Host) askAll(s *session, now time.Time) {
	for _, rt := range h.order {
		if !rt.wildcard && !rt.can(capStanding) {
			h.requestFulfillment(rt, &s.Session, now)
		}
	}
}

// own returns a live session of the caller, or nil (ALT-D20).
func (h *Host) own(hc *hostConn, id string) *session {
	s := h.session(id)
	if s == nil || s.Kind != core.OwnSession || s.Principal != hc.identity.principal() {
		return nil
	}
	return s
}

func errUnknownSession() *Error {
	return Errorf(ErrSessionInvalid, ReasonUnknownSession, "no such session")
}

func (h *Host) destroySession(hc *hostConn, m *DestroySession, now time.Time) {
	s := h.own(hc, m.SessionID)
	if s == nil {
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), now)
		return
	}
	h.endSession(s, "destroyed", reasonSessionDestroyed, hc, now)
	h.reply(hc, m, &SessionDestroyed{SessionID: s.ID, Reason: "destroyed"})
}

// endSession ends a session and everything in it (ALT-D19), for a connection, or without one for the
// clock.
func (h *Host) endSession(s *session, how string, reason Reason, by *hostConn, now time.Time) {
	s.place.Release()
	h.sessions.End(&s.Session, now.Add(h.opts.Persistence.TombstoneTTL))
	err := Errorf(ErrSessionInvalid, reason, "the session has ended")
	h.auditLocked(now, &AuditRecord{Operation: "session.over", SessionID: s.ID, Error: err}, by)
	for first := s.First(); first != nil; first = s.First() {
		c := callOf(first)
		if c.State() == core.Ending { // ended before; recording it is unnecessary
			h.announceEnd(c, c.claim.end, now)
			continue
		}
		h.abort(c, err, string(reason), now)
	}
	for _, c := range s.Tails() {
		h.dropTail(callOf(c), err)
	}
	h.records.EndScope(&s.Records)
	if s.forwarded {
		h.overs = append(h.overs, sessionOver{s.ID, how})
	}
	for _, rt := range h.order {
		if rt.can(capSessionEvents) && s.Registry().Fulfils(&rt.runtime) {
			h.send(rt, &SessionDestroyed{SessionID: s.ID, Reason: how})
		}
	}
}

// listTools answers with the tools that the caller may use (ALT-D31).
func (h *Host) listTools(hc *hostConn, m *ListTools) {
	s, info, list, runtimes := h.listFulfilled(hc, m)
	if s == nil {
		return
	}
	answer := &ToolList{SessionID: s.ID, Tools: []ToolInfo{}}
	var failed *Error
	for i, c := range list {
		err := h.guard("Authorizer", func() error {
			return h.opts.Auth.Authorizer.Authorize(h.ctx, &AuthorizeRequest{Principal: hc.identity, Session: info, Contract: c.Contract, ForListing: true})
		})
		if err == nil {
			answer.Tools = append(answer.Tools, ToolInfo{Name: c.Name, Description: c.Description, Parameters: c.Parameters,
				Streaming: c.Streaming, Runtimes: runtimes[i]})
		} else if e := h.refusal("Authorizer", err, ReasonDenied, "not allowed"); e.Code == ErrInternal {
			failed = e
		}
	}
	now := h.lock()
	defer h.unlock()
	switch {
	case hc.isClosed:
	case s.IsEnded():
		h.refuseRequest(hc, m, s.ID, errUnknownSession(), now)
	case failed != nil:
		h.refuseRequest(hc, m, s.ID, failed, now)
	default:
		h.reply(hc, m, answer)
	}
}

// refuseRequest answers a request with an error. h.mu must be held.
func (h *Host) refuseRequest(hc *hostConn, m Message, session string, err *Error, now time.Time) {
	h.auditLocked(now, &AuditRecord{Operation: "request.refused", SessionID: session, CorrelationID: m.head().CorrelationID, Error: err}, hc)
	h.answer(hc, m, err)
}

// listFulfilled returns the session of a request, and the contracts that connected Runtimes fulfil
// in it with the ids of these Runtimes. It returns nil if it has refused the request.
func (h *Host) listFulfilled(hc *hostConn, m *ListTools) (s *session, info SessionInfo, list []*contract, runtimes [][]string) {
	now := h.lock()
	defer h.unlock()
	hc.lastReceived = now
	if hc.isClosed || !h.clientOnly(hc, m) {
		return nil, info, nil, nil
	}
	if s = h.own(hc, m.SessionID); s == nil {
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), now)
		return nil, info, nil, nil
	}
	for _, c := range h.manifest.list {
		ids := s.Registry().Connected(c.Name)
		for _, o := range h.offers[c.Name] {
			if !slices.Contains(ids, o.RuntimeID) {
				ids = append(ids, o.RuntimeID)
			}
		}
		if len(ids) > 0 {
			list, runtimes = append(list, c), append(runtimes, ids)
		}
	}
	return s, s.info, list, runtimes
}

// sessionIDs returns the ids of the live sessions in order of creation.
func (h *Host) sessionIDs() []string {
	h.lock()
	defer h.unlock()
	var ids []string
	for s := range h.sessions.All() {
		if s.Kind == core.OwnSession {
			ids = append(ids, s.ID)
		}
	}
	return ids
}
