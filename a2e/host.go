// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/sendq"
	"github.com/fivewire/fivewire/store"
)

// HostOptions configures a [Host]. Auth needs an Authenticator or AllowAnonymous; the defaults of
// all else are right for production.
type HostOptions struct {
	Auth        Auth
	Limits      Limits
	Timing      Timing
	Persistence Persistence

	// Fallback handles messages of unknown types, events included. It may answer requests, or
	// return nil and nil for no answer.
	Fallback Handler

	// Middleware wraps every handler, the first one outermost.
	Middleware []Middleware

	Dialect

	// Audit is called after each handshake, answered request and refused session, in the order of
	// the answers of a session. It must not block: the later messages of the session wait for it.
	Audit func(ctx context.Context, r *AuditRecord)

	// AuditSessionID replaces the session id in audit records.
	AuditSessionID string

	// Record returns a writer for the messages of a session without their secrets, for package record,
	// or nil. The end of the session waits for the writer, at most 1 s. Nil records nothing.
	Record func(peer string) io.Writer

	// Logger receives events that no peer receives. Nil means slog.Default().
	Logger *slog.Logger
}

// Persistence is a group of [HostOptions].
type Persistence struct {
	// Store makes the sessions of an [HTTPHandler] survive the host from their handshake on: a process
	// on the same store continues them (A2E-D67). The NewHTTPHandler of such a host takes sessions
	// over, so add plugins before. Nil means that sessions end with the host.
	Store store.Store

	// InstanceID identifies this process among those that share the Store. A new process with the id
	// of an earlier one replaces that and takes its sessions over at once. Empty means a random id.
	InstanceID string

	// LeaseTTL is the lifetime of the lease of this process, renewed three times as often. Other
	// processes take its sessions over after the lease has expired. Zero and negative values mean 15 s,
	// less than 1 s means 1 s.
	LeaseTTL time.Duration

	// SingleInstance states that no other process shares the Store, so nothing waits for a lease: a new
	// process takes the sessions of the last one over at once.
	SingleInstance bool

	// Snapshots keeps the states of plugins with a [PluginSnapshot], such as plans, from one
	// session of an agent to the next. Nil keeps none with the host.
	Snapshots store.KV

	// SnapshotMode selects the store of the states: with "host", which is the default, Snapshots keeps
	// all of them; with "plugin" only the plugins with their own store keep them; with "hybrid" plugins
	// without a store use Snapshots.
	SnapshotMode string

	// SnapshotKey returns the key of the snapshots of a session, "" for no snapshots. Nil means the
	// OwnerID of the session. If sessions with the same key overlap, the last one to end wins.
	SnapshotKey func(s *Session) string
}

// A Host serves agents: it holds plugins and runs sessions. Add plugins first,
// then serve; serving may be done from any number of goroutines.
type Host struct {
	opts     HostOptions // with defaults
	codec    *Codec
	log      *slog.Logger
	started  time.Time
	plugins  []*Plugin
	routes   map[string][]boundRoute
	fallback Handler

	dropped  atomic.Uint64
	auditSeq atomic.Uint64
	gates    plugin.Gates // of snapshots
	life     *life.Life   // of the handlers
	durable  *durable     // nil without a store
	budget   *budget.Budget
	states   *budget.Budget  // memory of the states of plugins
	done     context.Context // to ask the budget without waiting

	mu       sync.Mutex
	serving  bool                  // Add panics
	closed   bool                  // new sessions are refused
	number   uint64                // of the last session
	sessions map[*Session]struct{} // guarded by mu
	pending  []*Session            // before their handshake, the oldest first; guarded by mu
	ending   map[*Session]struct{} // closed sessions with running handlers or open states; guarded by mu
}

