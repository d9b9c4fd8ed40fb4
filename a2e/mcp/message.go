// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcp is the namespace of MCP servers: a session registers them, and uses their tools, resources and
// prompts. The nested module mcpbridge connects to such servers.
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
	StatusFilter string `json:"status_filter,omitzero" jsonmap:"always"`
}

// A ServerListResponse is the message "mcp/server/list/resp".
type ServerListResponse struct {
	ReqID   string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Servers []json.RawMessage `json:"servers,omitzero" jsonmap:"always,object"`
}

// A ServerRegisterRequest is the message "mcp/server/register/req".
type ServerRegisterRequest struct {
	Config json.RawMessage `json:"config,omitzero" jsonmap:"always,object"`
}

// A ServerRegisterResponse is the message "mcp/server/register/resp".
type ServerRegisterResponse struct {
	ReqID  string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	OK     bool            `json:"ok,omitzero" jsonmap:"always"`
	Server json.RawMessage `json:"server,omitzero" jsonmap:"always,object"`
	Error  string          `json:"error,omitzero" jsonmap:"always"`
}

// A ServerUnregisterRequest is the message "mcp/server/unregister/req".
type ServerUnregisterRequest struct {
	ServerID string `json:"server_id,omitzero" jsonmap:"always"`
}

// A ServerUnregisterResponse is the message "mcp/server/unregister/resp".
type ServerUnregisterResponse struct {
	ReqID    string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	OK       bool   `json:"ok,omitzero" jsonmap:"always"`
	ServerID string `json:"server_id,omitzero" jsonmap:"always"`
}

// A ServerPush is the message "mcp/server/push".
type ServerPush struct {
	ServerID string          `json:"server_id,omitzero" jsonmap:"always"`
	Method   string          `json:"method,omitzero" jsonmap:"always"`
	Params   json.RawMessage `json:"params,omitzero" jsonmap:"always,object"`
}

// A ResourceListRequest is the message "mcp/resource/list/req".
type ResourceListRequest struct {
	ServerID string `json:"server_id,omitzero" jsonmap:"always"`
	Cursor   string `json:"cursor,omitzero" jsonmap:"always"` // opaque; empty for the beginning
}

// A ResourceListResponse is the message "mcp/resource/list/resp".
type ResourceListResponse struct {
	ReqID      string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Resources  []json.RawMessage `json:"resources,omitzero" jsonmap:"always,object"`
	NextCursor string            `json:"next_cursor,omitzero" jsonmap:"always"` // empty at the end
}

// A ResourceReadRequest is the message "mcp/resource/read/req".
type ResourceReadRequest struct {
	URI      string `json:"uri,omitzero" jsonmap:"always"`
	ServerID string `json:"server_id,omitzero" jsonmap:"always"`
}

// A ResourceReadResponse is the message "mcp/resource/read/resp".
type ResourceReadResponse struct {
	ReqID    string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Contents []json.RawMessage `json:"contents,omitzero" jsonmap:"always,object"`
	ServerID string            `json:"server_id,omitzero" jsonmap:"always"`
	Error    string            `json:"error,omitzero" jsonmap:"always"`
}

// A ResourceSubscribeRequest is the message "mcp/resource/subscribe/req".
type ResourceSubscribeRequest struct {
	URI      string `json:"uri,omitzero" jsonmap:"always"`
	ServerID string `json:"server_id,omitzero" jsonmap:"always"`
}

// A ResourceSubscribeResponse is the message "mcp/resource/subscribe/resp".
type ResourceSubscribeResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	OK    bool   `json:"ok,omitzero" jsonmap:"always"`
	Error string `json:"error,omitzero" jsonmap:"always"`
}

// A PromptListRequest is the message "mcp/prompt/list/req".
type PromptListRequest struct {
	ServerID string `json:"server_id,omitzero" jsonmap:"always"`
	Cursor   string `json:"cursor,omitzero" jsonmap:"always"` // opaque; empty for the beginning
}

// A PromptListResponse is the message "mcp/prompt/list/resp".
type PromptListResponse struct {
	ReqID      string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Prompts    []json.RawMessage `json:"prompts,omitzero" jsonmap:"always,object"`
	NextCursor string            `json:"next_cursor,omitzero" jsonmap:"always"` // empty at the end
}

// A PromptGetRequest is the message "mcp/prompt/get/req".
type PromptGetRequest struct {
	Name      string          `json:"name,omitzero" jsonmap:"always"`
	Arguments json.RawMessage `json:"arguments,omitzero" jsonmap:"always,object"`
	ServerID  string          `json:"server_id,omitzero" jsonmap:"always"`
}

// A PromptGetResponse is the message "mcp/prompt/get/resp".
type PromptGetResponse struct {
	ReqID       string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Description string            `json:"description,omitzero" jsonmap:"always"`
	Messages    []json.RawMessage `json:"messages,omitzero" jsonmap:"always,object"`
	ServerID    string            `json:"server_id,omitzero" jsonmap:"always"`
	Error       string            `json:"error,omitzero" jsonmap:"always"`
}

