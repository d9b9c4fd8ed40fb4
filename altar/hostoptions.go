// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// HostOptions adjusts a [Host]. The zero value is right for production.
type HostOptions struct {
	Auth        Auth
	Limits      Limits
	Persistence Persistence
	Timing      Timing

	// ID is the host_id. Empty means a random one (ALT-056).
	ID string

	// ProtocolVersion is the protocol version that the Host claims. Empty means
	// [ProtocolVersion].
	ProtocolVersion string

	// Level is the compliance level, 1 or 2 (ALT-020). Zero means 2. At level
	// 1 no contract may be streaming.
	Level int

	// Router chooses between Runtimes. Nil means round robin (ALT-D24).
	Router Router

	// ResultTypes maps the name of a contract to the type of its results, or of each chunk of a
	// streaming tool. The name of such a parameter is ignored. Other results become INTERNAL_ERROR
	// invalid_result. ResultTypes is not part of the manifest and is not sent.
	ResultTypes map[string]Parameter

	// Cluster reaches the Runtimes of other Hosts. Nil means that there are
	// none.
	Cluster Cluster

	// NewSessionID makes session ids. Nil means 128 random bits.
	NewSessionID func() string

	// Validation adjusts how parameters are checked.
	Validation ValidationOptions

	// AllowedOrigins are patterns of hosts from which browsers may open a WebSocket,
	// besides the Host's own (ALT-D04). See [path.Match].
	AllowedOrigins []string

	// Audit is called with every decision, by the goroutine that made it. It may be nil.
	Audit func(e *AuditRecord)

	// Logger receives details that are not sent to peers. Nil disables logging.
	Logger *slog.Logger
}

// Auth is a group of [HostOptions].
type Auth struct {
	// Authenticator authenticates HTTP requests, WebSocket included (ALT-134). Nil means that every
	// caller is anonymous.
	Authenticator Authenticator

	// AllowAnonymous permits requests without a principal (ALT-D20). All anonymous clients share
	// one principal.
	AllowAnonymous bool

	// RuntimeAuthorizer decides whether a principal may announce a Runtime. Nil permits all. An
	// error other than an [*Error] becomes AUTHORIZATION_FAILED not_a_runtime.
	RuntimeAuthorizer func(ctx context.Context, id *Principal, a *AnnounceRuntime) error

	// FulfillmentAuthorizer decides whether a Runtime may serve a contract. Nil permits all. An
	// error other than an [*Error] becomes AUTHORIZATION_FAILED not_permitted.
	FulfillmentAuthorizer func(ctx context.Context, r *FulfillmentRequest) error

	// SecurityContextResolver returns the effective security context for the requested one.
	// Nil means [DefaultSecurityContext].
	SecurityContextResolver func(ctx context.Context, id *Principal, requested *SecurityContext) (*SecurityContext, error)
}

// Limits is a group of [HostOptions].
type Limits struct {
	// BreakerThreshold is after how many failures in a row a Runtime gets no calls for
	// TripFor; then one call shows whether it is well again. A failure is a
	// call that took too long, or that was not answered properly. Calls that
	// name the Runtime are not kept away. Zero means never; TripFor, 10
	// seconds.
	BreakerThreshold int

	// MaxSessions bounds the live sessions of all callers together; more
	// are refused with quota_exceeded. Zero means 100000.
	MaxSessions int

	// MaxSessionsPerPrincipal bounds the live sessions of one principal, and the next two
	// the calls in flight (ALT-D35). Zero means no bound.
	MaxSessionsPerPrincipal int

	MaxConcurrentPerSession int

	MaxConcurrentPerRuntime int

	// MaxMessage bounds a message over HTTP and WebSocket in bytes, and a
	// collected result everywhere. Zero means [DefaultMaxMessage].
	MaxMessage int

	// MaxInvalidFrames is the number of consecutive frames without a JSON object that ends a
	// connection. Zero means 16.
	MaxInvalidFrames int

	// MaxStoredResults bounds the outcomes that are kept in this process, in bytes;
	// each counts for 1 KiB besides its payload. Beyond it the oldest lose
	// their payloads, so that a repeat gets not_retained; when that is not
	// enough, new calls are refused as overloaded. Zero means 512 MiB.
	MaxStoredResults int64

	// MaxStoredChunks bounds the chunks of one call that are kept for repeats, in bytes. Zero means
	// 1 MiB (ALT-D22).
	MaxStoredChunks int

	// ClientQueueLimit bounds the messages that wait for a client to read. When it
	// is full, no request of the client is read, and its streams end with
	// slow_consumer. Zero means 256.
	ClientQueueLimit int

	// RuntimeQueueLimit bounds the messages that wait for a Runtime to read. When
	// it is full, the Runtime counts as overloaded. Zero means 16384.
	RuntimeQueueLimit int
}

