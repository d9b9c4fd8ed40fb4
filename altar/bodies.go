// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"fmt"

	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The messages as jsonmap reads and writes them: with checks of their members that the
// exported types do not have.
type (
	announceRuntime    AnnounceRuntime
	acknowledgeRuntime AcknowledgeRuntime
	requestFulfillment RequestFulfillment
	fulfillTools       FulfillTools
	createSession      CreateSession
	sessionCreated     SessionCreated
	destroySession     DestroySession
	sessionDestroyed   SessionDestroyed
	toolCall           ToolCall
	streamCredit       StreamCredit
	authenticate       Authenticate
	authenticated      Authenticated
	listTools          ListTools
	toolList           ToolList
	cancelCall         CancelCall
	ping               Ping
	pong               Pong
)

// checked returns m as the type that checks its members.
func checked(m Message) any {
	switch m := m.(type) {
	case *AnnounceRuntime:
		return (*announceRuntime)(m)
	case *AcknowledgeRuntime:
		return (*acknowledgeRuntime)(m)
	case *RequestFulfillment:
		return (*requestFulfillment)(m)
	case *FulfillTools:
		return (*fulfillTools)(m)
	case *CreateSession:
		return (*createSession)(m)
	case *SessionCreated:
		return (*sessionCreated)(m)
	case *DestroySession:
		return (*destroySession)(m)
	case *SessionDestroyed:
		return (*sessionDestroyed)(m)
	}
	return checkedCall(m)
}

// checkedCall is checked for the messages of calls and of connections.
func checkedCall(m Message) any {
	switch m := m.(type) {
	case *StreamCredit:
		return (*streamCredit)(m)
	case *Authenticate:
		return (*authenticate)(m)
	case *Authenticated:
		return (*authenticated)(m)
	case *ListTools:
		return (*listTools)(m)
	case *ToolList:
		return (*toolList)(m)
	case *CancelCall:
		return (*cancelCall)(m)
	case *Ping:
		return (*ping)(m)
	case *Pong:
		return (*pong)(m)
	case *hostOffers, *forwardedCall:
		return m
	}
	panic(fmt.Sprintf("altar: %T is not a message", m)) // the interface is sealed
}

// empty is what the fault of an empty text got. A reader counts it as an invalid value, a writer
// as a missing one.
const empty = "an empty text"

func invalidUnless(valid bool) *jsonmap.Fault {
	if valid {
		return nil
	}
	return &jsonmap.Fault{Reason: jsonmap.Invalid}
}

func invalidTextUnless(valid bool, s string) *jsonmap.Fault {
	f := invalidUnless(valid)
	if f != nil && s == "" {
		f.Got = empty
	}
	return f
}

func (h *header) check(name string) *jsonmap.Fault {
	switch name {
	case "request_id":
		return invalidUnless(validText(h.RequestID, maxTextID))
	case "correlation_id":
		return invalidUnless(validText(h.CorrelationID, maxTextID))
	}
	return nil
}

func (m *announceRuntime) CheckMember(name string) *jsonmap.Fault {
	if name == "runtime_id" {
		return invalidTextUnless(validIdentifier(m.RuntimeID), m.RuntimeID)
	}
	return m.check(name)
}

func (m *acknowledgeRuntime) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *requestFulfillment) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *fulfillTools) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *createSession) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "session_id": // is present
		m.emptyID = m.SessionID == ""
	case "ttl_seconds":
		return invalidUnless(m.TTLSeconds >= 1)
	}
	return m.check(name)
}

func (m *sessionCreated) CheckMember(name string) *jsonmap.Fault {
	if name == "ttl_seconds" {
		return invalidUnless(m.TTLSeconds >= 1)
	}
	return m.check(name)
}

func (m *destroySession) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *sessionDestroyed) CheckMember(name string) *jsonmap.Fault {
	if name == "reason" {
		return invalidTextUnless(m.Reason == "destroyed" || m.Reason == "expired", m.Reason)
	}
	return m.check(name)
}

func (m *toolCall) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "invocation_id":
		return invalidTextUnless(validInvocationID(m.InvocationID), m.InvocationID)
	case "parameters":
		if v := strictjson.Value(m.Parameters); !v.Absent() && !v.IsObject() {
			return &jsonmap.Fault{Reason: jsonmap.WrongType, Want: "object"}
		}
	case "timeout_ms":
		return invalidUnless(m.TimeoutMS >= 1)
	case "credit":
		return invalidUnless(m.Credit == nil || *m.Credit >= 0)
	case "resume_from":
		return invalidUnless(m.ResumeFrom >= 0)
	}
	return m.check(name)
}

func (m *streamCredit) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "invocation_id":
		return invalidTextUnless(validInvocationID(m.InvocationID), m.InvocationID)
	case "credit":
		return invalidUnless(m.Credit >= 0)
	}
	return m.check(name)
}

const maxToken = 8192 // bytes

func (m *authenticate) CheckMember(name string) *jsonmap.Fault {
	if name == "token" {
		return invalidUnless(m.Token != "" && len(m.Token) <= maxToken)
	}
	return m.check(name)
}

