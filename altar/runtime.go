// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
)

// RuntimeOptions adjusts a [Runtime]. The zero value is right for production.
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
	// the order of their coming. Zero means no bound. MaxWaiting bounds those;
	// more are refused as overloaded. Zero means 1024.
	MaxConcurrent int
	QueueLimit    int

	// MaxMessage bounds a result, in bytes. It must not exceed what the Host
	// takes. Zero means [DefaultMaxMessage].
	MaxMessage int

	// Validation adjusts how parameters are checked against the contracts of
	// this side, see [Runtime.HandleContract]. It should be the same as at the
	// Host.
	Validation ValidationOptions

	// HandshakeTimeout bounds the wait for the acceptance of the Runtime by the Host. Zero means no
	// limit.
	HandshakeTimeout time.Duration

	// DrainTimeout bounds how long calls in flight may take after the context of Run
	// has ended. Zero means 30 seconds.
	DrainTimeout time.Duration

	// Heartbeat is the interval of pings to the Host. A connection without a received message for
	// three intervals is closed (ALT-D36). Zero disables it.
	Heartbeat time.Duration

	// Logger receives details that are not sent to the Host. Nil disables logging.
	Logger *slog.Logger
}

// A Runtime offers tools to a Host (ALT-011). Tools are added before the first
// Run; Run may be called for several connections, one after the other.
type Runtime struct {
	id     string
	opts   RuntimeOptions
	tools  []*runtimeTool
	use    []func(next Handler) Handler
	stream []func(next StreamHandler) StreamHandler
	names  map[string]*runtimeTool
}

type runtimeTool struct {
	name   string
	check  *Validator // nil: the Host's checks are trusted
	tool   Handler
	stream StreamHandler
}

// NewRuntime returns a Runtime without tools. The id must be unique at the Host;
// it is the first part of the names of the tools (ALT-D14).
func NewRuntime(id string, opts *RuntimeOptions) *Runtime {
	r := &Runtime{id: id, names: make(map[string]*runtimeTool)}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.ProtocolVersion = cmp.Or(r.opts.ProtocolVersion, ProtocolVersion)
	r.opts.MaxMessage = cmp.Or(max(r.opts.MaxMessage, 0), DefaultMaxMessage)
	r.opts.QueueLimit = cmp.Or(max(r.opts.QueueLimit, 0), 1024)
	r.opts.DrainTimeout = cmp.Or(max(r.opts.DrainTimeout, 0), 30*time.Second)
	if r.opts.Logger == nil {
		r.opts.Logger = slog.New(slog.DiscardHandler)
	}
	return r
}

// Handle adds a tool that implements the Host's contract of that name. It panics
// if the name is not one of a contract, or taken.
func (r *Runtime) Handle(name string, t Handler) { r.add(&runtimeTool{name: name, tool: t}, nil) }

// HandleStream adds a tool that answers in chunks.
func (r *Runtime) HandleStream(name string, t StreamHandler) {
	r.add(&runtimeTool{name: name, stream: t}, nil)
}

// HandleContract adds a tool with the contract that this Runtime expects: parameters that do not
// match it never reach the tool. It panics like Handle, and if the contract is invalid.
func (r *Runtime) HandleContract(c *Contract, t Handler) {
	r.add(&runtimeTool{name: c.Name, tool: t}, c)
}

// HandleContractStream is HandleContract for a tool that answers in chunks.
func (r *Runtime) HandleContractStream(c *Contract, t StreamHandler) {
	r.add(&runtimeTool{name: c.Name, stream: t}, c)
}

func (r *Runtime) add(t *runtimeTool, c *Contract) {
	if !validContractName(t.name) {
		panic(fmt.Sprintf("altar: %q cannot name a contract", t.name))
	}
	if r.names[t.name] != nil {
		panic(fmt.Sprintf("altar: the tool %q is added twice", t.name))
	}
	if c != nil {
		v, err := NewValidator(c, &r.opts.Validation)
		if err != nil {
			panic(fmt.Sprintf("altar: the contract of tool %q: %v", t.name, err))
		}
		t.check = v
	}
	for _, m := range r.use {
		t.wrap(m)
	}
	for _, m := range r.stream {
		t.wrapStream(m)
	}
	r.tools = append(r.tools, t)
	r.names[t.name] = t
}

// Use wraps all tools with one result in a middleware, including tools added later. The middleware
// added last is outermost.
func (r *Runtime) Use(m func(next Handler) Handler) {
	r.use = append(r.use, m)
	for _, t := range r.tools {
		t.wrap(m)
	}
}

// UseStream is Use for the tools that answer in chunks.
func (r *Runtime) UseStream(m func(next StreamHandler) StreamHandler) {
	r.stream = append(r.stream, m)
	for _, t := range r.tools {
		t.wrapStream(m)
	}
}

func (t *runtimeTool) wrap(m func(next Handler) Handler) {
	if t.tool != nil {
		t.tool = m(t.tool)
	}
}

func (t *runtimeTool) wrapStream(m func(next StreamHandler) StreamHandler) {
	if t.stream != nil {
		t.stream = m(t.stream)
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

func (r *Runtime) panicked(tool string, p any) {
	r.opts.Logger.Error("altar: tool panicked", "tool", tool, "err", p, "stack", string(debug.Stack()))
}

// sendable returns a text that is UTF-8 and not empty.
func sendable(s string) string {
	return cmp.Or(strings.ToValidUTF8(s, "\ufffd"), "the tool failed")
}

// A Dialer opens a connection to a Host.
type Dialer func(ctx context.Context) (Conn, error)

// RunWithReconnect keeps the Runtime connected: it dials, runs, and dials again with increasing
// delays after each lost connection (ALT-D24). It returns nil after ctx has ended and the calls in
// flight are answered, and an [*Error] if the Host refuses the Runtime for a reason other than an
// internal failure of the Host.
func (r *Runtime) RunWithReconnect(ctx context.Context, dial Dialer) error {
	if err := r.checkID(); err != nil {
		return err
	}
	pause := backoff.Backoff{Base: 100 * time.Millisecond, Max: 30 * time.Second, Jitter: 0.3}
	var wg sync.WaitGroup
	defer wg.Wait()
	for attempt := 1; ; attempt++ {
		conn, err := dial(ctx)
		if err == nil {
			s := r.session(conn)
			err = s.run(ctx, &wg)
			if s.wasReady {
				attempt = 1
			}
		}
		var refused *Error
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &refused) && refused.Code != ErrInternal:
			return err
		}
		r.opts.Logger.WarnContext(ctx, "altar: Host disconnected", "runtime", r.id, "attempt", attempt, "err", err)
		if pause.Wait(ctx, attempt) != nil {
			return nil
		}
	}
}

// Run serves one connection until it ends, and closes it. When ctx ends, the Runtime withdraws its
// tools, answers the calls in flight and returns nil (ALT-D24). An [*Error] is the reason for which
// the Host refused the Runtime. Run waits for all running tools, so tools must obey their context.
func (r *Runtime) Run(ctx context.Context, conn Conn) error {
	if err := r.checkID(); err != nil {
		return errors.Join(err, conn.Close())
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	return r.session(conn).run(ctx, &wg)
}

func (r *Runtime) checkID() error {
	if !validIdentifier(r.id) {
		return fmt.Errorf("altar: invalid runtime id %q", r.id)
	}
	return nil
}
