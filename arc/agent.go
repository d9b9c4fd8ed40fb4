// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Call is one request as a handler sees it: the envelope, the calling agent and
// the handling agent. Handlers must not change it. It stays valid after the call,
// except for the Params of a task.create.
type Call struct {
	ID           ID
	Method       string
	RequestAgent string // the calling agent; verified only if the token names it (ARC-D53)
	TargetAgent  string // the requested agent or group of agents
	Agent        string // the handling agent
	TraceID      string
	Params       json.RawMessage // an object
	Extra        Extra

	// Principal is who the access token belongs to. It is nil on a server
	// without authentication.
	Principal *Principal

	// Header is that of an HTTP request. It is nil with another transport, and in the context of a task.
	Header http.Header

	// AgentPath lists the agents that the workflow went through so far, if callers
	// tell (ARC-D65).
	AgentPath []string

	x      *exchange // nil in the context of a task, and of a chat
	entry  *agentEntry
	method *methodEntry
}

// Decode stores the params in what dst points to. Member names must match
// exactly, and numbers that meet an empty interface stay exact.
func (c *Call) Decode(dst any) error {
	v, err := wire.Check(c.Params)
	if err == nil {
		err = strictjson.Decode(v, dst)
	}
	if err != nil {
		return &Error{Code: ErrInvalidParams, Message: ErrInvalidParams.Message(), Cause: err,
			Details: fieldError(ErrInvalidParams, "params", "has another shape than expected").Details}
	}
	return nil
}

type callKey struct{}