// Persistence is a group of [HostOptions].
type Persistence struct {
	// Store keeps sessions, outcomes of calls and owners of runtime ids across restarts, and
	// several Hosts may share it. Each Host needs a unique ID and keeps it across restarts. Nil
	// keeps the state in memory. See the package documentation.
	Store store.Store

	// StoreTimeout bounds each access to the store. Zero means 5 seconds.
	StoreTimeout time.Duration

	// LeaseTTL is the lifetime of the lease of a Host in the store, from its last renewal. After
	// that, other Hosts decide about its calls. Zero means 15 seconds.
	LeaseTTL time.Duration

	// ResultTTL is the lifetime of recorded outcomes. Zero means 5 minutes.
	ResultTTL time.Duration

	// TombstoneTTL is the lifetime of ended session ids, and of the owners of disconnected runtime
	// ids. Zero means 24 hours (ALT-D16, ALT-D18).
	TombstoneTTL time.Duration
}

// Timing is a group of [HostOptions].
type Timing struct {
	BreakerCooldown time.Duration

	// SessionTTL and MaxTTL are the lifetimes of sessions (ALT-D19). Zero means an
	// hour and a day. With SlidingTTL every call prolongs its session.
	SessionTTL, MaxSessionTTL time.Duration

	SlidingSessionTTL bool

	// CallTimeout is the allotted time of contracts without one. Zero means
	// 30 seconds (ALT-D25).
	CallTimeout time.Duration

	// ClientGracePeriod is how long a call outlives the last connection of its client.
	// Zero means 30 seconds (ALT-D33).
	ClientGracePeriod time.Duration

	// WriteTimeout is how long a peer may refuse to read before its
	// connection is closed. Zero means 30 seconds.
	WriteTimeout time.Duration

	// ReadTimeout is how long the body of an HTTP request may take to arrive.
	// Zero means 30 seconds.
	ReadTimeout time.Duration

	// Heartbeat is the interval of pings to Runtimes that support them. A Runtime from which
	// nothing was received for three intervals is disconnected (ALT-D36). Zero disables it.
	Heartbeat time.Duration
}

func (o *HostOptions) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	if o.ID == "" {
		o.ID = randid.New("host-")
	}
	if o.ProtocolVersion == "" {
		o.ProtocolVersion = ProtocolVersion
	}
	num(&o.Level, 2)
	def(&o.Timing.SessionTTL, time.Hour)
	def(&o.Timing.MaxSessionTTL, 24*time.Hour)
	def(&o.Timing.CallTimeout, 30*time.Second)
	def(&o.Persistence.ResultTTL, 5*time.Minute)
	def(&o.Timing.ClientGracePeriod, 30*time.Second)
	def(&o.Persistence.TombstoneTTL, 24*time.Hour)
	def(&o.Timing.WriteTimeout, 30*time.Second)
	def(&o.Timing.BreakerCooldown, 10*time.Second)
	def(&o.Timing.ReadTimeout, 30*time.Second)
	def(&o.Persistence.StoreTimeout, 5*time.Second)
	def(&o.Persistence.LeaseTTL, 15*time.Second)
	if o.Limits.MaxStoredResults <= 0 {
		o.Limits.MaxStoredResults = 512 << 20
	}
	num(&o.Limits.MaxSessions, 100_000)
	num(&o.Limits.MaxMessage, DefaultMaxMessage)
	num(&o.Limits.MaxInvalidFrames, 16)
	num(&o.Limits.MaxStoredChunks, 1<<20)
	num(&o.Limits.ClientQueueLimit, 256)
	num(&o.Limits.RuntimeQueueLimit, 16384)
	if o.NewSessionID == nil {
		o.NewSessionID = func() string { return randid.New("s-") }
	}
	if o.Auth.SecurityContextResolver == nil {
		o.Auth.SecurityContextResolver = func(_ context.Context, id *Principal, requested *SecurityContext) (*SecurityContext, error) {
			return DefaultSecurityContext(id, requested)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