func (m *authenticated) CheckMember(name string) *jsonmap.Fault {
	if name == "expires_in" {
		return invalidUnless(m.ExpiresIn == nil || *m.ExpiresIn >= 0)
	}
	return m.check(name)
}

func (m *listTools) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *toolList) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *cancelCall) CheckMember(name string) *jsonmap.Fault {
	if name == "invocation_id" {
		return invalidTextUnless(validInvocationID(m.InvocationID), m.InvocationID)
	}
	return m.check(name)
}

func (m *ping) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

func (m *pong) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

// toolResultBody is a [ToolResult] whose status decides how the others are read.
type toolResultBody struct {
	InvocationID    string          `json:"invocation_id"`
	Status          json.RawMessage `json:"status"`
	Payload         json.RawMessage `json:"payload,omitzero"`
	Error           json.RawMessage `json:"error,omitzero"`
	RuntimeMetadata json.RawMessage `json:"runtime_metadata,omitzero"`
	header

	strict bool
	err    *Error // read from Error
}

func (m *toolResultBody) isError() bool { return isText(m.Status, "error") }

// isText reports whether v is a string of that text.
func isText(v []byte, text string) bool {
	b, ok := strictjson.Value(v).TextBytes()
	return ok && string(b) == text
}

func (m *toolResultBody) CheckMember(name string) (f *jsonmap.Fault) {
	switch name {
	case "invocation_id":
		return invalidTextUnless(validInvocationID(m.InvocationID), m.InvocationID)
	case "status":
		switch v := strictjson.Value(m.Status); {
		case v.Absent():
			return &jsonmap.Fault{Reason: jsonmap.Missing}
		case v.Kind() != '"':
			return &jsonmap.Fault{Reason: jsonmap.WrongType}
		}
		return invalidUnless(isText(m.Status, "success") || m.isError())
	case "payload":
		return invalidUnless(!m.strict || !m.isError())
	case "error":
		if strictjson.Value(m.Error).Absent() {
			return nil
		}
		if !m.isError() {
			return invalidUnless(!m.strict)
		}
		m.err, f = readError(m.Error, ErrExecutionFailed, m.strict)
		return f
	case "runtime_metadata":
		if v := strictjson.Value(m.RuntimeMetadata); m.strict && !v.Absent() && !v.IsObject() {
			return &jsonmap.Fault{Reason: jsonmap.WrongType}
		}
	}
	return m.check(name)
}

// streamChunkBody is a [StreamChunk] with its error as text.
type streamChunkBody struct {
	InvocationID string          `json:"invocation_id"`
	ChunkID      int64           `json:"chunk_id"`
	Payload      json.RawMessage `json:"payload,omitzero"`
	Error        json.RawMessage `json:"error,omitzero"`
	IsFinal      bool            `json:"is_final,omitzero"`
	header

	strict bool
	err    *Error // read from Error
}

func (m *streamChunkBody) CheckMember(name string) (f *jsonmap.Fault) {
	switch name {
	case "invocation_id":
		return invalidTextUnless(validInvocationID(m.InvocationID), m.InvocationID)
	case "chunk_id":
		return invalidUnless(m.ChunkID >= 0)
	case "payload":
		return invalidUnless(!m.strict || strictjson.Value(m.Error).Absent())
	case "error":
		if strictjson.Value(m.Error).Absent() {
			return nil
		}
		m.err, f = readError(m.Error, ErrExecutionFailed, m.strict)
		return f
	}
	return m.check(name)
}

// errorBody is an [ErrorMessage] with its error as text.
type errorBody struct {
	Error json.RawMessage `json:"error"`
	header

	strict bool
	err    *Error // read from Error
}

func (m *errorBody) CheckMember(name string) (f *jsonmap.Fault) {
	if name != "error" {
		return m.check(name)
	}
	switch v := strictjson.Value(m.Error); {
	case v.Absent():
		return &jsonmap.Fault{Reason: jsonmap.Missing}
	case !v.IsObject():
		return &jsonmap.Fault{Reason: jsonmap.WrongType}
	}
	m.err, f = readError(m.Error, ErrInternal, m.strict)
	return f
}

// acknowledgeBody is an [AcknowledgeFulfillment] with its errors as text.
type acknowledgeBody struct {
	SessionID string         `json:"session_id"`
	Fulfilled []string       `json:"fulfilled_tools"`
	Rejected  []rejectedBody `json:"rejected_tools"`
	header
}

func (m *acknowledgeBody) CheckMember(name string) *jsonmap.Fault { return m.check(name) }

type rejectedBody struct {
	ToolName string          `json:"tool_name"`
	Error    json.RawMessage `json:"error"`
}

func (m *rejectedBody) CheckMember(name string) *jsonmap.Fault {
	if v := strictjson.Value(m.Error); name == "error" && v.Absent() {
		return &jsonmap.Fault{Reason: jsonmap.Missing}
	} else if name == "error" && !v.IsObject() {
		return &jsonmap.Fault{Reason: jsonmap.WrongType}
	}
	return nil
}
