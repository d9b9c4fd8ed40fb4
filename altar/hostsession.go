// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/store"
)

// A session is a session of the core with the parts that only the Host uses.
type session struct {
	core.Session

	security *SecurityContext // the effective one; nil: the zero value
	extra    *sessionExtra
	saving   bool           // its end is being written to the ledger
	unsaved  bool           // the end has changed during the write
	endedBy  *hostConn      // that destroyed it; nil: the clock or another Host
	links    map[*peer]bool // other Hosts that run calls of it
	owner    *budget.Scope  // of the principal
	calls    *budget.Scope  // of its calls; nil before the first one
	place    budget.Hold
}

// A sessionExtra is what a few sessions have only.
type sessionExtra struct {
	metadata map[string]string
	memory   budget.Hold // of the metadata and the claims
}

// info returns the session as hooks receive it.
func (s *session) info() SessionInfo {
	i := SessionInfo{ID: s.ID}
	if s.extra != nil {
		i.Metadata = s.extra.metadata
	}
	if s.security != nil {
		i.SecurityContext = *s.security
	}
	return i
}

// scope returns the scope of the calls of a session. The shard must be locked.
func (h *Host) scope(s *session) *budget.Scope {
	switch {
	case s.IsLink:
		return s.owner
	case s.calls == nil:
		s.calls = h.budget.Scope(s.owner.Principal(), s.ID)
	}
	return s.calls
}

// sessionOf returns the session of the core with its additions.
func sessionOf(s *core.Session) *session {
	if s == nil {
		return nil
	}
	return s.Data.(*session)
}

// newSession makes a session of a principal, whose key is that of the budget. It fails if the principal has too many, or
// no memory for its metadata.
func (h *Host) newSession(p core.Principal, key string, metadata map[string]string, security *SecurityContext) (*session, *Error) {
	s := &session{owner: h.budget.Scope(key, "")}
	s.Principal, s.Data = p, s
	s.Slides, s.IsShared = h.opts.Timing.SlidingSessionTTL, h.ledger.IsShared()
	size := sizeOf(metadata)
	if security != nil {
		own := *security
		s.security = &own
		size += sizeOf(own.Claims)
	}
	place, err := s.owner.Reserve(budget.Items, 1)
	if err != nil {
		return nil, overBudget(ErrAuthorizationFailed, ReasonQuotaExceeded, err)
	}
	if size > 0 {
		memory, err := s.owner.Reserve(budget.Memory, int64(size))
		if err != nil {
			place.Release()
			return nil, overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
		}
		s.extra = &sessionExtra{metadata, memory}
	}
	s.place = place
	return s, nil
}

// release returns the budget of a session that has ended.
func (s *session) release() {
	s.place.Release()
	if s.extra != nil {
		s.extra.memory.Release()
	}
}

// sizeOf returns the memory of metadata, about.
func sizeOf(metadata map[string]string) (n int) {
	for name, value := range metadata {
		n += itemWeight + len(name) + len(value)
	}
	return n
}

// open enters a session, which expires at a time. The shard must be locked.
func (h *Host) open(sh *shard, s *session, id string, expires, now time.Time) {
	s.ID, s.Seq = id, h.created.Add(1)
	h.live.Add(1)
	h.step(sh, now, &core.Event{Kind: core.SessionOpened, Session: &s.Session, Runtimes: h.fleet.perSession, At: expires})
}

// createSession makes a session (ALT-090 to ALT-095).
func (h *Host) createSession(hc *hostConn, m *CreateSession) {
	if !h.clientOnly(hc, m) {
		return
	}
	var security *SecurityContext
	var err *Error
	fault := h.guard("SecurityContextResolver", func() (err error) {
		security, err = h.opts.Auth.SecurityContextResolver(h.ctx, hc.principal(), m.SecurityContext)
		return err
	})
	if fault != nil {
		err = h.refusal("SecurityContextResolver", fault, ReasonDenied, "the security context is not granted")
	} else if h.drain.isStarted.Load() {
		err = errDraining()
	}
	var s *session
	if err == nil {
		s, err = h.newSession(hc.principal().principal(), hc.budgetKey(), m.Metadata, security)
	}
	if err != nil {
		h.refuseSession(hc, m, err)
		return
	}
	s.TTL = h.sessionTTL(m)
	h.storeSession(hc, m, s, security)
}

func (h *Host) refuseSession(hc *hostConn, m *CreateSession, err *Error) {
	h.auditOne(&AuditRecord{Operation: "session.refused", SessionID: m.SessionID, CorrelationID: m.CorrelationID, Error: err}, hc)
	h.answer(hc, m, err)
}

