// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Principal is who an [Authenticator] says an agent is. It means nothing to
// this package and is handed to handlers.
type Principal any

// An Authenticator judges a handshake in place of the comparison of tokens. An
// error refuses it with reason auth_failed; its text goes to the log only.
type Authenticator func(ctx context.Context, r *HandshakeRequest) (Principal, error)

// HostOptions adjusts a [Host]. The zero value accepts any token: set Tokens or
// Authenticator where others can connect.
type HostOptions struct {
	Auth        Auth
	Persistence Persistence
	Timing      Timing

	// Tokens are the shared secrets that agents may show; several are valid at
	// once while one is replaced by another. None means that any is accepted.
	Tokens []string

	// Fallback gets the messages whose types nobody knows, events included. It
	// may answer requests, or return nil and nil for no answer.
	Fallback Handler

	// Middleware wraps every handler, the first one outermost.
	Middleware []Middleware

	// Limits bound what agents may use.
	Limits Limits

	// Strict refuses what the default mode concedes; see [Codec.Strict].
	Strict bool

	// EscapeNonASCII and EmitVersion change what is written; see [Codec].
	EscapeNonASCII, WriteVersion bool

	// Audit receives a record for each handshake and answered request. It is
	// called in the order of the answers of a session and must not block.
	Audit func(AuditRecord)

	// AuditSessionID stands in audit records as session id in place of the session's own.
	AuditSessionID string

	// Logger receives what no peer is told. Nil is silent.
	Logger *slog.Logger
}

// Auth is a group of [HostOptions].
type Auth struct {
	// Authenticator replaces the comparison of tokens.
	Authenticator Authenticator

	// SkipHandshake serves requests before the handshake, with all
	// capabilities. It has no effect with Tokens or an Authenticator.
	SkipHandshake bool
}

// Persistence is a group of [HostOptions].
type Persistence struct {
	// Snapshots keeps the states of plugins that can save themselves, such as
	// plans, from one session of an agent to the next. Nil keeps nothing with
	// the host.
	Snapshots *Snapshots

	// SnapshotMode says which plugins use Snapshots. Empty means SnapshotHost.
	SnapshotMode SnapshotMode

	// SnapshotKey says whose snapshots a session uses, "" for nobody's. Nil means
	// the agent's id, which any agent with a valid token may claim: where
	// agents do not trust each other, make it from the Principal. Of
	// sessions with one key at one time, the last to end wins.
	SnapshotKey func(s *Session) string
}

// Timing is a group of [HostOptions].
type Timing struct {
	// WriteTimeout cuts a session off whose agent takes nothing for so long. Zero
	// means 30 seconds, negative never.
	WriteTimeout time.Duration
}

// A Host serves agents: it holds plugins and runs sessions. Add plugins first,
// then serve; serving may be done from any number of goroutines.
type Host struct {
	opts     HostOptions
	limits   Limits
	codec    *Codec
	log      *slog.Logger
	tokens   [][sha256.Size]byte
	started  time.Time
	plugins  []*Plugin
	routes   map[string][]boundRoute
	catchAll Handler

	mu       sync.Mutex
	serving  bool                  // no more plugins
	closed   bool                  // no more sessions
	sessions map[*Session]struct{} // guarded by mu
	ending   map[*Session]struct{} // those whose handlers and states have not ended; guarded by mu
	dropped  atomic.Uint64
	saves    saving
}

// NewHost returns a host without plugins.
func NewHost(opts *HostOptions) *Host {
	h := &Host{started: time.Now(), routes: map[string][]boundRoute{}, sessions: map[*Session]struct{}{}, ending: map[*Session]struct{}{}}
	if opts != nil {
		h.opts = *opts
	}
	h.limits = h.opts.Limits.withDefaults()
	h.log = h.opts.Logger
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	for _, token := range h.opts.Tokens {
		h.tokens = append(h.tokens, sha256.Sum256([]byte(token)))
	}
	h.codec = &Codec{Types: NewRegistry(), Host: true, Strict: h.opts.Strict, MaxMessage: h.limits.MaxMessage,
		MaxDepth: h.limits.MaxDepth, EscapeNonASCII: h.opts.EscapeNonASCII, WriteVersion: h.opts.WriteVersion}
	if h.opts.Fallback != nil {
		h.catchAll = h.wrap(h.opts.Fallback)
	}
	return h
}

func (h *Host) wrap(next Handler) Handler {
	for _, m := range slices.Backward(h.opts.Middleware) {
		next = m(next)
	}
	return next
}

// AddPlugin adds a plugin. Mistakes such as two plugins of one name, a type with two
// models or a base type panic: only a program can make them. So does adding
// after the first session.
func (h *Host) AddPlugin(p *Plugin) *Host {
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
	if err := h.codec.Types.Add(types...); err != nil {
		panic(fmt.Sprintf("a2e: plugin %q: %v", p.Name, err))
	}
	h.plugins = append(h.plugins, p)
	for _, r := range p.Routes {
		h.routes[r.Type.Name] = append(h.routes[r.Type.Name], boundRoute{plugin: p, handler: h.wrap(r.Handler)})
		sortRoutes(h.routes[r.Type.Name])
	}
	return h
}

