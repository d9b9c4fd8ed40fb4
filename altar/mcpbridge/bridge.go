// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/llm"
	"github.com/fivewire/fivewire/internal/option"
)

// Options adjusts a [Bridge].
type Options struct {
	// Prefix begins the names of the contracts, such as "notes" for "notes/add". It may be empty.
	Prefix string

	// Pins are the digests of the accepted tools, by the names of their contracts.
	Pins map[string]string

	// MaxTools bounds the tools of the server. Zero means 1,000.
	MaxTools int

	// Logger receives the changes of tools and lost connections. Nil means slog.Default().
	Logger *slog.Logger
}

// A Tool is a tool of the server as a contract.
type Tool struct {
	Contract altar.Contract
	Digest   string // for Options.Pins
	Err      error  // why a contract cannot express it, or nil
}

// A Bridge is a connection to an MCP server. All methods are safe for concurrent use.
type Bridge struct {
	dial func(ctx context.Context) (sdk.Transport, error)
	opts Options
	turn chan struct{} // of one connect at a time; capacity 1
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu   sync.Mutex
	live *connection // nil: not connected
}

// A connection is a session with the server and the digests of its tools.
type connection struct {
	*sdk.ClientSession
	isStale atomic.Bool       // digests may have changed
	turn    chan struct{}     // of digests; capacity 1
	digests map[string]string // by the name of the tool; nil: not read
}

