// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
)

// RuntimeOptions adjusts a [Runtime]. The zero value is right for production. A negative number
// removes its bound, and a negative Heartbeat is disabled.
type RuntimeOptions struct {
	// ProtocolVersion is the protocol version that is announced. Empty means
	// [ProtocolVersion].
	ProtocolVersion string

	// Level is the compliance level, 1 or 2 (ALT-020). Zero means 2. At level
	// 1 the tools that stream are not offered.
	Level int

	// Metadata goes with the announcement.
	Metadata map[string]string

	// DisableStanding makes the Runtime fulfil its tools for each session on request, instead of
	// for all sessions at once (ALT-D15).
	DisableStanding bool

	// MaxConcurrent bounds the calls that run at the same time; more wait in
	// the order of their arrival. Zero means no bound.
	MaxConcurrent int

	// QueueLimit bounds the waiting calls; more are refused as overloaded. Zero means 1024.
	QueueLimit int

	// MaxMessage bounds a result, in bytes. It must not exceed what the Host
	// takes. Zero means 4 MiB.
	MaxMessage int

	// Manifest has the contracts of the Host. A tool without a contract there panics when it is
	// added, and so does a typed tool that does not fit its contract (see [AddTool]); parameters that do
	// not match the contract never reach the tool. Nil means that a tool added by [Runtime.Handle]
	// trusts the checks of the Host.
	Manifest *Manifest

	// DropUnknown and AllowNonFinite adjust how parameters are checked against the contracts of this side,
	// see [Runtime.HandleContract]. They should be the same as at the Host.
	DropUnknown, AllowNonFinite bool

	Timing RuntimeTiming

	// Retry specifies the delays of [Runtime.RunWithReconnect]. Nil means the zero value.
	Retry *RetryPolicy

	// TokenSource supplies the token that authenticates each new connection, and another token before the
	// authentication expires, so that calls in flight are not disturbed (ALT-D40). Nil means the
	// TokenSource of [WebSocketDialOptions], if that is set.
	TokenSource TokenSource

	// Middleware wraps the tools with one result, StreamMiddleware those that answer in chunks. The
	// first is the outermost (ALT-D48).
	Middleware       []Middleware
	StreamMiddleware []StreamMiddleware

	// Logger receives details that are not sent to the Host. Nil means slog.Default().
	Logger *slog.Logger
}

// RuntimeTiming is a group of [RuntimeOptions]. A negative duration never ends; a negative Heartbeat is
// disabled.
type RuntimeTiming struct {
	// HandshakeTimeout bounds the wait for the acceptance of the Runtime by the Host. Zero means
	// 10 seconds; a negative value removes the bound.
	HandshakeTimeout time.Duration

	// DrainTimeout bounds how long calls in flight may take after the context of Run
	// has ended. Zero means 30 seconds.
	DrainTimeout time.Duration

	// Heartbeat is the interval of pings to the Host. A connection without a received message for
	// three intervals is closed (ALT-D36). Zero means 15 seconds; a negative value disables it.
	Heartbeat time.Duration

	// WriteTimeout is how long the Host may take no bytes before the connection is closed. Zero
	// means 30 seconds.
	WriteTimeout time.Duration
}

// A Middleware wraps a tool with one result.
type Middleware func(next Handler) Handler

// A StreamMiddleware wraps a tool that answers in chunks.
type StreamMiddleware func(next StreamHandler) StreamHandler

// A Runtime offers tools to a Host (ALT-011). Tools are added before the first
// Run; Run may be called for several connections, one after the other.
type Runtime struct {
	id    string
	opts  RuntimeOptions
	tools []*runtimeTool
	names map[string]*runtimeTool
}

type runtimeTool struct {
	name   string
	check  *validator // nil: the Host's checks are trusted
	tool   Handler
	stream StreamHandler
}

// NewRuntime returns a Runtime without tools. The id must be unique at the Host;
// it is the first part of the names of the tools (ALT-D14). NewRuntime fails if the
// id or an option is invalid.
func NewRuntime(id string, opts *RuntimeOptions) (*Runtime, error) {
	if !validIdentifier(id) {
		return nil, fmt.Errorf("altar: runtime: invalid id %q", id)
	}
	r := &Runtime{id: id, names: make(map[string]*runtimeTool)}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.ProtocolVersion = cmp.Or(r.opts.ProtocolVersion, ProtocolVersion)
	r.opts.MaxConcurrent = min(r.opts.MaxConcurrent, option.None)
	r.opts.MaxMessage = option.Count(r.opts.MaxMessage, defaultMaxMessage)
	r.opts.QueueLimit = option.Count(r.opts.QueueLimit, 1024)
	r.opts.Timing.DrainTimeout = option.Duration(r.opts.Timing.DrainTimeout, 30*time.Second)
	r.opts.Timing.Heartbeat = option.Duration(r.opts.Timing.Heartbeat, 15*time.Second)
	r.opts.Timing.HandshakeTimeout = option.Duration(r.opts.Timing.HandshakeTimeout, 10*time.Second)
	r.opts.Retry = r.opts.Retry.withDefaults(30 * time.Second)
	r.opts.Logger = cmp.Or(r.opts.Logger, slog.Default())
	if _, ok := parseSemver(r.opts.ProtocolVersion); !ok {
		return nil, fmt.Errorf("altar: runtime: invalid ProtocolVersion %q", r.opts.ProtocolVersion)
	}
	if r.opts.Level < 0 || r.opts.Level > 2 {
		return nil, fmt.Errorf("altar: runtime: invalid Level %d", r.opts.Level)
	}
	if slices.ContainsFunc(r.opts.Middleware, func(m Middleware) bool { return m == nil }) ||
		slices.ContainsFunc(r.opts.StreamMiddleware, func(m StreamMiddleware) bool { return m == nil }) {
		return nil, errors.New("altar: runtime: nil Middleware")
	}
	if r.opts.Manifest != nil {
		if err := r.opts.Manifest.Validate(); err != nil {
			return nil, fmt.Errorf("altar: runtime: Manifest: %w", err)
		}
	}
	return r, nil
}

