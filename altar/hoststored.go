// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/store"
)

// ledgerOptions returns the options of the part of the Host in a store.
func (h *Host) ledgerOptions() ledger.Options {
	p := &h.opts.Persistence
	return ledger.Options{
		Store: p.Store, HostID: h.opts.ID, Logger: h.opts.Logger,
		StoreTimeout: p.StoreTimeout, LeaseTTL: p.LeaseTTL, OutcomeTTL: p.ResultTTL, TombstoneTTL: p.TombstoneTTL,
		OnBegin: func(all []ledger.Fulfillment) {
			h.lock()
			defer h.unlock()
			for _, f := range all {
				h.sessions.Change(nil, func(r *core.Registry) *core.Registry { return h.restored(r, f) })
			}
		},
		OnSessionEnd: h.destroyedElsewhere,
		Runtimes:     h.Runtimes,
	}
}

func (h *Host) logError(what string, err error) {
	h.opts.Logger.ErrorContext(h.ctx, "altar: "+what, "err", err)
}

// summon loads the session of a request from the store, unless it is in the table: another Host, or
// an earlier process of this Host, created it. For a client it also loads a session that is in the
// table only for forwarded calls. It reports whether the store could be read.
func (h *Host) summon(id string, client bool) bool {
	if h.ledger == nil || id == "" || id == allSessions {
		return true
	}
	now := h.lock()
	s := h.session(id)
	isKnown := s != nil && (s.Kind != core.GuestSession || !client) || s == nil && h.sessions.IsUsed(id, now)
	if isKnown {
		h.unlock()
		return true
	}
	l := h.sessions.Look(id)
	h.unlock()
	r, err := h.ledger.Session(id)
	var fulfilled []ledger.Fulfillment
	if r != nil {
		fulfilled, err = h.ledger.Fulfillments(id)
	}
	now = h.lock()
	defer h.unlock()
	destroyed := h.sessions.Looked(id, l)
	switch {
	case err != nil:
		h.logError("session not read", err)
		return false
	case r == nil || destroyed:
		return true
	}
	return h.addStored(id, r, fulfilled, now)
}