// New returns a Bridge to the server that dial returns a transport to. It does no I/O.
func New(dial func(ctx context.Context) (sdk.Transport, error), opts *Options) (*Bridge, error) {
	if dial == nil {
		return nil, errors.New("mcpbridge: no dial function")
	}
	b := &Bridge{dial: dial, turn: make(chan struct{}, 1)}
	if opts != nil {
		b.opts = *opts
	}
	b.opts.MaxTools = option.Count(b.opts.MaxTools, 1000)
	b.opts.Logger = cmp.Or(b.opts.Logger, slog.Default())
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// Close ends the connection. Calls in flight fail.
func (b *Bridge) Close() error {
	b.stop()
	b.work.Wait()
	return nil
}

// Tools returns all tools of the server.
func (b *Bridge) Tools(ctx context.Context) ([]Tool, error) {
	c, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	list, err := b.list(ctx, c)
	if err != nil {
		return nil, err
	}
	out := make([]Tool, len(list))
	for i, t := range list {
		out[i] = b.toolOf(t)
	}
	return out, nil
}

// AddTo adds the pinned tools to a Runtime. The error names those that the server lacks, that have another digest,
// and that a contract cannot express; nothing is added then.
func (b *Bridge) AddTo(ctx context.Context, r *altar.Runtime) error {
	c, err := b.connect(ctx)
	if err != nil {
		return err
	}
	list, err := b.list(ctx, c)
	if err != nil {
		return err
	}
	byName := make(map[string]Tool)
	names := make(map[string]string) // of the tools at the server, by contract
	for _, t := range list {
		made := b.toolOf(t)
		byName[made.Contract.Name], names[made.Contract.Name] = made, t.Name
	}
	var faults []error
	for name, digest := range b.opts.Pins {
		switch t, ok := byName[name]; {
		case !ok:
			faults = append(faults, fmt.Errorf("mcpbridge: tool %s: the server does not have it", name))
		case t.Err != nil:
			faults = append(faults, fmt.Errorf("mcpbridge: tool %s: %w", name, t.Err))
		case t.Digest != digest:
			faults = append(faults, fmt.Errorf("mcpbridge: tool %s: digest %s is not the pinned one", name, t.Digest))
		}
	}
	if len(faults) > 0 {
		slices.SortFunc(faults, func(x, y error) int { return cmp.Compare(x.Error(), y.Error()) })
		return errors.Join(faults...)
	}
	for name := range b.opts.Pins {
		contract := byName[name].Contract
		r.HandleContract(&contract, altar.HandlerFunc(func(ctx context.Context, call *altar.ToolCall) (any, error) {
			return b.call(ctx, names[name], name, call.Parameters)
		}))
	}
	return nil
}

// connect returns the connection, and makes one if there is none.
func (b *Bridge) connect(ctx context.Context) (*connection, error) {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	b.mu.Lock()
	c := b.live
	b.mu.Unlock()
	if c != nil {
		return c, nil
	}
	if b.ctx.Err() != nil {
		return nil, altar.ErrClosed
	}
	c = &connection{turn: make(chan struct{}, 1)}
	client := sdk.NewClient(&sdk.Implementation{Name: "fivewire-altar", Version: altar.ProtocolVersion}, &sdk.ClientOptions{
		Capabilities:           &sdk.ClientCapabilities{},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { c.isStale.Store(true) },
	})
	// The context in which the SDK connects is that of the whole connection.
	life, end := context.WithCancel(b.ctx)
	unbind := context.AfterFunc(ctx, end)
	transport, err := b.dial(life)
	if err == nil {
		c.ClientSession, err = client.Connect(life, transport, nil)
	}
	if err == nil && !unbind() {
		_ = c.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("mcpbridge: connect: %w", err)
	}
	b.mu.Lock()
	b.live = c
	b.mu.Unlock()
	b.work.Go(func() { b.watch(c, life, end) })
	return c, nil
}

// watch waits for the end of a connection.
func (b *Bridge) watch(c *connection, life context.Context, end func()) {
	stop := context.AfterFunc(life, func() { _ = c.Close() })
	err := c.Wait()
	b.mu.Lock()
	b.live = nil
	b.mu.Unlock()
	if b.ctx.Err() == nil {
		b.opts.Logger.WarnContext(b.ctx, "mcpbridge: connection lost", "prefix", b.opts.Prefix, "err", err)
	}
	if stop() {
		_ = c.Close()
	}
	end()
}

// list returns the tools of the server.
func (b *Bridge) list(ctx context.Context, c *connection) (list []*sdk.Tool, err error) {
	for t, err := range c.Tools(ctx, nil) {
		if err != nil {
			return nil, fmt.Errorf("mcpbridge: list tools: %w", err)
		}
		if len(list) == b.opts.MaxTools {
			return nil, fmt.Errorf("mcpbridge: list tools: the server has more than %d tools", b.opts.MaxTools)
		}
		list = append(list, t)
	}
	return list, nil
}

// digest returns the digest of a tool at the server now, or "".
func (b *Bridge) digest(ctx context.Context, c *connection, tool string) (string, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if c.isStale.Swap(false) || c.digests == nil {
		list, err := b.list(ctx, c)
		if err != nil {
			c.isStale.Store(true)
			return "", err
		}
		c.digests = make(map[string]string, len(list))
		for _, t := range list {
			c.digests[t.Name] = digestOf(t)
		}
	}
	return c.digests[tool], nil
}

// digestOf returns the digest of the name and the schemas of a tool.
func digestOf(t *sdk.Tool) string {
	text, err := json.Marshal([]any{t.Name, t.InputSchema, t.OutputSchema}) // with sorted members
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// toolOf returns a tool as a contract.
func (b *Bridge) toolOf(t *sdk.Tool) Tool {
	made := Tool{Digest: digestOf(t)}
	made.Contract.Name, made.Contract.Description = t.Name, t.Description
	if b.opts.Prefix != "" {
		made.Contract.Name = b.opts.Prefix + "/" + t.Name
	}
	if a := t.Annotations; a != nil {
		made.Contract.Idempotent = a.IdempotentHint || a.ReadOnlyHint
	}
	text, err := json.Marshal(simplify(t.InputSchema))
	if err == nil {
		made.Contract.Parameters, err = llm.ParametersOf(text, &llm.ParametersOptions{Lossy: true})
	}
	if err == nil {
		err = made.Contract.Validate()
	}
	made.Err = err
	return made
}

// call calls a pinned tool, unless it has changed.
func (b *Bridge) call(ctx context.Context, tool, contract string, params json.RawMessage) (any, error) {
	c, err := b.connect(ctx)
	if err != nil {
		return nil, failure(ctx, err)
	}
	digest, err := b.digest(ctx, c, tool)
	if err != nil {
		return nil, failure(ctx, err)
	}
	if digest != b.opts.Pins[contract] {
		b.opts.Logger.WarnContext(ctx, "mcpbridge: changed tool refused", "contract", contract, "digest", digest)
		return nil, altar.Errorf(altar.ErrExecutionFailed, "tool_changed", "the MCP server has changed the tool since it was accepted")
	}
	got, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: params})
	if err != nil {
		return nil, failure(ctx, err)
	}
	return resultOf(got)
}

// failure returns the error of a call that the server did not answer with a result.
func failure(ctx context.Context, err error) error {
	var e *jsonrpc.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &e):
		return altar.Errorf(altar.ErrExecutionFailed, "", "%s", clip(e.Message))
	}
	failed := altar.Errorf(altar.ErrRuntimeUnavailable, altar.ReasonDisconnected, "the connection to the MCP server failed")
	failed.Cause = err
	return failed
}
