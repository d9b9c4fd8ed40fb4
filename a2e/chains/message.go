// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
	SessionID     string          `a2e:"session_id"` // of the handshake; empty for the one at hand
	ChainID       string          `a2e:"chain_id"`
	Nodes         []Node          `a2e:"nodes"`
	EntryNode     string          `a2e:"entry_node"`
	InitialInput  json.RawMessage `a2e:"initial_input,object"`
	CorrelationID string          `a2e:"correlation_id"`            // the caller's own trace id
	Streaming     bool            `a2e:"streaming,default=true"`    // send events while it runs
	Timeout       int64           `a2e:"timeout,default=300,min=0"` // seconds
}

// An Event is the message "chain/event".
type Event struct {
	Kind   string          `a2e:"kind,default=status"`
	ReqID  string          `a2e:"req_id"` // the request answered
	Data   json.RawMessage `a2e:"data,object"`
	Seq    int64           `a2e:"seq"`
	NodeID string          `a2e:"node_id"`
	Phase  string          `a2e:"phase,default=start"`
	Output json.RawMessage `a2e:"output,nullable"`
	Error  string          `a2e:"error"`
}

// RequestID returns ReqID.
func (e *Event) RequestID() string { return e.ReqID }

// EventInfo returns what all events have.
func (e *Event) EventInfo() a2e.EventBody {
	return a2e.EventBody{Kind: e.Kind, ReqID: e.ReqID, Data: e.Data, Seq: e.Seq}
}

// A Response is the message "chain/resp".
type Response struct {
	ReqID       string          `a2e:"req_id"` // the request answered
	ChainID     string          `a2e:"chain_id"`
	Success     bool            `a2e:"success"`
	Outputs     json.RawMessage `a2e:"outputs,object"`
	FinalOutput json.RawMessage `a2e:"final_output,nullable"`
	DurationMs  int64           `a2e:"duration_ms"` // without the time in the queue
	NodesRun    int64           `a2e:"nodes_run"`
	Error       json.RawMessage `a2e:"error,object,nullable"`
}

// RequestID returns ReqID.
func (r *Response) RequestID() string { return r.ReqID }

// A Node is one step of a chain.
type Node struct {
	NodeID    string          `a2e:"node_id,required"`
	Kind      string          `a2e:"kind,required"`
	Name      string          `a2e:"name"`
	Input     json.RawMessage `a2e:"input,object"`
	InputMap  json.RawMessage `a2e:"input_map,object"`
	Condition string          `a2e:"condition"`
	TrueNode  string          `a2e:"true_node"`
	FalseNode string          `a2e:"false_node"`
	ItemsPath string          `a2e:"items_path"`
	MapNode   string          `a2e:"map_node"`
	NextNode  string          `a2e:"next_node"`
	OnError   string          `a2e:"on_error,default=abort"`

	Extra a2e.Members // what the catalogue does not name
}
