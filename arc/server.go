// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// Values that hold where [ServerOptions] names none.
const (
	DefaultMaxRequest            = 16 << 20
	defaultKeepAlive             = 15 * time.Second
	defaultWriteTimeout          = 30 * time.Second
	defaultBodyTimeout           = 60 * time.Second
	defaultRetention             = 24 * time.Hour
	DefaultChatIdle              = 24 * time.Hour
	defaultSubscriptionRetention = 30 * 24 * time.Hour
	defaultMaxReply              = 16 << 20
	defaultMaxWaiting            = 16
	defaultMaxTaskItems          = 100_000
	defaultMaxSubscriptions      = 32
	defaultResumeWindow          = 5 * time.Minute
	defaultLease                 = 30 * time.Second
)

// MethodGetCapabilities is the method that answers with the agent's info where
// [ServerOptions.EnableCapabilities] is set (ARC-D50).
const MethodGetCapabilities = "agent.getCapabilities"

// ServerOptions adjusts a [Server]. The zero value serves without
// authentication and is otherwise right for production.
type ServerOptions struct {
	Auth        Auth
	Limits      Limits
	Persistence Persistence
	Timing      Timing

	// ID answers where no agent was reached (ARC-D04). Empty means "arc-server".
	ID string

	// Path is the endpoint. Empty means "/arc".
	Path string

	// Logger receives background errors and details that callers must not read,
	// such as the cause of an internal error. Nil is silent.
	Logger *slog.Logger

	// Verifier checks the access token of every request. Nil means that there
	// is no authentication.
	Verifier TokenVerifier

	// BindAgent refuses a principal that must not speak as call.RequestAgent, in
	// addition to the rule of ARC-D53. The error is sent if it is an [*Error], and
	// is [ErrAgentAuthenticationFailed] otherwise.
	BindAgent func(ctx context.Context, call *Call) error

	// Middleware wraps all handlers, the first outermost.
	Middleware []Middleware

	// Audit is called after every request (ARC-171, ARC-181).
	Audit func(ctx context.Context, record *AuditRecord)

	// OnTaskEvent is called with every event of every task, in order for each task.
	// It must return quickly.
	OnTaskEvent func(ctx context.Context, agentID string, n *Notification)

	// Webhook adjusts the sending of notifications.
	Webhook *WebhookOptions

	// StaticWebhooks subscribe to all tasks of this server. Only they receive
	// TASK_CREATED (ARC-D41).
	StaticWebhooks []StaticWebhook

	// RerunTasks makes [Server.WaitRecovered] run the handlers of interrupted tasks
	// again, from the beginning. Otherwise such tasks fail with
	// [ErrTaskExecutionFailed].
	RerunTasks bool

	// RejectSystemRole refuses messages of role system from callers (ARC-D62).
	RejectSystemRole bool

	// RejectCycles refuses calls to agents that the workflow has been at already
	// (ARC-D65).
	RejectCycles bool

	// EnableResume adds ids to the events of streams. A client whose connection
	// failed continues by repeating the request with the header Last-Event-ID.
	// The handler runs without a reader for up to Persistence.StreamRetention;
	// zero means DefaultResumeWindow. Any process that shares the Store can
	// continue a stream, but only readers in the process of the handler keep it
	// running.
	EnableResume bool

	// HTTPStatus chooses the HTTP status of an error. Nil means
	// [Code.HTTPStatus]; see [AlwaysOK] (ARC-D12).
	HTTPStatus func(e *Error) int

	// LegacyErrors answers every fault of the envelope with
	// [ErrInvalidRequest], as older peers do (ARC-D06).
	LegacyErrors bool

	// LegacyMethods speaks the older dialect too: task.get, stream.start,
	// stream.message and stream.end, with streamId for chatId (ARC-D69).
	LegacyMethods bool

	// EnableCapabilities adds [MethodGetCapabilities] to every agent (ARC-D50).
	EnableCapabilities bool

	// AllowedOrigins are the web origins, such as https://app.example, whose
	// pages may call this server (ARC-D17). Empty means none.
	AllowedOrigins []string

	// DisableDiscovery removes /agent-info, and DiscoveryAuth demands a valid token
	// for it (ARC-D67). Health adds /health.
	DisableDiscovery, RequireDiscoveryAuth, EnableHealth bool

	// AgentCard, a JSON object, is served below the endpoint at
	// /.well-known/a2a-agent-card.json.
	AgentCard []byte
}

// Auth is a group of [ServerOptions].
type Auth struct {
	// Authorizer decides about a call after all scopes were found (ARC-169). The
	// error is sent if it is an [*Error], and is [ErrPermissionDenied] otherwise.
	Authorizer func(ctx context.Context, call *Call) error
}

