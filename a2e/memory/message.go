// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package memory is the namespace of memories: entries in three tiers, which are found by their keys, tags
// and words.
package memory

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "memory"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[InitRequest]("memory/init/req"),
		a2e.TypeOf[InitResponse]("memory/init/resp"),
		a2e.TypeOf[StoreRequest]("memory/store/req"),
		a2e.TypeOf[StoreResponse]("memory/store/resp"),
		a2e.TypeOf[RetrieveRequest]("memory/retrieve/req"),
		a2e.TypeOf[RetrieveResponse]("memory/retrieve/resp"),
		a2e.TypeOf[ForgetRequest]("memory/forget/req"),
		a2e.TypeOf[ForgetResponse]("memory/forget/resp"),
	}
}

// An InitRequest is the message "memory/init/req".
type InitRequest struct {
	Namespace string                    `json:"namespace,omitzero" jsonmap:"default=default"`
	Scope     a2e.OrderedObject[string] `json:"scope,omitzero" jsonmap:"always"`
	Metadata  json.RawMessage           `json:"metadata,omitzero" jsonmap:"always,object"`
}

// An InitResponse is the message "memory/init/resp".
type InitResponse struct {
	ReqID     string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	MemoryID  string `json:"memory_id"`
	Namespace string `json:"namespace"`
	Success   *bool  `json:"success,omitzero" jsonmap:"default=true"`
}

// A StoreRequest is the message "memory/store/req".
type StoreRequest struct {
	MemoryID string            `json:"memory_id"`
	Entries  []json.RawMessage `json:"entries,omitzero" jsonmap:"always,object"`
}

// A StoreResponse is the message "memory/store/resp".
type StoreResponse struct {
	ReqID  string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Stored []json.RawMessage `json:"stored,omitzero" jsonmap:"always,object"`
	Errors []string          `json:"errors,omitzero" jsonmap:"always"`
}

// A RetrieveRequest is the message "memory/retrieve/req".
type RetrieveRequest struct {
	MemoryID string            `json:"memory_id"`
	Keys     []json.RawMessage `json:"keys,omitzero" jsonmap:"always,object"`
	Query    string            `json:"query,omitzero" jsonmap:"always"`
	Tags     []string          `json:"tags,omitzero" jsonmap:"always"`
	Tier     string            `json:"tier,omitzero" jsonmap:"always"`
	Limit    a2e.Limit         `json:"limit,omitzero" jsonmap:"default=10"`
	MinScore float64           `json:"min_score,omitzero" jsonmap:"always"`
}

// A RetrieveResponse is the message "memory/retrieve/resp".
type RetrieveResponse struct {
	ReqID   string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Entries []json.RawMessage `json:"entries,omitzero" jsonmap:"always,object"`
	Total   int64             `json:"total,omitzero" jsonmap:"always"` // before the limit
}

// A ForgetRequest is the message "memory/forget/req".
type ForgetRequest struct {
	MemoryID string            `json:"memory_id"`
	Keys     []json.RawMessage `json:"keys,omitzero" jsonmap:"always,object"`
	Tags     []string          `json:"tags,omitzero" jsonmap:"always"`
	Tier     string            `json:"tier,omitzero" jsonmap:"default=episodic"`
}

// A ForgetResponse is the message "memory/forget/resp".
type ForgetResponse struct {
	ReqID   string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Deleted int64  `json:"deleted,omitzero" jsonmap:"always"`
}

// An Entry is one thing remembered.
type Entry struct {
	Key       json.RawMessage `json:"key" jsonmap:"object"`
	Content   json.RawMessage `json:"content"`
	Tier      string          `json:"tier"`
	Tags      []string        `json:"tags,omitzero" jsonmap:"always"`
	Source    string          `json:"source,omitzero" jsonmap:"always"`
	Score     *float64        `json:"score,omitzero" jsonmap:"default=1"`
	TTL       int64           `json:"ttl,omitzero" jsonmap:"always"` // seconds; 0 keeps it
	CreatedAt *float64        `json:"created_at,omitzero"`           // Unix seconds
	UpdatedAt *float64        `json:"updated_at,omitzero"`           // Unix seconds

	Extra a2e.Members // what the catalogue does not name
}
