// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/hook"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
)

// TimeLimit returns the time limit of the request.
func (c *CallRequest) TimeLimit() time.Duration {
	return wire.Seconds(c.Timeout, 30)
}

// Err returns nil if the tool succeeded, else an [*a2e.Error] with its error and
// error code (A2E-D31).
func (r *Result) Err() error {
	if r.Success {
		return nil
	}
	err := a2e.Errorf(a2e.ErrTool, "the tool failed")
	err.Retryable = false
	if r.ErrorCode != nil && *r.ErrorCode != "" {
		err.Code = a2e.Code(*r.ErrorCode)
	}
	if r.Error != nil {
		err.Message = *r.Error
	}
	err.Capability = Capability
	return err
}

// A Tool is what an agent can call.
type Tool struct {
	Definition Definition

	// Run executes the tool with arguments that match the parameters. It returns a value for
	// encoding/json, or a complete [*Result]; raw JSON as [json.RawMessage]; nil for no data. An
	// [*a2e.Error] is sent unchanged, any other error as tool_error with its text.
	Run func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error)
}

// Options adjusts a [Set]. The zero value is right for production.
type Options struct {
	// Name is the name of the plugin. Empty means "tools".
	Name string

	// Authorizer decides about each call before it runs. False is tool_denied. Nil
	// allows every tool.
	Authorizer func(ctx context.Context, call *a2e.Call, tool *Definition, arguments json.RawMessage) bool

	// SessionTools returns additional tools of the session of a call, such as those of its MCP
	// servers. They follow the tools of the set, whose names take precedence.
	SessionTools func(ctx context.Context, call *a2e.Call) []Tool

	// Searcher replaces the search of a list request, for better ranking.
	Searcher func(list []Definition, r *ListRequest) []Definition
}

// A Set holds tools and serves them as a plugin. Its methods may be called from
// several goroutines, also while it serves.
type Set struct {
	opts Options

	mu    sync.RWMutex
	tools map[string]*Tool
	order []string
}

// NewSet returns a set without tools.
func NewSet(opts *Options) (*Set, error) {
	return &Set{opts: opts.withDefaults(), tools: map[string]*Tool{}}, nil
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Name = cmp.Or(d.Name, Capability)
	if d.Searcher == nil {
		d.Searcher = FilterDefinitions
	}
	return d
}

// Add adds a tool. A name that is empty or taken, and a tool without Run, panic.
func (s *Set) Add(t Tool) *Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := t.Definition.Name
	switch {
	case name == "":
		panic("tools: a tool without name")
	case s.tools[name] != nil:
		panic(fmt.Sprintf("tools: the tool %q is added twice", name))
	case t.Run == nil:
		panic(fmt.Sprintf("tools: the tool %q does nothing", name))
	}
	s.tools[name] = &t
	s.order = append(s.order, name)
	return s
}

// Remove removes a tool. Running calls continue.
func (s *Set) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tools, name)
	s.order = slices.DeleteFunc(s.order, func(n string) bool { return n == name })
}

// Definitions returns the definitions of all tools in the order of adding.
func (s *Set) Definitions() []Definition {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]Definition, 0, len(s.order))
	for _, name := range s.order {
		list = append(list, s.tools[name].Definition)
	}
	return list
}

func (s *Set) tool(name string) *Tool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tools[name]
}

// Plugin returns the plugin that serves the set.
func (s *Set) Plugin() *a2e.Plugin {
	list, call := a2e.NewRoute("tool/list/req", s.list), a2e.NewRoute("tool/call/req", s.call)
	list.Idempotent = func(*a2e.Message) bool { return true }
	call.Idempotent = func(m *a2e.Message) bool {
		r, ok := m.Body.(*CallRequest)
		t := (*Tool)(nil)
		if ok {
			t = s.tool(r.ToolName)
		}
		return t != nil && t.Definition.Idempotent
	}
	return &a2e.Plugin{Name: s.opts.Name, Capability: Capability, Types: Types(), Routes: []a2e.Route{list, call}}
}

func (s *Set) list(ctx context.Context, call *a2e.Call, r *ListRequest) (*ListResponse, error) {
	all := s.Definitions()
	for _, t := range s.session(ctx, call) {
		all = append(all, t.Definition)
	}
	isHidden, err := hiddenTools(ctx, call)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(d Definition) bool { return isHidden(d.Name) })
	return &ListResponse{Tools: s.opts.Searcher(all, r)}, nil
}

