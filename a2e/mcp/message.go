// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "mcp"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[ServerListRequest]("mcp/server/list/req"),
		a2e.TypeOf[ServerListResponse]("mcp/server/list/resp"),
		a2e.TypeOf[ServerRegisterRequest]("mcp/server/register/req"),
		a2e.TypeOf[ServerRegisterResponse]("mcp/server/register/resp"),
		a2e.TypeOf[ServerUnregisterRequest]("mcp/server/unregister/req"),
		a2e.TypeOf[ServerUnregisterResponse]("mcp/server/unregister/resp"),
		a2e.TypeOf[ServerPush]("mcp/server/push"),
		a2e.TypeOf[ResourceListRequest]("mcp/resource/list/req"),
		a2e.TypeOf[ResourceListResponse]("mcp/resource/list/resp"),
		a2e.TypeOf[ResourceReadRequest]("mcp/resource/read/req"),
		a2e.TypeOf[ResourceReadResponse]("mcp/resource/read/resp"),
		a2e.TypeOf[ResourceSubscribeRequest]("mcp/resource/subscribe/req"),
		a2e.TypeOf[ResourceSubscribeResponse]("mcp/resource/subscribe/resp"),
		a2e.TypeOf[PromptListRequest]("mcp/prompt/list/req"),
		a2e.TypeOf[PromptListResponse]("mcp/prompt/list/resp"),
		a2e.TypeOf[PromptGetRequest]("mcp/prompt/get/req"),
		a2e.TypeOf[PromptGetResponse]("mcp/prompt/get/resp"),
		a2e.TypeOf[SampleRequest]("mcp/sample/req"),
		a2e.TypeOf[SampleResponse]("mcp/sample/resp"),
		a2e.TypeOf[RootListRequest]("mcp/root/list/req"),
		a2e.TypeOf[RootListResponse]("mcp/root/list/resp"),
	}
}

// A ServerListRequest is the message "mcp/server/list/req".
type ServerListRequest struct {
	StatusFilter string `a2e:"status_filter"`
}

// A ServerListResponse is the message "mcp/server/list/resp".
type ServerListResponse struct {
	ReqID   string            `a2e:"req_id"` // the request answered
	Servers []json.RawMessage `a2e:"servers,object"`
}

// RequestID returns ReqID.
func (s *ServerListResponse) RequestID() string { return s.ReqID }

// A ServerRegisterRequest is the message "mcp/server/register/req".
type ServerRegisterRequest struct {
	Config json.RawMessage `a2e:"config,object"`
}

// A ServerRegisterResponse is the message "mcp/server/register/resp".
type ServerRegisterResponse struct {
	ReqID  string          `a2e:"req_id"` // the request answered
	OK     bool            `a2e:"ok"`
	Server json.RawMessage `a2e:"server,object"`
	Error  string          `a2e:"error"`
}

// RequestID returns ReqID.
func (s *ServerRegisterResponse) RequestID() string { return s.ReqID }

// A ServerUnregisterRequest is the message "mcp/server/unregister/req".
type ServerUnregisterRequest struct {
	ServerID string `a2e:"server_id"`
}

// A ServerUnregisterResponse is the message "mcp/server/unregister/resp".
type ServerUnregisterResponse struct {
	ReqID    string `a2e:"req_id"` // the request answered
	OK       bool   `a2e:"ok"`
	ServerID string `a2e:"server_id"`
}

// RequestID returns ReqID.
func (s *ServerUnregisterResponse) RequestID() string { return s.ReqID }

// A ServerPush is the message "mcp/server/push".
type ServerPush struct {
	ServerID string          `a2e:"server_id"`
	Method   string          `a2e:"method"`
	Params   json.RawMessage `a2e:"params,object"`
}

// A ResourceListRequest is the message "mcp/resource/list/req".
type ResourceListRequest struct {
	ServerID string `a2e:"server_id"`
	Cursor   string `a2e:"cursor"` // opaque; empty for the beginning
}