// storeSession enters a session in the ledger under a free id, and answers the client.
func (h *Host) storeSession(hc *hostConn, m *CreateSession, s *session, security *SecurityContext) {
	start := time.Now()
	r := &ledger.Session{Name: s.Principal.Name, Tenant: s.Principal.Tenant, TTL: int64(s.TTL), Expires: start.Add(s.TTL).UnixNano(),
		Security: (*ledger.Security)(security), Metadata: m.Metadata}
	requested := m.SessionID
	for range 1000 {
		id, sh := h.freeSessionID(requested)
		if sh == nil {
			break
		}
		view := sh.core.Look(id, true)
		h.unlock(sh)
		err := h.ledger.CreateSession(id, r)
		now := h.lock(sh)
		destroyed := sh.core.Looked(id, view)
		if errors.Is(err, store.ErrExists) {
			h.unlock(sh)
			requested = ""
			continue
		}
		h.enterSession(sh, hc, m, s, id, destroyed, err, start.Add(s.TTL), now)
		h.unlock(sh)
		return
	}
	s.release()
	h.answer(hc, m, Errorf(ErrInternal, "", "the Host has no free session id"))
}

// enterSession enters a session that is in the ledger, and answers the client.
func (h *Host) enterSession(sh *shard, hc *hostConn, m *CreateSession, s *session, id string, destroyed bool, err error, expires, now time.Time) {
	created := &SessionCreated{SessionID: id, TTLSeconds: int64(s.TTL / time.Second)}
	isKept := false
	switch {
	case err != nil:
		h.logError("session not stored", err)
		h.answer(hc, m, Errorf(ErrInternal, "", "the Host cannot store the session"))
	case hc.isClosed.Load():
	case destroyed || sh.core.Find(id) != nil || h.endedIDs.has(id, now): // another client knew the id
		h.reply(hc, m, created)
	default:
		isKept = true
		h.reply(hc, m, created)
		h.audit(sh, now, &AuditRecord{Operation: "session.created", SessionID: id, CorrelationID: m.CorrelationID}, hc)
		h.open(sh, s, id, expires, now)
	}
	if !isKept {
		s.release()
	}
}

// freeSessionID returns the requested id, or a generated one if that is taken or invalid (ALT-D18), and its shard,
// which is locked. It returns nil if all generated ids are taken.
func (h *Host) freeSessionID(requested string) (string, *shard) {
	if validIdentifier(requested) && !strings.HasPrefix(requested, core.GeneratedPrefix) {
		if sh := h.reserve(requested); sh != nil {
			return requested, sh
		}
	}
	for range 1 << 20 {
		id := h.opts.newSessionID()
		if !validIdentifier(id) {
			continue
		}
		if sh := h.reserve(id); sh != nil {
			return id, sh
		}
	}
	return "", nil
}

