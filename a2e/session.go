// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/sendq"
)

// A sink receives the lines that a session sends, each with its LF. Its methods except reserve never
// block, so that they may be called with the lock of the session held.
type sink interface {
	// put queues a line, or returns [sendq.ErrFull]. Success uses the reservation up.
	put(line []byte, space sendq.Reservation) error

	// putControl queues a line of the reader or of a timer, for which space is left even if put
	// has none. An urgent line precedes all others.
	putControl(line []byte, isUrgent bool) error

	reserve(ctx context.Context, n int) (sendq.Reservation, error) // waits for space
	release(space sendq.Reservation)
}

type sessionState int

const (
	stateNew sessionState = iota
	stateActive
	stateDraining
	stateClosed
)

// A Session is the session of one agent on a host, from its first byte to its last.
type Session struct {
	host     *Host
	promote  func(ctx context.Context, r sessionRecord) (*kept, error) // nil unless the session may become durable
	body     *keptBody                                                 // that is fed
	ctx      context.Context                                           // ends with the session
	cancel   context.CancelFunc
	returned chan struct{} // closed when all handlers have returned after the end
	finished chan struct{} // closed when no goroutine of the session is left
	work     sync.WaitGroup
	replies  *calls.Table[reply] // requests of the host
	todo     chan *Call          // received by idle workers
	idle     atomic.Int32        // number of idle workers

	peer     string // its address; empty without a network
	recorder *recorder
	number   uint64 // of the session in its host
	started  time.Time
	hold     requestHold // for the message that is processed

	extensions []string    // that the host serves here
	isPending  atomic.Bool // before the handshake that the host demands

	mu        sync.Mutex // guards everything below
	state     sessionState
	code      int   // of the close frame of a WebSocket (A2E-D59); zero means 1000
	out       sink  // of a byte stream from the start
	kept      *kept // nil unless the session is durable
	scope     *budget.Scope
	place     budget.Hold // among the sessions before or after the handshake
	id        string      // assigned by the first successful handshake
	agentID   string
	ownerID   string
	principal *Principal
	caps      map[string]bool
	features  []string // feature flags, and agreed extensions
	reads     bounds   // what the agent reads
	attempts  int
	calls     map[string]*Call // in flight by request id
	arrivals  []*Call          // the same in order of arrival
	queue     []*Call          // calls that have not started, in order of arrival
	running   [3]int64         // handlers by lane
	events    uint64           // number of handled events
	busyKeys  map[string]bool  // order keys of the running calls
	answered  idRing
	states    map[*Plugin]*pluginState
	// key of the snapshots of the states, "" for none
	snapshotKey string
	timer       *time.Timer // handshake or drain
	clock       *time.Timer // for the time limits of calls
	due         time.Time   // when clock fires, or zero
	expiry      *time.Timer // of the principal
	records     []*AuditRecord
	isAuditing  bool     // a goroutine passes records on
	backlog     [][]byte // lines without space; unlock sends them
}

// answeredIDs is the number of recorded ids of answered requests (A2E-D13).
const answeredIDs = 1024

// newSession returns the next session of a host. h.mu must be held.
func newSession(h *Host, out sink, peer string) *Session {
	s := &Session{host: h, out: out, peer: peer, number: h.number, returned: make(chan struct{}), finished: make(chan struct{}),
		calls: map[string]*Call{}, busyKeys: map[string]bool{}, replies: calls.New[reply](calls.Options{}),
		states: map[*Plugin]*pluginState{}, todo: make(chan *Call)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// start starts the time limit of the handshake.
func (s *Session) start() {
	s.mu.Lock() // the timer may fire at once
	defer s.unlock()
	if !s.host.open() {
		s.isPending.Store(true)
		s.started = time.Now()
		s.timer = time.AfterFunc(s.host.opts.Timing.HandshakeTimeout, func() { s.evict(codeNotAllowed) })
	}
}

// evict closes a session without a handshake, and reports whether it had none. Code is that of a
// WebSocket.
func (s *Session) evict(code int) bool {
	s.mu.Lock()
	defer s.unlock()
	if s.state != stateNew {
		return false
	}
	now := time.Now()
	s.records = append(s.records, &AuditRecord{Time: now, Peer: s.peer, Operation: TypeHandshakeRequest, Outcome: OutcomeRefused,
		Code: string(ErrTimeout), Duration: now.Sub(s.started)})
	s.code = code
	s.closeLocked()
	return true
}

// closeCode returns the code of the close frame.
func (s *Session) closeCode() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.code
}

// ID returns the session's id, empty before the handshake.
func (s *Session) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// AgentID returns the agent id of the handshake.
func (s *Session) AgentID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agentID
}

// Principal returns the result of the [Authenticator], or nil for an anonymous agent.
func (s *Session) Principal() *Principal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.principal
}

