// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"errors"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// AppendMessage appends the canonical wire form of a message: fields in the order of the reference,
// no white space, minimal escapes. An invalid message (ALT-D26, ALT-D27) is an [*Error] with reason
// and path, and dst is returned unchanged.
//
// Raw JSON in a message (parameters, payload, details, metadata of a Runtime) is validated.
func AppendMessage(dst []byte, m Message) ([]byte, error) {
	return appendMessage(dst, m, false)
}

// appendMessage is AppendMessage; if trusted is set, it does not validate raw JSON.
func appendMessage(dst []byte, m Message, trusted bool) ([]byte, error) {
	e := encoder{dst: dst, trusted: trusted}
	e.message(m)
	if e.err != nil {
		return dst, e.err
	}
	return e.dst, nil
}

type encoder struct {
	dst     []byte
	err     *Error
	trusted bool
}

func (e *encoder) fail(reason Reason, path string) {
	if e.err == nil {
		e.err = formFault(reason, path, "the message cannot be sent: "+path+": "+string(reason))
	}
}

func (e *encoder) key(name string) {
	e.dst = append(e.dst, ',', '"')
	e.dst = append(e.dst, name...)
	e.dst = append(e.dst, '"', ':')
}

// text writes a string. An empty string is omitted unless it is required.
func (e *encoder) text(name, s string, required bool) {
	if s == "" && !required {
		return
	}
	if !utf8.ValidString(s) {
		e.fail(reasonInvalidUnicode, "/"+name)
	}
	e.key(name)
	e.dst = appendString(e.dst, s)
}

func (e *encoder) textID(name, s string) {
	if s != "" && !validText(s, maxTextID) {
		e.fail(reasonInvalidValue, "/"+name)
	}
	e.text(name, s, false)
}

func (e *encoder) invocationID(s string) {
	e.identifier("invocation_id", s, validInvocationID(s))
}

// identifier writes a required string that has a form.
func (e *encoder) identifier(name, s string, valid bool) {
	switch {
	case s == "":
		e.fail(reasonMissingField, "/"+name)
	case !valid:
		e.fail(reasonInvalidValue, "/"+name)
	}
	e.text(name, s, true)
}

func (e *encoder) textMap(path string, m map[string]string) {
	e.dst = append(e.dst, '{')
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		if !utf8.ValidString(k) || !utf8.ValidString(m[k]) {
			e.fail(reasonInvalidUnicode, form.Pointer(path, k))
		}
		e.dst = append(appendString(e.dst, k), ':')
		e.dst = appendString(e.dst, m[k])
	}
	e.dst = append(e.dst, '}')
}

func (e *encoder) metadata(m map[string]string) {
	if m != nil {
		e.key("metadata")
		e.textMap("/metadata", m)
	}
}

// raw writes JSON that may come from the application.
func (e *encoder) raw(name string, v []byte, object bool) {
	if e.trusted {
		e.key(name)
		e.dst = appendText(e.dst, v)
		return
	}
	checked, err := strictjson.Check(v, rawBounds(1))
	switch {
	case err != nil:
		e.fail(reasonInvalidValue, "/"+name)
		return
	case object && !checked.IsObject():
		e.fail(reasonWrongType, "/"+name)
		return
	}
	e.key(name)
	e.dst = appendText(e.dst, checked)
}

func (e *encoder) number(name string, n, min int64, omit bool) {
	if omit && n == 0 {
		return
	}
	if n < min {
		e.fail(reasonInvalidValue, "/"+name)
	}
	e.key(name)
	e.dst = appendInt(e.dst, n)
}

func (e *encoder) flag(name string, b bool) {
	e.key(name)
	e.dst = appendBool(e.dst, b)
}

func (e *encoder) error(err *Error, path string) {
	switch {
	case err == nil:
		e.fail(reasonMissingField, path)
		return
	case err.Code == "":
		e.fail(reasonMissingField, path+"/code")
	case !err.Code.isKnown():
		e.fail(reasonInvalidValue, path+"/code")
	case err.Message == "":
		e.fail(reasonInvalidValue, path+"/message")
	case !utf8.ValidString(err.Message):
		e.fail(reasonInvalidUnicode, path+"/message")
	}
	e.dst = appendString(append(e.dst, `{"code":`...), string(err.Code))
	e.dst = appendString(append(e.dst, `,"message":`...), err.Message)
	if len(err.Details) > 0 {
		v, bad := strictjson.Check(err.Details, rawBounds(2))
		if bad != nil || !v.IsObject() {
			e.fail(reasonWrongType, path+"/details")
		} else if m := v.Members(); m.Next() {
			e.dst = appendText(append(e.dst, `,"details":`...), v)
		}
	}
	e.dst = append(e.dst, '}')
}