// Limits is a group of [ServerOptions].
type Limits struct {
	// RateLimit bounds the requests of each caller (ARC-170). Nil means no bound.
	RateLimit *RateLimit

	// MaxMessage bounds one request in bytes. Zero means DefaultMaxRequest.
	MaxMessage int64

	// QueueLimit bounds the messages that wait for one chat's turn. Zero means
	// DefaultMaxWaiting; one more is [ErrChatBufferOverflow] (ARC-D46).
	QueueLimit int

	// MaxReply bounds the answer to one message of a chat in bytes, since it is
	// kept for the history; a streamed answer of a stateless chat is not bounded.
	// Zero means DefaultMaxReply.
	MaxReply int

	// MaxTaskItems bounds the messages and artifacts of one task, MaxSubscriptions
	// the webhooks that follow it. Zero means DefaultMaxTaskItems and
	// DefaultMaxSubscriptions.
	MaxTaskItems, MaxSubscriptions int
}

// Persistence is a group of [ServerOptions].
type Persistence struct {
	// Store keeps tasks, chats, subscriptions and queued notifications. Nil means
	// a store in memory, private to this server.
	Store store.Store

	// InstanceID identifies this process among those that share the Store.
	// [Server.WaitRecovered] takes over the tasks of an expired instance, at once
	// if the new process has the same id. Empty means a random id.
	InstanceID string

	// LeaseTTL is the lifetime of the lease of this process, renewed three times as
	// often. Other processes may take over its work after the lease has expired.
	// Zero means DefaultLease.
	LeaseTTL time.Duration

	// TaskRetention and ChatRetention are how long tasks and chats are kept
	// after their end, SubscriptionRetention how long subscriptions are. Zero
	// means DefaultRetention and DefaultSubscriptionRetention.
	TaskRetention, ChatRetention, SubscriptionRetention time.Duration

	// ResultTTL answers a request that was answered within this time with
	// the same bytes again, so that a client may repeat a request whose answer
	// it lost (ARC-D48). Zero means that every request is a new one.
	ResultTTL time.Duration

	StreamRetention time.Duration
}

// Timing is a group of [ServerOptions].
type Timing struct {
	// ReadTimeout is how long the body of a request may take to arrive. Zero
	// means DefaultBodyTimeout.
	ReadTimeout time.Duration

	// Heartbeat is how long a stream is silent before a comment is sent. Zero
	// means DefaultKeepAlive, less than zero none.
	Heartbeat time.Duration

	// WriteTimeout is how long the reader of a stream may take nothing before
	// it is dropped. Zero means DefaultWriteTimeout.
	WriteTimeout time.Duration

	// ChatIdleTimeout is the time that an open chat is kept after its last answer; a
	// chat with a running handler is not idle. Later messages are refused with
	// [ErrChatNotFound], and the id can be used again. Zero means DefaultChatIdle;
	// a negative value disables the timeout.
	ChatIdleTimeout time.Duration
}

// AlwaysOK answers every error with the HTTP status 200, for clients that throw
// away the body of any other. It is for [ServerOptions.HTTPStatus].
func AlwaysOK(*Error) int { return http.StatusOK }

// A Server answers ARC requests for any number of agents behind one endpoint. As
// an [http.Handler] it serves the endpoint and discovery; [Server.ServeMessage]
// is the same without HTTP. All its methods may be called from several
// goroutines.
//
// It belongs behind TLS (ARC-001). The [http.Server] in front needs a
// ReadHeaderTimeout, 10 s for example (ARC-D18), and no ReadTimeout or WriteTimeout,
// which would end streams: the Server itself bounds the time that a body takes
// to arrive and that a reader takes nothing. [Server.HTTPServer] returns one.
type Server struct {
	opts     ServerOptions
	shared   bool // others may see the store
	registry registry
	tasks    *taskEngine
	chats    *chatTable
	outbox   *outbox
	limiter  *limiter
	replays  *replays
	streams  *streamTable

	ctx context.Context // ends when the server is cut off
	cut context.CancelCauseFunc

	mu       sync.Mutex    // guards all that follows
	busy     int           // calls, tasks and deliveries that are going on
	asking   int           // those of them that are questions about work
	closed   bool          // no new work
	isClosed bool          // no more questions either: there is nothing left to ask about
	idle     chan struct{} // closed when no work is left; made by Shutdown
}

// errServerClosed is the cause of contexts that end because the server does.
var errServerClosed = errors.New("arc: server closed")

