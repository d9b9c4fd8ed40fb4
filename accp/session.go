// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/option"
)

const (
	maxSeen      = 65536 // message ids in the replay window, and cancelled chains (ACCP-D26, ACCP-D28)
	minSeen      = 512   // with a small MaxMemory
	maxHotFrames = 4096  // frames of hot state while checkpoints fail
)

// SessionOptions adjusts a [Session]. The zero value is valid.
type SessionOptions struct {
	// Persistence keeps the session. For a [Server], it is in [ServerOptions].
	Persistence Persistence

	// Lenient accepts frames by the lenient rules (ACCP-D15).
	Lenient bool

	// Portable writes frames for peers that support only the grammar of the draft (see [Codec]).
	Portable bool

	// FrameLimits bound frames. The zero value means the defaults.
	FrameLimits FrameLimits

	// Registry holds the initial schemas. It is copied, so that a peer changes its own session only
	// (ACCP-D49). Nil means the built-in ones.
	Registry *Registry

	// TokenCounter counts tokens. Nil means [ApproxCounter].
	TokenCounter TokenCounter

	// Summaries refines the summaries of checkpoints. Every checkpoint has a summary of its newest
	// facts first (ACCP-D42).
	Summaries SummaryOptions

	// SeqPerSender expects a separate sequence of numbers from each sender, instead of one for the
	// session (ACCP-D24).
	SeqPerSender bool

	// DisableAutoCheckpoint makes checkpoints only in [Session.Checkpoint]. After 4,096 messages
	// without one, messages other than ack, fail, cancel and heartbeats are refused with
	// [ErrInternal], and after 8,192 all but heartbeats.
	DisableAutoCheckpoint bool

	// MaxCheckpoints is the maximum number of checkpoints. Older ones are removed, and a reference to
	// one of the last 1,024 removed ids is [ErrRefExpired]. Zero means 256; a negative value removes
	// the bound (ACCP-D76).
	MaxCheckpoints int

	// MaxMemory is the maximum number of bytes of the session in memory. Over it the oldest
	// checkpoints are removed, then frames are refused with [ErrBudgetExceeded]. Zero means 16 MiB; a
	// negative value removes the bound. For a [Server], it is in [Limits].
	MaxMemory int64

	// Budget decides about messages above the token limits. The zero value splits them, and sends the
	// rest in one frame, which is logged once a session and counted in [Stats].
	Budget BudgetMode

	// MaxClockSkew is the maximum difference by which the time of a frame with a time to live may be
	// ahead; beyond it the frame is [ErrPolicyDenied]. Zero means 300 s; a negative value accepts any
	// time (ACCP-D23).
	MaxClockSkew time.Duration

	// Logger receives every frame in readable form at debug level (ACCP-D63), and failures that no
	// error reports. Nil means [slog.Default].
	Logger *slog.Logger

	// Redactor, if set, replaces values before they are logged.
	Redactor func(key string, v Value) Value

	// OnWarning, if set, is called with a valid message that is probably wrong, such as one with a
	// currency that is not an ISO 4217 code, after the session has processed it.
	OnWarning func(m *Message, what string)

	maxOutput int           // bytes of a sent frame; zero means no bound
	newID     func() string // of package accptest
}

func init() {
	hook.Sessions = func(client any) any { return client.(*Client).all }
	hook.SkipGreeting = func(opts any) { opts.(*ClientOptions).skipGreeting = true }
	hook.SetIDs = func(opts any, next func() string) { opts.(*SessionOptions).newID = next }
	hook.Digest = func(v any) (string, error) { return digest(v.(Value)) }
	hook.Address = checkpointAddress
	hook.Hello = func(registry any, hasDelta bool) any { return registry.(*Registry).hello(hasDelta) }
	hook.Version = func(registry any) int64 { return registry.(*Registry).version() }
	hook.Merge = func(registry, delta any, hash string) error { return registry.(*Registry).merge(delta.(Value), hash) }
	hook.ValidateEnvelope = func(codec, m any) error { return codec.(*Codec).validateEnvelope(m.(*Message)) }
	hook.Apply = func(state, delta any) any { return applyDelta(state.(Params), delta.(Params)) }
	hook.Diff = func(before, after any) any { return diffStates(before.(Params), after.(Params)) }
	hook.Key = func(registry any, key, schema string) (full, short string, err error) {
		return registry.(*Registry).key(key, schema)
	}
	hook.Canonical = func(schema any) (string, error) {
		s := schema.(Schema)
		if err := s.validate(); err != nil {
			return "", err
		}
		return s.canonical()
	}
	hook.Hot = func(session any) (frames []string) {
		s := session.(*Session)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range s.core.tiers.Hot {
			frames = append(frames, m.Text)
		}
		return frames
	}
}

