// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package toolkits

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "toolkits"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[ListRequest]("toolkit/list/req"),
		a2e.TypeOf[ListResponse]("toolkit/list/resp"),
		a2e.TypeOf[ConfigureRequest]("toolkit/configure/req"),
		a2e.TypeOf[ConfigureResponse]("toolkit/configure/resp"),
	}
}

// A ListRequest is the message "toolkit/list/req".
type ListRequest struct {
	FilterKind string   `a2e:"filter_kind"`
	FilterTags []string `a2e:"filter_tags"`
}

// A ListResponse is the message "toolkit/list/resp".
type ListResponse struct {
	ReqID    string       `a2e:"req_id"` // the request answered
	Toolkits []Definition `a2e:"toolkits"`
}

// RequestID returns ReqID.
func (l *ListResponse) RequestID() string { return l.ReqID }

// A ConfigureRequest is the message "toolkit/configure/req".
type ConfigureRequest struct {
	SessionID   string          `a2e:"session_id"` // of the handshake; empty for the one at hand
	ToolkitName string          `a2e:"toolkit_name"`
	Config      json.RawMessage `a2e:"config,object"`
}

// A ConfigureResponse is the message "toolkit/configure/resp".
type ConfigureResponse struct {
	ReqID       string  `a2e:"req_id"` // the request answered
	ToolkitName string  `a2e:"toolkit_name"`
	Status      string  `a2e:"status,default=ok"`
	Message     *string `a2e:"message,nullable"`
}

// RequestID returns ReqID.
func (c *ConfigureResponse) RequestID() string { return c.ReqID }

// A Definition describes one toolkit.
type Definition struct {
	Name        string          `a2e:"name,required"`
	Alias       string          `a2e:"alias"`
	Description string          `a2e:"description"`
	Category    string          `a2e:"category"`
	Tags        []string        `a2e:"tags"`
	IconSVG     *string         `a2e:"icon_svg,nullable"`
	Schema      json.RawMessage `a2e:"schema,object"`
	Tools       []string        `a2e:"tools,required"`
	Configured  bool            `a2e:"configured"`
	Version     string          `a2e:"version,default=1.0.0"`

	Extra a2e.Members // what the catalogue does not name
}