// reserve locks the shard of a free id. It returns nil if the id is taken.
func (h *Host) reserve(id string) *shard {
	sh := h.shardOf(id)
	now := h.lock(sh)
	if sh.core.IsFree(id) && !h.endedIDs.has(id, now) {
		return sh
	}
	h.unlock(sh)
	return nil
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

// own returns a live session of the caller, or nil (ALT-D20). The shard of the id must be locked.
func (h *Host) own(sh *shard, hc *hostConn, id string) *session {
	s := sh.core.Find(id)
	if s == nil || s.IsLink || s.Principal != hc.principal().principal() {
		return nil
	}
	return sessionOf(s)
}

func errUnknownSession() *Error {
	return Errorf(ErrSessionInvalid, ReasonUnknownSession, "no such session")
}

// destroySession ends a session for its client (ALT-096): first in the ledger, then here.
func (h *Host) destroySession(hc *hostConn, m *DestroySession) {
	if !h.clientOnly(hc, m) {
		return
	}
	sh := h.shardOf(m.SessionID)
	h.lock(sh)
	s := h.own(sh, hc, m.SessionID)
	h.unlock(sh)
	if s != nil {
		if err := h.ledger.EndSession(m.SessionID); err != nil {
			h.logError("session end not stored", err)
			h.unavailable(hc, m, errUnreadable())
			return
		}
	}
	now := h.lock(sh)
	defer h.unlock(sh)
	if s = h.own(sh, hc, m.SessionID); s == nil {
		h.refuseRequest(sh, hc, m, m.SessionID, errUnknownSession(), now)
		return
	}
	s.endedBy = hc
	h.step(sh, now, &core.Event{Kind: core.SessionEnded, Session: &s.Session, Text: "destroyed"})
	h.reply(hc, m, &SessionDestroyed{SessionID: s.ID, Reason: "destroyed"})
}

// announceEnd tells the Runtimes and the other Hosts of an ended session.
func (h *Host) announceEnd(cs *core.Session, how string) {
	s := sessionOf(cs)
	h.live.Add(-1)
	s.release()
	if !strings.HasPrefix(s.ID, core.GeneratedPrefix) {
		h.endedIDs.add(s.ID, s.Principal, time.Now().Add(h.opts.Persistence.TombstoneTTL))
	}
	h.endAtRuntimes(s.Registry(), s.ID, how)
	for _, l := range slices.SortedFunc(maps.Keys(s.links), func(a, b *peer) int { return strings.Compare(a.id, b.id) }) {
		if l.conn != nil { // else the other Host has ended the calls
			h.send(l.conn, &SessionDestroyed{SessionID: s.ID, Reason: how})
		}
	}
}

// endAtRuntimes tells the Runtimes in a Registry of an ended session.
func (h *Host) endAtRuntimes(reg *core.Registry, id, reason string) {
	others := make(map[*core.Runtime]bool)
	for _, rt := range h.fleet.order {
		if rt.can(capSessionEvents) {
			others[&rt.runtime] = true
		}
	}
	reg.RemoveFulfilling(others)
	for _, rt := range h.fleet.order {
		if rt.can(capSessionEvents) && !others[&rt.runtime] {
			h.send(rt, &SessionDestroyed{SessionID: id, Reason: reason})
		}
	}
}

// destroyedElsewhere ends a session that was destroyed at another Host.
func (h *Host) destroyedElsewhere(id string) {
	sh := h.shardOf(id)
	now := h.lock(sh)
	defer h.unlock(sh)
	sh.core.Destroyed(id)
	if s := sh.core.Find(id); s != nil && !s.IsLink {
		h.step(sh, now, &core.Event{Kind: core.SessionEnded, Session: s, Text: "destroyed"})
	}
}

// summon loads the session of a request from the ledger, unless it is in the table: another Host, or an earlier process
// of this Host, created it. It fails if the ledger cannot be read, or if the principal has too many sessions here.
func (h *Host) summon(id string) *Error {
	if !h.ledger.IsShared() || !validIdentifier(id) {
		return nil
	}
	sh := h.shardOf(id)
	now := h.lock(sh)
	if sh.core.Find(id) != nil || h.endedIDs.has(id, now) {
		h.unlock(sh)
		return nil
	}
	view := sh.core.Look(id, false)
	h.unlock(sh)
	r, fulfilled, err := h.ledger.Session(id)
	now = h.lock(sh)
	defer h.unlock(sh)
	destroyed := sh.core.Looked(id, view)
	switch {
	case err != nil:
		h.logError("session not read", err)
		return errUnreadable()
	case r == nil || destroyed || sh.core.Find(id) != nil || h.endedIDs.has(id, now):
		return nil
	}
	p := core.Principal{Tenant: r.Tenant, Name: r.Name}
	s, full := h.newSession(p, principalKey(p, ""), r.Metadata, (*SecurityContext)(r.Security))
	if full != nil {
		return full
	}
	s.TTL = time.Duration(r.TTL)
	h.open(sh, s, id, time.Unix(0, r.Expires), now)
	for _, f := range fulfilled {
		h.step(sh, now, &core.Event{Kind: core.Fulfilled, Session: &s.Session, Change: h.restored(f)})
	}
	return nil
}

func errUnreadable() *Error { return Errorf(ErrInternal, "", "the Host cannot read its sessions") }

// prolong writes the new expiry of a session with a sliding lifetime. One write is in progress at a
// time, and the last expiry is written last. The shard of the session must be locked.
func (h *Host) prolong(s *session) {
	if !s.IsShared {
		return
	}
	if s.saving {
		s.unsaved = true
		return
	}
	s.saving = true
	sh := h.shardOf(s.ID)
	h.background(func() {
		for isUnsaved := true; isUnsaved; {
			sh.mu.Lock()
			s.unsaved = false
			due := s.Expires()
			sh.mu.Unlock()
			if err := h.ledger.Prolong(s.ID, due); err != nil {
				h.logError("session expiry not stored", err)
			}
			sh.mu.Lock()
			isUnsaved = s.unsaved
			s.saving = isUnsaved
			sh.mu.Unlock()
		}
	})
}

// expire ends a session whose lifetime has expired, unless another Host has extended it.
func (h *Host) expire(s *session) {
	r, _, err := h.ledger.Session(s.ID)
	sh := h.shardOf(s.ID)
	now := h.lock(sh)
	defer h.unlock(sh)
	if err == nil && r != nil && time.Unix(0, r.Expires).After(now) {
		h.step(sh, now, &core.Event{Kind: core.SessionProlonged, Session: &s.Session, At: time.Unix(0, r.Expires)})
	} else if !s.Expires().After(now) {
		h.step(sh, now, &core.Event{Kind: core.SessionEnded, Session: &s.Session, Text: "expired"})
	}
}

// listTools answers with the tools that the caller may use (ALT-D31).
func (h *Host) listTools(hc *hostConn, m *ListTools) {
	s, list, runtimes := h.listFulfilled(hc, m)
	if s == nil {
		return
	}
	answer := &ToolList{SessionID: s.ID, Tools: []ToolInfo{}}
	var failed *Error
	for i, c := range list {
		err := h.guard("Authorizer", func() error {
			return h.opts.Auth.Authorizer.Authorize(h.ctx, &AuthorizeRequest{Principal: hc.principal(), Session: s.info(), Contract: c.Contract, ForListing: true})
		})
		if err == nil {
			answer.Tools = append(answer.Tools, ToolInfo{Name: c.Name, Description: c.Description, Parameters: c.Parameters,
				Streaming: c.Streaming, Runtimes: runtimes[i]})
		} else if e := h.refusal("Authorizer", err, ReasonDenied, "not allowed"); e.Code == ErrInternal {
			failed = e
		}
	}
	sh := h.shardOf(s.ID)
	now := h.lock(sh)
	defer h.unlock(sh)
	switch {
	case s.IsEnded():
		h.refuseRequest(sh, hc, m, s.ID, errUnknownSession(), now)
	case failed != nil:
		h.refuseRequest(sh, hc, m, s.ID, failed, now)
	default:
		h.reply(hc, m, answer)
	}
}

// listFulfilled returns the session of a request, and the contracts that connected Runtimes fulfil
// in it with the ids of these Runtimes. It returns nil if it has refused the request.
func (h *Host) listFulfilled(hc *hostConn, m *ListTools) (s *session, list []*contract, runtimes [][]string) {
	if !h.clientOnly(hc, m) {
		return nil, nil, nil
	}
	sh := h.shardOf(m.SessionID)
	now := h.lock(sh)
	defer h.unlock(sh)
	if s = h.own(sh, hc, m.SessionID); s == nil {
		h.refuseRequest(sh, hc, m, m.SessionID, errUnknownSession(), now)
		return nil, nil, nil
	}
	for _, c := range h.manifest.Load().list {
		if ids := s.Registry().Connected(c.Name); len(ids) > 0 {
			list, runtimes = append(list, c), append(runtimes, ids)
		}
	}
	return s, list, runtimes
}

// refuseRequest answers a request with an error. The shard is locked.
func (h *Host) refuseRequest(sh *shard, hc *hostConn, m Message, session string, err *Error, now time.Time) {
	h.audit(sh, now, &AuditRecord{Operation: "request.refused", SessionID: session, CorrelationID: m.head().CorrelationID, Error: err}, hc)
	h.answer(hc, m, err)
}

// sessionIDs returns the ids of the live sessions in order of creation.
func (h *Host) sessionIDs() (ids []string) {
	var all []*core.Session
	h.lockAll()
	for i := range h.shards {
		for s := range h.shards[i].core.All() {
			if !s.IsLink {
				all = append(all, s)
			}
		}
	}
	h.unlockAll()
	slices.SortFunc(all, func(a, b *core.Session) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	return ids
}

// sessionIDOf returns the session that a message needs.
func sessionIDOf(m Message) string {
	switch m := m.(type) {
	case *ToolCall:
		return m.SessionID
	case *DestroySession:
		return m.SessionID
	case *ListTools:
		return m.SessionID
	case *CancelCall:
		return m.SessionID
	case *FulfillTools:
		return m.SessionID
	}
	return ""
}

// The numbers of ended session ids that are remembered (ALT-D18).
const (
	maxEnded    = 10_000 // of a principal
	maxAllEnded = 100_000
)

// tombstones are the ids of ended sessions.
type tombstones struct {
	mu   sync.Mutex
	list *core.Tombstones // guarded by mu
}

func (t *tombstones) add(id string, p core.Principal, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list.Add(id, p, until)
}

func (t *tombstones) has(id string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list.Has(id, now)
}