// hiddenTools returns a function that reports whether a tool is part of toolkits that the session has
// not configured (A2E-D68).
func hiddenTools(ctx context.Context, call *a2e.Call) (isHidden func(name string) bool, err error) {
	state, err := hook.State(ctx, call, "toolkits")
	if kits, ok := state.(interface{ HidesTool(name string) bool }); ok && err == nil {
		return kits.HidesTool, nil
	}
	return func(string) bool { return false }, err
}

func notConfigured(name string) error {
	err := failure(a2e.ErrToolDenied, name, "the toolkit of the tool is not configured")
	err.Reason = "not_configured"
	return err
}

// session returns the further tools of a session.
func (s *Set) session(ctx context.Context, call *a2e.Call) []Tool {
	if s.opts.SessionTools == nil {
		return nil
	}
	own := slices.Clone(s.opts.SessionTools(ctx, call)) // which may be the same list each time
	return slices.DeleteFunc(own, func(t Tool) bool {
		return t.Run == nil || s.tool(t.Definition.Name) != nil
	})
}

// lookup returns the tool of that name in a session, or nil.
func (s *Set) lookup(ctx context.Context, call *a2e.Call, name string) *Tool {
	if t := s.tool(name); t != nil {
		return t
	}
	list := s.session(hook.WithTool(ctx, name), call)
	if i := slices.IndexFunc(list, func(t Tool) bool { return t.Definition.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (s *Set) call(ctx context.Context, call *a2e.Call, r *CallRequest) (*CallResponse, error) {
	answer := &struct { // one allocation for all parts
		CallResponse
		at float64
	}{}
	if err := s.run(ctx, call, r.ToolName, r.Arguments, &answer.Data); err != nil {
		return nil, err
	}
	answer.at = wire.Timestamp(time.Now())
	answer.CreatedAt = &answer.at
	return &answer.CallResponse, nil
}

// Run calls a tool by its name, as a call request does: with the policy, the
// check of the arguments and the clock around it. Chains run tools this way.
func (s *Set) Run(ctx context.Context, call *a2e.Call, name string, arguments json.RawMessage) (*Result, error) {
	result := &Result{}
	if err := s.run(ctx, call, name, arguments, result); err != nil {
		return nil, err
	}
	return result, nil
}

// run is Run into a result.
func (s *Set) run(ctx context.Context, call *a2e.Call, name string, arguments json.RawMessage, result *Result) error {
	t := s.lookup(ctx, call, name)
	if t == nil {
		return failure(a2e.ErrUnknownTool, name, "there is no such tool")
	}
	if isHidden, err := hiddenTools(ctx, call); err != nil || isHidden(name) {
		return cmp.Or(err, notConfigured(name))
	}
	if s.opts.Authorizer != nil && !s.opts.Authorizer(ctx, call, &t.Definition, arguments) {
		return failure(a2e.ErrToolDenied, name, "the tool is not allowed here")
	}
	if err := ValidateArguments(t.Definition.InputParameters, arguments); err != nil {
		return err
	}
	start := time.Now()
	out, err := t.Run(ctx, call, arguments)
	if err != nil {
		return t.wireError(err)
	}
	if complete, ok := out.(*Result); ok && complete != nil {
		*result = *complete
		if result.ToolName == "" {
			result.ToolName = name
		}
		return nil
	}
	*result = Result{Success: true, ToolName: name, DurationMs: time.Since(start).Milliseconds()}
	switch out := out.(type) {
	case nil:
	case json.RawMessage:
		result.Data = out
	default:
		if result.Data, err = guard.Encode(out); err != nil {
			return fmt.Errorf("tools: the result of %q: %w", name, err)
		}
	}
	return nil
}

func failure(code a2e.Code, name, text string) *a2e.Error {
	err := a2e.Errorf(code, "%s", text).With("tool_name", wire.Clip(name))
	err.Capability = Capability
	return err
}

// wireError returns an error of a tool as tool_error, retryable if the tool is idempotent
// (A2E-D30). An [*a2e.Error] is returned unchanged.
func (t *Tool) wireError(err error) error {
	var e *a2e.Error
	if errors.As(err, &e) || errors.Is(err, a2e.ErrNextPlugin) {
		return err
	}
	text := err.Error()
	if len(text) > 1000 {
		text = strings.ToValidUTF8(text[:1000], "") + "..."
	}
	e = failure(a2e.ErrTool, t.Definition.Name, text)
	e.Retryable = t.Definition.Idempotent
	e.Cause = err
	return e
}
