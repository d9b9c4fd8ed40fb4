// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

// ServerOptions adjusts a [Server]. Either Auth.Authenticator or Auth.AllowAnonymous is required;
// all other zero values are right for production.
type ServerOptions struct {
	Auth        Auth
	Limits      Limits
	Timing      Timing
	Persistence Persistence

	// Session has the options of each session, except the stores and their Retention, which are in
	// Persistence.
	Session SessionOptions

	// Middleware wraps every handler. The first middleware is outermost.
	Middleware []Middleware

	// AllowedOrigins are the origins of browser pages that may use the server, such as
	// "https://app.example", in addition to its own; "*" allows all.
	AllowedOrigins []string

	// AllowedHosts are further names of a server on a loopback address, with or without a port.
	AllowedHosts []string

	// Audit, if set, is called after every frame and every refused request.
	Audit func(ctx context.Context, r *AuditRecord)

	// Logger receives errors that are not sent to peers. Nil means [slog.Default].
	Logger *slog.Logger
}

// Auth is a group of [ServerOptions].
type Auth struct {
	// Authenticator authenticates each request and each WebSocket handshake. Nil requires
	// AllowAnonymous.
	Authenticator Authenticator

	// Authorizer decides about each message. A session id and an agent-id are names and not
	// secrets, so without an Authorizer each caller may use all of them. Nil allows every message.
	Authorizer Authorizer

	// AllowAnonymous permits a server without an Authenticator.
	AllowAnonymous bool
}

// Limits is a group of [ServerOptions]. Zero means the default; a negative value removes the bound.
// A request over a bound is refused with status 503 and Retry-After over HTTP, and with
// [ErrBudgetExceeded] over WebSocket. Anonymous callers are principals by their address.
type Limits struct {
	// Bytes of sessions, requests and connections in memory. Zero means the lesser of 256 MiB and a
	// third of GOMEMLIMIT in all, 64 MiB for a principal and 16 MiB for the state of a session (see
	// [SessionOptions]). A new session or frame replaces idle sessions as below.
	MaxMemory, MaxMemoryPerPrincipal, MaxMemoryPerSession int64

	// Bytes that the sessions in memory have in stores: checkpoints, of which the oldest are removed
	// over a bound, and texts in SharedStore. Zero means no bound in all, 1 GiB and 256 MiB.
	MaxStorage, MaxStoragePerPrincipal, MaxStoragePerSession int64

	// Sessions. Zero means 10,000 in all and 1,000 for a principal (ACCP-D55). A new session
	// replaces the longest idle one, of the same principal if it has one. A session is idle without
	// a connection and a running request. MaxItemsPerSession has no effect.
	MaxItems, MaxItemsPerPrincipal, MaxItemsPerSession int64

	// Running handlers. Zero means 1,024, 256 and 64.
	MaxConcurrent, MaxConcurrentPerPrincipal, MaxConcurrentPerSession int64

	// Messages that wait for a handler. Zero means 8,192, 1,024 and 256.
	QueueLimit, QueueLimitPerPrincipal, QueueLimitPerSession int64

	// Requests in authentication. Zero means 256 in all and 16 for an address.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int64

	// Requests per second of a principal, and how many of them at once; over WebSocket, handshakes
	// and messages with a handler. Zero means no bound and those of one second.
	RequestRate  float64
	RequestBurst int

	// MaxOutput is the maximum number of bytes of a sent frame. Zero means 65,536.
	MaxOutput int
}

// Timing is a group of [ServerOptions]. A negative value removes the bound.
type Timing struct {
	// SessionIdleTimeout is the lifetime of a session after its last frame or the end of its
	// connection. Zero means an hour. Without a Store, a dropped session loses its numbers and
	// replays.
	SessionIdleTimeout time.Duration

	// ResumeWindow is how long the handler of a req continues after the loss of its WebSocket connection,
	// so that the client can return for the result. A cancel, and a client that closes its connection, end
	// the handler at once. Zero means 10 s; a negative value ends it with the connection (ACCP-D75).
	ResumeWindow time.Duration

	// Heartbeat is the interval of pings on WebSocket connections. Zero means 30 s. A peer that is
	// silent for two intervals is disconnected (ACCP-D56).
	Heartbeat time.Duration

	// WriteTimeout is how long a peer may take no bytes, or over HTTP less than 64 KiB, before it is
	// disconnected. Zero means 10 s.
	WriteTimeout time.Duration

	// ReadTimeout bounds the arrival of a request body. It never extends that of [http.Server].
	// Zero means 30 s.
	ReadTimeout time.Duration
}

