// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"time"

	"github.com/fivewire/fivewire/store"
)

// summon loads the session of a request from the store, unless it is in the table: another Host, or
// an earlier process of this Host, created it. For a client it also loads a session that is in the
// table only for forwarded calls. It reports whether the store could be read.
func (h *Host) summon(id string, client bool) bool {
	if h.state == nil || id == "" || id == AllSessions {
		return true
	}
	now := h.lock()
	s := h.sessions.byID[id]
	isKnown := s != nil && (s.kind != guestSession || !client) || s == nil && h.sessions.used(id, now)
	if isKnown {
		h.unlock()
		return true
	}
	l := h.sessions.lookFor(id)
	h.unlock()
	r, _, err := h.state.session(id)
	now = h.lock()
	defer h.unlock()
	destroyed := h.sessions.looked(id, l)
	if err != nil {
		h.state.logError("session not read", err)
		return false
	}
	if r == nil || destroyed {
		return true
	}
	p, expires := principal{r.Tenant, r.Name}, time.Unix(0, r.Expires)
	s = h.sessions.byID[id]
	switch {
	case s != nil && s.kind == guestSession && s.principal == p:
		// Calls of it were forwarded to this Host; now its clients come, too.
		h.sessions.remove(s, now)
		s.kind = ownSession
		h.sessions.add(s)
		h.timers.set(&s.expiry, expires)
	case s != nil || h.sessions.used(id, now):
		return true // another goroutine was faster
	case h.roomForSession() != nil:
		return false
	default:
		s = h.newSession(id, p, expires.Sub(now), now)
		h.sessions.add(s)
		h.askAll(s, now)
	}
	s.ttl = time.Duration(r.TTL)
	s.info.Metadata = r.Metadata
	if r.Security != nil {
		s.info.SecurityContext = *r.Security
	}
	return true
}

// sessionOf returns the session that a message needs.
func sessionOf(m Message) string {
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

// unavailable answers a message whose session could not be read.
func (h *Host) unavailable(hc *hostConn, m Message) {
	now := h.lock()
	defer h.unlock()
	err := NewError(ErrInternal, "", "the Host cannot read its sessions")
	switch m := m.(type) {
	case *ToolCall:
		h.refused(hc, m, nil, err, now)
	case *CancelCall:
		h.dropped(hc, m, "the session cannot be read")
	default:
		h.answer(hc, m, err)
	}
}

// storeSession creates a session in the store under a free id, and returns the id and the store
// operation started on it.
func (h *Host) storeSession(id string, r *sessionRecord) (stored string, l *storeAccess, err error) {
	for range 1000 {
		h.lock()
		l = h.sessions.lookFor(id)
		h.unlock()
		if err = h.state.putSession(id, r); !errors.Is(err, store.ErrExists) {
			return id, l, err
		}
		now := h.lock()
		h.sessions.looked(id, l)
		id = h.newSessionID("", now)
		h.unlock()
		if id == "" {
			break
		}
	}
	return "", nil, errors.New("altar: session id: all attempts taken")
}

// destroyStored ends a session in the store before it ends here, and reports
// whether that worked.
func (h *Host) destroyStored(hc *hostConn, m *DestroySession) bool {
	h.lock()
	s := h.own(hc, m.SessionID)
	h.unlock()
	if s == nil || hc.role == roleRuntime {
		return true // refused, anyway
	}
	err := h.state.endSession(m.SessionID)
	if err != nil {
		h.state.logError("session end not stored", err)
	}
	return err == nil
}

// destroyedElsewhere ends a session that was destroyed at another Host.
func (h *Host) destroyedElsewhere(id string) {
	now := h.lock()
	defer h.unlock()
	if access := h.sessions.looks[id]; access != nil {
		access.destroyed = true // what is being read may be older
	}
	if s := h.sessions.byID[id]; s != nil && s.kind == ownSession {
		h.endSession(s, "destroyed", ReasonSessionDestroyed, now)
	}
}

// prolong writes the new expiry of a session with a sliding lifetime. One write is in progress at a
// time, and the last expiry is written last.
func (h *Host) prolong(s *session) {
	if h.state == nil || s.kind != ownSession {
		return
	}
	if s.saving {
		s.unsaved = true
		return
	}
	s.saving = true
	h.background(func() {
		for isUnsaved := true; isUnsaved; {
			h.mu.Lock()
			s.unsaved = false
			due := s.expiry.due
			h.mu.Unlock()
			if err := h.state.changeSession(s.id, func(r *sessionRecord) { r.Expires = max(r.Expires, due.UnixNano()) }); err != nil {
				h.state.logError("session expiry not stored", err)
			}
			h.mu.Lock()
			isUnsaved = s.unsaved
			s.saving = isUnsaved
			h.mu.Unlock()
		}
	})
}

// expire ends a session whose lifetime has expired, unless another Host has extended it.
func (h *Host) expire(s *session) {
	r, _, err := h.state.session(s.id)
	now := h.lock()
	defer h.unlock()
	switch {
	case s.isEnded || s.expiry.index >= 0:
	case err == nil && r != nil && time.Unix(0, r.Expires).After(now):
		h.timers.set(&s.expiry, time.Unix(0, r.Expires))
	default:
		h.endSession(s, "expired", ReasonSessionExpired, now)
	}
}

// prepare does what a message needs of the store before it is handled, and
// reports whether that was possible.
func (h *Host) prepare(hc *hostConn, m Message) bool {
	if !h.summon(sessionOf(m), hc.role != roleRuntime) {
		return false
	}
	if d, ok := m.(*DestroySession); ok {
		return h.destroyStored(hc, d)
	}
	return true
}

// storeOwner makes a runtime id that of its Runtime in the store, unless it will
// be refused for another reason, and reports whether it is (ALT-D16).
func (h *Host) storeOwner(hc *hostConn, m *AnnounceRuntime) (bool, *Error) {
	h.lock()
	refused := h.manifest.reserved(m.RuntimeID)
	h.unlock()
	if _, err := Negotiate(h.opts.ProtocolVersion, m.ProtocolVersion); err != nil || refused {
		return true, nil
	}
	mine, err := h.state.own(m.RuntimeID, hc.identity.principal())
	if err != nil {
		h.state.logError("Runtime owner not recorded", err)
		return false, NewError(ErrInternal, "", "the Host cannot read who owns the runtime id")
	}
	return mine, nil
}