// Registry returns the host's types. More may be registered, so that messages of
// namespaces without plugin are validated too.
func (h *Host) Registry() *Registry { return h.codec.Types }

// Capabilities returns what agents can negotiate, in the order of the plugins.
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

// authenticate judges a handshake (A2E-D22). The comparison takes the same time for
// all tokens of the same length.
func (h *Host) authenticate(ctx context.Context, r *HandshakeRequest) (p Principal, ok bool) {
	if h.opts.Auth.Authenticator != nil {
		defer func() {
			if e := recover(); e != nil {
				h.log.Error("a2e: authenticator panicked", "panic", e)
				p, ok = nil, false
			}
		}()
		p, err := h.opts.Auth.Authenticator(ctx, r)
		if err != nil {
			h.log.Info("a2e: handshake refused", "agent_id", clip(r.AgentID, 100), "err", err)
		}
		return p, err == nil
	}
	sum := sha256.Sum256([]byte(r.AuthToken))
	found := 0
	for i := range h.tokens {
		found |= subtle.ConstantTimeCompare(sum[:], h.tokens[i][:])
	}
	return nil, len(h.tokens) == 0 || found == 1
}

func (h *Host) open() bool {
	return h.opts.Auth.SkipHandshake && len(h.tokens) == 0 && h.opts.Auth.Authenticator == nil
}

// newSession makes a session that writes to w, or returns an error if the host
// is closed or full.
func (h *Host) newSession(out sink) (*Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving = true
	if h.closed {
		return nil, ErrClosed
	}
	if most := h.limits.MaxSessions; most > 0 && len(h.sessions) >= most {
		return nil, errTooManySessions
	}
	s := startSession(h, out)
	h.sessions[s] = struct{}{}
	return s, nil
}

var errTooManySessions = errors.New("a2e: too many sessions")

// forget makes room for another session when s was closed.
func (h *Host) forget(s *Session) {
	h.mu.Lock()
	delete(h.sessions, s)
	h.ending[s] = struct{}{}
	h.mu.Unlock()
}

// gone is called when nothing of s is left.
func (h *Host) gone(s *Session) {
	h.mu.Lock()
	delete(h.ending, s)
	h.mu.Unlock()
}

// shut lets no session in any more and returns those that are not gone.
func (h *Host) shut() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return slices.AppendSeq(slices.Collect(maps.Keys(h.sessions)), maps.Keys(h.ending))
}

// Serve runs one session over a byte stream, such as a network connection or a
// pair of pipes, until it ends: by a shutdown message, by the end of the input
// after the work in flight was drained, or by ctx, which cuts it off. It closes
// rw and returns nil unless the stream failed.
func (h *Host) Serve(ctx context.Context, rw io.ReadWriteCloser) error {
	out := newOutbox(rw, h.opts.Timing.WriteTimeout)
	s, err := h.newSession(out)
	if err != nil {
		out.kill()
		<-out.done
		return err
	}
	out.onBroken(s.abort)
	stop := context.AfterFunc(ctx, func() { s.abort(); out.kill() })
	defer stop()
	err = s.read(rw)
	s.end(err)
	<-s.finished
	<-out.done
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// read feeds the session until the stream or the session ends.
func (s *Session) read(r io.Reader) error {
	in := NewLineReader(r, s.host.codec)
	for {
		line, err := in.next()
		if s.isClosed() {
			return nil
		}
		if err == nil {
			if err := s.out.wait(s.ctx); err != nil { // an agent that does not read is not read from
				return nil
			}
			s.feed(line)
			continue
		}
		var e *Error
		switch {
		case errors.As(err, &e):
			s.refuse(e)
		case isEnd(err):
			return nil
		default:
			return err
		}
	}
}

// Dropped returns how many messages were dropped: answers nobody waits for,
// invalid messages that get no answer, events without handler.
func (h *Host) Dropped() uint64 { return h.dropped.Load() }

// Sessions returns the sessions of the moment.
func (h *Host) Sessions() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.sessions))
}

// Shutdown ends the host gracefully: no new sessions, no new requests, the work
// in flight is drained until ctx ends, which cuts the rest off. It returns when
// all sessions are gone.
func (h *Host) Shutdown(ctx context.Context) error {
	list := h.shut()
	for _, s := range list {
		s.drain(h.limits.MaxDrain)
	}
	for _, s := range list {
		select {
		case <-s.finished:
		case <-ctx.Done():
			_ = h.Close() // never fails
			return ctx.Err()
		}
	}
	return nil
}

// Close ends the host at once: every unfinished request is answered with a
// timeout. It returns when all sessions are gone.
func (h *Host) Close() error {
	list := h.shut()
	for _, s := range list {
		s.abort()
	}
	for _, s := range list {
		<-s.finished
	}
	return nil
}
