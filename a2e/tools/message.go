// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tools is the namespace of tools: a host serves Go functions as tools, and a client lists and
// calls them.
package tools

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "tools"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[ListRequest]("tool/list/req"),
		a2e.TypeOf[ListResponse]("tool/list/resp"),
		a2e.TypeOf[CallRequest]("tool/call/req"),
		a2e.TypeOf[CallResponse]("tool/call/resp"),
		a2e.TypeOf[a2e.EventBody]("tool/event"),
	}
}

// A ListRequest is the message "tool/list/req".
type ListRequest struct {
	FilterKind      string   `json:"filter_kind,omitzero" jsonmap:"always"`
	FilterTags      []string `json:"filter_tags,omitzero" jsonmap:"always"`
	Query           string   `json:"query,omitzero" jsonmap:"always"`
	IncludeDeferred bool     `json:"include_deferred,omitzero" jsonmap:"always"`
}

// A ListResponse is the message "tool/list/resp".
type ListResponse struct {
	ReqID string       `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Tools []Definition `json:"tools,omitzero" jsonmap:"always"`
}

// A CallRequest is the message "tool/call/req".
type CallRequest struct {
	SessionID     string          `json:"session_id,omitzero" jsonmap:"always"` // of the handshake; empty means the current session
	ToolName      string          `json:"tool_name"`
	Arguments     json.RawMessage `json:"arguments" jsonmap:"object"`
	CorrelationID string          `json:"correlation_id,omitzero" jsonmap:"always"` // the caller's own trace id
	Streaming     bool            `json:"streaming,omitzero" jsonmap:"always"`      // send events while it runs
	Timeout       a2e.Limit       `json:"timeout,omitzero" jsonmap:"default=30"`    // seconds
}

// A CallResponse is the message "tool/call/resp".
type CallResponse struct {
	ReqID     string   `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Data      Result   `json:"data"`
	CreatedAt *float64 `json:"created_at,omitzero"` // Unix seconds
}

// A Definition describes one tool.
type Definition struct {
	Name             string      `json:"name"`
	Description      string      `json:"description"`
	InputParameters  []Parameter `json:"input_parameters,omitzero" jsonmap:"always"`
	OutputParameters []Parameter `json:"output_parameters,omitzero" jsonmap:"always"`
	Streaming        *bool       `json:"streaming,omitzero" jsonmap:"default=true"` // send events while it runs
	Idempotent       bool        `json:"idempotent,omitzero" jsonmap:"always"`
	Tags             []string    `json:"tags,omitzero" jsonmap:"always"`
	Version          string      `json:"version,omitzero" jsonmap:"default=1.0.0"`
	Toolkit          *string     `json:"toolkit,omitzero"`
	DeferLoading     bool        `json:"defer_loading,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}

// A Parameter describes one argument or result of a tool, in a subset of JSON Schema.
type Parameter struct {
	Name        string                       `json:"name"`
	Type        string                       `json:"type"`
	Description string                       `json:"description"`
	Required    bool                         `json:"required,omitzero" jsonmap:"always"`
	Enum        []string                     `json:"enum,omitzero"`
	Properties  a2e.OrderedObject[Parameter] `json:"properties,omitzero"`

	Extra a2e.Members // what the catalogue does not name
}

// A Result is the outcome of a tool.
type Result struct {
	Success    bool            `json:"success"`
	ToolName   string          `json:"tool_name"`
	Data       json.RawMessage `json:"data,omitzero" jsonmap:"unset"`
	Summary    json.RawMessage `json:"summary,omitzero" jsonmap:"unset"`
	Truncated  bool            `json:"truncated,omitzero" jsonmap:"always"` // something was cut off
	ExitCode   *int64          `json:"exit_code,omitzero"`
	Error      *string         `json:"error,omitzero"`
	ErrorCode  *string         `json:"error_code,omitzero"`
	DurationMs int64           `json:"duration_ms"` // without the time in the queue
	Events     []a2e.Message   `json:"events,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}
