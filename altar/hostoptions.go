// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// HostOptions adjusts a [Host]. A zero duration or bound means its default, and a negative
// one removes it.
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

	// Cluster reaches the Runtimes of other Hosts, such as a Cluster of altar/natsroute. Nil means those of the
	// Hosts on the same Persistence.Store without a Cluster, which are reached over the store.
	Cluster cluster.Network

	// DropUnknown removes parameters that the contract does not know instead of refusing them (ALT-D13).
	DropUnknown bool

	// AllowNonFinite takes "NaN", "Infinity" and "-Infinity" for parameters of type float (ALT-D09), such
	// as those of package altar/nonfinite.
	AllowNonFinite bool

	// AllowedOrigins are further origins of web pages that may open a WebSocket or send messages over HTTP, compared
	// exactly, such as "https://app.example" (ALT-D04). "*" allows all. The Host sets no CORS headers.
	AllowedOrigins []string

	// AllowedHosts are further names of a Host on a loopback address, with or without a port. By
	// default pages must name it localhost or by its address, because any other name can resolve to
	// it.
	AllowedHosts []string

	// Audit is called after every decision, one at a time and in the order of the records. While
	// 4,096 records wait for it, requests wait, too (ALT-D41). Nil disables it; see [AuditLog].
	Audit func(ctx context.Context, r *AuditRecord)

	// Logger receives details that are not sent to peers. Nil means slog.Default().
	Logger *slog.Logger

	newSessionID func() string // for altartest
}

// Auth is a group of [HostOptions].
type Auth struct {
	// Authenticator authenticates HTTP requests, WebSocket included (ALT-134). It is required
	// unless AllowAnonymous is set.
	Authenticator Authenticator

	// Authorizer decides about every call (ALT-137). It is required: [RoleAuthorizer] returns one,
	// and [AuthorizerFunc] makes one of a function such as [AllowAll].
	Authorizer Authorizer

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
	// Nil means the requested one, if it names the principal and the claims of the principal.
	SecurityContextResolver func(ctx context.Context, id *Principal, requested *SecurityContext) (*SecurityContext, error)
}

