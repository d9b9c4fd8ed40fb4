// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package chains is the namespace of chains: graphs of tools, skills and processes that a host runs for one
// request.
package chains

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "chains"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[Request]("chain/req"),
		a2e.TypeOf[Event]("chain/event"),
		a2e.TypeOf[Response]("chain/resp"),
	}
}

// A Request is the message "chain/req".
type Request struct {
	SessionID     string          `json:"session_id,omitzero" jsonmap:"always"` // of the handshake; empty means the current session
	ChainID       string          `json:"chain_id,omitzero" jsonmap:"always"`
	Nodes         []Node          `json:"nodes,omitzero" jsonmap:"always"`
	EntryNode     string          `json:"entry_node,omitzero" jsonmap:"always"`
	InitialInput  json.RawMessage `json:"initial_input,omitzero" jsonmap:"always,object"`
	CorrelationID string          `json:"correlation_id,omitzero" jsonmap:"always"`  // the caller's own trace id
	Streaming     *bool           `json:"streaming,omitzero" jsonmap:"default=true"` // send events while it runs
	Timeout       a2e.Limit       `json:"timeout,omitzero" jsonmap:"default=300"`    // seconds
}

// An Event is the message "chain/event".
type Event struct {
	Kind   string          `json:"kind,omitzero" jsonmap:"default=status"`
	ReqID  string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Data   json.RawMessage `json:"data,omitzero" jsonmap:"always,object"`
	Seq    int64           `json:"seq,omitzero" jsonmap:"always"`
	NodeID string          `json:"node_id,omitzero" jsonmap:"always"`
	Phase  string          `json:"phase,omitzero" jsonmap:"default=start"`
	Output json.RawMessage `json:"output,omitzero" jsonmap:"unset"`
	Error  string          `json:"error,omitzero" jsonmap:"always"`
}

// A Response is the message "chain/resp".
type Response struct {
	ReqID       string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ChainID     string          `json:"chain_id,omitzero" jsonmap:"always"`
	Success     bool            `json:"success,omitzero" jsonmap:"always"`
	Outputs     json.RawMessage `json:"outputs,omitzero" jsonmap:"always,object"`
	FinalOutput json.RawMessage `json:"final_output,omitzero" jsonmap:"unset"`
	DurationMs  int64           `json:"duration_ms,omitzero" jsonmap:"always"` // without the time in the queue
	NodesRun    int64           `json:"nodes_run,omitzero" jsonmap:"always"`
	Error       json.RawMessage `json:"error,omitzero" jsonmap:"object"`
}

// A Node is one step of a chain.
type Node struct {
	NodeID    string          `json:"node_id"`
	Kind      string          `json:"kind"`
	Name      string          `json:"name,omitzero" jsonmap:"always"`
	Input     json.RawMessage `json:"input,omitzero" jsonmap:"always,object"`
	InputMap  json.RawMessage `json:"input_map,omitzero" jsonmap:"always,object"`
	Condition string          `json:"condition,omitzero" jsonmap:"always"`
	TrueNode  string          `json:"true_node,omitzero" jsonmap:"always"`
	FalseNode string          `json:"false_node,omitzero" jsonmap:"always"`
	ItemsPath string          `json:"items_path,omitzero" jsonmap:"always"`
	MapNode   string          `json:"map_node,omitzero" jsonmap:"always"`
	NextNode  string          `json:"next_node,omitzero" jsonmap:"always"`
	OnError   string          `json:"on_error,omitzero" jsonmap:"default=abort"`

	Extra a2e.Members // what the catalogue does not name
}