// NewHost returns a host without plugins. It fails unless the agents are authenticated or
// AllowAnonymous is set.
func NewHost(opts *HostOptions) (*Host, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &Host{opts: o, log: o.Logger, started: time.Now(), routes: map[string][]boundRoute{},
		life:     life.New(life.Options{Grace: handlerGrace, Logger: o.Logger, Closed: ErrClosed}),
		sessions: map[*Session]struct{}{}, ending: map[*Session]struct{}{}}
	limits := o.Limits.budget(o.Logger)
	h.budget = budget.New(limits, h.evict)
	h.states = budget.New(budget.Limits{Memory: limits.Memory, Logger: o.Logger}, nil)
	var end context.CancelFunc
	h.done, end = context.WithCancel(context.Background())
	end()
	h.codec = &Codec{Types: newRegistry(), Host: true, Dialect: o.Dialect, MaxMessage: o.Limits.MaxMessage,
		MaxOutput: o.Limits.MaxOutput, MaxDepth: o.Limits.MaxDepth}
	if o.Persistence.Store != nil {
		h.durable = newDurable(h, o.Persistence.Store)
	}
	if o.Fallback != nil {
		if h.fallback, err = h.wrap(o.Fallback); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// withDefaults returns a checked copy.
func (o *HostOptions) withDefaults() (HostOptions, error) {
	var d HostOptions
	if o != nil {
		d = *o
	}
	d.Limits = d.Limits.withDefaults()
	d.Timing = d.Timing.withDefaults()
	d.Logger = cmp.Or(d.Logger, slog.Default())
	d.Middleware = slices.Clone(d.Middleware)
	if slices.ContainsFunc(d.Middleware, func(m Middleware) bool { return m == nil }) {
		return d, errors.New("a2e: new host: nil Middleware")
	}
	switch d.Persistence.SnapshotMode {
	case "", snapshotHost, snapshotPlugin, snapshotHybrid:
	default:
		return d, fmt.Errorf("a2e: new host: unknown SnapshotMode %q", d.Persistence.SnapshotMode)
	}
	return d, d.Auth.check()
}

// wrap applies the middleware to a handler, the first one outermost.
func (h *Host) wrap(next Handler) (Handler, error) {
	err := guard.Call("middleware", func() error {
		for _, m := range slices.Backward(h.opts.Middleware) {
			if next = m(next); next == nil {
				return errors.New("a2e: middleware returned nil")
			}
		}
		return nil
	})
	return next, err
}

// AddPlugin adds a plugin. Mistakes such as two plugins of one name, a type with two
// models, a base type or a nil handler panic: only a program can make them. So does adding
// after the first session.
func (h *Host) AddPlugin(p *Plugin) *Host {
	if p == nil {
		panic("a2e: add plugin: no plugin")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serving {
		panic(fmt.Sprintf("a2e: plugin %q is added to a host that serves already", p.Name))
	}
	for _, other := range h.plugins {
		if other.Name == p.Name {
			panic(fmt.Sprintf("a2e: plugin %q is added twice", p.Name))
		}
	}
	if err := h.codec.Types.Add(h.typesOf(p)...); err != nil {
		panic(fmt.Sprintf("a2e: plugin %q: %v", p.Name, err))
	}
	h.plugins = append(h.plugins, p)
	for _, r := range p.Routes {
		if r.Handler == nil {
			panic(fmt.Sprintf("a2e: no handler of %s of plugin %q", r.Type.Name, p.Name))
		}
		handler, err := h.wrap(r.Handler)
		if err != nil {
			panic(fmt.Sprintf("a2e: handler of %s of plugin %q: %v", r.Type.Name, p.Name, err))
		}
		h.routes[r.Type.Name] = append(h.routes[r.Type.Name], boundRoute{plugin: p, handler: handler, lane: laneOf(&r),
			isInline: r.Inline, idempotent: r.Idempotent})
		sortRoutes(h.routes[r.Type.Name])
	}
	return h
}

// typesOf returns the types of a plugin, with its capability.
func (h *Host) typesOf(p *Plugin) []Type {
	types := slices.Clone(p.Types)
	for _, r := range p.Routes {
		types = append(types, r.Type)
	}
	for i := range types {
		if types[i].Capability == "" && !catalogued(types[i].Name) {
			types[i].Capability = p.Capability
		}
		if old := h.codec.Types.Lookup(types[i].Name); old != nil && old.Kind == KindRequest && types[i].Kind != KindRequest {
			types[i].Kind, types[i].Response = old.Kind, old.Response
		}
	}
	return types
}

// Registry returns the host's types. Additional types can be registered to validate messages of
// namespaces without plugin.
func (h *Host) Registry() *Registry { return h.codec.Types }

// Capabilities returns the capabilities that agents can negotiate, in the order of the plugins.
func (h *Host) Capabilities() []string {
	var list []string
	for _, p := range h.plugins {
		if !slices.Contains(list, p.Capability) {
			list = append(list, p.Capability)
		}
	}
	return list
}

// plugin returns the plugin of the highest priority for a capability, or nil.
func (h *Host) plugin(capability string) *Plugin {
	var best *Plugin
	for _, p := range h.plugins {
		if p.Capability == capability && (best == nil || p.Priority > best.Priority) {
			best = p
		}
	}
	return best
}

// open reports whether requests are served before the handshake.
func (h *Host) open() bool {
	return h.opts.Auth.SkipHandshake && h.opts.Auth.Authenticator == nil
}

// openCapabilities returns the capabilities before the handshake, or nil if requests are not served then.
func (h *Host) openCapabilities() map[string]bool {
	if !h.open() {
		return nil
	}
	caps := map[string]bool{}
	for _, p := range h.plugins {
		caps[p.Capability] = true
	}
	return caps
}

// account returns the names of a session of p in a budget: of its principal, else of its address, and its own. A
// session without a network is a separate principal.
func (s *Session) account(p *Principal) (principal, session string) {
	number := strconv.FormatUint(s.number, 10)
	return principalName(p, s.peer, number), number
}

// principalName returns the name of a principal in the budget.
func principalName(p *Principal, peer, number string) string {
	switch {
	case p != nil:
		return auth.Name(p.Tenant, p.ID)
	case peer != "":
		return budget.Anonymous(peer)
	}
	return "local " + number
}

// ready returns the reason why no session over HTTP or WebSocket can start, or nil. Over a stream, the
// answer to the handshake has the reason.
func (h *Host) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	count := int64(len(h.sessions))
	for _, s := range h.pending { // the answer to a handshake precedes the end of its place here
		if s.isPending.Load() {
			count--
		}
	}
	if limit := h.opts.Limits.MaxItems; limit > 0 && count >= limit {
		return errTooManySessions
	}
	return nil
}

// newSession returns a session of a connection that writes to out, or an error if the host is closed or, without
// handshakes, full. It may close an older session without a handshake (A2E-D61).
func (h *Host) newSession(conn any, out sink, peer string, extensions []string) (*Session, error) {
	h.mu.Lock()
	h.serving = true
	h.number++
	s := newSession(h, out, peer)
	h.mu.Unlock()
	s.extensions, s.conn.codec = extensions, h.codec.readingFrom(conn)
	resource := budget.Unauthenticated
	if h.open() {
		resource = budget.Items
	}
	s.scope = h.budget.Scope(s.account(nil))
	var err error
	if s.place, err = s.scope.Reserve(resource, 1); err != nil {
		return nil, err
	}
	s.record()
	if err := h.add(s, !h.open()); err != nil {
		s.place.Release()
		return nil, err
	}
	s.start()
	return s, nil
}

// add adds a session, before or after its handshake.
func (h *Host) add(s *Session, isPending bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.sessions[s] = struct{}{}
	if isPending {
		h.pending = append(h.pending, s)
	}
	return nil
}

var errTooManySessions = errors.New("a2e: too many sessions")

// evict closes the oldest sessions without a handshake, of an address or of any.
func (h *Host) evict(r budget.Resource, principal string, n int64) (closed int64) {
	if r == budget.Storage && h.durable != nil {
		return h.durable.evict(principal, n)
	}
	if r != budget.Unauthenticated {
		return 0
	}
	h.mu.Lock()
	pending := slices.Clone(h.pending)
	h.mu.Unlock()
	for _, s := range pending {
		if closed < n && (principal == "" || budget.Anonymous(s.peer) == principal) && s.evict() {
			closed++
		}
	}
	return closed
}

// removePending removes a session after its handshake.
func (h *Host) removePending(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removePendingLocked(s)
}

// removePendingLocked is removePending. h.mu must be held.
func (h *Host) removePendingLocked(s *Session) {
	if i := slices.Index(h.pending, s); i >= 0 {
		h.pending = slices.Delete(h.pending, i, i+1)
	}
}

// forget frees the slot of a closed session.
func (h *Host) forget(s *Session) {
	s.place.Release()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sessions, s)
	h.removePendingLocked(s)
	h.ending[s] = struct{}{}
}

// removeEnding removes s after its handlers and states have ended.
func (h *Host) removeEnding(s *Session) {
	h.mu.Lock()
	delete(h.ending, s)
	h.mu.Unlock()
}

// shut refuses new sessions and returns the sessions that have not ended.
func (h *Host) shut() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return slices.AppendSeq(slices.Collect(maps.Keys(h.sessions)), maps.Keys(h.ending))
}

