// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/budget"
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
	expiry    core.Timer

	own       *core.Registry    // fulfilments of the session; nil: those of all sessions
	counts    map[string]uint64 // dispatches by bare name, by contract
	inquiries map[*hostConn]*inquiry
	calls     map[string]*hostCall // in flight
	records   core.RecordScope
	active    callList           // in flight, in order of arrival
	waiters   map[*hostCall]bool // held calls
	tails     map[*hostCall]bool // ended, but chunks wait for connections
	scope     *budget.Scope
	place     budget.Hold

	seq        uint64   // in order of creation
	prev, next *session // likewise
}

// An inquiry is a RequestFulfillment without a response, or the handshake of a standing Runtime.
type inquiry struct {
	h     *Host
	s     *session // nil: all
	rt    *hostConn
	timer core.Timer
}

func (a *inquiry) fired(now time.Time) {
	if a.s == nil {
		delete(a.h.inquiries, a.rt)
		a.h.judgeAll(now)
		return
	}
	delete(a.s.inquiries, a.rt)
	delete(a.rt.inquiries, a.s)
	a.h.judgeHeld(a.s, now)
}

// fired is the expiry of a session.
func (s *session) fired(now time.Time) {
	if h := s.h; h.ledger != nil && h.opts.Timing.SlidingSessionTTL && s.kind == ownSession && !h.closed {
		h.background(func() { h.expire(s) })
		return
	}
	s.h.endSession(s, "expired", ReasonSessionExpired, nil, now)
}

func (s *session) expect(h *Host, rt *hostConn, now time.Time) {
	if s.inquiries == nil {
		s.inquiries = make(map[*hostConn]*inquiry)
	}
	h.expect(s.inquiries, s, rt, now)
	if rt.inquiries == nil {
		rt.inquiries = make(map[*session]bool)
	}
	rt.inquiries[s] = true
}

// expect adds an inquiry to a table.
func (h *Host) expect(table map[*hostConn]*inquiry, s *session, rt *hostConn, now time.Time) {
	a := table[rt]
	if a == nil {
		a = &inquiry{h: h, s: s, rt: rt}
		a.timer = core.Timer{Event: a}
		table[rt] = a
	}
	h.timers.Set(&a.timer, now.Add(holdFor))
}

// removeInquiry ends the inquiry to a Runtime, and reports whether the table had one.
func (h *Host) removeInquiry(table map[*hostConn]*inquiry, rt *hostConn) bool {
	a := table[rt]
	if a == nil {
		return false
	}
	h.timers.Stop(&a.timer)
	delete(table, rt)
	if a.s != nil {
		delete(rt.inquiries, a.s)
	}
	return true
}

// outstanding reports whether an open inquiry could provide a Runtime for a call.
func (s *session) outstanding(pin string) bool {
	for _, table := range []map[*hostConn]*inquiry{s.inquiries, s.h.inquiries} {
		for rt := range table {
			if pin == "" || rt.runtime.ID == pin {
				return true
			}
		}
	}
	return false
}

