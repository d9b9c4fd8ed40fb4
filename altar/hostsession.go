// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"time"
)

// holdFor is the time for which a call waits for responses to RequestFulfillment (ALT-D15).
const holdFor = time.Second

// A sessionKind tells whose a session is.
type sessionKind int

const (
	ownSession   sessionKind = iota
	guestSession             // of another Host, see [Host.ServeForwarded]
	probeSession             // of the Host itself, see [Host.RuntimeOffers]
)

// sessionOver is the notification of an ended session for the Cluster.
type sessionOver struct{ id, how string }

// A session isolates fulfilments, calls and outcomes (ALT-006, ALT-012).
type session struct {
	h         *Host
	id        string
	principal principal
	info      SessionInfo
	ttl       time.Duration
	kind      sessionKind
	forwarded bool // calls of it went to other Hosts
	saving    bool // its end is being written to the store
	unsaved   bool // the end has changed during the write
	isEnded   bool
	expiry    timer

	reg       *registry
	counts    map[string]uint64 // dispatches by bare name, by contract
	inquiries map[*hostConn]*inquiry
	calls     map[string]*hostCall // in flight and recorded
	active    callList             // in flight, in order of arrival
	flights   int

	prev, next *session // in order of creation
}

// An inquiry is a RequestFulfillment without a response.
type inquiry struct {
	s     *session
	rt    *hostConn
	timer timer
}

func (a *inquiry) fired(now time.Time) {
	delete(a.s.inquiries, a.rt)
	a.s.h.judgeHeld(a.s, now)
}

// fired is the expiry of a session.
func (s *session) fired(now time.Time) {
	if h := s.h; h.state != nil && h.opts.Timing.SlidingSessionTTL && s.kind == ownSession && !h.closed {
		h.background(func() { h.expire(s) })
		return
	}
	s.h.endSession(s, "expired", ReasonSessionExpired, now)
}

func (s *session) expect(h *Host, rt *hostConn, now time.Time) {
	a := s.inquiries[rt]
	if a == nil {
		a = &inquiry{s: s, rt: rt}
		a.timer = timer{index: -1, fire: a}
		if s.inquiries == nil {
			s.inquiries = make(map[*hostConn]*inquiry)
		}
		s.inquiries[rt] = a
	}
	h.timers.set(&a.timer, now.Add(holdFor))
}

// removeInquiry ends the inquiry to a Runtime, and reports whether there was one.
func (s *session) removeInquiry(rt *hostConn) bool {
	a := s.inquiries[rt]
	if a == nil {
		return false
	}
	s.h.timers.stop(&a.timer)
	delete(s.inquiries, rt)
	return true
}

// outstanding reports whether an open inquiry could provide a Runtime for a call.
func (s *session) outstanding(pin string) bool {
	if pin == "" {
		return len(s.inquiries) > 0
	}
	for rt := range s.inquiries {
		if rt.runtimeID == pin {
			return true
		}
	}
	return false
}

// dispatched returns how many calls by bare name went out for a contract.
func (s *session) dispatched(contract string) uint64 { return s.counts[contract] }

// A sessionTable holds the live sessions in order of creation, and the tombstones of ended ids.
type sessionTable struct {
	byID        map[string]*session
	first, last *session
	perOwner    map[principal]int // own sessions
	own         int

	tombstones map[string]time.Time // when it is forgotten
	queue      []string             // of ended, in that order

	coming int                     // own sessions that are being stored
	looks  map[string]*storeAccess // that are being read from or written to the store
}

// A storeAccess counts the store operations in progress for one session id.
type storeAccess struct {
	n         int // how many ask
	destroyed bool
}

// lookFor starts a store operation on a session that is not in the table.
func (t *sessionTable) lookFor(id string) *storeAccess {
	l := t.looks[id]
	if l == nil {
		l = &storeAccess{}
		t.looks[id] = l
	}
	l.n++
	return l
}

// looked ends a store operation, and reports whether the session was destroyed during it.
func (t *sessionTable) looked(id string, l *storeAccess) (destroyed bool) {
	if l.n--; l.n == 0 {
		delete(t.looks, id)
	}
	return l.destroyed
}

// reserve counts a session of a principal that is being stored, so that many at
// once do not exceed a quota.
func (t *sessionTable) reserve(p principal) {
	t.perOwner[p]++
	t.coming++
}

func (t *sessionTable) unreserve(p principal) {
	t.coming--
	if t.perOwner[p]--; t.perOwner[p] == 0 {
		delete(t.perOwner, p)
	}
}

func (t *sessionTable) init() {
	t.byID = make(map[string]*session)
	t.looks = make(map[string]*storeAccess)
	t.perOwner = make(map[principal]int)
	t.tombstones = make(map[string]time.Time)
}

func (t *sessionTable) add(s *session) {
	t.byID[s.id] = s
	if s.kind == ownSession {
		t.perOwner[s.principal]++
		t.own++
	}
	s.prev = t.last
	if t.last != nil {
		t.last.next = s
	} else {
		t.first = s
	}
	t.last = s
}

