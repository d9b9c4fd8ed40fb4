// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A sink takes the lines that a session sends.
type sink interface {
	put(line []byte)                // never blocks
	leave(line []byte)              // the same, for who calls help next
	help()                          // may block while the agent does not read
	wait(ctx context.Context) error // returns when there is room
	finish()                        // nothing more comes
}

type sessionState int

const (
	stateNew sessionState = iota
	stateActive
	stateDraining
	stateClosed
)

// A Session is what one agent does on a host, from its first byte to its last.
type Session struct {
	host     *Host
	out      sink
	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	finished chan struct{} // closed when no goroutine of the session is left
	work     sync.WaitGroup
	todo     chan *Call   // to workers that wait for one
	idle     atomic.Int32 // how many do

	mu        sync.Mutex // guards everything below
	state     sessionState
	id        string // made at the first good handshake
	agentID   string
	principal Principal
	caps      map[string]bool
	features  []string
	attempts  int
	calls     map[string]*Call // in flight by request id
	arrivals  []*Call          // the same in order of arrival
	queue     []*Call          // those that wait
	running   int
	events    uint64          // how many events were handled
	held      map[string]bool // what running calls work on
	answered  idRing
	waiters   map[string]chan reply // requests of the host by their ids
	states    map[*Plugin]*pluginState
	// whose snapshots the states are, "" if none is kept
	snapshotKey string
	timer       *time.Timer // handshake or drain
	clock       *time.Timer // for the time limits of calls
	due         time.Time   // when it strikes, or zero
}

// answeredIDs is how many ids of answered requests are remembered (A2E-D13).
const answeredIDs = 1024

func startSession(h *Host, out sink) *Session {
	s := &Session{host: h, out: out, finished: make(chan struct{}), calls: map[string]*Call{}, held: map[string]bool{},
		waiters: map[string]chan reply{}, states: map[*Plugin]*pluginState{}, todo: make(chan *Call)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.Lock() // the timer may fire at once
	defer s.mu.Unlock()
	if d := h.limits.HandshakeTimeout; d > 0 && !h.open() {
		s.timer = time.AfterFunc(d, s.handshakeOver)
	}
	return s
}

// ID returns the session's id, empty before the handshake.
func (s *Session) ID() string { s.mu.Lock(); defer s.mu.Unlock(); return s.id }

// AgentID returns what the agent called itself in the handshake.
func (s *Session) AgentID() string { s.mu.Lock(); defer s.mu.Unlock(); return s.agentID }

// Principal returns what the authenticator said.
func (s *Session) Principal() Principal { s.mu.Lock(); defer s.mu.Unlock(); return s.principal }

// HasCapability reports whether a capability was accepted, or a feature flag asked for.
func (s *Session) HasCapability(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caps[name] || slices.Contains(s.features, name)
}

// Context returns a context that ends with the session.
func (s *Session) Context() context.Context { return s.ctx }

func (s *Session) isClosed() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.state == stateClosed }