// A ResourceListResponse is the message "mcp/resource/list/resp".
type ResourceListResponse struct {
	ReqID      string            `a2e:"req_id"` // the request answered
	Resources  []json.RawMessage `a2e:"resources,object"`
	NextCursor string            `a2e:"next_cursor"` // empty at the end
}

// RequestID returns ReqID.
func (r *ResourceListResponse) RequestID() string { return r.ReqID }

// A ResourceReadRequest is the message "mcp/resource/read/req".
type ResourceReadRequest struct {
	URI      string `a2e:"uri"`
	ServerID string `a2e:"server_id"`
}

// A ResourceReadResponse is the message "mcp/resource/read/resp".
type ResourceReadResponse struct {
	ReqID    string            `a2e:"req_id"` // the request answered
	Contents []json.RawMessage `a2e:"contents,object"`
	ServerID string            `a2e:"server_id"`
	Error    string            `a2e:"error"`
}

// RequestID returns ReqID.
func (r *ResourceReadResponse) RequestID() string { return r.ReqID }

// A ResourceSubscribeRequest is the message "mcp/resource/subscribe/req".
type ResourceSubscribeRequest struct {
	URI      string `a2e:"uri"`
	ServerID string `a2e:"server_id"`
}

// A ResourceSubscribeResponse is the message "mcp/resource/subscribe/resp".
type ResourceSubscribeResponse struct {
	ReqID string `a2e:"req_id"` // the request answered
	OK    bool   `a2e:"ok"`
	Error string `a2e:"error"`
}

// RequestID returns ReqID.
func (r *ResourceSubscribeResponse) RequestID() string { return r.ReqID }

// A PromptListRequest is the message "mcp/prompt/list/req".
type PromptListRequest struct {
	ServerID string `a2e:"server_id"`
	Cursor   string `a2e:"cursor"` // opaque; empty for the beginning
}

// A PromptListResponse is the message "mcp/prompt/list/resp".
type PromptListResponse struct {
	ReqID      string            `a2e:"req_id"` // the request answered
	Prompts    []json.RawMessage `a2e:"prompts,object"`
	NextCursor string            `a2e:"next_cursor"` // empty at the end
}

// RequestID returns ReqID.
func (p *PromptListResponse) RequestID() string { return p.ReqID }

// A PromptGetRequest is the message "mcp/prompt/get/req".
type PromptGetRequest struct {
	Name      string          `a2e:"name"`
	Arguments json.RawMessage `a2e:"arguments,object"`
	ServerID  string          `a2e:"server_id"`
}

// A PromptGetResponse is the message "mcp/prompt/get/resp".
type PromptGetResponse struct {
	ReqID       string            `a2e:"req_id"` // the request answered
	Description string            `a2e:"description"`
	Messages    []json.RawMessage `a2e:"messages,object"`
	ServerID    string            `a2e:"server_id"`
	Error       string            `a2e:"error"`
}

// RequestID returns ReqID.
func (p *PromptGetResponse) RequestID() string { return p.ReqID }

// A SampleRequest is the message "mcp/sample/req".
type SampleRequest struct {
	ServerID         string            `a2e:"server_id"`
	MCPRequestID     string            `a2e:"mcp_request_id"`
	Messages         []json.RawMessage `a2e:"messages,object"`
	ModelPreferences json.RawMessage   `a2e:"model_preferences,object"`
	SystemPrompt     string            `a2e:"system_prompt"`
	IncludeContext   string            `a2e:"include_context,default=none"`
	Temperature      float64           `a2e:"temperature,default=1"`
	MaxTokens        int64             `a2e:"max_tokens,default=1024"`
	StopSequences    []string          `a2e:"stop_sequences"`
	Metadata         json.RawMessage   `a2e:"metadata,object"`
}

// A SampleResponse is the message "mcp/sample/resp".
type SampleResponse struct {
	ReqID        string          `a2e:"req_id"` // the request answered
	ServerID     string          `a2e:"server_id"`
	MCPRequestID string          `a2e:"mcp_request_id"`
	Role         string          `a2e:"role,default=assistant"`
	Content      json.RawMessage `a2e:"content,object"`
	Model        string          `a2e:"model"`
	StopReason   string          `a2e:"stop_reason"`
	Error        string          `a2e:"error"`
}