// Limits is a group of [HostOptions]. Zero means the default; a negative value removes the bound.
// Anonymous callers are principals by their address.
type Limits struct {
	// Bytes of parameters, metadata of calls and sessions, waiting and retained chunks, and collected
	// results in memory. Zero means the lesser of 256 MiB and a third of GOMEMLIMIT in all, 64 MiB for
	// a principal and 16 MiB for a session.
	MaxMemory, MaxMemoryPerPrincipal, MaxMemoryPerSession int64

	// Bytes in a durable store. Zero means no bound in all, 1 GiB and 256 MiB. Stored records are
	// not counted.
	MaxStorage, MaxStoragePerPrincipal, MaxStoragePerSession int64

	// Live sessions and, counted apart, connections. Zero means 100,000 in all and 10,000 for a principal. More
	// sessions are refused with quota_exceeded, and connections over WebSocket with 503. MaxItemsPerSession has no effect.
	MaxItems, MaxItemsPerPrincipal, MaxItemsPerSession int64

	// Calls that are held or run. Zero means 65,536 in all, 4,096 for a principal and 1,024 for a
	// session. More are refused as overloaded.
	MaxConcurrent, MaxConcurrentPerPrincipal, MaxConcurrentPerSession int64

	// Waiting handlers. A Host has none, so these have no effect; zero and negative values, too.
	QueueLimit, QueueLimitPerPrincipal, QueueLimitPerSession int64

	// Requests in authentication. Zero means 256 in all and 16 for an address.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int64

	// Requests of clients per second of a principal, and how many of them at once. Zero means no
	// bound and those of one second.
	RequestRate  float64
	RequestBurst int

	// BreakerThreshold is the number of consecutive failures after which a Runtime gets no calls for
	// Timing.BreakerCooldown; then one call is a probe. A failure is a call that took too long, or
	// whose response was invalid. Calls that name the Runtime are sent, and all if each Runtime fails.
	// Zero means 3.
	BreakerThreshold int

	// MaxConcurrentPerRuntime bounds the calls that one Runtime runs for this Host. Zero means
	// 4,096.
	MaxConcurrentPerRuntime int

	// MaxMessage bounds a message over HTTP and WebSocket in bytes, and a
	// collected result everywhere. Zero means 4 MiB.
	MaxMessage int

	// MaxInvalidFrames is the number of consecutive frames without a JSON object that ends a
	// connection. Zero means 16; a negative value removes the bound.
	MaxInvalidFrames int

	// MaxStoredResults bounds the outcomes that are kept in this process, in bytes; each counts
	// 128 besides its payload. Beyond it the principal that holds most loses its oldest payloads,
	// so that a repeat gets not_retained, then its oldest records (ALT-D22). Zero means 64 MiB.
	MaxStoredResults int64

	// MaxStoredChunks bounds the chunks of one call that are kept for repeats, in bytes. Zero means
	// 1 MiB (ALT-D22).
	MaxStoredChunks int

	// MaxStreamBuffer bounds the chunks of one call that wait for its connections, in bytes, where
	// the Runtime does not wait for credit. Beyond it the slowest connections get slow_consumer
	// (ALT-D37). Zero means 4 MiB.
	MaxStreamBuffer int

	// MaxOutput bounds a sent message, in bytes. A result that is longer becomes INTERNAL_ERROR
	// message_too_large. Zero means 4 MiB.
	MaxOutput int

	// ClientQueueLimit and MaxClientQueue bound the messages, and their bytes, that wait for a
	// client to read. Beyond them its new requests are refused as overloaded, and its streams wait.
	// Zero means 256 and 1 MiB.
	ClientQueueLimit, MaxClientQueue int

	// RuntimeQueueLimit and MaxRuntimeQueue bound the messages, and their bytes, that wait for a
	// Runtime to read, besides one message of any size. Beyond them it counts as overloaded. Zero means
	// 4,096 and 8 MiB.
	RuntimeQueueLimit, MaxRuntimeQueue int
}

// Persistence is a group of [HostOptions]. A negative duration never ends.
type Persistence struct {
	// Store keeps sessions, outcomes of calls and owners of runtime ids across restarts, and
	// several Hosts may share it. Each Host needs a unique ID and keeps it across restarts. They forward
	// calls to each other's Runtimes. Nil keeps the state in memory. See the package documentation.
	Store store.Store

	// StoreTimeout bounds each access to the store. Zero means 5 seconds.
	StoreTimeout time.Duration

	// LeaseTTL is the lifetime of the lease of a Host in the store, from its last renewal. After
	// that, other Hosts decide about its calls. Zero means 15 seconds, less than one means one.
	LeaseTTL time.Duration

	// ResultTTL is the lifetime of recorded outcomes. Zero means 5 minutes.
	ResultTTL time.Duration

	// TombstoneTTL is the lifetime of ended session ids, and of the owners of disconnected runtime
	// ids. Zero means 24 hours (ALT-D16, ALT-D18).
	TombstoneTTL time.Duration
}

