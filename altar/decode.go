// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"

	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// defaultMaxMessage is the default limit of a received message in bytes (ALT-D06).
const defaultMaxMessage = transport.DefaultMaxFrame

type decodeOptions struct {
	maxMessage int                 // zero: the default
	isStrict   bool                // refuse what is repaired otherwise (ALT-D26, ALT-D27)
	recent     *strictjson.Strings // nil outside connections
	isPeer     bool                // between two Hosts
	isBorrowed bool                // the frame is reused: the message keeps none of it
}

// A badFrame is the error of an invalid frame. It carries the readable members of the frame, so that a
// response can refer to them.
type badFrame struct {
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
func (e *badFrame) Error() string { return "altar: decode: " + e.Err.Message }

// Unwrap returns the error that is the answer to the frame.
func (e *badFrame) Unwrap() error { return e.Err }

func frameError(reason Reason) *badFrame {
	message := "the frame is not a message"
	switch reason {
	case reasonMessageTooLarge:
		message = "the message is too large"
	case reasonTooDeep:
		message = "the message is nested too deep"
	case reasonDuplicateKey:
		message = "a member of the message is given twice"
	}
	return &badFrame{Err: formFault(reason, "", message), InvalidFrame: true}
}

// DecodeMessage reads one message (ALT-D01, ALT-D06). The message shares the memory of frame, which
// must not be changed afterwards. Unknown fields are dropped, absent fields get their defaults, and
// contradictions are resolved (ALT-D26 to ALT-D28). Objects with more than 1,000 names and names of
// more than 1 KiB and frames of more than maxMessage bytes are refused as too large; zero means 4 MiB.
// Every error wraps an [*Error], whose detail "path" names the first invalid field in the order of the
// message type.
func DecodeMessage(frame []byte, maxMessage int) (Message, error) {
	return decodeMessage(frame, decodeOptions{maxMessage: maxMessage})
}

func decodeMessage(frame []byte, o decodeOptions) (Message, error) {
	if o.maxMessage <= 0 {
		o.maxMessage = defaultMaxMessage
	}
	if len(frame) > o.maxMessage {
		return nil, frameError(reasonMessageTooLarge)
	}
	d := decoders.Get().(*decoder)
	defer d.release()
	d.strict, d.isPeer = o.isStrict, o.isPeer
	d.begin(frame, o.recent)
	isObject := d.cursor.Kind() == '{'
	m, bad := d.message(frame, &o)
	if !o.isBorrowed {
		separate(m, len(frame))
	}
	if err := d.cursor.Err(); err != nil {
		return nil, frameError(Reason(form.Refusal(err, frame, maxDepth)))
	}
	if !isObject {
		return nil, frameError(reasonNotAnObject)
	}
	if bad != nil {
		return nil, decodeFailure(strictjson.Value(bytes.Trim(frame, " \t\r\n")), m, bad)
	}
	return m, nil
}

// A decoder reads one message. It is reused.
type decoder struct {
	cursor strictjson.Cursor
	strict bool
	isPeer bool
	result toolResultBody
	chunk  streamChunkBody
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

func (d *decoder) begin(frame []byte, recent *strictjson.Strings) {
	d.cursor.Reset(frame, strictjson.Options{MaxDepth: maxDepth})
	d.cursor.Share(recent)
}

func (d *decoder) release() {
	d.cursor.Reset(nil, strictjson.Options{})
	d.result = toolResultBody{}
	d.chunk = streamChunkBody{}
	decoders.Put(d)
}

// unknownType is the fault of a message with another type; see reasonOf.
const unknownType jsonmap.Reason = "unknown type"

// message reads the message at the cursor. With a fault in correlation_id only, it returns both.
func (d *decoder) message(frame []byte, o *decodeOptions) (Message, *jsonmap.Fault) {
	v, _ := d.cursor.Find("type")
	name, ok := v.TextBytes()
	switch {
	case v.Absent():
		return nil, (&jsonmap.Fault{Reason: jsonmap.Missing}).In("type")
	case !ok:
		return nil, (&jsonmap.Fault{Reason: jsonmap.WrongType}).In("type")
	case o.isBorrowed:
		return d.borrowed(string(name), frame, o)
	}
	return d.typed(string(name))
}

// maxShared is the length of a frame that a message of any length may keep in memory.
const maxShared = 1 << 10

// separate copies the JSON of a message from a frame of n bytes that has much more than that: a Host counts what it
// keeps of the message.
func separate(m Message, n int) {
	if n > maxShared && m != nil && 2*(weight(m)-itemWeight) < n {
		own(m)
	}
}

// own copies the JSON of a call, a result or a chunk, which may be kept for long.
func own(m Message) {
	switch m := m.(type) {
	case *ToolCall:
		m.Parameters = bytes.Clone(m.Parameters)
	case *ToolResult:
		text, n := slices.Concat(m.Payload, m.RuntimeMetadata), len(m.Payload)
		if m.Payload != nil {
			m.Payload = text[:n:n]
		}
		if m.RuntimeMetadata != nil {
			m.RuntimeMetadata = text[n:]
		}
		m.Error = m.Error.owned()
	case *StreamChunk:
		m.Payload, m.Error = bytes.Clone(m.Payload), m.Error.owned()
	}
}

// borrowed reads a message that keeps none of its frame. Of a call, a result or a chunk only the members are copied.
func (d *decoder) borrowed(name string, frame []byte, o *decodeOptions) (Message, *jsonmap.Fault) {
	switch name {
	case "StreamChunk":
		m := &shortChunk{}
		f := d.streamChunk(&m.StreamChunk)
		if m.Payload != nil {
			m.Payload = append(m.text[:0], m.Payload...)
		}
		m.Error = m.Error.owned()
		return &m.StreamChunk, f
	case "ToolCall", "ToolResult":
		m, f := d.typed(name)
		own(m)
		return m, f
	}
	d.begin(bytes.Clone(frame), o.recent)
	return d.typed(name)
}

func (d *decoder) typed(name string) (Message, *jsonmap.Fault) {
	switch name {
	case "ToolCall":
		m := &ToolCall{}
		f := jsonmap.Read(&d.cursor, (*toolCall)(m))
		if strictjson.Value(m.Parameters).Absent() {
			m.Parameters = json.RawMessage("{}")
		}
		return m, f
	case "ToolResult":
		return d.toolResult()
	case "StreamChunk":
		m := &StreamChunk{}
		return m, d.streamChunk(m)
	case "AcknowledgeFulfillment":
		return d.acknowledgeFulfillment()
	case "Error":
		w := errorBody{strict: d.strict}
		f := jsonmap.Read(&d.cursor, &w)
		return &ErrorMessage{Err: w.err, header: w.header}, f
	}
	newMessage := newMessages[name]
	switch {
	case d.isPeer && name == "HostOffers":
		newMessage = func() Message { return &hostOffers{} }
	case d.isPeer && name == "ForwardedCall":
		return d.forwardedCall()
	case newMessage == nil:
		return nil, (&jsonmap.Fault{Reason: unknownType}).In("type")
	}
	m := newMessage()
	f := jsonmap.Read(&d.cursor, checked(m))
	return m, f
}

// forwardedCall reads a call of another Host.
func (d *decoder) forwardedCall() (Message, *jsonmap.Fault) {
	m := &forwardedCall{}
	if f := jsonmap.Read(&d.cursor, m); f != nil {
		return m, f
	}
	call, err := DecodeMessage(m.Call, len(m.Call))
	var ok bool
	if m.call, ok = call.(*ToolCall); err != nil || !ok {
		return m, (&jsonmap.Fault{Reason: jsonmap.Invalid}).In("call")
	}
	m.Call = nil
	return m, nil
}

// newMessages make messages with the defaults of absent fields. They are those that are read as
// they are.
var newMessages = map[string]func() Message{
	"AnnounceRuntime":    func() Message { return &AnnounceRuntime{Capabilities: []string{}} },
	"AcknowledgeRuntime": func() Message { return &AcknowledgeRuntime{Capabilities: []string{}} },
	"RequestFulfillment": func() Message { return &RequestFulfillment{} },
	"FulfillTools":       func() Message { return &FulfillTools{} },
	"CreateSession":      func() Message { return &CreateSession{} },
	"SessionCreated":     func() Message { return &SessionCreated{} },
	"DestroySession":     func() Message { return &DestroySession{} },
	"SessionDestroyed":   func() Message { return &SessionDestroyed{} },
	"StreamCredit":       func() Message { return &StreamCredit{} },
	"Authenticate":       func() Message { return &Authenticate{} },
	"Authenticated":      func() Message { return &Authenticated{} },
	"ListTools":          func() Message { return &ListTools{} },
	"ToolList":           func() Message { return &ToolList{} },
	"CancelCall":         func() Message { return &CancelCall{} },
	"Ping":               func() Message { return &Ping{} },
	"Pong":               func() Message { return &Pong{} },
}

// decodeFailure returns the error of a frame that is an object, but no valid message m.
func decodeFailure(v strictjson.Value, m Message, bad *jsonmap.Fault) *badFrame {
	reason := reasonOf(bad)
	e := &badFrame{Err: formFault(reason, bad.Pointer, "the message is not valid: "+bad.Pointer+": "+string(reason))}
	e.Type, _ = v.Get("type").Text()
	e.setIDs(func(name string) (string, bool) { return v.Get(name).Text() })
	if bad.Pointer == "/correlation_id" && (e.Type == "ToolResult" || e.Type == "StreamChunk") {
		m.head().CorrelationID = ""
		e.salvaged = m
	}
	return e
}

// unreadFrame returns the error of a frame of which only the beginning was read.
func unreadFrame(head []byte, err *Error) *badFrame {
	var c strictjson.Cursor
	c.Reset(head, strictjson.Options{MaxDepth: maxDepth})
	members := map[string]string{}
	for ok := c.Object(); ok && c.Name(); {
		if _, isRepeated := members[string(c.Key())]; c.Kind() != '"' || isRepeated {
			ok = c.Skip()
			continue
		}
		name := string(c.Key())
		var text string
		if text, ok = c.Text(); ok {
			members[name] = text
		}
	}
	bad := &badFrame{Err: err, Type: members["type"]}
	bad.InvalidFrame = bad.Type == ""
	bad.setIDs(func(name string) (string, bool) { return members[name], members[name] != "" })
	return bad
}

// setIDs sets the valid ids of a frame.
func (e *badFrame) setIDs(member func(name string) (string, bool)) {
	if id, ok := member("invocation_id"); ok && validInvocationID(id) {
		e.InvocationID = id
	}
	if id, ok := member("request_id"); ok && validText(id, maxTextID) {
		e.RequestID = id
	}
	if id, ok := member("correlation_id"); ok && validText(id, maxTextID) {
		e.CorrelationID = id
	}
}

// reasonOf returns the reason of ALT-D06 for a fault.
func reasonOf(f *jsonmap.Fault) Reason {
	switch f.Reason {
	case jsonmap.Missing:
		return reasonMissingField
	case jsonmap.WrongType:
		return reasonWrongType
	case unknownType:
		return reasonUnknownType
	}
	return reasonInvalidValue
}

// toolResult reads a result by ALT-D26 and ALT-D27.
func (d *decoder) toolResult() (*ToolResult, *jsonmap.Fault) {
	w := &d.result
	w.strict = d.strict
	f := jsonmap.Read(&d.cursor, w)
	m := &ToolResult{InvocationID: w.InvocationID, Payload: w.Payload, Error: w.err, header: w.header}
	if string(w.Status) == `"success"` && m.Payload == nil {
		m.Payload = json.RawMessage("null")
	}
	if w.isError() {
		m.Payload = nil
		if m.Error == nil { // the member is absent
			if d.strict && (isLate(f) || f.Pointer == "/runtime_metadata") {
				f = (&jsonmap.Fault{Reason: jsonmap.Missing}).In("error")
			}
			m.Error = errMissing()
		}
	} else {
		m.Error = nil
	}
	if strictjson.Value(w.RuntimeMetadata).IsObject() {
		m.RuntimeMetadata = w.RuntimeMetadata
	}
	return m, f
}

// streamChunk reads a chunk into m. An error ends the stream.
func (d *decoder) streamChunk(m *StreamChunk) *jsonmap.Fault {
	w := &d.chunk
	w.strict = d.strict
	f := jsonmap.Read(&d.cursor, w)
	*m = StreamChunk{InvocationID: w.InvocationID, ChunkID: w.ChunkID, Payload: w.Payload, IsFinal: w.IsFinal, header: w.header}
	switch {
	case w.err != nil:
		if d.strict && !m.IsFinal && isLate(f) {
			f = (&jsonmap.Fault{Reason: jsonmap.Invalid}).In("is_final")
		}
		m.Payload, m.Error, m.IsFinal = nil, w.err, true
	case m.Payload == nil && !m.IsFinal && isLate(f):
		f = (&jsonmap.Fault{Reason: jsonmap.Missing}).In("payload")
	}
	return f
}

func (d *decoder) acknowledgeFulfillment() (Message, *jsonmap.Fault) {
	var w acknowledgeBody
	f := jsonmap.Read(&d.cursor, &w)
	m := &AcknowledgeFulfillment{SessionID: w.SessionID, Fulfilled: w.Fulfilled, Rejected: make([]RejectedTool, len(w.Rejected)), header: w.header}
	for i, r := range w.Rejected {
		e, bad := readError(r.Error, ErrExecutionFailed, d.strict)
		if bad != nil && isLate(f) {
			f = bad.In("error").At(i).In("rejected_tools")
		}
		m.Rejected[i] = RejectedTool{ToolName: r.ToolName, Error: e}
	}
	return m, f
}

// isLate reports whether f is nil or a fault of a member of the header, which follow all others.
func isLate(f *jsonmap.Fault) bool {
	return f == nil || f.Pointer == "/request_id" || f.Pointer == "/correlation_id"
}

func errMissing() *Error {
	return Errorf(ErrExecutionFailed, reasonMissingError, "the tool failed without saying why")
}

// size returns the bytes of an error, which may be nil.
func (e *Error) size() int {
	if e == nil {
		return 0
	}
	return len(e.Code) + len(e.Message) + len(e.Details)
}

// owned makes the details of an error, which may be nil, no part of a frame.
func (e *Error) owned() *Error {
	if e != nil {
		e.Details = bytes.Clone(e.Details)
	}
	return e
}

// readError reads an Error by ALT-D26 and ALT-D27. Values of other types than object are an
// error without an error. The fault is one of strict reading.
func readError(raw []byte, unknown Code, strict bool) (*Error, *jsonmap.Fault) {
	v := strictjson.Value(raw)
	if !v.IsObject() {
		if strict {
			return errMissing(), &jsonmap.Fault{Reason: jsonmap.WrongType}
		}
		return errMissing(), nil
	}
	e := &Error{}
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
	word, ok := code.Text()
	if !ok {
		word, _ = alias.Text()
	}
	e.Code = Code(word)
	e.Message, _ = message.Text()
	if details.IsObject() {
		if m := details.Members(); m.Next() {
			e.Details = json.RawMessage(details)
		}
	}
	if strict {
		return e, strictErrorFault(e, code, message, details)
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
	return e, nil
}

// strictErrorFault returns the first member of an error that [AppendMessage] does not emit.
func strictErrorFault(e *Error, code, message, details strictjson.Value) *jsonmap.Fault {
	for _, m := range []struct {
		name string
		v    strictjson.Value
	}{{"code", code}, {"message", message}} {
		switch {
		case m.v.Absent():
			return (&jsonmap.Fault{Reason: jsonmap.Missing}).In(m.name)
		case m.v.Kind() != '"':
			return (&jsonmap.Fault{Reason: jsonmap.WrongType}).In(m.name)
		}
	}
	switch {
	case !details.Absent() && !details.IsObject():
		return (&jsonmap.Fault{Reason: jsonmap.WrongType}).In("details")
	case !e.Code.isKnown():
		return (&jsonmap.Fault{Reason: jsonmap.Invalid}).In("code")
	case e.Message == "":
		return (&jsonmap.Fault{Reason: jsonmap.Invalid}).In("message")
	}
	return nil
}
