// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

// methodGetCapabilities is the method that answers with the agent's info where
// [ServerOptions.EnableCapabilities] is set (ARC-D50).
const methodGetCapabilities = "agent.getCapabilities"

// ServerOptions adjust a [Server], which copies them. The zero value is right for
// production, except that Auth needs one of its first two fields.
type ServerOptions struct {
	Auth        Auth
	Limits      Limits
	Timing      Timing
	Persistence Persistence

	// ID answers where no agent was reached (ARC-D04). Empty means "arc-server".
	ID string

	// Path is the endpoint. Empty means "/arc".
	Path string

	// Logger receives background errors and details that callers must not read,
	// such as the cause of an internal error. Nil means slog.Default().
	Logger *slog.Logger

	// Audit is called after every request (ARC-171, ARC-181); see [AuditLog].
	Audit func(ctx context.Context, r *AuditRecord)

	// Middleware wraps all handlers, the first outermost.
	Middleware []Middleware

	// OnTaskEvent is called with every event of every task, in order for each task.
	// It must return quickly.
	OnTaskEvent func(ctx context.Context, agentID string, n *Notification)

	// Webhook adjusts the sending of notifications.
	Webhook *WebhookOptions

	// HTTPStatus chooses the HTTP status of an error. Nil means
	// [Code.HTTPStatus] (ARC-D12).
	HTTPStatus func(e *Error) int

	// ProfileFor chooses the profile of a caller by the header of its HTTP request, which is nil
	// with another transport, and its requestAgent. It is called once for every request, after
	// the requestAgent was checked. Nil means no profile (ARC-D83).
	ProfileFor func(header http.Header, requestAgent string) Profile

	// LegacyErrors answers every error in the envelope with
	// [ErrInvalidRequest], as older peers do (ARC-D06).
	LegacyErrors bool

	// EnableCapabilities adds agent.getCapabilities to every agent (ARC-D50).
	EnableCapabilities bool

	// AllowedOrigins are the web origins, such as https://app.example, whose
	// pages may call this server (ARC-D17). Empty means the server's own origin.
	AllowedOrigins []string

	// AllowedHosts are further host names under which pages may reach a server on a
	// loopback address.
	AllowedHosts []string

	// EnableHealth adds /health (ARC-D67).
	EnableHealth bool

	// AgentCard, a JSON object, is served below the endpoint at
	// /.well-known/a2a-agent-card.json.
	AgentCard []byte
}

// Auth is a group of [ServerOptions].
type Auth struct {
	// Authenticator authenticates the caller of every request, for example
	// [BearerAuthenticator]. Without one, AllowAnonymous is required.
	Authenticator Authenticator

	// AllowAnonymous serves without authentication. It has no effect with an
	// Authenticator.
	AllowAnonymous bool

	// RequireForDiscovery demands a valid token for /agent-info too, and DisableDiscovery
	// removes it (ARC-D67).
	RequireForDiscovery, DisableDiscovery bool

	// Authorizer decides about every call after the scopes were found (ARC-169). Nil
	// permits every call.
	Authorizer Authorizer

	// RejectSystemRole refuses messages of role system from callers (ARC-D62).
	RejectSystemRole bool

	// RejectCycles refuses calls to agents that the workflow has been at already
	// (ARC-D65).
	RejectCycles bool
}