// Persistence is a group of [SessionOptions] and [ServerOptions].
type Persistence struct {
	// Store persists the session: the tiers $ctx, $warm and $cold, and a record under the session
	// id and the agent-id with the numbers, the replay window, the cancelled chains, the hot
	// messages, the checkpoints, the shared state and the schemas. Sessions with the same id continue
	// this state after a restart, and several processes may use it at the same time. Sides that share
	// a store share the tiers. Nil, or an empty session id, means memory that ends with the session.
	Store store.Store

	// Retention is the lifetime of stored data. Entries of a checkpoint, texts in SharedStore, and
	// entries of [Session.Put] without a ttl expire this long after they were written; a reference
	// then is [ErrRefExpired]. The record expires later, counted from the last frame, so that no
	// entry of the session remains when its id is used again, except one that [Session.Put] has
	// stored for longer. All sides of a session should use the same value. Zero means 7 days; a negative value keeps everything until [Session.End]
	// (ACCP-D76).
	Retention time.Duration

	// InstanceID identifies the process of a [Server] among those that share the Store. A new process
	// with the id of an earlier one replaces that and takes its requests over at once. Empty means a
	// random id. Sessions without a server do not use it.
	InstanceID string

	// LeaseTTL is the lifetime of the lease of the process of a [Server]. Other processes take its
	// requests over after the lease has expired. Zero and negative values mean 15 s, less than 1 s
	// means 1 s.
	LeaseTTL time.Duration

	// SingleInstance states that no other process of the [Server] shares the Store, so nothing waits
	// for a lease: a new process takes the requests of the last one over at once.
	SingleInstance bool

	// SharedStore, if set, is a store that the peers can read too. Long texts, and params that do
	// not fit into a frame, are moved there and sent as references (ACCP-D35, ACCP-D37). Nil, or an
	// empty session id, sends all values inline.
	SharedStore store.KV
}

func (p *Persistence) isSet() bool {
	return p.Store != nil || p.SharedStore != nil || p.Retention != 0 || p.InstanceID != "" || p.LeaseTTL != 0 || p.SingleInstance
}

func (o ServerOptions) withDefaults() ServerOptions {
	o.Timing.SessionIdleTimeout = option.Duration(o.Timing.SessionIdleTimeout, time.Hour)
	o.Timing.ResumeWindow = max(0, cmp.Or(o.Timing.ResumeWindow, 10*time.Second))
	o.Timing.Heartbeat = option.Duration(o.Timing.Heartbeat, 30*time.Second)
	o.Timing.WriteTimeout = option.Duration(o.Timing.WriteTimeout, 10*time.Second)
	o.Timing.ReadTimeout = option.Duration(o.Timing.ReadTimeout, 30*time.Second)
	o.Limits.MaxItems = cmp.Or(o.Limits.MaxItems, 10_000)
	o.Limits.MaxItemsPerPrincipal = cmp.Or(o.Limits.MaxItemsPerPrincipal, 1000)
	o.Limits.MaxItemsPerSession = -1
	o.Session.maxOutput = maxOutput(o.Limits.MaxOutput)
	o.Session.MaxMemory = o.Limits.MaxMemoryPerSession
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Session.Logger = cmp.Or(o.Session.Logger, o.Logger)
	return o
}

// maxOutput returns a bound of sent frames.
func maxOutput(n int) int { return option.Count(n, FrameLimits{}.withDefaults().MaxFrame) }

func (l *Limits) budget(log *slog.Logger) budget.Limits {
	return budget.Limits{
		Memory:          budget.Limit{Session: l.MaxMemoryPerSession, Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory},
		Storage:         budget.Limit{Session: l.MaxStoragePerSession, Principal: l.MaxStoragePerPrincipal, All: l.MaxStorage},
		Items:           budget.Limit{Session: l.MaxItemsPerSession, Principal: l.MaxItemsPerPrincipal, All: l.MaxItems},
		Work:            budget.Limit{Session: l.MaxConcurrentPerSession, Principal: l.MaxConcurrentPerPrincipal, All: l.MaxConcurrent},
		Waiting:         budget.Limit{Session: l.QueueLimitPerSession, Principal: l.QueueLimitPerPrincipal, All: l.QueueLimit},
		Unauthenticated: budget.Limit{Session: -1, Principal: l.MaxUnauthenticatedPerAddress, All: l.MaxUnauthenticated},
		RequestRate:     l.RequestRate, RequestBurst: l.RequestBurst, Logger: log,
	}
}