// Serve runs one session over a byte stream, such as a network connection or a
// pair of pipes, until it ends: by a shutdown message, by the end of the input
// after the work in flight was drained, or by ctx, which cuts it off. It closes
// rw and returns nil unless the stream failed. An agent that reads nothing is a [*CloseError].
func (h *Host) Serve(ctx context.Context, rw io.ReadWriteCloser) error {
	if rw == nil {
		return errors.New("a2e: serve: no connection")
	}
	peer := ""
	if conn, ok := rw.(interface{ RemoteAddr() net.Addr }); ok {
		if addr, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
			peer = addr.String()
		}
	}
	return h.serve(ctx, rw, peer)
}

// serve is Serve for an agent at an address.
func (h *Host) serve(ctx context.Context, rw io.ReadWriteCloser, peer string) error {
	var s *Session
	var isStalled atomic.Bool
	out := newLineQueue(rw, h.opts.Timing.WriteTimeout, func(err error) {
		if errors.Is(err, sendq.ErrSlowReader) {
			isStalled.Store(true)
			h.log.WarnContext(ctx, "a2e: session ended", "session", s.ID(), "agent", s.AgentID(), "err", err)
		}
		s.abort(session.EndCut)
	})
	s, err := h.newSession(rw, out, peer, h.extensions())
	if err != nil {
		out.finish(ctx)
		<-out.closed
		return err
	}
	s.atEnd(func(end session.End) {
		if x, ok := rw.(interface{ setEnd(end session.End) }); ok {
			x.setEnd(end)
		}
		go out.finish(context.Background())
	})
	defer context.AfterFunc(ctx, func() { s.abort(session.EndHost); out.queue.Cut(ctx.Err()) })()
	isRead := false
	defer func() {
		if !isRead { // runtime.Goexit in an inline handler
			s.abort(session.EndCut)
			<-out.closed
		}
	}()
	err = s.read(rw)
	isRead = true
	s.endInput(err)
	grace, cancel := context.WithTimeout(context.Background(), handlerGrace)
	defer cancel()
	s.waitEnd(grace)
	<-out.closed
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && isStalled.Load():
		return &CloseError{Kind: "stall"}
	}
	return err
}

