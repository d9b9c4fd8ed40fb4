// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
	FilterTags       []string `a2e:"filter_tags"`
	FilterCategories []string `a2e:"filter_categories"`
}

// A DiscoverResponse is the message "skill/discover/resp".
type DiscoverResponse struct {
	ReqID  string       `a2e:"req_id"` // the request answered
	Skills []Definition `a2e:"skills"`
}

// RequestID returns ReqID.
func (d *DiscoverResponse) RequestID() string { return d.ReqID }

// A CallRequest is the message "skill/call/req".
type CallRequest struct {
	Name          string          `a2e:"name"`
	Arguments     json.RawMessage `a2e:"arguments,object"`
	CorrelationID string          `a2e:"correlation_id"`           // the caller's own trace id
	Timeout       int64           `a2e:"timeout,default=60,min=0"` // seconds
	Streaming     bool            `a2e:"streaming,default=true"`   // send events while it runs
	LLMOverride   *LLMConfig      `a2e:"llm_override,nullable"`
	Metadata      json.RawMessage `a2e:"metadata,object"`
}

// A CallResponse is the message "skill/call/resp".
type CallResponse struct {
	ReqID     string          `a2e:"req_id"` // the request answered
	Name      string          `a2e:"name"`
	Data      *Result         `a2e:"data,null"`
	Error     json.RawMessage `a2e:"error,object,nullable"`
	CreatedAt *float64        `a2e:"created_at,nullable"` // Unix seconds
}

// RequestID returns ReqID.
func (c *CallResponse) RequestID() string { return c.ReqID }

// A Definition describes one skill.
type Definition struct {
	Name           string            `a2e:"name,required"`
	Version        string            `a2e:"version,required"`
	Description    string            `a2e:"description,required"`
	Triggers       []string          `a2e:"triggers,required"`
	Tools          []json.RawMessage `a2e:"tools,nullable"`
	Toolkits       []json.RawMessage `a2e:"toolkits,nullable"`
	Status         string            `a2e:"status,required"`
	InputSchema    json.RawMessage   `a2e:"input_schema,object"`
	OutputSchema   json.RawMessage   `a2e:"output_schema,object"`
	Instructions   *string           `a2e:"instructions,nullable"`
	FilePath       *string           `a2e:"file_path,nullable"`
	LLMConfig      *LLMConfig        `a2e:"llm_config,nullable"`
	Arguments      []string          `a2e:"arguments,nullable,alt=emptyobject"`
	WhenToUse      string            `a2e:"when_to_use,required"`
	ArgumentHint   string            `a2e:"argument_hint,required"`
	Source         string            `a2e:"source,required"`
	Category       *string           `a2e:"category,nullable"`
	Tags           []string          `a2e:"tags,nullable"`
	MaxTurns       *int64            `a2e:"max_turns,nullable"`
	TimeoutSeconds *int64            `a2e:"timeout_seconds,nullable"`
	Icon           *string           `a2e:"icon,nullable"`
	Metadata       json.RawMessage   `a2e:"metadata,object,nullable"`

	Extra a2e.Members // what the catalogue does not name
}

// A LLMConfig says which model to use; it holds credentials and must not be logged.
type LLMConfig struct {
	ProviderName        string          `a2e:"provider_name,required"`
	ProviderCredentials json.RawMessage `a2e:"provider_credentials,object,required"`
	ProviderConfig      json.RawMessage `a2e:"provider_config,object,nullable,alt=false"`
	IsDefault           bool            `a2e:"is_default"`

	Extra a2e.Members // what the catalogue does not name
}

// A Result is what a skill came to.
type Result struct {
	Success    bool            `a2e:"success,required"`
	Data       json.RawMessage `a2e:"data,nullable"`
	Summary    json.RawMessage `a2e:"summary,nullable"`
	Truncated  bool            `a2e:"truncated"` // something was cut off
	Error      *string         `a2e:"error,nullable"`
	ErrorCode  *string         `a2e:"error_code,nullable"`
	DurationMs int64           `a2e:"duration_ms,required"` // without the time in the queue
	Events     []a2e.Message   `a2e:"events"`

	Extra a2e.Members // what the catalogue does not name
}