// Handle adds a tool that implements the Host's contract of that name. It panics
// if the name is not one of a contract, is taken, or is not in the manifest of this side.
func (r *Runtime) Handle(name string, t Handler) {
	r.add(&runtimeTool{name: name, tool: t}, r.expected(name))
}

// HandleStream adds a tool that answers in chunks. The contract must permit that.
func (r *Runtime) HandleStream(name string, t StreamHandler) {
	r.add(&runtimeTool{name: name, stream: t}, r.expected(name))
}

// HandleContract adds a tool with a contract that is not in the manifest of this side: parameters
// that do not match it never reach the tool. It panics like Handle, and if the contract is invalid.
func (r *Runtime) HandleContract(c *Contract, t Handler) {
	if c == nil {
		panic("altar: nil Contract")
	}
	r.add(&runtimeTool{name: c.Name, tool: t}, c)
}

// expected returns the contract that the manifest of this side has for a tool, nil without a manifest.
func (r *Runtime) expected(name string) *Contract {
	if r.opts.Manifest == nil {
		return nil
	}
	c := r.opts.Manifest.contract(name)
	if c == nil {
		panic(fmt.Sprintf("altar: the manifest has no contract %q", name))
	}
	return c
}

func (r *Runtime) add(t *runtimeTool, c *Contract) {
	if !validContractName(t.name) {
		panic(fmt.Sprintf("altar: %q cannot name a contract", t.name))
	}
	if isNilFunc(t.tool) && isNilFunc(t.stream) {
		panic(fmt.Sprintf("altar: the tool %q has no handler", t.name))
	}
	if r.names[t.name] != nil {
		panic(fmt.Sprintf("altar: the tool %q is added twice", t.name))
	}
	if t.stream != nil && r.opts.Manifest != nil && c != nil && !c.Streaming {
		panic(fmt.Sprintf("altar: the contract %q of the manifest is not streaming", t.name))
	}
	if c != nil {
		v, err := newValidator(c, validation{r.opts.DropUnknown, r.opts.AllowNonFinite})
		if err != nil {
			panic(fmt.Sprintf("altar: the contract of tool %q: %v", t.name, err))
		}
		t.check = v
	}
	t.wrap(r.opts.Middleware, r.opts.StreamMiddleware)
	r.tools = append(r.tools, t)
	r.names[t.name] = t
}

// isNilFunc reports whether there is no handler, or a function that is nil.
func isNilFunc(handler any) bool {
	switch f := handler.(type) {
	case nil:
		return true
	case HandlerFunc:
		return f == nil
	case StreamHandlerFunc:
		return f == nil
	}
	return false
}

// wrap puts the middleware around the handler.
func (t *runtimeTool) wrap(list []Middleware, streams []StreamMiddleware) {
	if t.tool != nil {
		for _, m := range slices.Backward(list) {
			if t.tool = m(t.tool); t.tool == nil {
				panic(fmt.Sprintf("altar: the middleware of tool %q returned no handler", t.name))
			}
		}
	}
	if t.stream != nil {
		for _, m := range slices.Backward(streams) {
			if t.stream = m(t.stream); t.stream == nil {
				panic(fmt.Sprintf("altar: the middleware of tool %q returned no handler", t.name))
			}
		}
	}
}

func (r *Runtime) find(name string) *runtimeTool {
	if t := r.names[name]; t != nil {
		return t
	}
	rest, ok := strings.CutPrefix(name, r.id+"/")
	if !ok {
		return nil
	}
	return r.names[rest]
}

// sendable returns a text that is UTF-8 and not empty.
func sendable(s string) string {
	return cmp.Or(strings.ToValidUTF8(s, "\ufffd"), "the tool failed")
}

// A Dialer opens a connection to a Host.
type Dialer func(ctx context.Context) (Conn, error)

// RunWithReconnect keeps the Runtime connected: it dials, runs, and dials again with increasing
// delays after each lost connection (ALT-D24). It returns nil after ctx has ended and the calls in
// flight are answered, or the last error if the Runtime was never connected. An error that another
// attempt cannot change ends it: an invalid URL, or an [*Error] with which the Host refuses the
// Runtime for a reason other than an internal failure of the Host.
func (r *Runtime) RunWithReconnect(ctx context.Context, dial Dialer) error {
	tools := life.New(life.Options{Logger: r.opts.Logger})
	defer func() { _ = tools.Close() }()
	wasReady := false
	err := r.opts.Retry.loop(ctx, r.opts.Logger, "altar: connection of Runtime "+r.id, func(ctx context.Context, connected func()) error {
		conn, err := dial.open(ctx)
		if err != nil {
			return err
		}
		s := r.session(conn, tools)
		s.onReady = func() {
			wasReady = true
			connected()
		}
		return s.run(ctx)
	})
	if ctx.Err() != nil && wasReady {
		return nil
	}
	return err
}

// Run serves one connection until it ends, and closes it. When ctx ends, the Runtime withdraws its
// tools, answers the calls in flight and returns nil (ALT-D24). An [*Error] is the reason for which
// the Host refused the Runtime. Run waits for running tools, but at most a second for a tool that
// ignores the end of its context.
func (r *Runtime) Run(ctx context.Context, conn Conn) error {
	if conn == nil {
		return errNoConn
	}
	tools := life.New(life.Options{Logger: r.opts.Logger})
	defer func() { _ = tools.Close() }()
	return r.session(conn, tools).run(ctx)
}