// Limits is a group of [ServerOptions]. In every field a negative value removes the
// bound. A call over a bound of the first group is refused with
// [ErrAgentCapacityExceeded] and a Retry-After; other callers are not affected. The
// principal of an anonymous caller is its address. The fields of sessions have no effect, since
// ARC has none.
type Limits struct {
	// MaxMemory and MaxMemoryPerPrincipal bound the bytes of requests in progress, of running
	// tasks and, without a durable store, of kept tasks, chats, resumable streams and
	// subscriptions. Ended ones are deleted, oldest first, if their room is needed. Zero means
	// the lesser of 256 MiB and a third of GOMEMLIMIT, and 64 MiB. They also bound the bytes of
	// responses above 64 KiB that are being sent over HTTP, counted apart and with at least
	// 64 MiB for a principal within MaxMemory: a task.info over it is refused, and another
	// response is cut off after WriteTimeout.
	MaxMemory, MaxMemoryPerPrincipal, MaxMemoryPerSession int64

	// MaxStorage and MaxStoragePerPrincipal bound the bytes of tasks, chats, resumable streams
	// and subscriptions in a durable store, of those that this process made. Ended ones are
	// deleted, oldest first, unless their retention is without end. Zero means no bound, and
	// 1 GiB.
	MaxStorage, MaxStoragePerPrincipal, MaxStoragePerSession int64

	// MaxItems and MaxItemsPerPrincipal bound unfinished tasks, open chats and active
	// subscriptions. Zero means 100,000 and 10,000.
	MaxItems, MaxItemsPerPrincipal, MaxItemsPerSession int64

	// MaxConcurrent and MaxConcurrentPerPrincipal bound running handlers of chats and custom
	// methods. Zero means 1,024 and 256.
	MaxConcurrent, MaxConcurrentPerPrincipal, MaxConcurrentPerSession int64

	// MaxTasks and MaxTasksPerPrincipal bound running tasks; a task that waits for input does not
	// count, and as many again may run after an input. TaskQueueLimit and TaskQueueLimitPerPrincipal
	// bound the tasks that wait for a place: principals in turn, by priority, by age. Zero means
	// 1,024, 256, 8,192 and 1,024.
	MaxTasks, MaxTasksPerPrincipal, TaskQueueLimit, TaskQueueLimitPerPrincipal int64

	// QueueLimit and QueueLimitPerPrincipal bound the callers that wait for changes of a task; see
	// [Server.WatchTask]. Zero means 8,192 and 1,024.
	QueueLimit, QueueLimitPerPrincipal, QueueLimitPerSession int64

	// MaxUnauthenticated and MaxUnauthenticatedPerAddress bound the requests that are
	// being authenticated. Zero means 256 and 16.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int64

	// RequestRate bounds the requests of a caller a second (ARC-170); one more is
	// [ErrRateLimitExceeded]. Zero means no bound.
	RequestRate float64

	// RequestBurst bounds the requests of a caller at once, with a RequestRate. Zero means
	// those of one second.
	RequestBurst int

	// RateKey returns the name of the caller for RequestRate. Nil means the principal.
	RateKey func(call *Call) string

	// MaxMessage bounds a request in bytes. Zero means 16 MiB. A request with more than
	// 10,000 members in an object or 250,000 in all is refused as well.
	MaxMessage int

	// MaxOutput bounds the answer to a message of a chat in bytes, since it is kept for
	// the history; a streamed answer of a stateless chat is not bounded. Zero means
	// 16 MiB.
	MaxOutput int

	// ChatQueueLimit bounds the messages that wait for the turn of one chat; one more is
	// [ErrChatBufferOverflow] (ARC-D46). Zero means 16.
	ChatQueueLimit int

	// MaxTaskItems bounds the messages and artifacts of one task, and MaxSubscriptions
	// the webhooks that follow it. Zero means 100,000 and 32.
	MaxTaskItems, MaxSubscriptions int
}

func (l *Limits) budget(log *slog.Logger) budget.Limits {
	return budget.Limits{
		Memory:          budget.Limit{Session: l.MaxMemoryPerSession, Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory},
		Storage:         budget.Limit{Session: l.MaxStoragePerSession, Principal: l.MaxStoragePerPrincipal, All: l.MaxStorage},
		Items:           budget.Limit{Session: l.MaxItemsPerSession, Principal: l.MaxItemsPerPrincipal, All: l.MaxItems},
		Work:            budget.Limit{Session: l.MaxConcurrentPerSession, Principal: l.MaxConcurrentPerPrincipal, All: l.MaxConcurrent},
		Waiting:         budget.Limit{Session: l.QueueLimitPerSession, Principal: l.QueueLimitPerPrincipal, All: l.QueueLimit},
		Unauthenticated: budget.Limit{Principal: l.MaxUnauthenticatedPerAddress, All: l.MaxUnauthenticated},
		RequestRate:     max(l.RequestRate, 0), RequestBurst: max(l.RequestBurst, 0), Logger: log,
	}
}

// output returns the bounds of the memory of responses. That of a principal permits the longest one, however little
// memory it has otherwise; MaxMemory may not.
func (l *Limits) output() budget.Limit {
	o := budget.Limit{Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory}
	if o.Principal > 0 {
		o.Principal = max(o.Principal, 64<<20)
	}
	return o
}

