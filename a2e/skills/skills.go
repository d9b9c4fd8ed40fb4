// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fivewire/fivewire/a2e"
)

// TimeLimit returns the time limit of the request.
func (c *CallRequest) TimeLimit() time.Duration {
	seconds := max(cmp.Or(c.Timeout, 60), 0)
	return time.Duration(min(seconds, math.MaxInt64/a2e.Limit(time.Second))) * time.Second
}

// Statuses of a [Definition].
const (
	StatusCreated   = "Created"
	StatusBlocked   = "Blocked"
	StatusPublished = "Published"
	StatusArchived  = "Archived"
)

// A Skill is a named capability larger than a tool.
type Skill struct {
	Definition Definition

	// Run executes the skill with arguments that match the input schema. It returns a value for
	// encoding/json, raw JSON, or a complete [*Result].
	Run func(ctx context.Context, run *Run) (any, error)
}

// A Run is one call of a skill.
type Run struct {
	Call      *a2e.Call
	Request   *CallRequest
	Arguments json.RawMessage

	mu     sync.Mutex
	events []a2e.Message
	size   int // bytes of the data of events
}

// maxEvents and maxEventBytes bound the events that a result repeats.
const (
	maxEvents     = 1000
	maxEventBytes = 4 << 20
)

// Emit sends an event, if the agent asked for events, and keeps it for the result (A2E-115), with the same
// number. The result repeats at most 1,000 events and 4 MiB of their data, the first ones, and none that could
// not be sent.
func (r *Run) Emit(kind string, data any) error {
	raw := json.RawMessage("{}")
	if data != nil {
		var err error
		if raw, err = encode(data); err != nil {
			return err
		}
	}
	if raw[0] != '{' {
		return fmt.Errorf("skills: %T is not an object", data)
	}
	if !strings.HasPrefix(r.Call.Message.Type, "skill/") { // a chain, whose answer has no events
		return r.Call.Emit(kind, raw)
	}
	event, isSent := &a2e.EventBody{Kind: kind, ReqID: r.Call.Message.ID, Data: raw}, false
	err := r.Call.EmitBody("skill/event", func(seq int64) any {
		event.Seq, isSent = seq, true
		return event
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isSent {
		event.Seq = int64(len(r.events))
	}
	r.size += len(raw)
	if r.size <= maxEventBytes && event.Seq < maxEvents {
		r.events = append(r.events, *a2e.NewMessage("skill/event", event))
	}
	return nil
}

// number returns the number of a kept event.
func number(m a2e.Message) int64 { return m.Body.(*a2e.EventBody).Seq }

// Options adjusts a [Set]. The zero value is right for production.
type Options struct {
	// Name is the name of the plugin. Empty means "skills".
	Name string

	// OverrideAuthorizer decides whether a call may bring its own model and
	// credentials. Nil refuses that.
	OverrideAuthorizer func(ctx context.Context, call *a2e.Call, c *LLMConfig) bool
}

// A Set holds skills and serves them as a plugin.
type Set struct {
	opts Options

	mu     sync.RWMutex
	skills []*entry
}

type entry struct {
	Skill
	input *jsonschema.Resolved
}

// NewSet returns a set without skills.
func NewSet(opts *Options) (*Set, error) {
	s := &Set{}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Name = cmp.Or(s.opts.Name, "skills")
	return s, nil
}

// Add adds a skill. It panics on an empty or duplicate name, a skill without Run, and an invalid
// input schema. A definition without status is published.
func (s *Set) Add(k Skill) *Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &k.Definition
	if d.Name == "" || k.Run == nil || s.findLocked(d.Name) != nil {
		panic(fmt.Sprintf("skills: the skill %q has no name, no Run, or is added twice", d.Name))
	}
	if d.Status == "" {
		d.Status = StatusPublished
	}
	e := &entry{Skill: k}
	if len(d.InputSchema) > 0 {
		var input jsonschema.Schema
		err := json.Unmarshal(d.InputSchema, &input)
		if err == nil {
			e.input, err = input.Resolve(nil)
		}
		if err != nil {
			panic(fmt.Sprintf("skills: input schema of %q: %v", d.Name, err))
		}
	}
	s.skills = append(s.skills, e)
	return s
}

// findLocked returns the skill with that name, or nil. s.mu must be held.
func (s *Set) findLocked(name string) *entry {
	if i := slices.IndexFunc(s.skills, func(e *entry) bool { return e.Definition.Name == name }); i >= 0 {
		return s.skills[i]
	}
	return nil
}

// Plugin returns the plugin that serves the set.
func (s *Set) Plugin() *a2e.Plugin {
	return &a2e.Plugin{Name: s.opts.Name, Capability: Capability, Types: Types(), Routes: []a2e.Route{
		a2e.NewRoute("skill/discover/req", s.discover),
		a2e.NewRoute("skill/call/req", s.call),
	}}
}

// discover lists published skills with any of the tags and one of the categories
// (A2E-113). Credentials stay here.
func (s *Set) discover(_ context.Context, _ *a2e.Call, r *DiscoverRequest) (*DiscoverResponse, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	resp := &DiscoverResponse{}
	for _, e := range s.skills {
		d := e.Definition
		if d.Status != StatusPublished ||
			len(r.FilterTags) > 0 && !slices.ContainsFunc(d.Tags, func(t string) bool { return slices.Contains(r.FilterTags, t) }) ||
			len(r.FilterCategories) > 0 && (d.Category == nil || !slices.Contains(r.FilterCategories, *d.Category)) {
			continue
		}
		if d.LLMConfig != nil {
			d.LLMConfig = &LLMConfig{ProviderName: d.LLMConfig.ProviderName, ProviderCredentials: json.RawMessage("{}"), IsDefault: d.LLMConfig.IsDefault}
		}
		resp.Skills = append(resp.Skills, d)
	}
	return resp, nil
}

// clip returns the beginning of a text for an error.
func clip(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "")
	}
	return s
}