// addStored enters a session of the store, and reports false if it finds no place in the budget.
func (h *Host) addStored(id string, r *ledger.Session, fulfilled []ledger.Fulfillment, now time.Time) bool {
	p, expires := core.Principal{Tenant: r.Tenant, Name: r.Name}, time.Unix(0, r.Expires)
	s := h.session(id)
	switch {
	case s != nil && s.Kind == core.GuestSession && s.Principal == p:
		// Calls of it were forwarded to this Host; now its clients come, too.
		h.sessions.Adopt(&s.Session)
		h.timers.Set(&s.Expiry, expires)
	case s != nil || h.sessions.IsUsed(id, now):
		return true // another goroutine was faster
	default:
		s = h.newSession(id, p, core.OwnSession, expires.Sub(now), now)
		if h.reserveSession(s, principalKey(p, "")) != nil {
			h.timers.Stop(&s.Expiry)
			return false
		}
		for _, f := range fulfilled {
			h.sessions.Change(&s.Session, func(r *core.Registry) *core.Registry { return h.restored(r, f) })
		}
		h.sessions.Add(&s.Session)
		h.askAll(s, now)
	}
	s.TTL = time.Duration(r.TTL)
	s.info.Metadata = r.Metadata
	if r.Security != nil {
		s.info.SecurityContext = SecurityContext(*r.Security)
	}
	return true
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

// unavailable answers a message whose session could not be read.
func (h *Host) unavailable(hc *hostConn, m Message) {
	now := h.lock()
	defer h.unlock()
	err := Errorf(ErrInternal, "", "the Host cannot read its sessions")
	switch m := m.(type) {
	case *ToolCall:
		h.refused(hc, m, nil, err, now)
	case *CancelCall:
		h.dropped(hc, m, "the session cannot be read")
	default:
		h.answer(hc, m, err)
	}
}

// keepFulfillment stores the contracts that a Runtime fulfils, before that is acknowledged. A leave
// is not stored: calls wait for the Runtime after a restart, too.
func (h *Host) keepFulfillment(hc *hostConn, m *FulfillTools, names []string) *Error {
	if h.ledger == nil || m.Replace && len(m.ToolNames) == 0 {
		return nil
	}
	all := names
	if !m.Replace {
		all = slices.Clone(hc.fulfilled[m.SessionID])
		for _, name := range names {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	if slices.Equal(all, hc.fulfilled[m.SessionID]) {
		return nil
	}
	if err := h.ledger.PutFulfillment(m.SessionID, ledger.Fulfillment{RuntimeID: hc.runtime.ID, Contracts: all}); err != nil {
		h.logError("fulfilment not stored", err)
		return Errorf(ErrInternal, "", "the Host cannot store the fulfilment")
	}
	if hc.fulfilled == nil {
		hc.fulfilled = make(map[string][]string)
	}
	hc.fulfilled[m.SessionID] = all
	return nil
}

// restored returns a registry with a fulfilment of the store, of an absent Runtime.
func (h *Host) restored(r *core.Registry, f ledger.Fulfillment) *core.Registry {
	if own := h.runtimes[f.RuntimeID]; own != nil && own.conn != nil {
		return r
	}
	rt := &core.Runtime{ID: f.RuntimeID, LostAt: h.startedAt}
	return r.With(rt, slices.DeleteFunc(slices.Clone(f.Contracts), func(name string) bool { return !h.manifest.has(name) }), false)
}

// storeSession creates a session in the store under a free id, and returns the id and the store
// operation started on it.
func (h *Host) storeSession(id string, r *ledger.Session) (stored string, l *core.Look, err error) {
	for range 1000 {
		h.lock()
		l = h.sessions.Look(id)
		h.unlock()
		if err = h.ledger.CreateSession(id, r); !errors.Is(err, store.ErrExists) {
			return id, l, err
		}
		now := h.lock()
		h.sessions.Looked(id, l)
		id = h.sessions.PickID("", validIdentifier, h.opts.newSessionID, now)
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
	err := h.ledger.EndSession(m.SessionID)
	if err != nil {
		h.logError("session end not stored", err)
	}
	return err == nil
}

// destroyedElsewhere ends a session that was destroyed at another Host.
func (h *Host) destroyedElsewhere(id string) {
	now := h.lock()
	defer h.unlock()
	h.sessions.Destroyed(id)
	if s := h.session(id); s != nil && s.Kind == core.OwnSession {
		h.endSession(s, "destroyed", reasonSessionDestroyed, nil, now)
	}
}

// prolong writes the new expiry of a session with a sliding lifetime. One write is in progress at a
// time, and the last expiry is written last.
func (h *Host) prolong(s *session) {
	if h.ledger == nil || s.Kind != core.OwnSession {
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
			due := s.Expiry.Due()
			h.mu.Unlock()
			if err := h.ledger.ChangeSession(s.ID, func(r *ledger.Session) { r.Expires = max(r.Expires, due.UnixNano()) }); err != nil {
				h.logError("session expiry not stored", err)
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
	r, err := h.ledger.Session(s.ID)
	now := h.lock()
	defer h.unlock()
	switch {
	case s.IsEnded() || s.Expiry.IsSet():
	case err == nil && r != nil && time.Unix(0, r.Expires).After(now):
		h.timers.Set(&s.Expiry, time.Unix(0, r.Expires))
	default:
		h.endSession(s, "expired", ReasonSessionExpired, nil, now)
	}
}

// prepare does what a message needs of the store before it is handled, and
// reports whether that was possible.
func (h *Host) prepare(hc *hostConn, m Message) bool {
	if h.ledger == nil || hc.identity == nil && !h.opts.Auth.AllowAnonymous {
		return true
	}
	if !h.summon(sessionIDOf(m), hc.role != roleRuntime) {
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
	if _, err := negotiate(h.opts.ProtocolVersion, m.ProtocolVersion); err != nil || refused {
		return true, nil
	}
	p := hc.identity.principal()
	mine, err := h.ledger.Own(m.RuntimeID, p.Name, p.Tenant)
	if err != nil {
		h.logError("Runtime owner not recorded", err)
		return false, Errorf(ErrInternal, "", "the Host cannot read who owns the runtime id")
	}
	return mine, nil
}