// read feeds the session until the stream or the session ends.
func (s *Session) read(r io.Reader) error {
	limit := s.conn.codec.maxBytes()
	in := newLineReader(r, s.conn.codec)
	memory := &lines.Memory{Scope: s.budgetScope}
	defer func() { _ = memory.Reserve(0) }()
	in.r.SetReserve(memory.Reserve)
	if s.isPending.Load() {
		in.setMax(pendingLimit(limit))
	}
	return s.conn.readLines(in, s.isClosed, func(line []byte) {
		s.feed(line)
		if !s.isPending.Load() {
			in.setMax(limit)
		}
	}, s.refuse)
}

// pendingLimit bounds a line before the handshake (A2E-D61).
func pendingLimit(limit int) int {
	if limit == 0 {
		return 64 << 10
	}
	return min(limit, 64<<10)
}

// Stats are counters of a [Host] or a [Client].
type Stats struct {
	// Dropped is the number of dropped messages: unexpected, late and repeated answers, invalid
	// messages that get no answer, events without handler.
	Dropped uint64

	// InFlight is the number of requests that are waiting or running.
	InFlight int
}

// Stats returns the counters of the host.
func (h *Host) Stats() Stats {
	st := Stats{Dropped: h.dropped.Load()}
	for _, s := range h.Sessions() {
		s.mu.Lock()
		st.InFlight += s.core.InFlight()
		s.mu.Unlock()
	}
	return st
}

