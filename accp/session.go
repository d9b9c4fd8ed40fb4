// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/store"
)

const (
	maxSeen      = 65536 // message ids that a session remembers (ACCP-D26)
	maxCancelled = 65536 // cancelled chains that a session remembers (ACCP-D28)
	maxSenders   = 4096  // senders whose last number a session remembers
	maxJump      = 1000  // missing numbers after which a gap is still believed (ACCP-D25)
	maxHotFrames = 4096  // frames that hot state holds while no checkpoint can be made
)

// SessionOptions adjusts a [Session]. The zero value is right for production.
type SessionOptions struct {
	// Lenient reads frames by the lenient rules (ACCP-D15).
	Lenient bool

	// Portable writes frames for peers that know the draft's grammar only.
	Portable bool

	// FrameLimits bound frames.
	FrameLimits FrameLimits

	// Registry holds the schemas that the session begins with. It is copied:
	// what a peer sends is valid for the session only (ACCP-D49). Nil means the
	// built-in ones.
	Registry *Registry

	// Store keeps what the session must not lose: the tiers $ctx, $warm and
	// $cold, and in a record by the session id and the name of this side the
	// numbers, the window of replays, the cancelled chains, what is known about
	// the checkpoints and the shared state. A session of the same id goes on
	// where this one ended, and several at the same time, in one process or
	// many, agree on all of it. Sides that share a store share its tiers. Frames
	// that hot state holds are in memory only. Nil means memory that ends with
	// the session; so does an empty session id.
	Store store.KV

	// Retention is how long what the session stores is kept: the entries of a
	// checkpoint, texts that are moved to Shared and what is [Session.Put]
	// without a time of its own for that long after they were written, a
	// reference to them being [ErrRefExpired] from then on; numbers, replays,
	// cancelled chains and the shared state for two days more after the last
	// frame, so that nothing of them is there any more when the name begins
	// anew. All sides of a session should agree on it. Zero keeps everything
	// until [Session.End].
	Retention time.Duration

	// SharedStore, if set, is a store that the peers can read too. Long texts are
	// then moved there and sent as references, and so are params that do not
	// fit a frame (ACCP-D35, ACCP-D37). Nil sends everything inline; so does an empty
	// session id, under which anybody could find them.
	SharedStore store.KV

	// TokenCounter counts tokens. Nil means [ApproxCounter].
	TokenCounter TokenCounter

	// Summarizer writes the summaries of checkpoints. Nil means the newest
	// facts that fit (ACCP-D42). If it fails, takes longer than ten seconds or writes
	// more than 100 tokens, those are used instead (ACCP-D43).
	Summarizer Summarizer

	// SeqPerSender expects every sender to count its own frames, instead of all
	// sharing the counter of the session (ACCP-D24).
	SeqPerSender bool

	// DisableAutoCheckpoint makes checkpoints only when [Session.Checkpoint] is called.
	// After 4,096 messages without one, others than ack, fail, cancel and
	// heartbeats are refused with [ErrInternal].
	DisableAutoCheckpoint bool

	// DisableBudget sends frames however many tokens they have.
	DisableBudget bool

	// MaxClockSkew refuses frames whose time lies further ahead with
	// [ErrPolicyDenied]. Zero accepts any (ACCP-D23).
	MaxClockSkew time.Duration

	// NewID makes message ids, 12 lower case hex digits, all different. Nil
	// takes 48 random bits (ACCP-038).
	NewID func() string

	// Logger gets every frame in readable form at debug level (ACCP-D63), and what
	// no error reports. Nil is silent.
	Logger *slog.Logger

	// Redactor, if set, replaces values before they are logged.
	Redactor func(key string, v Value) Value

	// OnWarning, if set, is told of what is no error but most likely wrong, such as a
	// currency that is no ISO 4217 code (ACCP-146). It must not call the session.
	OnWarning func(m *Message, what string)
}