// NewServer returns a server without agents.
func NewServer(opts *ServerOptions) *Server {
	s := &Server{}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	o.ID = or(o.ID, "arc-server")
	o.Path = "/" + strings.Trim(or(o.Path, defaultEndpoint), "/")
	s.shared = o.Persistence.Store != nil
	if o.Persistence.Store == nil {
		o.Persistence.Store = store.NewMemory()
	}
	o.Persistence.InstanceID = or(o.Persistence.InstanceID, randid.New("node-"))
	o.Persistence.LeaseTTL = max(or(o.Persistence.LeaseTTL, defaultLease), time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Limits.MaxMessage = or(o.Limits.MaxMessage, DefaultMaxRequest)
	o.Timing.ReadTimeout = or(o.Timing.ReadTimeout, defaultBodyTimeout)
	o.Timing.Heartbeat = or(o.Timing.Heartbeat, defaultKeepAlive)
	o.Timing.WriteTimeout = or(o.Timing.WriteTimeout, defaultWriteTimeout)
	o.Persistence.TaskRetention = or(o.Persistence.TaskRetention, defaultRetention)
	o.Persistence.ChatRetention = or(o.Persistence.ChatRetention, defaultRetention)
	o.Timing.ChatIdleTimeout = max(or(o.Timing.ChatIdleTimeout, DefaultChatIdle), 0)
	o.Persistence.SubscriptionRetention = or(o.Persistence.SubscriptionRetention, defaultSubscriptionRetention)
	o.Limits.QueueLimit = or(o.Limits.QueueLimit, defaultMaxWaiting)
	o.Limits.MaxReply = or(o.Limits.MaxReply, defaultMaxReply)
	o.Limits.MaxTaskItems = or(o.Limits.MaxTaskItems, defaultMaxTaskItems)
	o.Limits.MaxSubscriptions = or(o.Limits.MaxSubscriptions, defaultMaxSubscriptions)
	o.Persistence.StreamRetention = or(o.Persistence.StreamRetention, defaultResumeWindow)
	if o.HTTPStatus == nil {
		o.HTTPStatus = func(e *Error) int { return e.Code.HTTPStatus() }
	}
	s.ctx, s.cut = context.WithCancelCause(context.Background())
	s.registry = registry{router: NewRouter(o.Persistence.Store), agents: map[string]*agentEntry{}}
	s.outbox = newOutbox(s)
	s.tasks = newTaskEngine(s)
	s.chats = newChatTable(s)
	s.streams = newStreamTable(s)
	if o.Limits.RateLimit != nil {
		s.limiter = newLimiter(o.Limits.RateLimit)
	}
	if o.Persistence.ResultTTL > 0 {
		s.replays = newReplays(o.Persistence.Store, o.Persistence.ResultTTL)
	}
	return s
}

// or returns v, or otherwise if v is the zero value.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// HTTPServer returns an [http.Server] for addr with the time limits that suit
// this one (ARC-D18).
func (s *Server) HTTPServer(addr string) *http.Server {
	return &http.Server{Addr: addr, Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelWarn)}
}

// A kind of work says until when a server that is shut down takes it.
type kind uint8

const (
	newWork  kind = iota // not at all
	question             // as long as there is work to ask about
	partOf               // for the duration of the work that it belongs to
)

// begin counts a unit of work that [Server.Shutdown] waits for, until end. It fails
// if the server no longer accepts work of that kind.
func (s *Server) begin(k kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k == newWork && s.closed || k == question && s.isClosed || s.idle != nil && isClosed(s.idle) {
		return false
	}
	s.busy++
	if k == question {
		s.asking++
	}
	return true
}

func (s *Server) end(k kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if k == question {
		s.asking--
	}
	s.signalIdleLocked()
}

// signalIdleLocked closes idle when the work of a closing server has ended. Calls
// about existing work do not count. s.mu must be held.
func (s *Server) signalIdleLocked() {
	if !s.closed {
		return
	}
	if s.busy == s.asking {
		s.isClosed = true
	}
	if s.isClosed && s.busy == 0 && !isClosed(s.idle) {
		close(s.idle)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// draining reports whether the server takes no new work.
func (s *Server) draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Shutdown ends the server: new work is refused with [ErrAgentNotAvailable],
// running work may end, and calls about it are answered. If ctx ends first, the
// contexts of the handlers are canceled, and Shutdown returns the error of ctx after
// the handlers have returned.
//
// Tasks that are cut off this way stay unchanged in the store, and
// [Server.WaitRecovered] of the next server takes them over and sends the queued
// notifications.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	s.signalIdleLocked()
	idle := s.idle
	s.mu.Unlock()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = context.Cause(ctx)
		s.cut(errServerClosed)
		<-idle
	}
	s.cut(errServerClosed)
	s.tasks.removeLease()
	s.outbox.send.close()
	return err
}

// Close is [Server.Shutdown] with a context that has ended: it cancels running
// work.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serverContext returns ctx, ended also when the server is cut off.
func (s *Server) serverContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errServerClosed) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}