// OwnerID identifies the owner of the data kept for the agent: the principal, or the token and the agent
// id of an anonymous agent (A2E-D22). It is empty before the handshake, and for an anonymous agent that
// names neither.
func (s *Session) OwnerID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ownerID
}

// ownerID returns the owner of the data kept for an agent.
func ownerID(p *Principal, r *HandshakeRequest) string {
	switch {
	case p != nil:
		return fmt.Sprintf("principal %q %q", p.Tenant, p.ID)
	case r.AuthToken != "":
		return fmt.Sprintf("token %x agent %s", sha256.Sum256([]byte(r.AuthToken)), r.AgentID)
	case r.AgentID != "":
		return "agent " + r.AgentID
	}
	return ""
}

// HasCapability reports whether a capability was accepted, or a feature flag requested.
func (s *Session) HasCapability(name string) bool {
	s.mu.Lock()
	defer s.unlock()
	return s.caps[name] || slices.Contains(s.features, name)
}

// Context returns a context that ends with the session.
func (s *Session) Context() context.Context { return s.ctx }

func (s *Session) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == stateClosed
}

func (s *Session) budgetScope() *budget.Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scope
}

// feed processes one line of the agent. It is called by one goroutine at a time.
func (s *Session) feed(line []byte) {
	arrived := time.Now()
	s.recorder.line("in", line)
	m, err := s.host.codec.decode(line)
	if err != nil {
		s.refuseLine(err, arrived, len(line))
		return
	}
	switch m.Type {
	case TypePing, TypeShutdown, TypeHandshakeRequest:
	default:
		s.hold = reserveRequest(s.budgetScope(), len(line))
	}
	if a := s.take(m, arrived, len(line)); a != nil {
		s.authenticate(a)
	}
	s.hold.release() // unless the call took it
	s.hold = requestHold{}
}

// feedLines processes the lines of a body, the last one with or without LF.
func (s *Session) feedLines(data []byte) {
	if n := len(data); n > 0 && data[n-1] != '\n' {
		data = append(slices.Clip(data), '\n')
	}
	in := newLineReader(bytes.NewReader(data), s.host.codec)
	for {
		line, err := in.next()
		var e *Error
		if err == nil {
			s.feed(line)
			continue
		}
		if !errors.As(err, &e) {
			return
		}
		s.refuseLine(e, time.Now(), 0)
	}
}

// take processes one message. A handshake request is returned for authentication without the lock.
func (s *Session) take(m *Message, arrived time.Time, in int) *handshakeAttempt {
	s.mu.Lock()
	defer s.unlock()
	if m.Type == TypeHandshakeRequest && s.state != stateClosed {
		return s.startHandshakeLocked(m, arrived, in)
	}
	s.takeLocked(m, arrived, in)
	return nil
}

// refuseLine answers a line that cannot be decoded, unless its type gets no answer (A2E-D16).
func (s *Session) refuseLine(err *Error, arrived time.Time, in int) {
	s.mu.Lock()
	defer s.unlock()
	if s.state == stateClosed {
		return
	}
	if err.Code == ErrVersionMismatch && err.msgType == TypeHandshakeRequest {
		m := &Message{Type: err.msgType, ID: err.ReqID}
		s.refuseHandshakeLocked(m, RejectVersionMismatch, arrived, in)
		return
	}
	if err.msgType != "" {
		switch s.kind(err.msgType) {
		case KindResponse, KindError:
			s.deliver(err.refID, reply{err: err})
			return
		case KindEvent:
			s.host.dropped.Add(1)
			return
		}
	}
	s.sendLocked(errorMessage(err))
}

// kind returns the kind of a type as read by a host.
func (s *Session) kind(name string) Kind {
	if t := s.host.codec.Types.lookup(name, true); t != nil {
		return t.Kind
	}
	return kindOf(hostReading(canonicalType(name)))
}

// encode encodes a message of the package. One that cannot be encoded is replaced by an error.
func (s *Session) encode(m *Message) *[]byte {
	line, err := s.host.codec.line(m)
	if err == nil {
		return line
	}
	s.host.log.ErrorContext(s.ctx, "a2e: message not encoded", "type", m.Type, "err", err)
	e := reasoned(ErrRuntime, ReasonInternal, "internal error")
	e.ReqID = m.ReqID()
	if line, err = s.host.codec.line(errorMessage(e)); err != nil {
		return nil
	}
	return line
}

// sendLocked sends a message of the reader or of a timer and returns its length in bytes. s.mu must
// be held.
func (s *Session) sendLocked(m *Message) int {
	line := s.encode(m)
	if line == nil {
		return 0
	}
	defer freeLine(line)
	s.recorder.line("out", *line)
	if errors.Is(s.out.putControl(*line, m.Type == TypePong), sendq.ErrFull) {
		s.backlog = append(s.backlog, bytes.Clone(*line))
	}
	return len(*line) - 1
}