// A Session is one side of a sequence of frames that belong together. It numbers
// and names what is sent, checks and orders what comes in, keeps the three tiers
// of state, and makes checkpoints. All its methods may be called from several
// goroutines; frames are processed one after the other.
//
// A session holds no connection and starts no goroutine; it is done when nobody
// refers to it any more. What it put into a store stays there until [Session.End]
// or for [SessionOptions].Keep.
type Session struct {
	self string
	id   string
	opts SessionOptions
	log  *slog.Logger

	memory  func() store.KV // of a session without store
	frames  chan struct{}   // holds a token while no frame is processed, so that they take turns
	summing chan struct{}   // holds a token while no summarizer runs
	ended   atomic.Bool     // set while frames and mu are held

	mu       sync.Mutex // guards everything below
	codec    Codec
	registry *Registry

	started     bool
	high        int64 // M of ACCP-D24
	last        fifo[int64]
	seen        window
	cancelled   window
	made        int64          // checkpoints, perhaps unfinished
	looked      int64          // checkpoints that were looked for in the store
	missing     []sought       // those of them that were not there
	life        life           // of the record
	pagesAt     int64          // when all pages were written, in Unix milliseconds, if they expire
	rev         store.Revision // of the record that this was read from or written to
	loaded      bool           // the record was read
	dirty       bool           // it must be read again
	seenPages   int64          // pages in the store
	cancelPages int64
	seenDone    int64 // marks in the store
	cancelDone  int64

	running  map[string]map[*running]struct{} // by chain
	parts    *partGroup
	grants   map[string]bool // sessions whose references may be resolved (ACCP-D59)
	profiles []Profile

	hot         []hotFrame
	hotAt       int64 // the checkpoint that hot state refers to
	hotUsed     int
	owed        []string          // triggers of a checkpoint that failed
	hotLimit    int               // messages
	checkpoints []knownCheckpoint // in ascending order

	version   int64 // of the shared state, if versioned
	versioned bool
	state     Params
	stateText []byte // its canonical text; empty before the first

	helloSent, deltaSent, synced bool
	differs                      bool // what the peer announced last

	stats Stats
}

type running struct{ cancel context.CancelFunc }

// Stats count what a session did.
type Stats struct {
	Sent         int64 // frames sent
	Received     int64 // frames that came in
	Delivered    int64 // messages delivered, cancel included
	Rejected     int64 // frames refused with an error
	Expired      int64 // frames dropped because their time was over
	Cancelled    int64 // frames of cancelled chains that were dropped, in or out
	DroppedParts int64 // frames of sequences that were never completed
	Checkpoints  int64
	TokensIn     int64 // of messages delivered
	TokensOut    int64 // of frames sent
}

// NewSession returns a session in which agent self takes part. The id goes into
// every frame that is sent, unless it is empty; frames of another id are refused.
func NewSession(self, id string, opts *SessionOptions) (*Session, error) {
	s := &Session{self: self, id: id, running: map[string]map[*running]struct{}{}, grants: map[string]bool{},
		frames: make(chan struct{}, 1), summing: make(chan struct{}, 1),
		memory: sync.OnceValue(func() store.KV { return store.NewMemory() })}
	s.frames <- struct{}{}
	s.summing <- struct{}{}
	if opts != nil {
		s.opts = *opts
	}
	if !validName(self) {
		return nil, fail(ErrParse, "invalid agent-id %.80q", self)
	}
	if s.opts.TokenCounter == nil {
		s.opts.TokenCounter = ApproxCounter{}
	}
	if s.opts.NewID == nil {
		s.opts.NewID = newID
	}
	s.log = s.opts.Logger
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if id == "" {
		s.opts.SharedStore = nil
	}
	s.registry = s.opts.Registry.clone()
	s.codec = Codec{Lenient: s.opts.Lenient, Portable: s.opts.Portable, FrameLimits: s.opts.FrameLimits, Registry: s.registry}
	s.seen.max, s.cancelled.max, s.last.max, s.hotLimit = maxSeen, maxCancelled, maxSenders, maxHotFrames
	return s, nil
}

// enter waits until no other frame is processed, and locks the session, unless that
// has ended. The function it returns ends both.
func (s *Session) enter(ctx context.Context) (leave func(), err error) {
	if leave, err = s.turn(ctx); err == nil && s.ended.Load() {
		leave()
		return nil, errEnded()
	}
	return leave, err
}