// Timing is a group of [HostOptions]. A negative duration never ends; a negative Heartbeat is disabled.
type Timing struct {
	// BreakerCooldown is how long a Runtime gets no calls after Limits.BreakerThreshold failures.
	// Zero means 10 seconds.
	BreakerCooldown time.Duration

	// SessionTTL and MaxSessionTTL are the lifetimes of sessions (ALT-D19). Zero means an
	// hour and a day. With SlidingSessionTTL every call prolongs its session.
	SessionTTL, MaxSessionTTL time.Duration

	SlidingSessionTTL bool

	// CallTimeout is the allotted time of contracts without one. Zero means
	// 30 seconds (ALT-D25).
	CallTimeout time.Duration

	// RuntimeGracePeriod is how long calls wait for a Runtime that was lost or has taken leave, from
	// that time or from the start of the Host (ALT-D24). Zero means 5 seconds; with a negative value
	// they do not wait.
	RuntimeGracePeriod time.Duration

	// ClientGracePeriod is how long a call outlives the last connection of its client.
	// Zero means 30 seconds (ALT-D33).
	ClientGracePeriod time.Duration

	// SlowReaderTimeout is how long a connection may take no chunk that waits for it. Its stream then
	// ends with slow_consumer. Zero means 5 minutes (ALT-D37).
	SlowReaderTimeout time.Duration

	// WriteTimeout is how long a peer may refuse to read before its
	// connection is closed. Zero means 30 seconds.
	WriteTimeout time.Duration

	// ReadTimeout is how long the body of an HTTP request may take to arrive.
	// Zero means 30 seconds.
	ReadTimeout time.Duration

	// Heartbeat is the interval of pings to Runtimes that support them. A Runtime from which
	// nothing was received for three intervals is disconnected (ALT-D36). WebSocket connections of other peers
	// have pings of WebSocket. Zero means 15 seconds; a negative value disables it.
	Heartbeat time.Duration
}

// coreLimits returns the options that the shards apply.
func (o *HostOptions) coreLimits() core.Limits {
	return core.Limits{RuntimeGrace: o.Timing.RuntimeGracePeriod, ClientGrace: o.Timing.ClientGracePeriod, SlowReader: o.Timing.SlowReaderTimeout,
		StreamBuffer: o.Limits.MaxStreamBuffer}
}

func (a *Auth) validate() error {
	switch {
	case a.Authorizer == nil:
		return errors.New("altar: host: missing Authorizer")
	case a.Authenticator == nil && !a.AllowAnonymous:
		return errors.New("altar: host: missing Authenticator, and AllowAnonymous is not set")
	}
	return nil
}

func (o *HostOptions) withDefaults() {
	def := func(d *time.Duration, v time.Duration) { *d = option.Duration(*d, v) }
	num := func(n *int, v int) { *n = option.Count(*n, v) }
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
	o.Timing.RuntimeGracePeriod = option.Or(o.Timing.RuntimeGracePeriod, 5*time.Second, 0)
	def(&o.Persistence.TombstoneTTL, 24*time.Hour)
	def(&o.Timing.WriteTimeout, 30*time.Second)
	def(&o.Timing.Heartbeat, 15*time.Second)
	num(&o.Limits.BreakerThreshold, 3)
	def(&o.Timing.BreakerCooldown, 10*time.Second)
	def(&o.Timing.ReadTimeout, 30*time.Second)
	def(&o.Persistence.StoreTimeout, 5*time.Second)
	def(&o.Persistence.LeaseTTL, 15*time.Second)
	o.Limits.MaxStoredResults = option.Bytes(o.Limits.MaxStoredResults, 64<<20)
	num(&o.Limits.MaxConcurrentPerRuntime, 4096)
	num(&o.Limits.MaxMessage, defaultMaxMessage)
	num(&o.Limits.MaxInvalidFrames, 16)
	num(&o.Limits.MaxStoredChunks, 1<<20)
	num(&o.Limits.MaxStreamBuffer, 4<<20)
	def(&o.Timing.SlowReaderTimeout, 5*time.Minute)
	num(&o.Limits.MaxOutput, defaultMaxMessage)
	num(&o.Limits.ClientQueueLimit, 256)
	num(&o.Limits.MaxClientQueue, 1<<20)
	num(&o.Limits.RuntimeQueueLimit, 4096)
	num(&o.Limits.MaxRuntimeQueue, 8<<20)
	if o.newSessionID == nil {
		o.newSessionID = func() string { return randid.New(core.GeneratedPrefix) }
	}
	if o.Auth.SecurityContextResolver == nil {
		o.Auth.SecurityContextResolver = func(_ context.Context, id *Principal, requested *SecurityContext) (*SecurityContext, error) {
			return defaultSecurityContext(id, requested)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}