// message writes m. The messages of a call are written by hand, because their raw JSON is not
// checked again where it is trusted.
func (e *encoder) message(m Message) {
	if m == nil {
		e.fail(reasonUnknownType, "/type")
		return
	}
	e.dst = append(append(append(e.dst, `{"type":"`...), typeOf(m)...), '"')
	switch m := m.(type) {
	case *ToolCall:
		e.toolCall(m)
	case *ToolResult:
		e.toolResult(m)
	case *StreamChunk:
		e.streamChunk(m)
	case *StreamCredit:
		e.invocationID(m.InvocationID)
		e.text("session_id", m.SessionID, true)
		e.number("credit", m.Credit, 0, false)
	case *ErrorMessage:
		e.key("error")
		e.error(m.Err, "/error")
	case *AcknowledgeFulfillment:
		e.body(e.acknowledgeBody(m))
		return
	case *forwardedCall:
		var err error
		if m.Call, err = appendMessage(nil, m.call, e.trusted); err != nil {
			e.err = asError(err)
			return
		}
		e.body(m)
		m.Call = nil
		return
	case *CreateSession:
		if m.SessionID == "" && m.emptyID {
			e.text("session_id", "", true)
		}
		e.body((*createSession)(m))
		return
	default:
		e.body(checked(m))
		return
	}
	h := m.head()
	e.textID("request_id", h.RequestID)
	e.textID("correlation_id", h.CorrelationID)
	e.dst = append(e.dst, '}')
}

// body writes the members of a struct and ends the message.
func (e *encoder) body(src any) {
	start := len(e.dst)
	dst, err := jsonmap.Append(e.dst, src)
	switch {
	case err != nil:
		var f *jsonmap.Fault
		if !errors.As(err, &f) {
			f = &jsonmap.Fault{Reason: jsonmap.BadType} // not reached: the types are known
		}
		e.fail(writeReason(f), f.Pointer)
	case string(dst[start:]) == "{}":
		e.dst = append(dst[:start], '}')
	default:
		dst[start] = ',' // in place of the bracket
		e.dst = dst
	}
}

// writeReason returns the reason of ALT-D26 for a fault of a message that is written.
func writeReason(f *jsonmap.Fault) Reason {
	switch {
	case f.Want == "UTF-8":
		return reasonInvalidUnicode
	case f.Got == empty:
		return reasonMissingField
	}
	return reasonOf(f)
}

func (e *encoder) acknowledgeBody(m *AcknowledgeFulfillment) *acknowledgeBody {
	w := &acknowledgeBody{SessionID: m.SessionID, Fulfilled: m.Fulfilled, header: m.header}
	for i, r := range m.Rejected {
		text := encoder{err: e.err}
		text.error(r.Error, form.PointerIndex("/rejected_tools", i)+"/error")
		e.err = text.err
		if e.err == nil {
			w.Rejected = append(w.Rejected, rejectedBody{ToolName: r.ToolName, Error: text.dst})
		}
	}
	return w
}

func (e *encoder) toolCall(m *ToolCall) {
	e.invocationID(m.InvocationID)
	e.text("session_id", m.SessionID, true)
	e.text("tool_name", m.ToolName, true)
	if len(m.Parameters) == 0 {
		e.key("parameters")
		e.dst = append(e.dst, "{}"...)
	} else {
		e.raw("parameters", m.Parameters, true)
	}
	e.metadata(m.Metadata)
	e.number("timeout_ms", m.TimeoutMS, 1, true)
	if m.CollectChunks {
		e.flag("accept_stream", false)
	}
	if m.Credit != nil {
		e.number("credit", *m.Credit, 0, false)
	}
	e.number("resume_from", m.ResumeFrom, 0, true)
}

func (e *encoder) toolResult(m *ToolResult) {
	e.invocationID(m.InvocationID)
	e.key("status")
	if m.Error == nil {
		e.dst = append(e.dst, `"success"`...)
		if len(m.Payload) == 0 {
			e.key("payload")
			e.dst = append(e.dst, "null"...)
		} else {
			e.raw("payload", m.Payload, false)
		}
	} else {
		e.dst = append(e.dst, `"error"`...)
		if len(m.Payload) > 0 {
			e.fail(reasonInvalidValue, "/payload")
		}
		e.key("error")
		e.error(m.Error, "/error")
	}
	if len(m.RuntimeMetadata) > 0 {
		e.raw("runtime_metadata", m.RuntimeMetadata, true)
	}
}

func (e *encoder) streamChunk(m *StreamChunk) {
	e.invocationID(m.InvocationID)
	e.number("chunk_id", m.ChunkID, 0, false)
	switch {
	case m.Error != nil:
		if len(m.Payload) > 0 {
			e.fail(reasonInvalidValue, "/payload")
		}
		e.key("error")
		e.error(m.Error, "/error")
		if !m.IsFinal {
			e.fail(reasonInvalidValue, "/is_final")
		}
	case len(m.Payload) > 0:
		e.raw("payload", m.Payload, false)
	case !m.IsFinal:
		e.fail(reasonMissingField, "/payload")
	}
	e.flag("is_final", m.IsFinal)
}
