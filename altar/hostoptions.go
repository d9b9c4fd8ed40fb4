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
	// ID is the host_id. Empty means a random one (ALT-056).
	ID string

	// ProtocolVersion is the protocol version that the Host claims. Empty means
	// [ProtocolVersion].
	ProtocolVersion string

	// Level is the compliance level, 1 or 2 (ALT-020). Zero means 2. At level
	// 1 no contract may be streaming.
	Level int

	// Authenticator finds out who sends an HTTP request, WebSocket included
	// (ALT-134). Nil means that nobody is known.
	Authenticator Authenticator

	// AllowAnonymous lets clients without an identity make requests (D-20).
	// All of them are one principal.
	AllowAnonymous bool

	// AuthorizeRuntime says whether an identity may announce a Runtime. Nil
	// means that every identity may. An error that is no [*Error] becomes
	// AUTHORIZATION_FAILED not_a_runtime.
	AuthorizeRuntime func(ctx context.Context, id *Principal, a *AnnounceRuntime) error

	// AuthorizeFulfillment says whether a Runtime may serve a contract. Nil
	// means that it may. An error that is no [*Error] becomes
	// AUTHORIZATION_FAILED not_permitted.
	AuthorizeFulfillment func(ctx context.Context, r *FulfillmentRequest) error

	// DefaultSecurityContext turns what a client wishes for into what holds.
	// Nil means [DefaultSecurityContext].
	ResolveSecurityContext func(ctx context.Context, id *Principal, wish *SecurityContext) (*SecurityContext, error)

	// Router chooses between Runtimes. Nil means round robin (D-24).
	Router Router

	// ResultTypes says what the results of contracts must be, or each chunk of those
	// that stream, by the name of the contract. The name of such a parameter
	// does not matter. What does not fit is stopped with INTERNAL_ERROR
	// invalid_result. It is not part of the manifest, and nobody is told of it.
	ResultTypes map[string]Parameter

	// TripAfter is after how many failures in a row a Runtime gets no calls for
	// TripFor; then one call shows whether it is well again. A failure is a
	// call that took too long, or that was not answered properly. Calls that
	// name the Runtime are not kept away. Zero means never; TripFor, 10
	// seconds.
	TripAfter int
	TripFor   time.Duration

	// Cluster reaches the Runtimes of other Hosts. Nil means that there are
	// none.
	Cluster Cluster

	// DefaultTTL and MaxTTL are the lifetimes of sessions (D-19). Zero means an
	// hour and a day. With SlidingTTL every call prolongs its session.
	DefaultTTL, MaxTTL time.Duration
	SlidingTTL         bool

	// NewSessionID makes session ids. Nil means 128 random bits.
	NewSessionID func() string

	// MaxLiveSessions bounds the live sessions of all callers together; more
	// are refused with quota_exceeded. Zero means 100000.
	MaxLiveSessions int

	// MaxSessions bounds the live sessions of one principal, and the next two
	// the calls in flight (D-35). Zero means no bound.
	MaxSessions        int
	MaxCallsPerSession int
	MaxCallsPerRuntime int

	// CallTimeout is the allotted time of contracts without one. Zero means
	// 30 seconds (D-25).
	CallTimeout time.Duration

	// Validation adjusts how parameters are checked.
	Validation ValidationOptions

	// MaxMessage bounds a message over HTTP and WebSocket in bytes, and a
	// collected result everywhere. Zero means [DefaultMaxMessage].
	MaxMessage int

	// MaxBadFrames is how many frames in a row that are no JSON object end a
	// connection. Zero means 16.
	MaxBadFrames int

	// Store keeps the sessions, the outcomes of calls and the owners of runtime
	// ids, so that they outlive the Host and several Hosts can share them: each
	// needs an ID of its own, and a Host that is started again should have its
	// old one. Nil keeps them in this process. See the package documentation.
	Store store.Store

	// StoreTimeout bounds each access to the store. Zero means 5 seconds.
	StoreTimeout time.Duration

	// Lease is how long after its last sign of life a Host is thought to be
	// alive by others that share its store. What it was running is judged
	// after that. Zero means 15 seconds.
	Lease time.Duration

	// MaxRecorded bounds the outcomes that are kept in this process, in bytes;
	// each counts for 1 KiB besides its payload. Beyond it the oldest lose
	// their payloads, so that a repeat gets not_retained; when that is not
	// enough, new calls are refused as overloaded. Zero means 512 MiB.
	MaxRecorded int64

	// RetainChunks bounds the chunks kept of one call for those who repeat it,
	// in bytes. Zero means 1 MiB (D-22).
	RetainChunks int

	// RecordFor is how long an outcome can be had again. Zero means 5 minutes.
	RecordFor time.Duration

	// GoneAfter is how long a call outlives the last connection of its client.
	// Zero means 30 seconds (D-33).
	GoneAfter time.Duration

	// ForgetAfter is how long ended session ids, and the owners of Runtime ids
	// that are not connected, are remembered. Zero means a day (D-16, D-18).
	ForgetAfter time.Duration

	// ClientQueue bounds the messages that wait for a client to read. When it
	// is full, no request of the client is read, and its streams end with
	// slow_consumer. Zero means 256.
	ClientQueue int

	// RuntimeQueue bounds the messages that wait for a Runtime to read. When
	// it is full, the Runtime counts as overloaded. Zero means 16384.
	RuntimeQueue int

	// WriteTimeout is how long a peer may refuse to read before its
	// connection is closed. Zero means 30 seconds.
	WriteTimeout time.Duration

	// BodyTimeout is how long the body of an HTTP request may take to arrive.
	// Zero means 30 seconds.
	BodyTimeout time.Duration

	// Heartbeat makes the Host ping Runtimes that can answer, this often, and
	// close those from which nothing came three times as long (D-36). Zero
	// means never.
	Heartbeat time.Duration

	// AllowedOrigins are patterns of hosts from which browsers may open a WebSocket,
	// besides the Host's own (D-04). See [path.Match].
	AllowedOrigins []string

	// Audit is told every decision, by the goroutine that caused it. Nil means
	// nobody.
	Audit func(e *AuditRecord)

	// Logger receives what no peer is told. Nil is silent.
	Logger *slog.Logger
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
	def(&o.DefaultTTL, time.Hour)
	def(&o.MaxTTL, 24*time.Hour)
	def(&o.CallTimeout, 30*time.Second)
	def(&o.RecordFor, 5*time.Minute)
	def(&o.GoneAfter, 30*time.Second)
	def(&o.ForgetAfter, 24*time.Hour)
	def(&o.WriteTimeout, 30*time.Second)
	def(&o.TripFor, 10*time.Second)
	def(&o.BodyTimeout, 30*time.Second)
	def(&o.StoreTimeout, 5*time.Second)
	def(&o.Lease, 15*time.Second)
	if o.MaxRecorded <= 0 {
		o.MaxRecorded = 512 << 20
	}
	num(&o.MaxLiveSessions, 100_000)
	num(&o.MaxMessage, DefaultMaxMessage)
	num(&o.MaxBadFrames, 16)
	num(&o.RetainChunks, 1<<20)
	num(&o.ClientQueue, 256)
	num(&o.RuntimeQueue, 16384)
	if o.NewSessionID == nil {
		o.NewSessionID = func() string { return randid.New("s-") }
	}
	if o.ResolveSecurityContext == nil {
		o.ResolveSecurityContext = func(_ context.Context, id *Principal, wish *SecurityContext) (*SecurityContext, error) {
			return DefaultSecurityContext(id, wish)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