// A SampleRequest is the message "mcp/sample/req".
type SampleRequest struct {
	ServerID         string            `json:"server_id,omitzero" jsonmap:"always"`
	MCPRequestID     string            `json:"mcp_request_id,omitzero" jsonmap:"always"`
	Messages         []json.RawMessage `json:"messages,omitzero" jsonmap:"always,object"`
	ModelPreferences json.RawMessage   `json:"model_preferences,omitzero" jsonmap:"always,object"`
	SystemPrompt     string            `json:"system_prompt,omitzero" jsonmap:"always"`
	IncludeContext   string            `json:"include_context,omitzero" jsonmap:"default=none"`
	Temperature      *float64          `json:"temperature,omitzero" jsonmap:"default=1"`
	MaxTokens        *int64            `json:"max_tokens,omitzero" jsonmap:"default=1024"`
	StopSequences    []string          `json:"stop_sequences,omitzero" jsonmap:"always"`
	Metadata         json.RawMessage   `json:"metadata,omitzero" jsonmap:"always,object"`
}

// A SampleResponse is the message "mcp/sample/resp".
type SampleResponse struct {
	ReqID        string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ServerID     string          `json:"server_id,omitzero" jsonmap:"always"`
	MCPRequestID string          `json:"mcp_request_id,omitzero" jsonmap:"always"`
	Role         string          `json:"role,omitzero" jsonmap:"default=assistant"`
	Content      json.RawMessage `json:"content,omitzero" jsonmap:"always,object"`
	Model        string          `json:"model,omitzero" jsonmap:"always"`
	StopReason   string          `json:"stop_reason,omitzero" jsonmap:"always"`
	Error        string          `json:"error,omitzero" jsonmap:"always"`
}

// A RootListRequest is the message "mcp/root/list/req".
type RootListRequest struct {
	ServerID     string `json:"server_id,omitzero" jsonmap:"always"`
	MCPRequestID string `json:"mcp_request_id,omitzero" jsonmap:"always"`
}

// A RootListResponse is the message "mcp/root/list/resp".
type RootListResponse struct {
	ReqID        string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ServerID     string            `json:"server_id,omitzero" jsonmap:"always"`
	MCPRequestID string            `json:"mcp_request_id,omitzero" jsonmap:"always"`
	Roots        []json.RawMessage `json:"roots,omitzero" jsonmap:"always,object"`
}

// A ServerConfig describes how to reach an MCP server; it may hold credentials and must not be
// logged.
type ServerConfig struct {
	ServerID          string                    `json:"server_id,omitzero" jsonmap:"always"`
	Name              string                    `json:"name,omitzero" jsonmap:"always"`
	Transport         string                    `json:"transport,omitzero" jsonmap:"default=stdio"`
	Cmd               []string                  `json:"cmd,omitzero" jsonmap:"always"`
	Cwd               string                    `json:"cwd,omitzero" jsonmap:"always"`
	Env               a2e.OrderedObject[string] `json:"env,omitzero" jsonmap:"always"`
	URL               string                    `json:"url,omitzero" jsonmap:"always"`
	Headers           a2e.OrderedObject[string] `json:"headers,omitzero" jsonmap:"always"`
	Timeout           a2e.Limit                 `json:"timeout,omitzero" jsonmap:"default=300"` // seconds
	AutoReconnect     *bool                     `json:"auto_reconnect,omitzero" jsonmap:"default=true"`
	ToolAllowList     []string                  `json:"tool_allow_list,omitzero" jsonmap:"always"`
	ResourceAllowList []string                  `json:"resource_allow_list,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}

// A ServerInfo is the state of an MCP server.
type ServerInfo struct {
	ServerID       string  `json:"server_id"`
	Name           string  `json:"name"`
	Transport      string  `json:"transport"`
	Status         string  `json:"status,omitzero" jsonmap:"default=disconnected"`
	MCPVersion     string  `json:"mcp_version,omitzero" jsonmap:"always"`
	ServerName     string  `json:"server_name,omitzero" jsonmap:"always"`
	ServerVersion  string  `json:"server_version,omitzero" jsonmap:"always"`
	ToolsCount     int64   `json:"tools_count,omitzero" jsonmap:"always"`
	ResourcesCount int64   `json:"resources_count,omitzero" jsonmap:"always"`
	PromptsCount   int64   `json:"prompts_count,omitzero" jsonmap:"always"`
	LastPingMs     float64 `json:"last_ping_ms,omitzero" jsonmap:"always"`
	Error          string  `json:"error,omitzero" jsonmap:"always"`
	ConnectedAt    float64 `json:"connected_at,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}

// A Resource names one resource of an MCP server.
type Resource struct {
	URI         string          `json:"uri"`
	Name        string          `json:"name,omitzero" jsonmap:"always"`
	Description string          `json:"description,omitzero" jsonmap:"always"`
	MimeType    string          `json:"mime_type,omitzero" jsonmap:"always"`
	ServerID    string          `json:"server_id,omitzero" jsonmap:"always"`
	Annotations json.RawMessage `json:"annotations,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A ResourceContent is the content of a resource.
type ResourceContent struct {
	URI      string `json:"uri"`
	MimeType string `json:"mime_type,omitzero" jsonmap:"default=text/plain"`
	Text     string `json:"text,omitzero" jsonmap:"always"`
	Blob     string `json:"blob,omitzero" jsonmap:"always"`
	Type     string `json:"type,omitzero" jsonmap:"default=text"`

	Extra a2e.Members // what the catalogue does not name
}

// A Prompt names one prompt of an MCP server.
type Prompt struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitzero" jsonmap:"always"`
	ServerID    string            `json:"server_id,omitzero" jsonmap:"always"`
	Arguments   []json.RawMessage `json:"arguments,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A PromptMessage is one message of a prompt.
type PromptMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content" jsonmap:"object"`

	Extra a2e.Members // what the catalogue does not name
}

// A Root is a location that the agent opens to MCP servers.
type Root struct {
	URI  string `json:"uri"`
	Name string `json:"name,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}