// Sessions returns the current sessions.
func (h *Host) Sessions() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.sessions))
}

// Shutdown ends the host gracefully: it refuses new sessions and requests and drains the requests in
// flight until ctx ends or, if that is earlier, for DrainTimeout. Then it ends the rest, each with a
// timeout, and returns the error at once, even if handlers ignore their contexts; see [Host.Stuck].
func (h *Host) Shutdown(ctx context.Context) error {
	drain, isDrained := h.opts.Timing.DrainTimeout, true
	list := h.shut()
	for _, s := range list {
		isDrained = s.handOver(drain) && isDrained
	}
	if isDrained { // the sessions end
		drain = max(drain, handlerGrace)
	}
	ctx, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	for _, s := range list {
		select {
		case <-s.finished:
		case <-ctx.Done():
			for _, s := range list {
				s.abort(session.EndHost)
			}
			_ = h.life.Shutdown(ctx) // ctx has ended: cuts
			h.closeDurable()
			return ctx.Err()
		}
	}
	err := h.life.Shutdown(ctx)
	h.closeDurable()
	return err
}

// Close ends the host at once: every unfinished request is answered with a timeout. It waits for the
// sessions, but at most 1 s for handlers that ignore their contexts.
func (h *Host) Close() error {
	list := h.shut()
	for _, s := range list {
		s.handOver(0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), handlerGrace)
	defer cancel()
	err := h.life.Close() // at most handlerGrace
	for _, s := range list {
		s.waitEnd(ctx)
	}
	h.closeDurable()
	return err
}

// closeDurable hands the durable sessions over, within the grace of handlers.
func (h *Host) closeDurable() {
	if h.durable == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handlerGrace)
	defer cancel()
	h.durable.close(ctx)
}

// handlerGrace is the time that handlers have to return after the end of their contexts.
const handlerGrace = time.Second

// Ready returns [ErrClosed] once a shutdown has begun, and an error while the Store is not available.
func (h *Host) Ready() error {
	if err := h.life.Ready(); err != nil || h.durable == nil {
		return err
	}
	l, _, err := h.durable.parts()
	if err == nil && l.Context().Err() != nil {
		err = errStore
	}
	return err
}

// WaitRecovered waits until the host has taken over the sessions of the hosts that failed before the
// call. Take-over begins with NewHTTPHandler and needs no call. Without a Store it returns nil.
func (h *Host) WaitRecovered(ctx context.Context) error {
	if h.durable == nil {
		return nil
	}
	return h.durable.waitRecovered(ctx)
}

// patience is the time limit of an unused session. A closed session has one even if
// SessionIdleTimeout is disabled.
func (h *Host) patience() time.Duration {
	if d := h.opts.Timing.SessionIdleTimeout; d > 0 {
		return d
	}
	return defaultIdle
}

// extensions returns the extensions that the host serves over any connection. It serves windows if a
// plugin takes the grants.
func (h *Host) extensions() []string {
	list := []string{featureCancel, featureLimits}
	if len(h.routes[typeWindow]) > 0 {
		list = append(list, featureWindow)
	}
	return list
}

// httpExtensions returns the extensions that the host serves over HTTP.
func (h *Host) httpExtensions() []string {
	list := append(h.extensions(), featureBatch)
	if h.durable != nil {
		list = append(list, featureResume)
	}
	return list
}

// A StuckHandler ignores the end of its context. That of a request keeps its place in MaxConcurrent.
type StuckHandler struct {
	Type     string        // of the request, or "plugin" and the name of one whose Close does not return
	Duration time.Duration // since the end of the context
}

// Stuck returns the handlers that ignore the end of their contexts for more than 1 s. Each of them
// is logged once, with its stack.
func (h *Host) Stuck() []StuckHandler {
	var list []StuckHandler
	for _, w := range h.life.Stuck() {
		list = append(list, StuckHandler{Type: w.What, Duration: w.Duration})
	}
	return list
}