// RequestID returns ReqID.
func (s *SampleResponse) RequestID() string { return s.ReqID }

// A RootListRequest is the message "mcp/root/list/req".
type RootListRequest struct {
	ServerID     string `a2e:"server_id"`
	MCPRequestID string `a2e:"mcp_request_id"`
}

// A RootListResponse is the message "mcp/root/list/resp".
type RootListResponse struct {
	ReqID        string            `a2e:"req_id"` // the request answered
	ServerID     string            `a2e:"server_id"`
	MCPRequestID string            `a2e:"mcp_request_id"`
	Roots        []json.RawMessage `a2e:"roots,object"`
}

// RequestID returns ReqID.
func (r *RootListResponse) RequestID() string { return r.ReqID }

// A ServerConfig says how to reach an MCP server; it may hold credentials and must not be logged.
type ServerConfig struct {
	ServerID          string                    `a2e:"server_id"`
	Name              string                    `a2e:"name"`
	Transport         string                    `a2e:"transport,default=stdio"`
	Cmd               []string                  `a2e:"cmd"`
	Cwd               string                    `a2e:"cwd"`
	Env               a2e.OrderedObject[string] `a2e:"env"`
	URL               string                    `a2e:"url"`
	Headers           a2e.OrderedObject[string] `a2e:"headers"`
	Timeout           int64                     `a2e:"timeout,default=300,min=0"` // seconds
	AutoReconnect     bool                      `a2e:"auto_reconnect,default=true"`
	ToolAllowList     []string                  `a2e:"tool_allow_list"`
	ResourceAllowList []string                  `a2e:"resource_allow_list"`

	Extra a2e.Members // what the catalogue does not name
}

// A ServerInfo tells how an MCP server is.
type ServerInfo struct {
	ServerID       string  `a2e:"server_id,required"`
	Name           string  `a2e:"name,required"`
	Transport      string  `a2e:"transport,required"`
	Status         string  `a2e:"status,default=disconnected"`
	MCPVersion     string  `a2e:"mcp_version"`
	ServerName     string  `a2e:"server_name"`
	ServerVersion  string  `a2e:"server_version"`
	ToolsCount     int64   `a2e:"tools_count"`
	ResourcesCount int64   `a2e:"resources_count"`
	PromptsCount   int64   `a2e:"prompts_count"`
	LastPingMs     float64 `a2e:"last_ping_ms"`
	Error          string  `a2e:"error"`
	ConnectedAt    float64 `a2e:"connected_at"`

	Extra a2e.Members // what the catalogue does not name
}

// A Resource names one resource of an MCP server.
type Resource struct {
	URI         string          `a2e:"uri,required"`
	Name        string          `a2e:"name"`
	Description string          `a2e:"description"`
	MimeType    string          `a2e:"mime_type"`
	ServerID    string          `a2e:"server_id"`
	Annotations json.RawMessage `a2e:"annotations,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A ResourceContent is the content of a resource.
type ResourceContent struct {
	URI      string `a2e:"uri,required"`
	MimeType string `a2e:"mime_type,default=text/plain"`
	Text     string `a2e:"text"`
	Blob     string `a2e:"blob"`
	Type     string `a2e:"type,default=text"`

	Extra a2e.Members // what the catalogue does not name
}

// A Prompt names one prompt of an MCP server.
type Prompt struct {
	Name        string            `a2e:"name,required"`
	Description string            `a2e:"description"`
	ServerID    string            `a2e:"server_id"`
	Arguments   []json.RawMessage `a2e:"arguments,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A PromptMessage is one message of a prompt.
type PromptMessage struct {
	Role    string          `a2e:"role,required"`
	Content json.RawMessage `a2e:"content,object,required"`

	Extra a2e.Members // what the catalogue does not name
}

// A Root is a place that the agent lets MCP servers work in.
type Root struct {
	URI  string `a2e:"uri,required"`
	Name string `a2e:"name"`

	Extra a2e.Members // what the catalogue does not name
}