// A sessionTable holds the live sessions in order of creation, and the tombstones of ended ids.
type sessionTable struct {
	byID        map[string]*session
	first, last *session
	own         int
	seq         uint64

	tombstones tombstones
	looks      map[string]*storeAccess // that are being read from or written to the store
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

func (t *sessionTable) init() {
	t.byID = make(map[string]*session)
	t.looks = make(map[string]*storeAccess)
	t.tombstones = newTombstones(10_000, 100_000)
}

func (t *sessionTable) add(s *session) {
	t.byID[s.id] = s
	t.seq++
	s.seq = t.seq
	if s.kind == ownSession {
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
	if !strings.HasPrefix(s.id, generatedPrefix) {
		t.tombstones.add(s.id, s.principal, forget)
	}
}

// generatedPrefix begins the ids that a Host generates, and that no client can suggest. They do not
// return, so they need no tombstone.
const generatedPrefix = "s-"

// used reports whether an id is live or has a tombstone (ALT-D18).
func (t *sessionTable) used(id string, now time.Time) bool {
	return t.byID[id] != nil || t.tombstones.has(id, now)
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
	made := &session{h: h, principal: p}
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
	id := h.newSessionID(m.SessionID, now)
	if id == "" {
		h.answer(hc, m, Errorf(ErrInternal, "", "the Host has no free session id"))
		return
	}
	ttl, start := h.sessionTTL(m), now
	if h.ledger != nil {
		r := &ledger.Session{Name: p.name, Tenant: p.tenant, TTL: int64(ttl), Expires: now.Add(ttl).UnixNano(), Security: (*ledger.Security)(security), Metadata: m.Metadata}
		h.unlock()
		stored, l, fault := h.storeSession(id, r)
		now = h.lock()
		id = stored
		if !h.isStored(hc, m, id, l, fault, ttl, now) {
			return
		}
	}
	s := h.sessions.byID[id] // a client may have used it already, see summon
	if s == nil {
		s = h.newSession(id, p, ttl, start)
		s.scope, s.place, isKept = h.budget.Scope(hc.budgetKey(), id), made.place, true
		s.info = SessionInfo{ID: id, Metadata: m.Metadata}
		if security != nil {
			s.info.SecurityContext = *security
		}
		h.sessions.add(s)
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
func (h *Host) isStored(hc *hostConn, m *CreateSession, id string, l *storeAccess, fault error, ttl time.Duration, now time.Time) bool {
	destroyed := l != nil && h.sessions.looked(id, l)
	switch {
	case fault != nil:
		h.logError("session not stored", fault)
		h.answer(hc, m, Errorf(ErrInternal, "", "the Host cannot store the session"))
		return false
	case hc.isClosed:
		return false
	case destroyed || h.sessions.byID[id] == nil && h.sessions.used(id, now): // another client knew the id
		h.reply(hc, m, &SessionCreated{SessionID: id, TTLSeconds: int64(ttl / time.Second)})
		return false
	}
	return true
}

// newSessionID returns the requested id, or a generated one if it is taken or invalid (ALT-D18). It
// returns "" if all generated ids are taken.
func (h *Host) newSessionID(requested string, now time.Time) string {
	if requested != "" && validIdentifier(requested) && !strings.HasPrefix(requested, generatedPrefix) && !h.sessions.used(requested, now) {
		return requested
	}
	for range 1 << 20 {
		if id := h.opts.newSessionID(); validIdentifier(id) && !h.sessions.used(id, now) {
			return id
		}
	}
	return ""
}

// newSession makes a session without entering it anywhere.
func (h *Host) newSession(id string, p principal, ttl time.Duration, now time.Time) *session {
	s := &session{h: h, id: id, principal: p, ttl: ttl, calls: make(map[string]*hostCall)}
	s.info, s.records.Principal = SessionInfo{ID: id}, p
	s.expiry = core.Timer{Event: s}
	h.timers.Set(&s.expiry, now.Add(ttl))
	return s
}

// reserveSession charges a session to its principal, whose key is that of the budget.
func (h *Host) reserveSession(s *session, key string) *Error {
	s.scope = h.budget.Scope(key, s.id)
	place, err := s.scope.Reserve(budget.Items, 1)
	s.place = place
	return overBudget(ErrAuthorizationFailed, ReasonQuotaExceeded, err)
}

// askAll sends a RequestFulfillment for a new session to the connected Runtimes.
func (h *Host) askAll(s *session, now time.Time) {
	for _, rt := range h.order {
		if !rt.wildcard && !rt.can(CapStanding) {
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
	return Errorf(ErrSessionInvalid, ReasonUnknownSession, "no such session")
}

func (h *Host) destroySession(hc *hostConn, m *DestroySession, now time.Time) {
	s := h.own(hc, m.SessionID)
	if s == nil {
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), now)
		return
	}
	h.endSession(s, "destroyed", ReasonSessionDestroyed, hc, now)
	h.reply(hc, m, &SessionDestroyed{SessionID: s.id, Reason: "destroyed"})
}

// endSession ends a session and everything in it (ALT-D19), for a connection, or without one for the
// clock.
func (h *Host) endSession(s *session, how string, reason Reason, by *hostConn, now time.Time) {
	s.isEnded = true
	s.place.Release()
	h.timers.Stop(&s.expiry)
	h.sessions.remove(s, now.Add(h.opts.Persistence.TombstoneTTL))
	err := Errorf(ErrSessionInvalid, reason, "the session has ended")
	h.auditLocked(now, &AuditRecord{Operation: "session.over", SessionID: s.id, Error: err}, by)
	for c := s.active.first; c != nil; c = s.active.first {
		if c.State() == core.Ending { // ended before; recording it is unnecessary
			h.announceEnd(c, c.claim.end, now)
			continue
		}
		h.abort(c, err, string(reason), now)
	}
	for c := range s.tails {
		h.dropTail(c, err)
	}
	for rt, a := range s.inquiries {
		h.timers.Stop(&a.timer)
		delete(rt.inquiries, s)
	}
	h.records.EndScope(&s.records)
	s.inquiries, s.calls = nil, nil
	delete(h.special, s)
	delete(h.heldIn, s)
	if s.forwarded {
		h.overs = append(h.overs, sessionOver{s.id, how})
	}
	for _, rt := range h.order {
		if rt.can(CapSessionEvents) && s.registry().Fulfils(&rt.runtime) {
			h.send(rt, &SessionDestroyed{SessionID: s.id, Reason: how})
		}
	}
}

// listTools answers with the tools that the caller may use (ALT-D31).
func (h *Host) listTools(hc *hostConn, m *ListTools) {
	s, info, list, runtimes := h.listFulfilled(hc, m)
	if s == nil {
		return
	}
	answer := &ToolList{SessionID: s.id, Tools: []ToolInfo{}}
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
	case s.isEnded:
		h.refuseRequest(hc, m, s.id, errUnknownSession(), now)
	case failed != nil:
		h.refuseRequest(hc, m, s.id, failed, now)
	default:
		h.reply(hc, m, answer)
	}
}

// refuseRequest answers a request with an error. h.mu must be held.
func (h *Host) refuseRequest(hc *hostConn, m Message, session string, err *Error, now time.Time) {
	h.auditLocked(now, &AuditRecord{Operation: "request.refused", SessionID: session, CorrelationID: m.header().CorrelationID, Error: err}, hc)
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
		ids := s.registry().Connected(c.Name)
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