// Timing is a group of [ServerOptions]. In every field a negative value removes the
// bound.
type Timing struct {
	// ReadTimeout is how long the body of a request may take to arrive. It never extends
	// that of the [http.Server]. Zero means 60 s.
	ReadTimeout time.Duration

	// Heartbeat is the interval of comments on an idle stream. Zero means 15 s.
	Heartbeat time.Duration

	// WriteTimeout is how long the reader of a response may take nothing before it is
	// disconnected. Zero means 30 s.
	WriteTimeout time.Duration

	// ChatIdleTimeout is the time that an open chat is kept after its last answer; a
	// chat with a running handler is not idle. Later messages are refused with
	// [ErrChatNotFound], and the id can be used again. Zero means 24 h.
	ChatIdleTimeout time.Duration

	// TaskTimeout is how long a task may work without a pause, and InputTimeout how long it may
	// wait for input, over restarts too. Then it fails with [ErrTaskTimeout] (ARC-D85). Zero means
	// 24 h and 7 days.
	TaskTimeout, InputTimeout time.Duration
}

// Persistence is a group of [ServerOptions].
type Persistence struct {
	// Store keeps tasks, chats, subscriptions and queued notifications. Nil means
	// a store in memory, private to this server.
	Store store.Store

	// InstanceID identifies this process among those that share the Store. A new process
	// with the id of an earlier one replaces that and takes its work over at once. Empty
	// means a random id.
	InstanceID string

	// LeaseTTL is the lifetime of the lease of this process, renewed three times as
	// often. Other processes take its work over after the lease has expired. Zero and negative values
	// mean 15 s, less than 1 s means 1 s.
	LeaseTTL time.Duration

	// SingleInstance states that no other process shares the Store, so nothing waits for a lease: a
	// new process takes the work of the last one over at once.
	SingleInstance bool

	// TaskRetention and ChatRetention are how long tasks, with their subscriptions, and chats are kept
	// after their end. Zero means 24 h. A negative value keeps them.
	TaskRetention, ChatRetention time.Duration

	// ResultTTL is how long the response to a repeated request is the first one, byte
	// for byte, so that a client may repeat a request whose response it lost (ARC-D48).
	// Zero and negative values mean that every request is a new one.
	ResultTTL time.Duration

	// EnableResume adds ids to the events of streams. A client whose connection
	// failed continues by repeating the request with the header Last-Event-ID.
	// The handler runs without a reader for up to StreamRetention. Any
	// process that shares the Store can continue a stream (ARC-D73).
	EnableResume bool

	// StreamRetention is how long the events of a resumable stream are kept after its end,
	// and how long its handler runs without a reader. A stream has at most 1 MiB in memory
	// and 16 MiB in a Store. Zero and negative values mean 5 min.
	StreamRetention time.Duration
}

// check returns an error if a server cannot have the options.
func (o *ServerOptions) check() error {
	if o.Auth.Authenticator == nil && !o.Auth.AllowAnonymous {
		return errors.New("no Auth.Authenticator; Auth.AllowAnonymous serves without one")
	}
	if v, err := wire.Check(o.AgentCard); o.AgentCard != nil && (err != nil || !v.IsObject()) {
		return errors.New("AgentCard is not a JSON object")
	}
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return err
	}
	if slices.ContainsFunc(o.Middleware, func(m Middleware) bool { return m == nil }) {
		return errors.New("nil Middleware")
	}
	return nil
}

// withDefaults returns the options with every default filled in.
func (o ServerOptions) withDefaults() ServerOptions {
	o.ID = cmp.Or(o.ID, "arc-server")
	o.Path = "/" + strings.Trim(cmp.Or(o.Path, defaultEndpoint), "/")
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Middleware = slices.Clone(o.Middleware)
	if o.HTTPStatus == nil {
		o.HTTPStatus = func(e *Error) int { return e.Code.HTTPStatus() }
	}
	l, t, p := &o.Limits, &o.Timing, &o.Persistence
	l.MaxMessage = option.Count(l.MaxMessage, 16<<20)
	l.MaxOutput = option.Count(l.MaxOutput, 16<<20)
	l.ChatQueueLimit = option.Count(l.ChatQueueLimit, 16)
	l.MaxTaskItems = option.Count(l.MaxTaskItems, 100_000)
	l.MaxSubscriptions = option.Count(l.MaxSubscriptions, 32)
	t.ReadTimeout = cmp.Or(t.ReadTimeout, time.Minute)
	t.Heartbeat = cmp.Or(t.Heartbeat, 15*time.Second)
	t.WriteTimeout = cmp.Or(t.WriteTimeout, 30*time.Second)
	t.TaskTimeout = option.Or(t.TaskTimeout, 24*time.Hour, 0)
	t.InputTimeout = option.Or(t.InputTimeout, 7*24*time.Hour, 0)
	t.ChatIdleTimeout = option.Or(t.ChatIdleTimeout, 24*time.Hour, 0)
	p.TaskRetention = option.Or(p.TaskRetention, 24*time.Hour, 0)
	p.ChatRetention = option.Or(p.ChatRetention, 24*time.Hour, 0)
	p.StreamRetention = option.Or(p.StreamRetention, 5*time.Minute, 5*time.Minute)
	return o
}