// Paths that a [Server] serves.
const (
	FramesPath    = "/accp/v1/frames" // POST
	WebSocketPath = "/accp/v1/ws"     // see ACCP-D56
)

// A Server answers frames over HTTP and WebSocket. It is an [http.Handler] for [FramesPath] and
// [WebSocketPath]. It is safe for concurrent use.
type Server struct {
	responder
	opts     ServerOptions
	budget   *budget.Budget
	origins  httpx.Origins
	fallback Handler // of messages without a handler
	records  atomic.Uint64

	mu       sync.Mutex // guards the fields below
	handlers map[route]Handler
	sessions map[string]*list.Element // of *kept
	order    list.List                // longest idle first
	conns    map[*wsConn]struct{}
	agents   map[string]*wsConn // the latest connections, by wsConn.agent
}

type route struct {
	intent Intent
	op     string
}

// An idempotentHandler may run again for a request without an outcome.
type idempotentHandler struct{ Handler }

type kept struct {
	session *Session
	owner   string         // in the budget
	holds   [3]budget.Hold // the place, memory, storage
	used    time.Time
	uses    int // number of running requests and connections
}

// releasable returns the units of a resource that dropping k releases.
func (k *kept) releasable(r budget.Resource) int64 {
	switch r {
	case budget.Items:
		return 1
	case budget.Memory:
		return k.session.holds.memory.reserved.Load()
	}
	return 0
}

// NewServer returns a server for agent self.
func NewServer(self string, opts *ServerOptions) (*Server, error) {
	var o ServerOptions
	if opts != nil {
		o = *opts
	}
	switch {
	case !validName(self):
		return nil, fail(ErrParse, "invalid agent-id %.80q", self)
	case o.Auth.Authenticator == nil && !o.Auth.AllowAnonymous:
		return nil, errors.New("accp: new server: no Auth.Authenticator; set Auth.AllowAnonymous to serve without one")
	case o.Session.Persistence.isSet():
		return nil, errors.New("accp: new server: Session.Persistence is set; set Persistence")
	case o.Session.MaxMemory != 0:
		return nil, errors.New("accp: new server: Session.MaxMemory is set; set Limits.MaxMemoryPerSession")
	}
	o = o.withDefaults()
	o.Session.Persistence = o.Persistence
	s := &Server{
		opts:     o,
		handlers: map[route]Handler{},
		sessions: map[string]*list.Element{},
		conns:    map[*wsConn]struct{}{},
		agents:   map[string]*wsConn{},
		origins: httpx.Origins{AllowedOrigins: o.AllowedOrigins, AllowedHosts: o.AllowedHosts,
			Methods: "POST", Headers: "Authorization, Content-Type"},
	}
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("accp: new server: %w", err)
	}
	err := guard.Call("middleware", func() error {
		if slices.ContainsFunc(o.Middleware, func(m Middleware) bool { return m == nil }) {
			return errors.New("nil Middleware")
		}
		s.fallback = s.wrap(HandlerFunc(byDefault))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("accp: new server: %w", err)
	}
	s.budget = budget.New(o.Limits.budget(o.Logger), s.evict)
	s.responder = responder{self: self, session: o.Session, log: o.Logger, timing: o.Timing,
		life: life.New(life.Options{Flush: s.flush, Logger: o.Logger}), find: s.find, permit: s.permit, acquire: s.acquire,
		reserve: s.reserve, rate: s.count,
		outcomes: &outcomes{turn: make(chan struct{}, 1), db: o.Persistence.Store,
			lease: lease.Options{Prefix: "accp/", InstanceID: o.Persistence.InstanceID, TTL: o.Persistence.LeaseTTL, Private: o.Persistence.SingleInstance,
				Logger: o.Logger, OnLost: func(context.Context) { _ = s.Close() }},
			opt: once.Options{Prefix: "accp/", StoreTimeout: 10 * time.Second, MaxOutcome: maxOutcome,
				MaxBytes: maxOutcomesOfOwner, TotalBytes: maxOutcomes, MaxCount: maxOutcomesOfOwner >> 10, TotalCount: maxOutcomes >> 10, Logger: o.Logger}}}
	if o.Audit != nil {
		s.auditor = s.callAudit
	}
	return s, nil
}