// remove removes a session. Its next pointer stays, so that an iteration can continue.
func (t *sessionTable) remove(s *session, forget time.Time) {
	delete(t.byID, s.id)
	if s.kind == ownSession {
		t.own--
		if t.perOwner[s.principal]--; t.perOwner[s.principal] == 0 {
			delete(t.perOwner, s.principal)
		}
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		t.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		t.last = s.prev
	}
	t.tombstones[s.id] = forget
	t.queue = append(t.queue, s.id)
}

// used reports whether an id is live or has a tombstone (ALT-D18).
func (t *sessionTable) used(id string, now time.Time) bool {
	n := 0
	for n < len(t.queue) && !now.Before(t.tombstones[t.queue[n]]) {
		delete(t.tombstones, t.queue[n])
		n++
	}
	if n > 0 {
		t.queue = append(t.queue[:0:0], t.queue[n:]...)
	}
	_, was := t.tombstones[id]
	return was || t.byID[id] != nil
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
	if err == nil && (h.draining || h.opts.Limits.MaxSessionsPerPrincipal > 0 && h.sessions.perOwner[p] >= h.opts.Limits.MaxSessionsPerPrincipal) {
		err = NewError(ErrAuthorizationFailed, ReasonQuotaExceeded, "the caller has too many sessions")
	}
	if err == nil {
		err = h.roomForSession()
	}
	if err != nil {
		if h.opts.Audit != nil {
			h.audit(now, &AuditRecord{Operation: "session.refused", SessionID: m.SessionID, CorrelationID: m.CorrelationID, Error: err}, hc.identity)
		}
		h.answer(hc, m, err)
		return
	}
	id := h.newSessionID(m.SessionID, now)
	if id == "" {
		h.answer(hc, m, NewError(ErrInternal, "", "the Host has no free session id"))
		return
	}
	ttl := min(h.opts.Timing.SessionTTL, h.opts.Timing.MaxSessionTTL)
	if m.TTLSeconds > 0 {
		ttl = h.opts.Timing.MaxSessionTTL
		if m.TTLSeconds < int64(h.opts.Timing.MaxSessionTTL/time.Second) {
			ttl = time.Duration(m.TTLSeconds) * time.Second
		}
	}
	start := now
	if h.state != nil {
		r := &sessionRecord{Name: p.name, Tenant: p.tenant, TTL: int64(ttl), Expires: now.Add(ttl).UnixNano(), Security: security, Metadata: m.Metadata}
		h.sessions.reserve(p)
		h.unlock()
		stored, l, fault := h.storeSession(id, r)
		now = h.lock()
		h.sessions.unreserve(p)
		id = stored
		destroyed := l != nil && h.sessions.looked(id, l)
		switch {
		case fault != nil:
			h.state.logError("session not stored", fault)
			h.answer(hc, m, NewError(ErrInternal, "", "the Host cannot store the session"))
			return
		case hc.isClosed:
			return
		case destroyed || h.sessions.byID[id] == nil && h.sessions.used(id, now): // another client knew the id
			h.reply(hc, m, &SessionCreated{SessionID: id, TTLSeconds: int64(ttl / time.Second)})
			return
		}
	}
	s := h.sessions.byID[id] // a client may have used it already, see summon
	if s == nil {
		s = h.newSession(id, p, ttl, start)
		s.info = SessionInfo{ID: id, Metadata: m.Metadata}
		if security != nil {
			s.info.SecurityContext = *security
		}
		h.sessions.add(s)
	}
	h.reply(hc, m, &SessionCreated{SessionID: id, TTLSeconds: int64(ttl / time.Second)})
	if h.opts.Audit != nil {
		h.audit(now, &AuditRecord{Operation: "session.created", SessionID: id, CorrelationID: m.CorrelationID}, hc.identity)
	}
	h.askAll(s, now)
}

// newSessionID returns the requested id, or a generated one if it is taken or invalid (ALT-D18). It
// returns "" if all generated ids are taken.
func (h *Host) newSessionID(requested string, now time.Time) string {
	if requested != "" && validIdentifier(requested) && !h.sessions.used(requested, now) {
		return requested
	}
	for range 1 << 20 {
		if id := h.opts.NewSessionID(); validIdentifier(id) && !h.sessions.used(id, now) {
			return id
		}
	}
	return ""
}

// newSession makes a session without entering it anywhere.
func (h *Host) newSession(id string, p principal, ttl time.Duration, now time.Time) *session {
	s := &session{h: h, id: id, principal: p, ttl: ttl, reg: h.wildcard, calls: make(map[string]*hostCall)}
	s.info = SessionInfo{ID: id}
	s.expiry = timer{index: -1, fire: s}
	h.timers.set(&s.expiry, now.Add(ttl))
	return s
}