// feed takes one line of the agent. It is called by one goroutine at a time.
func (s *Session) feed(line []byte) {
	arrived := time.Now()
	m, err := s.host.codec.decode(line)
	if err != nil {
		s.refuseLine(err, arrived, len(line))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(m, arrived, len(line))
}

// refuse answers a line that could not even be framed.
func (s *Session) refuse(err *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != stateClosed {
		s.send(errorMessage(err))
	}
}

// refuseLine answers a line that cannot be decoded, unless it is one that gets
// no answer (A2E-D16).
func (s *Session) refuseLine(err *Error, arrived time.Time, in int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stateClosed {
		return
	}
	if err.Code == ErrVersionMismatch && err.msgType == TypeHandshakeRequest {
		m := &Message{Type: err.msgType, ID: err.ReqID}
		s.refuseHandshake(m, RejectVersionMismatch, arrived, in)
		return
	}
	if err.msgType != "" {
		switch s.kind(err.msgType) {
		case KindResponse, KindError:
			if !s.replied(err.refID, reply{err: err}) {
				s.host.dropped.Add(1)
			}
			return
		case KindEvent:
			s.host.dropped.Add(1)
			return
		}
	}
	s.send(errorMessage(err))
}

// kind returns the kind of a type as a host sees it.
func (s *Session) kind(name string) Kind {
	if t := s.host.codec.Types.lookup(name, true); t != nil {
		return t.Kind
	}
	return KindOf(hostReading(CanonicalType(name)))
}

// send encodes and sends a message and returns how many bytes it is long. A
// message of a handler that cannot be encoded is replaced by an error.
func (s *Session) send(m *Message) int {
	line, err := s.host.codec.Append(nil, m)
	if err != nil {
		s.host.log.Error("a2e: message cannot be encoded", "type", m.Type, "err", err)
		e := reasoned(ErrRuntime, ReasonInternal, "internal error")
		e.ReqID = m.ReqID()
		if line, err = s.host.codec.Append(nil, errorMessage(e)); err != nil {
			return 0
		}
	}
	s.out.put(line)
	return len(line)
}

// take goes through the checks of A2E-D26 in their order. It is called with mu held.
func (s *Session) take(m *Message, arrived time.Time, in int) {
	if s.state == stateClosed {
		return
	}
	if m.Type == typeCancel && slices.Contains(s.features, FeatureCancel) {
		s.cancelCall(m)
		return
	}
	switch s.kind(m.Type) {
	case KindResponse, KindError, KindEvent:
		s.unanswerable(m)
		return
	}
	switch m.Type {
	case TypePing:
		s.send(NewMessage(TypePong, &Pong{ReqID: m.ID, UptimeSeconds: time.Since(s.host.started).Seconds()}))
		return
	case TypeShutdown:
		timeout := int64(10)
		if b, ok := m.Body.(*Shutdown); ok {
			timeout = b.Timeout
		}
		s.startDrain(time.Duration(min(timeout, int64(s.host.limits.MaxDrain/time.Second)+1)) * time.Second)
		return
	case TypeHandshakeRequest:
		s.handshake(m, arrived, in)
		return
	}
	call := &Call{Message: m, Session: s, arrived: arrived, in: in}
	call.capability = s.capabilityOf(m)
	refuse := func(err *Error, capability string) {
		err.Capability = capability
		s.reject(call, err)
	}
	known := m.typ != nil || catalogued(hostReading(CanonicalType(m.Type)))
	switch {
	case s.state == stateDraining:
		refuse(reasoned(ErrInvalidMessage, ReasonDraining, "the session is shutting down"), "")
		return
	case s.state == stateNew && !s.host.open():
		refuse(reasoned(ErrUnauthorized, ReasonNoHandshake, "no handshake yet"), call.capability)
		return
	case s.calls[m.ID] != nil:
		s.host.dropped.Add(1) // the transport sent it twice; the one answer comes
		return
	case s.answered.has(m.ID):
		refuse(reasoned(ErrInvalidMessage, ReasonDuplicateID, "a request with this id was answered already"), "")
		return
	case !known && s.host.catchAll != nil:
		call.routes = []boundRoute{{plugin: &Plugin{}, handler: s.host.catchAll}}
		call.mayPass = true
		s.enqueue(call)
		return
	case !known:
		refuse(reasoned(ErrInvalidMessage, ReasonUnknownType, "nobody here knows this type").With("type", clip(m.Type, 200)), "")
		return
	case call.capability != "" && !s.accepted(call.capability):
		refuse(reasoned(ErrCapabilityMissing, ReasonNotNegotiated, "the capability "+clip(call.capability, 100)+" was not negotiated; the agent asks for it in its handshake"), call.capability)
		return
	}
	if id := textMember(m, "session_id"); id != "" && id != s.id {
		refuse(reasoned(ErrUnauthorized, ReasonSessionID, "the request names another session"), call.capability)
		return
	}
	call.routes = s.host.routes[s.typeName(m)]
	if len(call.routes) == 0 {
		refuse(unsupported(m.Type), call.capability)
		return
	}
	s.enqueue(call)
}

func unsupported(msgType string) *Error {
	return reasoned(ErrInvalidMessage, ReasonUnsupported, "nobody here serves this type").With("type", clip(msgType, 200))
}

// typeName returns the canonical name under which a message is routed.
func (s *Session) typeName(m *Message) string {
	if m.typ != nil {
		return m.typ.Name
	}
	return hostReading(CanonicalType(m.Type))
}

func (s *Session) capabilityOf(m *Message) string {
	if m.typ != nil && m.typ.Capability != "" {
		return m.typ.Capability
	}
	return capabilityOf(s.typeName(m))
}

func (s *Session) accepted(capability string) bool {
	if s.state == stateNew { // served without handshake
		return s.host.plugin(capability) != nil
	}
	return s.caps[capability]
}

// unanswerable handles what never gets an answer (A2E-D16).
func (s *Session) unanswerable(m *Message) {
	kind := s.kind(m.Type)
	if kind == KindResponse || kind == KindError {
		if !s.replied(m.ReqID(), reply{answer: m}) {
			s.host.dropped.Add(1)
		}
		return
	}
	if s.state != stateActive && !(s.state == stateNew && s.host.open()) {
		s.host.dropped.Add(1)
		return
	}
	routes := s.host.routes[s.typeName(m)]
	if len(routes) == 0 && m.typ == nil && !catalogued(s.typeName(m)) && s.host.catchAll != nil {
		routes = []boundRoute{{plugin: &Plugin{}, handler: s.host.catchAll}}
	}
	if len(routes) == 0 || s.capabilityOf(m) != "" && !s.accepted(s.capabilityOf(m)) || len(s.calls) > s.host.limits.QueueLimit+s.host.limits.MaxConcurrent {
		s.host.dropped.Add(1)
		return
	}
	call := &Call{Message: m, Session: s, arrived: time.Now(), routes: routes, silent: true, capability: s.capabilityOf(m)}
	s.enqueue(call)
}

// replied hands a reply to who waits for it, if anybody does.
func (s *Session) replied(reqID string, r reply) bool {
	waiter := s.waiters[reqID]
	if waiter == nil {
		return false
	}
	delete(s.waiters, reqID)
	waiter <- r // has room for one
	return true
}

// An idRing remembers the last ids that were added.
type idRing struct {
	ids  map[string]struct{}
	ring []string
	next int
}

func (r *idRing) has(id string) bool {
	_, ok := r.ids[id]
	return ok
}

func (r *idRing) add(id string) {
	if r.ids == nil {
		r.ids = make(map[string]struct{})
	}
	if r.has(id) {
		return
	}
	id = strings.Clone(id) // it shares the memory of its whole message
	if len(r.ring) < answeredIDs {
		r.ring = append(r.ring, id)
	} else {
		delete(r.ids, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % answeredIDs
	}
	r.ids[id] = struct{}{}
}