// CallFromContext returns the call that ctx belongs to, or nil. The context of a
// handler, of a task and of a chat carries it.
func CallFromContext(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// A callCtx is the context of a call, with its workflow.
type callCtx struct {
	context.Context
	call *Call
}

// Value answers for the call and its workflow.
func (c *callCtx) Value(key any) any {
	switch key.(type) {
	case callKey:
		return c.call
	case traceKey:
		if c.call.TraceID != "" {
			return c.call.TraceID
		}
	}
	return c.Context.Value(key)
}

// A Handler answers calls of one method. The result must become a JSON object: a
// struct, a map, or a [json.RawMessage]; nil stands for the empty object.
//
// An [*Error] is sent unchanged. Any other error, and a panic, is logged, and
// the caller receives only a number that identifies the log record (ARC-D56).
type Handler interface {
	ServeARC(ctx context.Context, call *Call) (any, error)
}

// A HandlerFunc is a function that serves as a [Handler].
type HandlerFunc func(ctx context.Context, call *Call) (any, error)

// ServeARC calls f.
func (f HandlerFunc) ServeARC(ctx context.Context, call *Call) (any, error) { return f(ctx, call) }

// A Middleware puts something before, after or in place of handlers. Around a
// streamed chat, the inner handler returns when the stream has ended.
type Middleware func(Handler) Handler

// A NotificationHandler takes the task.notification calls that an agent gets as
// the requester of tasks elsewhere.
type NotificationHandler interface {
	ServeNotification(ctx context.Context, n *Notification) error
}

// A NotificationHandlerFunc is a function that serves as a [NotificationHandler].
type NotificationHandlerFunc func(ctx context.Context, n *Notification) error

// ServeNotification calls f.
func (f NotificationHandlerFunc) ServeNotification(ctx context.Context, n *Notification) error {
	return f(ctx, n)
}

// An Agent describes one agent to a [Server]: its identity, limits and handlers.
type Agent struct {
	// AgentInfo is what discovery tells. AgentID is required; Status defaults to
	// "active", and Endpoint and SupportedMethods are filled in by the server.
	AgentInfo

	// Group names the type that this agent is an instance of. A call to the
	// group goes to one of its instances (ARC-D47). Empty means none.
	Group string

	// MaxConcurrent bounds the concurrent calls of the agent, running tasks
	// included. Zero means no bound.
	MaxConcurrent int

	// TaskHandler, Chats and Notifications serve the standard methods; nil leaves
	// them out.
	TaskHandler         TaskHandler
	ChatHandler         ChatHandler
	NotificationHandler NotificationHandler

	// A task whose process ended in the middle runs again if it has used [Step], [TaskRun.Sleep] or
	// [TaskRun.WaitInput], and fails otherwise, so that nothing is done twice. RerunInterrupted runs all of
	// them again; FailInterrupted fails all of them. Tasks that wait for input continue in both cases.
	RerunInterrupted, FailInterrupted bool

	// EstimateTask estimates the duration of a task before it starts, for TASK_STARTED (ARC-127).
	// Nil means no estimate.
	EstimateTask func(ctx context.Context, run *TaskRun) time.Duration

	// StatelessChats closes each chat with the answer to its chat.start and keeps
	// nothing (ARC-D33).
	StatelessChats bool

	// Methods are further handlers by method name, or others for standard
	// methods than the fields above give.
	Methods map[string]Handler

	// ExcludedMethods names standard methods that the fields above would serve, but
	// that the agent does not offer.
	ExcludedMethods []string

	// Middleware wraps all handlers of the agent, the first outermost, inside
	// that of the server.
	Middleware []Middleware
}

// methodSyntax is the grammar of ARC-D08, which catches mistyped method names.
var methodSyntax = regexp.MustCompile(`^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+$`)

// An agentEntry is a registered agent. Its maps are never changed, only replaced
// under the lock of the registry.
type agentEntry struct {
	Agent
	methods atomic.Pointer[map[string]*methodEntry]
	names   []string // supportedMethods
}

// A methodEntry is a method of an agent.
type methodEntry struct {
	handler Handler // with all middleware
	direct  bool    // no middleware: results stay inside the server
	builtin builtin // what serves it, if it is one of ours
}

// A builtin is the part of the server that a method belongs to.
type builtin uint8

const (
	custom builtin = iota
	ofTasks
	ofChats
	other
)

// Register adds an agent; it may do so while the server runs. It panics if the
// agent has no valid id, if an agent or group has this id already (ARC-D47), if a
// handler or a middleware is nil, or if a method name breaks the grammar: two or more
// words of letters, digits and underscores, with dots between them.
func (s *Server) Register(a Agent) {
	for _, name := range []string{a.AgentID, cmp.Or(a.Group, a.AgentID)} {
		if f := checkAgentID("agentId", name); f != nil {
			panic(fmt.Sprintf("arc: Register: agent id %q: %s", name, f.Message))
		}
	}
	if isNilFunc(a.TaskHandler) || isNilFunc(a.ChatHandler) || isNilFunc(a.NotificationHandler) {
		panic(fmt.Sprintf("arc: Register: agent %q: a handler is a nil function", a.AgentID))
	}
	if a.Status == "" {
		a.Status = "active"
	}
	if a.Capabilities == nil {
		a.Capabilities = []string{}
	}
	e := &agentEntry{Agent: a}
	methods := map[string]*methodEntry{}
	add := func(handlers map[string]Handler, b builtin) { maps.Copy(methods, s.entries(e, handlers, b)) }
	if a.TaskHandler != nil {
		add(s.taskMethods(), ofTasks)
	}
	if a.ChatHandler != nil {
		add(s.chatMethods(), ofChats)
	}
	if a.NotificationHandler != nil {
		add(map[string]Handler{MethodTaskNotification: notificationMethod(a.NotificationHandler)}, other)
	}
	if s.opts.EnableCapabilities {
		add(map[string]Handler{methodGetCapabilities: s.capabilities(e)}, other)
	}
	for m, h := range a.Methods {
		checkHandler("Register", a.AgentID, m, h)
	}
	add(a.Methods, custom)
	e.setMethods(methods)
	if err := s.registry.add(e); err != nil {
		panic("arc: Register: " + err.Error())
	}
	if a.TaskHandler != nil {
		s.engine.Tasks.Serve(a.AgentID)
	}
}

func (e *agentEntry) setMethods(methods map[string]*methodEntry) {
	e.names = slices.Sorted(maps.Keys(methods))
	e.methods.Store(&methods)
}

// checkHandler panics if a custom method has no valid name or no handler.
func checkHandler(op, agentID, method string, h Handler) {
	if !methodSyntax.MatchString(method) || len(method) > maxMethodLen {
		panic(fmt.Sprintf("arc: %s: agent %q: bad method %q", op, agentID, method))
	}
	if h == nil || isNilFunc(h) {
		panic(fmt.Sprintf("arc: %s: agent %q: the handler of %s is nil", op, agentID, method))
	}
}

// isNilFunc reports whether a handler is a function that is nil.
func isNilFunc(handler any) bool {
	switch f := handler.(type) {
	case HandlerFunc:
		return f == nil
	case TaskHandlerFunc:
		return f == nil
	case ChatHandlerFunc:
		return f == nil
	case NotificationHandlerFunc:
		return f == nil
	}
	return false
}

// entries returns the entries of methods, except standard ones that the agent excludes.
func (s *Server) entries(e *agentEntry, handlers map[string]Handler, b builtin) map[string]*methodEntry {
	entries := map[string]*methodEntry{}
	for name, h := range handlers {
		isExcluded := slices.Contains(e.ExcludedMethods, name) ||
			e.StatelessChats && (name == MethodChatMessage || name == MethodChatEnd)
		if b == custom || !isExcluded {
			entries[name] = s.wrap(e, h, b)
		}
	}
	return entries
}

// wrap puts the middleware of the agent and of the server around a handler.
func (s *Server) wrap(e *agentEntry, h Handler, b builtin) *methodEntry {
	for _, m := range slices.Backward(slices.Concat(s.opts.Middleware, e.Middleware)) {
		if m == nil {
			panic(fmt.Sprintf("arc: agent %q: nil Middleware", e.AgentID))
		}
		if h = m(h); h == nil {
			panic(fmt.Sprintf("arc: agent %q: middleware returned no handler", e.AgentID))
		}
	}
	return &methodEntry{handler: h, builtin: b, direct: b != custom && len(e.Middleware) == 0 && len(s.opts.Middleware) == 0}
}

// HandleTasks serves the tasks of an agent, which it registers if it is new. It panics like
// [Server.Register], if h is nil, and if the agent serves tasks already.
func (s *Server) HandleTasks(agentID string, h TaskHandler) {
	if h == nil || isNilFunc(h) {
		panic(fmt.Sprintf("arc: HandleTasks: agent %q: the handler is nil", agentID))
	}
	e := s.registry.lookup(agentID)
	if e == nil {
		s.Register(Agent{AgentInfo: AgentInfo{AgentID: agentID}, TaskHandler: h})
		return
	}
	s.extend("HandleTasks", e, s.taskMethods(), ofTasks, func() { e.TaskHandler = h })
	s.engine.Tasks.Serve(agentID)
}

// HandleChats serves the chats of an agent, which it registers if it is new. It panics like
// [Server.Register], if h is nil, and if the agent serves chats already.
func (s *Server) HandleChats(agentID string, h ChatHandler) {
	if h == nil || isNilFunc(h) {
		panic(fmt.Sprintf("arc: HandleChats: agent %q: the handler is nil", agentID))
	}
	e := s.registry.lookup(agentID)
	if e == nil {
		s.Register(Agent{AgentInfo: AgentInfo{AgentID: agentID}, ChatHandler: h})
		return
	}
	s.extend("HandleChats", e, s.chatMethods(), ofChats, func() { e.ChatHandler = h })
}

// Handle adds a handler for one method, a custom one or one of the nine, and
// registers the agent if it is new. It panics like [Server.Register], and if the
// agent has the method already.
func (s *Server) Handle(agentID, method string, h Handler) {
	e := s.registry.lookup(agentID)
	if e == nil {
		s.Register(Agent{AgentInfo: AgentInfo{AgentID: agentID}, Methods: map[string]Handler{method: h}})
		return
	}
	checkHandler("Handle", agentID, method, h)
	s.extend("Handle", e, map[string]Handler{method: h}, custom, func() {})
}

// extend adds methods to a registered agent, except standard ones that it excludes. It panics if the
// agent has one of them already.
func (s *Server) extend(op string, e *agentEntry, handlers map[string]Handler, b builtin, set func()) {
	entries := s.entries(e, handlers, b) // calls middleware, and so precedes the lock
	err := s.registry.change(e, func() error {
		methods := maps.Clone(*e.methods.Load())
		for _, name := range slices.Sorted(maps.Keys(handlers)) {
			if methods[name] != nil {
				return fmt.Errorf("agent %q has the method %s already", e.AgentID, name)
			}
		}
		set()
		maps.Copy(methods, entries)
		e.setMethods(methods)
		return nil
	})
	if err != nil {
		panic("arc: " + op + ": " + err.Error())
	}
}

// Unregister removes an agent. Its running tasks and chats go on to their end.
// It reports whether there was such an agent.
func (s *Server) Unregister(agentID string) bool { return s.registry.remove(agentID) }

// SetHealthy sets whether an agent accepts new work. A registered agent is
// healthy. While it is not, calls to it are refused with [ErrAgentNotAvailable]
// and its group skips it. SetHealthy reports whether the agent exists.
func (s *Server) SetHealthy(agentID string, healthy bool) bool {
	return s.engine.Router.SetHealthy(agentID, healthy)
}

// notificationMethod serves task.notification.
func notificationMethod(h NotificationHandler) Handler {
	return HandlerFunc(func(ctx context.Context, call *Call) (any, error) {
		n := new(Notification)
		err := n.UnmarshalJSON(call.Params)
		if err == nil {
			err = guard.Call("notification handler", func() error { return h.ServeNotification(ctx, n) })
		}
		if err != nil {
			return nil, err
		}
		return ackOf("Notification received"), nil
	})
}

// agentFault is an error about an agent, with the details of ARC-D55.
func agentFault(code Code, id string) *Error {
	return asError(wire.NewFault(int64(code), "agentId", id))
}

func methodFault(agent, method string) *Error {
	return asError(wire.NewFault(int64(ErrMethodNotFound), "agentId", agent, "method", method))
}

// A registry holds the agents of a server.
type registry struct {
	router *engine.Router

	mu     sync.RWMutex
	agents map[string]*agentEntry // guarded by mu
	order  []string               // as they were registered; guarded by mu
}

func (r *registry) add(e *agentEntry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.router.Add(e.AgentID, e.Group, e.MaxConcurrent); err != nil {
		return err
	}
	r.agents[e.AgentID] = e
	r.order = append(r.order, e.AgentID)
	return nil
}

func (r *registry) lookup(id string) *agentEntry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.agents[id]
}