// A Session is one side of a sequence of frames with a common session id. It assigns ids and
// numbers to sent frames, checks and orders received frames, holds the three tiers of state, and
// makes checkpoints. It is safe for concurrent use; frames are processed one after the other.
//
// A Session holds no connection, so it needs no Close; a running summarizer ends with
// [Session.End]. Its stored data exists until then or for [SessionOptions].Retention.
type Session struct {
	history
	self     string
	owner    string // of outcomes, without a principal
	opts     SessionOptions
	codec    Codec
	turn     chan struct{} // holds a token while no goroutine has entered the session
	isEnded  atomic.Bool   // set while the session is entered
	isBehind atomic.Bool   // an answer has a schema that only the peer has
	greeting negotiation
	profiles profiles // needs mu

	// The fields below belong to the goroutine that has entered the session.
	warnings    []warning
	isAnnounced map[string]bool // ids that either side has announced
	hasWarned   bool            // about a frame above the token limits
	synced      *stateUndo      // of the last sync:state
}

// Stats counts the work of a session.
type Stats struct {
	Sent         int64 // frames sent
	Received     int64 // frames received
	Delivered    int64 // messages delivered, cancel included
	Rejected     int64 // frames refused with an error
	Expired      int64 // frames dropped after their time to live
	Cancelled    int64 // dropped frames of cancelled chains, sent or received
	DroppedParts int64 // frames of incomplete messages
	Checkpoints  int64
	TokensIn     int64 // of messages delivered
	TokensOut    int64 // of frames sent
	OverBudget   int64 // frames sent above the token limits
}

// NewSession returns a session of agent self. The id, unless empty, is part of every sent frame;
// frames of another id are refused.
func NewSession(self, id string, opts *SessionOptions) (*Session, error) {
	s := &Session{self: self, turn: make(chan struct{}, 1), isAnnounced: map[string]bool{}}
	s.turn <- struct{}{}
	if opts != nil {
		s.opts = *opts
	}
	if !validName(self) {
		return nil, fail(ErrParse, "invalid agent-id %s", quoted(self))
	}
	o := &s.opts
	o.TokenCounter = clamped(o.TokenCounter)
	o.MaxClockSkew = option.Duration(o.MaxClockSkew, 300*time.Second)
	o.MaxCheckpoints = option.Count(o.MaxCheckpoints, 256)
	o.Persistence.Retention = max(0, cmp.Or(o.Persistence.Retention, 7*24*time.Hour))
	if id == "" {
		o.Persistence.SharedStore, o.Persistence.Store = nil, nil // a nameless session is not shared
	}
	s.owner = "session/" + id
	s.open(self, id, o, &s.codec)
	s.codec = Codec{Lenient: o.Lenient, Portable: o.Portable, FrameLimits: o.FrameLimits, Registry: s.registry}
	s.refiner.run = s.summarize
	s.greeting.registry, s.greeting.isLenient = s.registry, o.Lenient
	return s, nil
}

// enter waits until no other goroutine has entered the session, which one does to process a frame or
// to change the state, also of its store. It fails with [ErrSessionEnded] if the session has ended,
// unless permitted. The caller calls exit. No lock is held in between.
func (s *Session) enter(ctx context.Context, mayBeEnded bool) error {
	select {
	case <-s.turn:
	default:
		select {
		case <-s.turn:
		case <-ctx.Done():
			return &Error{Code: ErrInternal, Message: "another frame is processed", Cause: context.Cause(ctx)}
		}
	}
	if s.isEnded.Load() && !mayBeEnded {
		s.exit()
		return errEnded()
	}
	return nil
}

func (s *Session) exit() { s.turn <- struct{}{} }