func (s *Server) wrap(h Handler) Handler {
	for i := len(s.opts.Middleware) - 1; i >= 0; i-- {
		h = s.opts.Middleware[i](h)
	}
	return h
}

// Handle registers the handler of an intent and an operation. An empty operation is the default for
// the intent. It panics on a duplicate and on a nil handler.
//
// Without a handler, ping is answered by pong; done, fail, wait, esc, comp, stream, end, sync and
// cancel by ack; ack and pong by nothing; and any other message by [ErrInvalidIntent]. The server
// itself always answers sync:registry, and qry:state by the shared state (ACCP-D46); no handler is
// called with these.
func (s *Server) Handle(intent Intent, op string, h Handler) { s.handle(intent, op, h, false) }

// HandleIdempotent is like [Server.Handle] for a handler that may run again. If the process of a handler fails, or a
// handler is interrupted, before the outcome of its req is recorded, the repeated req runs the handler; with Handle it
// is answered by [ErrInternal] (ACCP-D72).
func (s *Server) HandleIdempotent(intent Intent, op string, h Handler) { s.handle(intent, op, h, true) }

func (s *Server) handle(intent Intent, op string, h Handler, isIdempotent bool) {
	if f, isFunc := h.(HandlerFunc); h == nil || isFunc && f == nil {
		panic("accp: nil handler for " + string(intent) + ":" + op)
	}
	h = s.wrap(h)
	if isIdempotent {
		h = idempotentHandler{h}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.handlers[route{intent, op}]; ok {
		panic("accp: handler for " + string(intent) + ":" + op + " registered twice")
	}
	s.handlers[route{intent, op}] = h
}

// find returns the handler of m and whether it is a registered one.
func (s *Server) find(m *Message) (Handler, bool) {
	if isStateQuery(m) {
		return s.fallback, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.handlers[route{m.Intent, m.Op}]
	if !ok {
		h, ok = s.handlers[route{m.Intent, ""}]
	}
	if !ok {
		return s.fallback, false
	}
	return h, true
}

// acquire waits for a place for a handler.
func (s *Server) acquire(ctx context.Context, c *caller, sid string) (budget.Hold, error) {
	place, err := s.budget.Scope(c.name, sid).Acquire(ctx)
	return place, overBudget(err)
}

// reserve takes memory of a caller.
func (s *Server) reserve(c *caller, n int64) (budget.Hold, error) {
	hold, err := s.budget.Scope(c.name, "").Reserve(budget.Memory, n)
	return hold, overBudget(err)
}

// count counts a request of a caller.
func (s *Server) count(c *caller) error {
	_, err := s.budget.Scope(c.name, "").Reserve(budget.Requests, 1)
	return overBudget(err)
}

// overBudget returns the error for the peer of a *budget.Error, and any other error as it is.
func overBudget(err error) error {
	b, ok := errors.AsType[*budget.Error](err)
	if !ok {
		return err
	}
	return &Error{Code: ErrBudgetExceeded, Message: "over budget", Cause: err, Details: Params{
		{"resource", String(b.Resource.String())}, {"scope", String(b.Scope)},
		{"retry_after", Int(int64(math.Ceil(b.RetryAfter.Seconds())))}}}
}

// open returns the session with this id, and creates it if necessary. The caller releases it.
func (s *Server) open(c *caller, id string) (*Session, error) {
	if id == "" {
		return NewSession(s.self, "", &s.session)
	}
	if session := s.use(id); session != nil {
		return session, nil
	}
	id = strings.Clone(id) // releases the memory of the frame
	session, err := NewSession(s.self, id, &s.session)
	if err != nil {
		return nil, err
	}
	k := &kept{session: session, owner: c.name, used: time.Now(), uses: 1}
	scope, size := s.budget.Scope(k.owner, id), int64(sessionBytes+len(id))
	for i, n := range []int64{budget.Items: 1, budget.Memory: size, budget.Storage: 1} {
		hold, err := scope.Reserve(budget.Resource(i), n)
		if err != nil {
			k.release()
			return nil, overBudget(err)
		}
		k.holds[i] = hold
	}
	session.holds.memory.use(k.holds[budget.Memory], size)
	session.holds.storage.use(k.holds[budget.Storage], 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.useLocked(id); other != nil { // created by a concurrent request
		k.release()
		return other, nil
	}
	s.sessions[id] = s.order.PushBack(k)
	return session, nil
}

func (k *kept) release() {
	for _, hold := range k.holds {
		hold.Release()
	}
}

func (s *Server) use(id string) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
	return s.useLocked(id)
}

// useLocked returns a held session that has not ended, or nil. s.mu must be held.
func (s *Server) useLocked(id string) *Session {
	el, ok := s.sessions[id]
	if !ok {
		return nil
	}
	k := el.Value.(*kept)
	if k.session.isEnded.Load() {
		s.dropLocked(el) // the id now names a new session
		return nil
	}
	k.used = time.Now()
	k.uses++
	s.order.MoveToBack(el)
	return k.session
}

// expireLocked drops the sessions that were idle for SessionIdleTimeout. s.mu must be held.
func (s *Server) expireLocked() {
	now := time.Now() // once, so that the loop ends
	for el := s.order.Front(); el != nil; el = s.order.Front() {
		k := el.Value.(*kept)
		if now.Sub(k.used) < s.opts.Timing.SessionIdleTimeout {
			return
		}
		if k.uses > 0 { // a long-lived connection
			k.used = now
			s.order.MoveToBack(el)
			continue
		}
		s.dropLocked(el)
	}
}

// evict drops idle sessions, of a principal or of any, longest idle first.
func (s *Server) evict(r budget.Resource, principal string, n int64) (released int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for el := s.order.Front(); el != nil && released < n; {
		k, next := el.Value.(*kept), el.Next()
		if k.uses == 0 && k.releasable(r) > 0 && (principal == "" || k.owner == principal) {
			released += k.releasable(r)
			s.dropLocked(el)
		}
		el = next
	}
	return released
}

// dropLocked removes a session. With a Store its state is stored. s.mu must be held.
func (s *Server) dropLocked(el *list.Element) {
	k := s.order.Remove(el).(*kept)
	delete(s.sessions, k.session.id)
	k.release()
	k.session.refiner.stop()
}

// release ends one use of a session.
func (s *Server) release(session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if el, ok := s.sessions[session.id]; ok && el.Value.(*kept).session == session {
		k := el.Value.(*kept)
		k.uses--
		k.used = time.Now()
		s.order.MoveToBack(el)
	}
}

// Session returns the session with this id and reports whether this server holds it: one that only a
// Store has is absent until its next frame. After [Session.End] the next frame with the id starts a
// new session; connections of the ended one close with their next frame.
func (s *Server) Session(id string) (*Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
	el, ok := s.sessions[id]
	if !ok {
		return nil, false
	}
	return el.Value.(*kept).session, true
}

// A Usage is the use of a resource in one scope: by the principal or the session with the highest
// use, or by all. A Limit of -1 means no bound.
type Usage struct {
	Resource, Scope string
	Used, Limit     int64
}

// Usage returns the present use of the resources of [Limits], and that of the outcomes of requests.
func (s *Server) Usage() []Usage {
	return append(debugpage.Table[Usage](s.budget.Usage()), s.outcomes.usage())
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the server is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (s *Server) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{Name: "accp: " + s.self, Ready: s.Ready, Usage: debugpage.Rows(s.Usage), Stuck: s.life.Stuck})
}

// Ready returns [ErrClosed] once a shutdown has begun, for the probe of an orchestrator.
func (s *Server) Ready() error {
	if s.life.Ready() != nil {
		return ErrClosed
	}
	return nil
}

// Shutdown refuses new requests, waits for running ones, and closes the connections. If ctx ends first, it cancels the running handlers and
// returns the error of ctx at once. It is idempotent.
func (s *Server) Shutdown(ctx context.Context) error {
	return cmp.Or(s.life.Shutdown(ctx), s.outcomes.close(ctx, true))
}

// Close cancels the running handlers and closes the connections. It waits for them for at most one
// second, and for the Store of [Persistence] for at most another one. It is idempotent.
func (s *Server) Close() error {
	s.stopSummaries()
	err := s.life.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return cmp.Or(err, s.outcomes.close(ctx, false))
}

// flush closes the connections.
func (s *Server) flush(ctx context.Context) {
	var closing sync.WaitGroup
	s.mu.Lock()
	for c := range s.conns {
		closing.Go(func() { c.shutdown(ctx) })
	}
	s.mu.Unlock()
	closing.Wait()
	s.stopSummaries()
}

// stopSummaries ends the work of summarizers.
func (s *Server) stopSummaries() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for el := s.order.Front(); el != nil; el = el.Next() {
		el.Value.(*kept).session.refiner.stop()
	}
}
