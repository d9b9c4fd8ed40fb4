// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// DefaultMaxMessage is the default limit of a received message in bytes (ALT-D06).
const DefaultMaxMessage = 4 << 20

// DecodeOptions adjusts [DecodeMessage]. The zero value is right for production.
type DecodeOptions struct {
	MaxMessage int // zero means [DefaultMaxMessage]
	MaxDepth   int // zero means 64

	// Strict refuses messages that DecodeMessage otherwise repairs (ALT-D26, ALT-D27): everything
	// that [AppendMessage] does not emit. It is for testing other implementations.
	Strict bool

	recent *recentTexts
}

// A DecodeError reports an invalid frame. It carries the readable members of the frame, so that a
// response can refer to them.
type DecodeError struct {
	Err           *Error // INVALID_PARAMETERS with reason and path
	InvalidFrame  bool   // the frame as a whole is at fault, not one of its fields
	Type          string
	InvocationID  string
	RequestID     string
	CorrelationID string

	// salvaged is the message if only its correlation id is at fault, which a
	// Host ignores in what a Runtime sends (ALT-D30).
	salvaged Message
}

// Error describes the defect without repeating the frame.
func (e *DecodeError) Error() string { return "altar: decode: " + e.Err.Message }

// Unwrap returns the error that is the answer to the frame.
func (e *DecodeError) Unwrap() error { return e.Err }

func frameError(reason Reason) *DecodeError {
	message := "the frame is not a message"
	switch reason {
	case ReasonMessageTooLarge:
		message = "the message is too large"
	case ReasonTooDeep:
		message = "the message is nested too deep"
	case ReasonDuplicateKey:
		message = "a member of the message is given twice"
	}
	return &DecodeError{Err: formFault(reason, "", message), InvalidFrame: true}
}