func failure(code a2e.Code, name, text string) *a2e.Error {
	err := a2e.Errorf(code, "%s", text).With("name", clip(name))
	err.Capability = Capability
	return err
}

func (s *Set) call(ctx context.Context, call *a2e.Call, r *CallRequest) (*CallResponse, error) {
	result, err := s.run(ctx, call, r)
	if err != nil {
		return nil, err
	}
	now := float64(time.Now().UnixMicro()) / 1e6
	return &CallResponse{Name: r.Name, Data: result, CreatedAt: &now}, nil
}

func (s *Set) run(ctx context.Context, call *a2e.Call, r *CallRequest) (*Result, error) {
	s.mu.RLock()
	e := s.findLocked(r.Name)
	s.mu.RUnlock()
	if e == nil || e.Definition.Status != StatusPublished {
		return nil, failure(a2e.ErrUnknownSkill, r.Name, "there is no such skill")
	}
	if r.LLMOverride != nil && (s.opts.OverrideAuthorizer == nil || !s.opts.OverrideAuthorizer(ctx, call, r.LLMOverride)) {
		err := failure(a2e.ErrUnauthorized, r.Name, "the model cannot be chosen here")
		err.Field, err.Reason = "llm_override", "not_allowed"
		return nil, err
	}
	arguments := r.Arguments
	if arguments == nil {
		arguments = json.RawMessage("{}")
	}
	if e.input != nil {
		var v any
		cause := json.Unmarshal(arguments, &v)
		if cause == nil {
			cause = e.input.Validate(v)
		}
		if cause != nil {
			err := a2e.SchemaViolation("arguments", a2e.ReasonValue)
			err.Message += ": " + clip(cause.Error())
			err.Capability = Capability
			return nil, err
		}
	}
	run := &Run{Call: call, Request: r, Arguments: arguments}
	start := time.Now()
	out, err := e.Run(ctx, run)
	if err != nil {
		var wire *a2e.Error
		if errors.As(err, &wire) {
			return nil, err
		}
		wire = failure(a2e.ErrSkill, r.Name, err.Error())
		wire.Cause = err
		return nil, wire
	}
	result, err := resultOf(out, time.Since(start))
	if err != nil {
		return nil, fmt.Errorf("skills: the result of %q: %w", r.Name, err)
	}
	run.mu.Lock()
	slices.SortFunc(run.events, func(a, b a2e.Message) int { return cmp.Compare(number(a), number(b)) })
	result.Events = append(result.Events, run.events...)
	run.mu.Unlock()
	return result, nil
}

// encode returns a value as JSON.
func encode(v any) (json.RawMessage, error) {
	var m a2e.Members
	err := m.Set("value", v)
	return m.Get("value"), err
}

// resultOf returns the result of a call whose skill returned out.
func resultOf(out any, duration time.Duration) (*Result, error) {
	if complete, ok := out.(*Result); ok && complete != nil {
		own := *complete // may be shared with other calls
		own.Events = slices.Clip(own.Events)
		return &own, nil
	}
	result, err := &Result{Success: true, DurationMs: duration.Milliseconds()}, error(nil)
	switch out := out.(type) {
	case nil:
	case json.RawMessage:
		result.Data = out
	default:
		result.Data, err = encode(out)
	}
	return result, err
}

// Execute runs a skill and returns its data, for nodes of chains: it is an
// Executor of package chains.
func (s *Set) Execute(ctx context.Context, call *a2e.Call, name string, input json.RawMessage) (json.RawMessage, error) {
	result, err := s.run(ctx, call, &CallRequest{Name: name, Arguments: input, Streaming: new(false)})
	if err != nil {
		return nil, err
	}
	if !result.Success {
		text := "the skill failed"
		if result.Error != nil {
			text = *result.Error
		}
		return nil, failure(a2e.ErrSkill, name, text)
	}
	return result.Data, nil
}
