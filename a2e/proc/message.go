// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/strictjson"
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
	SessionID string                    `json:"session_id,omitzero" jsonmap:"always"` // of the handshake; empty means the current session
	Cmd       []string                  `json:"cmd,omitzero" jsonmap:"always"`
	Cwd       string                    `json:"cwd,omitzero" jsonmap:"always"`
	Env       a2e.OrderedObject[string] `json:"env,omitzero" jsonmap:"always"`
	StdinMode string                    `json:"stdin_mode,omitzero" jsonmap:"default=pipe"`
	Timeout   int64                     `json:"timeout,omitzero" jsonmap:"always"` // seconds

	// Window is the number of bytes of output that the host sends before the first [WindowEvent], at
	// least 64 KiB. Nil means no bound. It has no effect at a host without the extension window.
	Window *int64 `json:"window,omitzero"`
}

// CheckMember checks the time limit.
func (s *SpawnRequest) CheckMember(name string) error {
	if name == "timeout" && s.Timeout < 0 {
		return errors.New("proc: the time limit is negative")
	}
	return nil
}

// A SpawnResponse is the message "proc/spawn/resp".
type SpawnResponse struct {
	ReqID  string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ProcID string `json:"proc_id,omitzero" jsonmap:"always"`
	OK     bool   `json:"ok,omitzero" jsonmap:"always"`
	PID    int64  `json:"pid,omitzero" jsonmap:"always"`
	Error  string `json:"error,omitzero" jsonmap:"always"`
}

// A WriteRequest is the message "proc/write/req".
type WriteRequest struct {
	ProcID string `json:"proc_id,omitzero" jsonmap:"always"`
	Data   string `json:"data,omitzero" jsonmap:"always"`
	EOF    bool   `json:"eof,omitzero" jsonmap:"always"` // close stdin afterwards
}

// A WriteResponse is the message "proc/write/resp".
type WriteResponse struct {
	ReqID  string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ProcID string `json:"proc_id,omitzero" jsonmap:"always"`
	OK     bool   `json:"ok,omitzero" jsonmap:"always"`
	PID    int64  `json:"pid,omitzero" jsonmap:"always"`
	Error  string `json:"error,omitzero" jsonmap:"always"`
}

// A ReadEvent is the message "proc/read/event".
type ReadEvent struct {
	Kind       string          `json:"kind,omitzero" jsonmap:"default=status"`
	ReqID      string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Data       json.RawMessage `json:"data,omitzero" jsonmap:"always,object"`
	Seq        int64           `json:"seq,omitzero" jsonmap:"always"`
	ProcID     string          `json:"proc_id,omitzero" jsonmap:"always"`
	StreamType string          `json:"stream_type,omitzero" jsonmap:"default=stdout"`
}

// ReadMember reads text as data, because deployed peers write the output itself (A2E-D20).
func (r *ReadEvent) ReadMember(name string, value json.RawMessage) (isRead bool) {
	text, isText := strictjson.Value(value).Text()
	if name != "data" || !isText {
		return false
	}
	if v, err := strictjson.Check([]byte(text), strictjson.Options{}); err == nil && v.IsObject() {
		r.Data = bytes.Clone(v)
	} else {
		r.Data = append(strictjson.AppendString([]byte(`{"text":`), text), '}')
	}
	return true
}

// A WindowEvent is the message "proc/window/event": the host may send more output of a process
// (A2E-D62).
type WindowEvent struct {
	ProcID string `json:"proc_id"`
	Bytes  int64  `json:"bytes"`
}

// A KillRequest is the message "proc/kill/req".
type KillRequest struct {
	ProcID string `json:"proc_id,omitzero" jsonmap:"always"`
	Signal string `json:"signal,omitzero" jsonmap:"default=SIGTERM"`
}

// A KillResponse is the message "proc/kill/resp".
type KillResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	OK    bool   `json:"ok,omitzero" jsonmap:"always"`
	State string `json:"state,omitzero" jsonmap:"always"`
}

// A StatusRequest is the message "proc/status/req".
type StatusRequest struct {
	ProcID string `json:"proc_id,omitzero" jsonmap:"always"`
}

// A StatusResponse is the message "proc/status/resp".
type StatusResponse struct {
	ReqID  string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ProcID string `json:"proc_id"`
	Status string `json:"status"`
	Error  string `json:"error"`
}

// A Status is the state of one process.
type Status struct {
	ProcID    string  `json:"proc_id"`
	Cmd       string  `json:"cmd"`
	State     string  `json:"state"`
	PID       int64   `json:"pid,omitzero" jsonmap:"always"`
	ExitCode  *int64  `json:"exit_code,omitzero"`
	StartedAt float64 `json:"started_at,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}
