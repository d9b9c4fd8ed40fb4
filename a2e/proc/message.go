// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "proc"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[SpawnRequest]("proc/spawn/req"),
		a2e.TypeOf[SpawnResponse]("proc/spawn/resp"),
		a2e.TypeOf[WriteRequest]("proc/write/req"),
		a2e.TypeOf[WriteResponse]("proc/write/resp"),
		a2e.TypeOf[ReadEvent]("proc/read/event"),
		a2e.TypeOf[KillRequest]("proc/kill/req"),
		a2e.TypeOf[KillResponse]("proc/kill/resp"),
		a2e.TypeOf[StatusRequest]("proc/status/req"),
		a2e.TypeOf[StatusResponse]("proc/status/resp"),
	}
}

// A SpawnRequest is the message "proc/spawn/req".
type SpawnRequest struct {
	SessionID string                    `a2e:"session_id"` // of the handshake; empty for the one at hand
	Cmd       []string                  `a2e:"cmd"`
	Cwd       string                    `a2e:"cwd"`
	Env       a2e.OrderedObject[string] `a2e:"env"`
	StdinMode string                    `a2e:"stdin_mode,default=pipe"`
	Timeout   int64                     `a2e:"timeout,min=0"` // seconds
}

// A SpawnResponse is the message "proc/spawn/resp".
type SpawnResponse struct {
	ReqID  string `a2e:"req_id"` // the request answered
	ProcID string `a2e:"proc_id"`
	OK     bool   `a2e:"ok"`
	PID    int64  `a2e:"pid"`
	Error  string `a2e:"error"`
}

// RequestID returns ReqID.
func (s *SpawnResponse) RequestID() string { return s.ReqID }

// A WriteRequest is the message "proc/write/req".
type WriteRequest struct {
	ProcID string `a2e:"proc_id"`
	Data   string `a2e:"data"`
	EOF    bool   `a2e:"eof"` // close stdin afterwards
}

// A WriteResponse is the message "proc/write/resp".
type WriteResponse struct {
	ReqID  string `a2e:"req_id"` // the request answered
	ProcID string `a2e:"proc_id"`
	OK     bool   `a2e:"ok"`
	PID    int64  `a2e:"pid"`
	Error  string `a2e:"error"`
}

// RequestID returns ReqID.
func (w *WriteResponse) RequestID() string { return w.ReqID }

// A ReadEvent is the message "proc/read/event".
type ReadEvent struct {
	Kind       string          `a2e:"kind,default=status"`
	ReqID      string          `a2e:"req_id"` // the request answered
	Data       json.RawMessage `a2e:"data,object,alt=text"`
	Seq        int64           `a2e:"seq"`
	ProcID     string          `a2e:"proc_id"`
	StreamType string          `a2e:"stream_type,default=stdout"`
}

// RequestID returns ReqID.
func (r *ReadEvent) RequestID() string { return r.ReqID }

// EventInfo returns what all events have.
func (r *ReadEvent) EventInfo() a2e.EventBody {
	return a2e.EventBody{Kind: r.Kind, ReqID: r.ReqID, Data: r.Data, Seq: r.Seq}
}

// A KillRequest is the message "proc/kill/req".
type KillRequest struct {
	ProcID string `a2e:"proc_id"`
	Signal string `a2e:"signal,default=SIGTERM"`
}

// A KillResponse is the message "proc/kill/resp".
type KillResponse struct {
	ReqID string `a2e:"req_id"` // the request answered
	OK    bool   `a2e:"ok"`
	State string `a2e:"state"`
}

// RequestID returns ReqID.
func (k *KillResponse) RequestID() string { return k.ReqID }

// A StatusRequest is the message "proc/status/req".
type StatusRequest struct {
	ProcID string `a2e:"proc_id"`
}

// A StatusResponse is the message "proc/status/resp".
type StatusResponse struct {
	ReqID  string `a2e:"req_id"` // the request answered
	ProcID string `a2e:"proc_id,required"`
	Status string `a2e:"status,required"`
	Error  string `a2e:"error,required"`
}

// RequestID returns ReqID.
func (s *StatusResponse) RequestID() string { return s.ReqID }

// A Status tells how one process is.
type Status struct {
	ProcID    string  `a2e:"proc_id,required"`
	Cmd       string  `a2e:"cmd,required"`
	State     string  `a2e:"state,required"`
	PID       int64   `a2e:"pid"`
	ExitCode  *int64  `a2e:"exit_code,nullable"`
	StartedAt float64 `a2e:"started_at"`

	Extra a2e.Members // what the catalogue does not name
}