// takeLocked performs the checks of A2E-D26 in their order. s.mu must be held.
func (s *Session) takeLocked(m *Message, arrived time.Time, in int) {
	if s.state == stateClosed {
		return
	}
	if m.Type == typeCancel && slices.Contains(s.features, featureCancel) {
		s.cancelCallLocked(m)
		return
	}
	if s.kept.passedLocked(s, m) {
		return
	}
	switch s.kind(m.Type) {
	case KindResponse, KindError, KindEvent:
		s.handleOneWayLocked(m)
		return
	}
	switch m.Type {
	case TypePing:
		s.sendLocked(NewMessage(TypePong, &Pong{ReqID: m.ID, UptimeSeconds: time.Since(s.host.started).Seconds()}))
		return
	case TypeShutdown:
		timeout := int64(10)
		if b, ok := m.Body.(*Shutdown); ok {
			timeout = max(int64(b.Timeout), 0)
		}
		s.startDrainLocked(time.Duration(min(timeout, int64(s.host.opts.Timing.DrainTimeout/time.Second)+1)) * time.Second)
		return
	}
	call := &Call{Message: m, Session: s, arrived: arrived, in: in}
	call.capability = s.capabilityOf(m)
	refuse := func(err *Error, capability string) {
		err.Capability = capability
		s.rejectLocked(call, err)
	}
	isKnown := m.typ != nil || catalogued(hostReading(canonicalType(m.Type)))
	switch {
	case s.state == stateDraining:
		refuse(reasoned(ErrInvalidMessage, ReasonDraining, "the session is shutting down"), "")
		return
	case s.state == stateNew && !s.host.open():
		refuse(reasoned(ErrUnauthorized, ReasonNoHandshake, "no handshake yet"), call.capability)
		return
	case s.calls[m.ID] != nil:
		s.host.dropped.Add(1) // sent twice by the transport; one answer follows
		return
	case s.answered.has(m.ID):
		refuse(reasoned(ErrInvalidMessage, ReasonDuplicateID, "a request with this id was answered already"), "")
		return
	case !isKnown && s.host.fallback != nil:
		call.routes = []boundRoute{{plugin: &Plugin{}, handler: s.host.fallback}}
		call.mayPass = true
		s.enqueueLocked(call)
		return
	case !isKnown:
		refuse(reasoned(ErrInvalidMessage, ReasonUnknownType, "nobody here knows this type").With("type", clip(m.Type, 200)), "")
		return
	case call.capability != "" && !s.acceptsLocked(call.capability):
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
	call.lane = call.routes[0].lane
	s.enqueueLocked(call)
}

func unsupported(msgType string) *Error {
	return reasoned(ErrInvalidMessage, ReasonUnsupported, "nobody here serves this type").With("type", clip(msgType, 200))
}

// typeName returns the canonical name under which a message is routed.
func (s *Session) typeName(m *Message) string {
	if m.typ != nil {
		return m.typ.Name
	}
	return hostReading(canonicalType(m.Type))
}

func (s *Session) capabilityOf(m *Message) string {
	if m.typ != nil && m.typ.Capability != "" {
		return m.typ.Capability
	}
	return capabilityOf(s.typeName(m))
}

// acceptsLocked reports whether a capability is available in the session. s.mu must be held.
func (s *Session) acceptsLocked(capability string) bool {
	if s.state == stateNew { // served without handshake
		return s.host.plugin(capability) != nil
	}
	return s.caps[capability]
}

// handleOneWayLocked handles messages that get no answer (A2E-D16). s.mu must be held.
func (s *Session) handleOneWayLocked(m *Message) {
	kind := s.kind(m.Type)
	if kind == KindResponse || kind == KindError {
		s.deliver(m.ReqID(), reply{answer: m})
		return
	}
	if s.state != stateActive && !(s.state == stateNew && s.host.open()) {
		s.host.dropped.Add(1)
		return
	}
	routes := s.host.routes[s.typeName(m)]
	if len(routes) == 0 && m.typ == nil && !catalogued(s.typeName(m)) && s.host.fallback != nil {
		routes = []boundRoute{{plugin: &Plugin{}, handler: s.host.fallback}}
	}
	capability, limits := s.capabilityOf(m), &s.host.opts.Limits
	if len(routes) == 0 || capability != "" && !s.acceptsLocked(capability) ||
		routes[0].lane == laneOrdinary && int64(len(s.calls)) > limits.QueueLimitPerSession+limits.MaxConcurrentPerSession {
		s.host.dropped.Add(1)
		return
	}
	call := &Call{Message: m, Session: s, arrived: time.Now(), routes: routes, lane: routes[0].lane, silent: true, capability: capability}
	s.enqueueLocked(call)
}

// deliver passes a reply to its waiting call.
func (s *Session) deliver(reqID string, r reply) {
	if !s.replies.Complete(reqID, r) {
		s.host.dropped.Add(1)
	}
}

// An idRing records the last added ids.
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