// agentOf returns the agent of the request of a task. It may have been removed from the registry since.
func agentOf(q *engine.Request) *agentEntry {
	if call, ok := q.Tag.(*Call); ok {
		return call.entry
	}
	return q.Tag.(*agentEntry) // of a run again
}

// change calls f unless the agent was removed.
func (r *registry) change(e *agentEntry, f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agents[e.AgentID] != e {
		return fmt.Errorf("there is no agent %q", e.AgentID)
	}
	return f()
}

func (r *registry) remove(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agents[id] == nil {
		return false
	}
	delete(r.agents, id)
	r.order = slices.DeleteFunc(r.order, func(o string) bool { return o == id })
	return r.router.Remove(id)
}

// all returns the agents in the order of their registration.
func (r *registry) all() []*agentEntry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*agentEntry, len(r.order))
	for i, id := range r.order {
		list[i] = r.agents[id]
	}
	return list
}

// methodsOf reports whether a target exists, and which of its agents handle the
// method: the agent itself, or those instances of the group that do.
func (r *registry) method(target, method string) (isKnown bool, entry *agentEntry, m *methodEntry) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.agents[target]; e != nil {
		return true, e, (*e.methods.Load())[method]
	}
	for _, id := range r.router.Members(target) {
		isKnown = true
		if e := r.agents[id]; e != nil {
			if m := (*e.methods.Load())[method]; m != nil {
				return true, e, m
			}
		}
	}
	return isKnown, nil, nil
}