// turn is enter for a session that may have ended.
func (s *Session) turn(ctx context.Context) (leave func(), err error) {
	select {
	case <-s.frames:
	default:
		select {
		case <-s.frames:
		case <-ctx.Done():
			return nil, &Error{Code: ErrInternal, Message: "another frame is processed", Cause: ctx.Err()}
		}
	}
	s.mu.Lock()
	return func() {
		s.mu.Unlock()
		s.frames <- struct{}{}
	}, nil
}

// newID returns 48 random bits in hex.
func newID() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// ID returns the session id.
func (s *Session) ID() string { return s.id }

// AgentID returns the agent-id of this side.
func (s *Session) AgentID() string { return s.self }

// Register adds a custom schema for this session and returns the version that
// the registry has then (ACCP-120).
func (s *Session) Register(schema Schema) (version int64, err error) {
	if err := s.registry.Register(schema); err != nil {
		return 0, err
	}
	return s.registry.Version(), nil
}

// Registry returns the schemas of the session.
func (s *Session) Registry() *Registry { return s.registry }

// Stats returns what the session did so far.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// AllowSession allows frames of this session to refer to state of another one
// (ACCP-134). A session needs no permission for its own.
func (s *Session) AllowSession(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants[id] = true
}

// IsCancelled reports whether the chain was cancelled.
func (s *Session) IsCancelled(chain string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancelled.has(markOf(chain))
}

// ChainContext returns a context that ends when ctx does or the chain is cancelled
// (ACCP-069). The function must be called when the work is done.
func (s *Session) ChainContext(ctx context.Context, chain string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{cancel: cancel}
	chain = strings.Clone(chain)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancelled.has(markOf(chain)) || s.ended.Load() {
		cancel()
		return ctx, cancel
	}
	if s.running[chain] == nil {
		s.running[chain] = map[*running]struct{}{}
	}
	s.running[chain][r] = struct{}{}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running[chain], r)
		if len(s.running[chain]) == 0 {
			delete(s.running, chain)
		}
	}
}

// stop ends the work of a chain that was cancelled.
func (s *Session) stop(chain string) {
	for r := range s.running[chain] {
		r.cancel()
	}
	delete(s.running, chain)
}

// next returns the number of the next frame that from sends.
func (s *Session) next(from string) (int64, error) {
	n := s.high
	if s.opts.SeqPerSender {
		n, _ = s.last.get(from)
	}
	if n == math.MaxInt64 {
		return 0, errNoNumber()
	}
	return n + 1, nil
}

// errNoNumber reports that a session has no number for a frame any more (ACCP-D20).
func errNoNumber() error {
	return fail(ErrInternal, "the sequence numbers of the session are used up")
}

// canAnswer returns an error if the session has no number for an answer.
func (s *Session) canAnswer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.next(s.self)
	return err
}

// sentSeq records the number of a frame that was sent.
func (s *Session) sentSeq(from string, n int64) {
	s.started = true
	s.high = max(s.high, n)
	s.last.add(from, n)
}

// inOrder decides about the number of a frame that came in (ACCP-D24) and, with use
// set, records it, a refused one included (ACCP-D25).
func (s *Session) inOrder(from string, n int64, use bool) bool {
	last, known := s.last.get(from)
	// Differences are taken without overflow: all numbers are at least 0.
	var ok, jump bool
	switch {
	case s.opts.SeqPerSender:
		ok = !known || last < math.MaxInt64 && n == last+1
		jump = known && n > last && n-last > 1 && n-last <= maxJump+1
	case !s.started:
		ok = true
	default:
		late := known && n <= last
		ahead := n - min(n, s.high) // 0 if not ahead
		ok = !late && ahead <= 1
		jump = !late && ahead > 1 && ahead <= maxJump+1
	}
	if use && (ok || jump) {
		s.started = true
		s.high = max(s.high, n)
		s.last.add(from, n)
	}
	return ok
}
