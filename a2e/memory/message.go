// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
	Namespace string                    `a2e:"namespace,default=default"`
	Scope     a2e.OrderedObject[string] `a2e:"scope"`
	Metadata  json.RawMessage           `a2e:"metadata,object"`
}

// An InitResponse is the message "memory/init/resp".
type InitResponse struct {
	ReqID     string `a2e:"req_id"` // the request answered
	MemoryID  string `a2e:"memory_id,required"`
	Namespace string `a2e:"namespace,required"`
	Success   bool   `a2e:"success,default=true"`
}

// RequestID returns ReqID.
func (i *InitResponse) RequestID() string { return i.ReqID }

// A StoreRequest is the message "memory/store/req".
type StoreRequest struct {
	MemoryID string            `a2e:"memory_id,required"`
	Entries  []json.RawMessage `a2e:"entries,object"`
}

// A StoreResponse is the message "memory/store/resp".
type StoreResponse struct {
	ReqID  string            `a2e:"req_id"` // the request answered
	Stored []json.RawMessage `a2e:"stored,object"`
	Errors []string          `a2e:"errors"`
}

// RequestID returns ReqID.
func (s *StoreResponse) RequestID() string { return s.ReqID }

// A RetrieveRequest is the message "memory/retrieve/req".
type RetrieveRequest struct {
	MemoryID string            `a2e:"memory_id,required"`
	Keys     []json.RawMessage `a2e:"keys,object"`
	Query    string            `a2e:"query"`
	Tags     []string          `a2e:"tags"`
	Tier     string            `a2e:"tier"`
	Limit    int64             `a2e:"limit,default=10,min=0"`
	MinScore float64           `a2e:"min_score"`
}

// A RetrieveResponse is the message "memory/retrieve/resp".
type RetrieveResponse struct {
	ReqID   string            `a2e:"req_id"` // the request answered
	Entries []json.RawMessage `a2e:"entries,object"`
	Total   int64             `a2e:"total"` // before the limit
}

// RequestID returns ReqID.
func (r *RetrieveResponse) RequestID() string { return r.ReqID }

// A ForgetRequest is the message "memory/forget/req".
type ForgetRequest struct {
	MemoryID string            `a2e:"memory_id,required"`
	Keys     []json.RawMessage `a2e:"keys,object"`
	Tags     []string          `a2e:"tags"`
	Tier     string            `a2e:"tier,default=episodic"`
}

// A ForgetResponse is the message "memory/forget/resp".
type ForgetResponse struct {
	ReqID   string `a2e:"req_id"` // the request answered
	Deleted int64  `a2e:"deleted"`
}

// RequestID returns ReqID.
func (f *ForgetResponse) RequestID() string { return f.ReqID }

// An Entry is one thing remembered.
type Entry struct {
	Key       json.RawMessage `a2e:"key,object,required"`
	Content   json.RawMessage `a2e:"content,required"`
	Tier      string          `a2e:"tier,required"`
	Tags      []string        `a2e:"tags"`
	Source    string          `a2e:"source"`
	Score     float64         `a2e:"score,default=1"`
	TTL       int64           `a2e:"ttl"`                 // seconds; 0 keeps it
	CreatedAt *float64        `a2e:"created_at,nullable"` // Unix seconds
	UpdatedAt *float64        `a2e:"updated_at,nullable"` // Unix seconds

	Extra a2e.Members // what the catalogue does not name
}
