// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package toolkits is the namespace of toolkits: groups of tools that a session configures before it uses
// them.
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
	FilterKind string   `json:"filter_kind,omitzero" jsonmap:"always"`
	FilterTags []string `json:"filter_tags,omitzero" jsonmap:"always"`
}

// A ListResponse is the message "toolkit/list/resp".
type ListResponse struct {
	ReqID    string       `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Toolkits []Definition `json:"toolkits,omitzero" jsonmap:"always"`
}

// A ConfigureRequest is the message "toolkit/configure/req".
type ConfigureRequest struct {
	SessionID   string          `json:"session_id,omitzero" jsonmap:"always"` // of the handshake; empty means the current session
	ToolkitName string          `json:"toolkit_name,omitzero" jsonmap:"always"`
	Config      json.RawMessage `json:"config,omitzero" jsonmap:"always,object"`
}

// A ConfigureResponse is the message "toolkit/configure/resp".
type ConfigureResponse struct {
	ReqID       string  `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ToolkitName string  `json:"toolkit_name,omitzero" jsonmap:"always"`
	Status      string  `json:"status,omitzero" jsonmap:"default=ok"`
	Message     *string `json:"message,omitzero"`
}

// A Definition describes one toolkit.
type Definition struct {
	Name        string          `json:"name"`
	Alias       string          `json:"alias,omitzero" jsonmap:"always"`
	Description string          `json:"description,omitzero" jsonmap:"always"`
	Category    string          `json:"category,omitzero" jsonmap:"always"`
	Tags        []string        `json:"tags,omitzero" jsonmap:"always"`
	IconSVG     *string         `json:"icon_svg,omitzero"`
	Schema      json.RawMessage `json:"schema,omitzero" jsonmap:"always,object"`
	Tools       []string        `json:"tools"`
	Configured  bool            `json:"configured,omitzero" jsonmap:"always"`
	Version     string          `json:"version,omitzero" jsonmap:"default=1.0.0"`

	Extra a2e.Members // what the catalogue does not name
}