// DecodeMessage reads one message (ALT-D01, ALT-D06). The message shares the memory of frame, which
// must not be changed afterwards. Unknown fields are dropped, absent fields get their defaults, and
// contradictions are resolved (ALT-D26 to ALT-D28). Every error is a [*DecodeError].
func DecodeMessage(frame []byte, opts *DecodeOptions) (Message, error) {
	var o DecodeOptions
	if opts != nil {
		o = *opts
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = DefaultMaxMessage
	}
	if len(frame) > o.MaxMessage {
		return nil, frameError(ReasonMessageTooLarge)
	}
	v, reason := check(frame, o.MaxDepth)
	if reason != "" {
		return nil, frameError(reason)
	}
	d := decoder{strict: o.Strict, recent: o.recent}
	m, err := d.message(v)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// The fields of all messages.
const (
	fType = iota
	fRequestID
	fCorrelationID
	fRuntimeID
	fLanguage
	fProtocolVersion
	fCapabilities
	fMetadata
	fHostID
	fSessionID
	fToolNames
	fReplace
	fFulfilledTools
	fRejectedTools
	fTTLSeconds
	fSecurityContext
	fReason
	fInvocationID
	fToolName
	fParameters
	fTimeoutMS
	fAcceptStream
	fResumeFrom
	fStatus
	fPayload
	fError
	fRuntimeMetadata
	fChunkID
	fIsFinal
	fTools
	fieldCount
)

var fieldNames = [fieldCount]string{
	"type", "request_id", "correlation_id", "runtime_id", "language", "protocol_version", "capabilities",
	"metadata", "host_id", "session_id", "tool_names", "replace", "fulfilled_tools", "rejected_tools",
	"ttl_seconds", "security_context", "reason", "invocation_id", "tool_name", "parameters", "timeout_ms",
	"accept_stream", "resume_from", "status", "payload", "error", "runtime_metadata", "chunk_id", "is_final", "tools",
}

func fieldIndex(name []byte) int {
	if len(name) == 0 {
		return -1
	}
	for i := range fieldNames {
		if n := fieldNames[i]; len(n) == len(name) && n[0] == name[0] && n == string(name) {
			return i
		}
	}
	return -1
}

// A decoder reads the fields of one message. The first fault stays.
type decoder struct {
	strict bool
	recent *recentTexts // nil outside connections
	fields [fieldCount]strictjson.Value
	reason Reason
	path   string
}

func (d *decoder) message(v strictjson.Value) (Message, *DecodeError) {
	for m := v.Members(); m.Next(); {
		if i := fieldIndex(m.Name); i >= 0 {
			d.fields[i] = m.Value
		}
	}
	var m Message
	typ := d.text(fType, true)
	if d.reason == "" {
		if m = d.body(typ); m == nil {
			d.fail(ReasonUnknownType, "/type")
		}
	}
	var h Header
	h.RequestID = d.textID(fRequestID)
	sound := d.reason == ""
	h.CorrelationID = d.textID(fCorrelationID)
	if d.reason == "" {
		*m.header() = h
		return m, nil
	}
	e := &DecodeError{
		Err:  formFault(d.reason, d.path, "the message is not valid: "+d.path+": "+string(d.reason)),
		Type: typ, RequestID: h.RequestID, CorrelationID: h.CorrelationID,
	}
	if id, ok := d.fields[fInvocationID].Text(); ok && validInvocationID(id) {
		e.InvocationID = id
	}
	if sound && (typ == "ToolResult" || typ == "StreamChunk") {
		e.salvaged = m
	}
	return nil, e
}

func (d *decoder) body(typ string) Message {
	switch typ {
	case "AnnounceRuntime":
		m := &AnnounceRuntime{}
		m.RuntimeID = d.text(fRuntimeID, true)
		if !validIdentifier(m.RuntimeID) {
			d.fail(ReasonInvalidValue, "/runtime_id")
		}
		m.Language = d.text(fLanguage, false)
		m.ProtocolVersion = d.text(fProtocolVersion, true)
		m.Capabilities = d.texts(fCapabilities, false)
		m.Metadata = d.textMap(fMetadata)
		return m
	case "AcknowledgeRuntime":
		return &AcknowledgeRuntime{HostID: d.text(fHostID, true), ProtocolVersion: d.text(fProtocolVersion, true),
			Capabilities: d.texts(fCapabilities, false)}
	case "RequestFulfillment":
		return &RequestFulfillment{SessionID: d.text(fSessionID, true)}
	case "FulfillTools":
		return &FulfillTools{SessionID: d.text(fSessionID, true), ToolNames: d.texts(fToolNames, true), Replace: d.flag(fReplace, false)}
	case "AcknowledgeFulfillment":
		return &AcknowledgeFulfillment{SessionID: d.text(fSessionID, true), Fulfilled: d.texts(fFulfilledTools, true), Rejected: d.rejected()}
	case "CreateSession":
		empty := string(d.fields[fSessionID]) == `""`
		return &CreateSession{emptyID: empty, SessionID: d.text(fSessionID, false), TTLSeconds: d.integer(fTTLSeconds, 1, false),
			SecurityContext: d.securityContext(), Metadata: d.textMap(fMetadata)}
	case "SessionCreated":
		return &SessionCreated{SessionID: d.text(fSessionID, true), TTLSeconds: d.integer(fTTLSeconds, 1, true)}
	case "DestroySession":
		return &DestroySession{SessionID: d.text(fSessionID, true)}
	case "SessionDestroyed":
		m := &SessionDestroyed{SessionID: d.text(fSessionID, true), Reason: d.text(fReason, true)}
		if m.Reason != "destroyed" && m.Reason != "expired" {
			d.fail(ReasonInvalidValue, "/reason")
		}
		return m
	case "ToolCall":
		return d.toolCall()
	case "ToolResult":
		return d.toolResult()
	case "StreamChunk":
		return d.streamChunk()
	case "ListTools":
		return &ListTools{SessionID: d.text(fSessionID, true)}
	case "ToolList":
		return &ToolList{SessionID: d.text(fSessionID, true), Tools: d.tools()}
	case "CancelCall":
		return &CancelCall{InvocationID: d.invocationID(), SessionID: d.text(fSessionID, true), Reason: d.text(fReason, false)}
	case "Ping":
		return &Ping{}
	case "Pong":
		return &Pong{}
	case "Error":
		m := &ErrorMessage{}
		if v := d.get(fError, true); v != nil {
			if !v.IsObject() {
				d.fail(ReasonWrongType, "/error")
			}
			m.Err = d.error(v, ErrInternal, "/error")
		}
		return m
	}
	return nil
}

func (d *decoder) toolCall() Message {
	m := &ToolCall{}
	m.InvocationID = d.invocationID()
	m.SessionID = d.text(fSessionID, true)
	m.ToolName = d.text(fToolName, true)
	if v := d.get(fParameters, false); v != nil {
		if !v.IsObject() {
			d.fail(ReasonWrongType, "/parameters")
		}
		m.Parameters = json.RawMessage(v)
	} else {
		m.Parameters = json.RawMessage("{}")
	}
	m.Metadata = d.textMap(fMetadata)
	m.TimeoutMS = d.integer(fTimeoutMS, 1, false)
	m.CollectChunks = !d.flag(fAcceptStream, true)
	m.ResumeFrom = d.integer(fResumeFrom, 0, false)
	return m
}

func (d *decoder) toolResult() Message {
	m := &ToolResult{}
	m.InvocationID = d.invocationID()
	payload, err := d.fields[fPayload], d.get(fError, false)
	switch status := d.text(fStatus, true); status {
	case "success":
		if d.strict && err != nil {
			d.fail(ReasonInvalidValue, "/error")
		}
		if payload == nil {
			payload = strictjson.Value("null")
		}
		m.Payload = json.RawMessage(payload)
	case "error":
		switch {
		case d.strict && payload != nil:
			d.fail(ReasonInvalidValue, "/payload")
		case d.strict && err == nil:
			d.fail(ReasonMissingField, "/error")
		}
		m.Error = d.error(err, ErrExecutionFailed, "/error")
	default:
		d.fail(ReasonInvalidValue, "/status")
	}
	if meta := d.get(fRuntimeMetadata, false); meta.IsObject() {
		m.RuntimeMetadata = json.RawMessage(meta)
	} else if d.strict && meta != nil {
		d.fail(ReasonWrongType, "/runtime_metadata")
	}
	return m
}

func (d *decoder) streamChunk() Message {
	m := &StreamChunk{}
	m.InvocationID = d.invocationID()
	m.ChunkID = d.integer(fChunkID, 0, true)
	err := d.get(fError, false)
	m.IsFinal = d.flag(fIsFinal, false)
	payload := d.fields[fPayload]
	if err != nil {
		switch {
		case d.strict && payload != nil:
			d.fail(ReasonInvalidValue, "/payload")
		case d.strict && !m.IsFinal:
			d.fail(ReasonInvalidValue, "/is_final")
		}
		m.Error, m.IsFinal = d.error(err, ErrExecutionFailed, "/error"), true
		return m
	}
	if payload == nil && !m.IsFinal {
		d.fail(ReasonMissingField, "/payload")
	}
	m.Payload = json.RawMessage(payload)
	return m
}

// error reads an Error by ALT-D26 and ALT-D27. Absent and other types than object are
// an error without an error.
func (d *decoder) error(v strictjson.Value, unknown Code, path string) *Error {
	if !v.IsObject() {
		if d.strict {
			d.fail(ReasonWrongType, path)
		}
		return NewError(ErrExecutionFailed, ReasonMissingError, "the tool failed without saying why")
	}
	var code, alias, message, details strictjson.Value
	for m := v.Members(); m.Next(); {
		switch string(m.Name) {
		case "code":
			code = m.Value
		case "type":
			alias = m.Value
		case "message":
			message = m.Value
		case "details":
			details = m.Value
		}
	}
	e := &Error{}
	word, ok := code.Text()
	if !ok {
		if d.strict {
			d.failField(code, path+"/code")
		}
		word, _ = alias.Text()
	}
	e.Message, ok = message.Text()
	if !ok && d.strict {
		d.failField(message, path+"/message")
	}
	if details.IsObject() {
		if m := details.Members(); m.Next() {
			e.Details = json.RawMessage(details)
		}
	} else if d.strict && !details.Absent() {
		d.fail(ReasonWrongType, path+"/details")
	}
	e.Code = Code(word)
	if d.strict {
		if !e.Code.isKnown() {
			d.fail(ReasonInvalidValue, path+"/code")
		}
		if e.Message == "" {
			d.fail(ReasonInvalidValue, path+"/message")
		}
		return e
	}
	if !e.Code.isKnown() {
		e.Code = unknown
		if word != "" {
			e.Details = addMember(e.Details, "original_code", appendString(nil, word))
		}
	}
	if e.Message == "" {
		e.Message = string(e.Code)
	}
	return e
}