// A Profile names a kind of deployed peer that needs other responses (ARC-D83). The empty
// one is that of peers that need none.
type Profile string

// ProfilePythonSDK is the profile of clients of arc-sdk 1.3: HTTP status 200 for every error
// found after the requestAgent was checked, because they discard the body of any other, and type
// "subscription" in the result of task.subscribe.
const ProfilePythonSDK Profile = "python-sdk"

// A Server answers ARC requests for any number of agents behind one endpoint. As
// an [http.Handler] it serves the endpoint and discovery; [Server.ServeMessage]
// is the same without HTTP. Its methods are safe for concurrent use.
//
// It belongs behind TLS (ARC-001). The [http.Server] in front needs a
// ReadHeaderTimeout, 10 s for example (ARC-D18), and no WriteTimeout, which would end
// streams: the Server itself bounds the time that a body takes to arrive and that a
// reader takes nothing. [Server.HTTPServer] returns one.
type Server struct {
	opts     ServerOptions
	origins  httpx.Origins
	registry registry
	engine   *engine.Engine
	sender   *sender
	life     *life.Life
	output   *budget.Budget // memory of large responses that are being sent
	records  atomic.Uint64  // audit records

	mediaType, jsonType []string // values of Content-Type
}

// NewServer returns a server without agents. It fails without an authenticator, unless
// the options allow anonymous callers, for invalid webhooks, origins, middleware or an invalid card,
// and if the Store does not answer.
// The server needs a Close.
func NewServer(opts *ServerOptions) (*Server, error) {
	s := &Server{mediaType: []string{MediaType}, jsonType: []string{"application/json"}}
	if opts != nil {
		s.opts = *opts
	}
	if err := s.opts.check(); err != nil {
		return nil, fmt.Errorf("arc: server: %w", err)
	}
	s.opts = s.opts.withDefaults()
	o := &s.opts
	s.origins = httpx.Origins{AllowedOrigins: slices.Clone(o.AllowedOrigins), AllowedHosts: slices.Clone(o.AllowedHosts),
		Methods: http.MethodPost, Headers: "Authorization, Content-Type, Accept, Last-Event-ID, traceparent, X-ARC-Path",
		Expose: "Retry-After, WWW-Authenticate"}
	s.life = life.New(life.Options{Release: s.release, Abandon: s.abandon, Logger: o.Logger, Closed: ErrClosed})
	s.sender = newSender(o.Webhook)
	for i := range s.sender.opts.Static {
		if err := s.sender.opts.Static[i].validate(s.sender.opts.Static[:i]); err != nil {
			return nil, err
		}
	}
	s.output = budget.New(budget.Limits{Memory: o.Limits.output(), Logger: o.Logger}, nil)
	var err error
	if s.engine, err = engine.New(s.engineOptions()); err != nil {
		return nil, fmt.Errorf("arc: server: %w", err)
	}
	s.registry = registry{router: s.engine.Router, agents: map[string]*agentEntry{}}
	return s, nil
}

