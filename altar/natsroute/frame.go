// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Frames from the Host that runs a call to the Host that forwards it. Every frame has a kind and
// the number of content frames up to and including it, so that the next frame or heartbeat reveals
// a lost frame.
const (
	kindHeader  = "Altar-Frame"
	countHeader = "Altar-Count"

	frameOpen    = "open"    // the call has arrived; the reply subject is for control
	framePart    = "part"    // content: a piece of a message
	frameMessage = "message" // content: a message, or its last piece
	frameRefused = "refused" // content: an ErrorMessage; the call did not run
	frameLost    = "lost"    // the outcome of the call is unknown
	frameEnd     = "end"     // after the last message
	frameAlive   = "alive"
)

// Messages from the Host that forwards a call.
const (
	controlAlive  = "alive" // with the count of content frames that were consumed
	controlCancel = "cancel"
	reasonHeader  = "Altar-Reason"
)

// maxFrames bounds the content frames of a response in flight.
const maxFrames = 64

// frameRoom bounds the size of the headers of a frame.
const frameRoom = 1 << 10

func frame(subject, kind string, count uint64) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header{kindHeader: {kind}, countHeader: {strconv.FormatUint(count, 10)}}}
}

func countOf(m *nats.Msg) (uint64, bool) {
	n, err := strconv.ParseUint(m.Header.Get(countHeader), 10, 64)
	return n, err == nil
}

// A request is a forwarded call on the wire.
type request struct {
	Host        string            `json:"host"`
	Runtime     string            `json:"runtime"`
	Contract    string            `json:"contract"`
	Tool        string            `json:"tool"`
	Invocation  string            `json:"invocation"`
	Session     string            `json:"session"`
	SessionTTL  int64             `json:"session_ttl_ns"`
	Principal   string            `json:"principal"`
	Tenant      string            `json:"tenant"`
	Parameters  json.RawMessage   `json:"parameters,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Correlation string            `json:"correlation,omitempty"`
	Timeout     int64             `json:"timeout_ns"`
	Attempt     int               `json:"attempt,omitempty"`
	Join        bool              `json:"join,omitempty"`
	ResumeFrom  int64             `json:"resume_from,omitempty"`
	MaxUnacked  int               `json:"max_unacked"` // bytes
	MaxPayload  int64             `json:"max_payload"`
}

func encodeCall(c *cluster.Call, maxUnacked int, maxPayload int64) ([]byte, error) {
	return strictjson.Encode(&request{
		Host: c.HostID, Runtime: c.RuntimeID, Contract: c.Contract, Tool: c.ToolName, Invocation: c.InvocationID, Session: c.SessionID,
		SessionTTL: int64(c.SessionTTL), Principal: c.Principal, Tenant: c.Tenant, Parameters: c.Parameters, Metadata: c.Metadata,
		Correlation: c.CorrelationID, Timeout: int64(c.Timeout), Attempt: c.Attempt, Join: c.Join, ResumeFrom: c.ResumeFrom,
		MaxUnacked: maxUnacked, MaxPayload: maxPayload,
	})
}

func (q *request) call() *cluster.Call {
	return &cluster.Call{
		HostID: q.Host, RuntimeID: q.Runtime, Contract: q.Contract, ToolName: q.Tool, InvocationID: q.Invocation, SessionID: q.Session,
		SessionTTL: time.Duration(q.SessionTTL), Principal: q.Principal, Tenant: q.Tenant, Parameters: q.Parameters, Metadata: q.Metadata,
		CorrelationID: q.Correlation, Timeout: time.Duration(q.Timeout), Attempt: q.Attempt, Join: q.Join, ResumeFrom: q.ResumeFrom,
	}
}