// roomForSession returns an error if the limit of sessions is reached.
func (h *Host) roomForSession() *Error {
	if len(h.sessions.byID)+h.sessions.coming >= h.opts.Limits.MaxSessions {
		return NewError(ErrAuthorizationFailed, ReasonQuotaExceeded, "there are too many sessions")
	}
	return nil
}

// askAll sends a RequestFulfillment for a new session to the connected Runtimes.
func (h *Host) askAll(s *session, now time.Time) {
	for _, rt := range h.order {
		if !rt.wildcard {
			h.requestFulfillment(rt, s, now)
		}
	}
}

// own returns a live session of the caller, or nil (ALT-D20).
func (h *Host) own(hc *hostConn, id string) *session {
	s := h.sessions.byID[id]
	if s == nil || s.kind != ownSession || s.principal != hc.identity.principal() {
		return nil
	}
	return s
}

func errUnknownSession() *Error {
	return NewError(ErrSessionInvalid, ReasonUnknownSession, "no such session")
}

func (h *Host) destroySession(hc *hostConn, m *DestroySession, now time.Time) {
	s := h.own(hc, m.SessionID)
	if s == nil {
		h.answer(hc, m, errUnknownSession())
		return
	}
	h.endSession(s, "destroyed", ReasonSessionDestroyed, now)
	h.reply(hc, m, &SessionDestroyed{SessionID: s.id, Reason: "destroyed"})
}

// endSession ends a session and everything in it (ALT-D19).
func (h *Host) endSession(s *session, how string, reason Reason, now time.Time) {
	s.isEnded = true
	h.timers.stop(&s.expiry)
	h.sessions.remove(s, now.Add(h.opts.Persistence.TombstoneTTL))
	err := NewError(ErrSessionInvalid, reason, "the session is over")
	for c := s.active.first; c != nil; c = s.active.first {
		if c.state == callEnding { // ended before; recording it is unnecessary
			h.announceEnd(c, c.claim.end, now)
			continue
		}
		h.fail(c, err, string(reason), now)
	}
	for _, a := range s.inquiries {
		h.timers.stop(&a.timer)
	}
	s.inquiries, s.calls = nil, nil
	if s.forwarded {
		h.overs = append(h.overs, sessionOver{s.id, how})
	}
	for _, rt := range h.order {
		if rt.can(CapSessionEvents) && s.reg.fulfils(rt) {
			h.send(rt, &SessionDestroyed{SessionID: s.id, Reason: how})
		}
	}
	if h.opts.Audit != nil {
		h.audit(now, &AuditRecord{Operation: "session.over", SessionID: s.id, Principal: s.principal.name, Tenant: s.principal.tenant,
			Error: err}, nil)
	}
}

// listTools answers with the tools that the caller may use (ALT-D31). h.mu must be held; it is
// released during the calls of the Authorizer.
func (h *Host) listTools(hc *hostConn, m *ListTools) {
	s := h.own(hc, m.SessionID)
	if s == nil {
		h.answer(hc, m, errUnknownSession())
		return
	}
	manifest, reg, info := h.manifest, s.reg, s.info
	var list []*contract
	var runtimes [][]string
	for _, c := range manifest.list {
		var ids []string
		for _, g := range reg.byContract[c.Name] {
			if g.rt.alive {
				ids = append(ids, g.rt.runtimeID)
			}
		}
		if h.opts.Cluster != nil {
			for _, o := range h.offered(c.Name) {
				if !slices.Contains(ids, o.RuntimeID) {
					ids = append(ids, o.RuntimeID)
				}
			}
		}
		if len(ids) > 0 {
			list, runtimes = append(list, c), append(runtimes, ids)
		}
	}
	h.unlock()
	answer := &ToolList{SessionID: s.id, Tools: []ToolInfo{}}
	var failed *Error
	for i, c := range list {
		err := h.guard("Authorizer", func() error {
			return h.auth.Authorize(h.ctx, &AuthorizeRequest{Principal: hc.identity, Session: info, Contract: c.Contract, ForListing: true})
		})
		if err == nil {
			answer.Tools = append(answer.Tools, ToolInfo{Name: c.Name, Description: c.Description, Parameters: c.Parameters,
				Streaming: c.Streaming, Runtimes: runtimes[i]})
		} else if e := h.refusal("Authorizer", err, ReasonDenied, "not allowed"); e.Code == ErrInternal {
			failed = e
		}
	}
	h.lock()
	switch {
	case hc.isClosed:
	case s.isEnded:
		h.answer(hc, m, errUnknownSession())
	case failed != nil:
		h.answer(hc, m, failed)
	default:
		h.reply(hc, m, answer)
	}
}

// Sessions returns the ids of the live sessions in order of creation.
func (h *Host) Sessions() []string {
	h.lock()
	defer h.unlock()
	var ids []string
	for s := h.sessions.first; s != nil; s = s.next {
		if s.kind == ownSession {
			ids = append(ids, s.id)
		}
	}
	return ids
}
