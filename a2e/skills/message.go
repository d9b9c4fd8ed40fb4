// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package skills is the namespace of skills: a host serves Go functions or folders with a file SKILL.md, and a
// client discovers and calls them.
package skills

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "skill"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[DiscoverRequest]("skill/discover/req"),
		a2e.TypeOf[DiscoverResponse]("skill/discover/resp"),
		a2e.TypeOf[CallRequest]("skill/call/req"),
		a2e.TypeOf[CallResponse]("skill/call/resp"),
		a2e.TypeOf[a2e.EventBody]("skill/event"),
	}
}

// A DiscoverRequest is the message "skill/discover/req".
type DiscoverRequest struct {
	FilterTags       []string `json:"filter_tags,omitzero" jsonmap:"always"`
	FilterCategories []string `json:"filter_categories,omitzero" jsonmap:"always"`
}

// A DiscoverResponse is the message "skill/discover/resp".
type DiscoverResponse struct {
	ReqID  string       `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Skills []Definition `json:"skills,omitzero" jsonmap:"always"`
}

// A CallRequest is the message "skill/call/req".
type CallRequest struct {
	Name          string          `json:"name,omitzero" jsonmap:"always"`
	Arguments     json.RawMessage `json:"arguments,omitzero" jsonmap:"always,object"`
	CorrelationID string          `json:"correlation_id,omitzero" jsonmap:"always"`  // the caller's own trace id
	Timeout       a2e.Limit       `json:"timeout,omitzero" jsonmap:"default=60"`     // seconds
	Streaming     *bool           `json:"streaming,omitzero" jsonmap:"default=true"` // send events while it runs
	LLMOverride   *LLMConfig      `json:"llm_override,omitzero"`
	Metadata      json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`
}

// A CallResponse is the message "skill/call/resp".
type CallResponse struct {
	ReqID     string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Name      string          `json:"name,omitzero" jsonmap:"always"`
	Data      *Result         `json:"data,omitzero" jsonmap:"always"`
	Error     json.RawMessage `json:"error,omitzero" jsonmap:"object"`
	CreatedAt *float64        `json:"created_at,omitzero"` // Unix seconds
}

// A Definition describes one skill.
type Definition struct {
	Name           string            `json:"name"`
	Version        string            `json:"version"`
	Description    string            `json:"description"`
	Triggers       []string          `json:"triggers"`
	Tools          []json.RawMessage `json:"tools,omitzero"`
	Toolkits       []json.RawMessage `json:"toolkits,omitzero"`
	Status         string            `json:"status"`
	InputSchema    json.RawMessage   `json:"input_schema,omitzero" jsonmap:"always,object"`
	OutputSchema   json.RawMessage   `json:"output_schema,omitzero" jsonmap:"always,object"`
	Instructions   *string           `json:"instructions,omitzero"`
	FilePath       *string           `json:"file_path,omitzero"`
	LLMConfig      *LLMConfig        `json:"llm_config,omitzero"`
	Arguments      []string          `json:"arguments,omitzero"`
	WhenToUse      string            `json:"when_to_use"`
	ArgumentHint   string            `json:"argument_hint"`
	Source         string            `json:"source"`
	Category       *string           `json:"category,omitzero"`
	Tags           []string          `json:"tags,omitzero"`
	MaxTurns       *int64            `json:"max_turns,omitzero"`
	TimeoutSeconds *int64            `json:"timeout_seconds,omitzero"`
	Icon           *string           `json:"icon,omitzero"`
	Metadata       json.RawMessage   `json:"metadata,omitzero" jsonmap:"object"`

	Extra a2e.Members // what the catalogue does not name
}

// ReadMember reads an empty object as no arguments, because deployed peers write one (A2E-D20).
func (d *Definition) ReadMember(name string, value json.RawMessage) (isRead bool) {
	m, err := a2e.ParseMembers(value)
	if name != "arguments" || err != nil {
		return false
	}
	for range m.All() {
		return false
	}
	d.Arguments = []string{}
	return true
}

// An LLMConfig selects a model; it holds credentials and must not be logged.
type LLMConfig struct {
	ProviderName        string          `json:"provider_name"`
	ProviderCredentials json.RawMessage `json:"provider_credentials" jsonmap:"object"`
	ProviderConfig      json.RawMessage `json:"provider_config,omitzero" jsonmap:"object"`
	IsDefault           bool            `json:"is_default,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}

// ReadMember reads false as no configuration, because deployed peers write it (A2E-D20).
func (l *LLMConfig) ReadMember(name string, value json.RawMessage) (isRead bool) {
	return name == "provider_config" && string(value) == "false"
}

// A Result is the outcome of a skill.
type Result struct {
	Success    bool            `json:"success"`
	Data       json.RawMessage `json:"data,omitzero" jsonmap:"unset"`
	Summary    json.RawMessage `json:"summary,omitzero" jsonmap:"unset"`
	Truncated  bool            `json:"truncated,omitzero" jsonmap:"always"` // something was cut off
	Error      *string         `json:"error,omitzero"`
	ErrorCode  *string         `json:"error_code,omitzero"`
	DurationMs int64           `json:"duration_ms"` // without the time in the queue
	Events     []a2e.Message   `json:"events,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}
