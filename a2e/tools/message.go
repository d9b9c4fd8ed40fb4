// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
	FilterKind      string   `a2e:"filter_kind"`
	FilterTags      []string `a2e:"filter_tags"`
	Query           string   `a2e:"query"`
	IncludeDeferred bool     `a2e:"include_deferred"`
}

// A ListResponse is the message "tool/list/resp".
type ListResponse struct {
	ReqID string       `a2e:"req_id"` // the request answered
	Tools []Definition `a2e:"tools"`
}

// RequestID returns ReqID.
func (l *ListResponse) RequestID() string { return l.ReqID }

// A CallRequest is the message "tool/call/req".
type CallRequest struct {
	SessionID     string          `a2e:"session_id"` // of the handshake; empty for the one at hand
	ToolName      string          `a2e:"tool_name,required"`
	Arguments     json.RawMessage `a2e:"arguments,object,required"`
	CorrelationID string          `a2e:"correlation_id"`           // the caller's own trace id
	Streaming     bool            `a2e:"streaming"`                // send events while it runs
	Timeout       int64           `a2e:"timeout,default=30,min=0"` // seconds
}

// A CallResponse is the message "tool/call/resp".
type CallResponse struct {
	ReqID     string   `a2e:"req_id"` // the request answered
	Data      Result   `a2e:"data,required"`
	CreatedAt *float64 `a2e:"created_at,nullable"` // Unix seconds
}

// RequestID returns ReqID.
func (c *CallResponse) RequestID() string { return c.ReqID }

// A Definition describes one tool.
type Definition struct {
	Name             string      `a2e:"name,required"`
	Description      string      `a2e:"description,required"`
	InputParameters  []Parameter `a2e:"input_parameters"`
	OutputParameters []Parameter `a2e:"output_parameters"`
	Streaming        bool        `a2e:"streaming,default=true"` // send events while it runs
	Idempotent       bool        `a2e:"idempotent"`
	Tags             []string    `a2e:"tags"`
	Version          string      `a2e:"version,default=1.0.0"`
	Toolkit          *string     `a2e:"toolkit,nullable"`
	DeferLoading     bool        `a2e:"defer_loading"`

	Extra a2e.Members // what the catalogue does not name
}

// A Parameter describes one argument or result of a tool, in a subset of JSON Schema.
type Parameter struct {
	Name        string                       `a2e:"name,required"`
	Type        string                       `a2e:"type,required"`
	Description string                       `a2e:"description,required"`
	Required    bool                         `a2e:"required"`
	Enum        []string                     `a2e:"enum,nullable"`
	Properties  a2e.OrderedObject[Parameter] `a2e:"properties,nullable"`

	Extra a2e.Members // what the catalogue does not name
}

// A Result is what a tool came to.
type Result struct {
	Success    bool            `a2e:"success,required"`
	ToolName   string          `a2e:"tool_name,required"`
	Data       json.RawMessage `a2e:"data,nullable"`
	Summary    json.RawMessage `a2e:"summary,nullable"`
	Truncated  bool            `a2e:"truncated"` // something was cut off
	ExitCode   *int64          `a2e:"exit_code,nullable"`
	Error      *string         `a2e:"error,nullable"`
	ErrorCode  *string         `a2e:"error_code,nullable"`
	DurationMs int64           `a2e:"duration_ms,required"` // without the time in the queue
	Events     []a2e.Message   `a2e:"events"`

	Extra a2e.Members // what the catalogue does not name
}