// entered calls f in the entered session, and then the hooks of the warnings. A panic of a hook, of a
// counter or of a store becomes an error.
func (s *Session) entered(ctx context.Context, f func() error) error {
	if err := s.enter(ctx, false); err != nil {
		return err
	}
	var warnings []warning
	err := func() error {
		defer s.exit()
		defer func() {
			_ = s.fit(ctx, &s.holds.memory, 0) // over the bound, the next frame is refused
			_ = s.fit(ctx, &s.holds.storage, 0)
		}()
		defer func() { warnings, s.warnings = s.warnings, nil }()
		return s.guarded(ctx, f)
	}()
	if err != nil {
		return err
	}
	for _, w := range warnings {
		_ = s.guarded(ctx, func() error {
			s.opts.OnWarning(w.message, w.text)
			return nil
		})
	}
	return nil
}

// guarded calls f, which calls user code. A panic is logged and becomes an error.
func (s *Session) guarded(ctx context.Context, f func() error) error {
	err := guard.Call("session", f)
	if p, ok := errors.AsType[*guard.PanicError](err); ok {
		s.logger.ErrorContext(ctx, "accp: panic recovered", "session", s.id, "err", p, "stack", string(p.Stack))
		return &Error{Code: ErrInternal, Message: "the session panicked", Cause: p}
	}
	return err
}

// NewID returns a random id of 12 hex digits, for a session or a chain.
func NewID() string {
	var b [6]byte
	var digits [12]byte
	rand.Read(b[:])
	hex.Encode(digits[:], b[:])
	return string(digits[:])
}

// ID returns the session id.
func (s *Session) ID() string { return s.id }

// Registry returns the schemas of the session. Schemas that are added to it belong to the session.
func (s *Session) Registry() *Registry { return s.registry }

// Stats returns the counters of the session.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// AllowSession permits references to the state of another session. References to the own session
// need no permission.
func (s *Session) AllowSession(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs.grants[id] = true
}

// ChainContext returns a context that ends with ctx or when the chain is cancelled. Call the
// function when the work is done.
func (s *Session) ChainContext(ctx context.Context, chain string) (context.Context, context.CancelFunc) {
	c := &chainContext{}
	c.begin(ctx, s, chain)
	return c, c.end
}

// A chainContext is the context of work in a chain, until its end.
type chainContext struct {
	lazy.Context
	running
}

func (c *chainContext) begin(ctx context.Context, s *Session, chain string) {
	c.Begin(ctx, 0, nil)
	s.startWork(&c.running, &c.Context, chain)
}

// startWork adds work of a chain, which ends with the chain. The work calls r.end at its end.
func (s *Session) startWork(r *running, work ender, chain string) {
	s.chains.start(r, work, chain)
	if s.isCancelled(chain) || s.isEnded.Load() {
		s.chains.stop(chain)
	}
}

// Put stores a value under $scope.key for ttl, or if that is zero for [SessionOptions].Retention.
// The key is a name of letters, digits and underscores, and in $warm not of the form of a checkpoint
// id; any other, and a negative ttl, is [ErrInvalidType].
func (s *Session) Put(ctx context.Context, scope Scope, key string, v Value, ttl time.Duration) error {
	if !scope.valid() || !validName(key) || scope == ScopeWarm && idForm.MatchString(key) {
		return fail(ErrInvalidType, "cannot put $%.20s.%.80s", scope, key)
	}
	switch {
	case ttl < 0:
		return fail(ErrInvalidType, "negative ttl %v", ttl)
	case ttl == 0:
		ttl = s.opts.Persistence.Retention
	}
	return s.entered(ctx, func() error { return s.put(ctx, scope, key, v, ttl) })
}

// Resolve returns the value of a reference, given without the dollar sign. The errors are
// [ErrRefNotFound], [ErrRefExpired], [ErrUnauthorizedRef] and, if the store fails, [ErrInternal].
func (s *Session) Resolve(ctx context.Context, ref string) (v Value, err error) {
	if s.isEnded.Load() {
		return Value{}, errEnded()
	}
	err = s.guarded(ctx, func() error {
		v, err = s.refs.resolve(ctx, ref)
		return err
	})
	return v, err
}

// Reload loads the changes of other processes, or of an earlier one. Sending and receiving does so
// automatically. Call it before [Session.State], [Session.ModelContext], [Session.Checkpoints],
// [Session.IsCancelled] or [Session.Budget], or to detect the cancel of a chain in another process
// (see [Session.ChainContext]). Without a Store it does nothing.
func (s *Session) Reload(ctx context.Context) error {
	return s.entered(ctx, func() error {
		if s.record != nil {
			s.record.Invalidate()
		}
		return s.refresh(ctx)
	})
}