func (s *Server) engineOptions() engine.Options {
	l, t, p := &s.opts.Limits, &s.opts.Timing, &s.opts.Persistence
	o := engine.Options{Store: p.Store, InstanceID: p.InstanceID, LeaseTTL: p.LeaseTTL, SingleInstance: p.SingleInstance, Logger: s.opts.Logger, Life: s.life, Budget: l.budget(s.opts.Logger),
		Places: engine.Limits{Running: places(l.MaxTasks, 1024), RunningPerPrincipal: places(l.MaxTasksPerPrincipal, 256),
			Waiting: places(l.TaskQueueLimit, 8192), WaitingPerPrincipal: places(l.TaskQueueLimitPerPrincipal, 1024)},
		MaxItems: l.MaxTaskItems, MaxSubscriptions: l.MaxSubscriptions, ChatQueue: l.ChatQueueLimit,
		TaskTimeout: t.TaskTimeout, InputTimeout: t.InputTimeout, ChatIdle: t.ChatIdleTimeout, WriteTimeout: t.WriteTimeout,
		TaskRetention: p.TaskRetention, ChatRetention: p.ChatRetention, StreamRetention: p.StreamRetention, Results: p.ResultTTL, Resume: p.EnableResume,
		Completed: &taskEnd{ErrTaskAlreadyCompleted, "is completed"}, Canceled: &taskEnd{ErrTaskAlreadyCanceled, "was canceled"},
		TimedOut: &taskEnd{ErrTaskTimeout, "has timed out"}, ChatClosed: ErrChatAlreadyClosed,
		Expired: errExpired, Closed: ErrClosed, Serve: s.serveTask, Estimate: s.estimateTask, Agent: s.policyOf, Fault: s.engineFault}
	if hook := s.opts.OnTaskEvent; hook != nil {
		o.Events = func(ctx context.Context, agent string, event []byte) {
			if n, err := read[Notification](event); err == nil {
				s.hook(ctx, "task event hook", func(ctx context.Context) { hook(ctx, agent, n) })
			}
		}
	}
	o.Webhooks = s.sender.options()
	if hook := s.sender.opts.OnDeadLetter; hook != nil {
		o.Webhooks.OnDeadLetter = func(ctx context.Context, l engine.Letter) {
			s.hook(ctx, "dead letter hook", func(ctx context.Context) { hook(ctx, letterOf(l)) })
		}
	}
	return o
}

// places is a number of places: a negative one removes the bound.
func places(n, standard int64) int {
	return option.Count(int(min(n, math.MaxInt/4)), int(standard))
}

// policyOf returns how an agent that serves tasks here treats interrupted ones.
func (s *Server) policyOf(agent string) (engine.Policy, bool) {
	e := s.registry.lookup(agent)
	if e == nil || e.TaskHandler == nil {
		return engine.Policy{}, false
	}
	return engine.Policy{AlwaysRerun: e.RerunInterrupted, AlwaysFail: e.FailInterrupted, Agent: e}, true
}

// engineFault returns an error of a handler as its caller reads it.
func (s *Server) engineFault(ctx context.Context, q *engine.Request, err error) *wire.Fault {
	var call *Call
	if q != nil {
		call = s.callOf(q)
	}
	e := s.faultOf(ctx, call, err)
	return &wire.Fault{Code: int64(e.Code), Message: e.Message, Details: e.Details, Cause: e.Cause}
}

// HTTPServer returns an [http.Server] for addr with the time limits that suit
// this one (ARC-D18).
func (s *Server) HTTPServer(addr string) *http.Server {
	return &http.Server{Addr: addr, Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelWarn)}
}

// Shutdown ends the server: new work is refused with [ErrAgentNotAvailable],
// running work may end, and calls about it are answered. If ctx ends first, Shutdown
// cancels the contexts of the handlers and returns the error of ctx. A handler that
// ignores its context is logged, and the lease of the process then expires by itself.
//
// Tasks that are cut off this way stay unchanged in the store. Another process takes them
// over and sends the queued notifications.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.life.Shutdown(ctx)
}

// Close cancels running work and waits at most a second for its end. Otherwise it is
// like [Server.Shutdown].
func (s *Server) Close() error {
	return s.life.Close()
}

// Ready returns [ErrClosed] once a shutdown has begun, and an error while the process has no
// lease, for the probe of an orchestrator.
func (s *Server) Ready() error {
	if err := s.life.Ready(); err != nil {
		return err
	}
	return s.engine.Ready()
}

// release ends what outlives all work. It is the last step of a shutdown.
func (s *Server) release(ctx context.Context) {
	s.engine.Release(ctx)
	s.sender.http.CloseIdleConnections()
}

func (s *Server) abandon(ctx context.Context) {
	s.engine.Abandon(ctx)
	s.sender.http.CloseIdleConnections()
}

// WaitRecovered waits until the unfinished work that failed processes have left, for agents that are
// registered here, is taken over. A process takes work over by itself: when an agent is registered, and
// every third of LeaseTTL. Work of agents that are not registered here is left unchanged. After the end of
// the server it fails with [ErrClosed].
func (s *Server) WaitRecovered(ctx context.Context) error {
	if err := s.engine.WaitRecovered(ctx); err != nil {
		return fmt.Errorf("arc: recover: %w", err)
	}
	return nil
}
