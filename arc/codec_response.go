// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// DecodeResponse reads one response (section 3). If id is not empty, the response
// must carry it, or carry an error and the id "error" or null, with which peers
// answer what they could not read (ARC-D03). Result shares the memory of data.
//
// The errors are [ErrInvalidResponse], [ErrVersionMismatch] and
// [ErrIDMismatch], looked for in this order; each wraps its sentinel. The error
// that a response carries is not an error of this function.
func DecodeResponse(data []byte, id ID) (*Response, error) {
	res := &Response{}
	if err := res.decode(data, &Request{ID: id}); err != nil {
		return nil, err
	}
	return res, nil
}

// decode reads the response to req. It shares the texts of req.
func (res *Response) decode(data []byte, req *Request) error {
	id := req.ID
	var array [usualMembers]strictjson.Span
	v, spans, err := survey(data, 0, 0, array[:0])
	if err != nil {
		return fmt.Errorf("%w: %v", ErrInvalidResponse, err)
	}
	if !v.IsObject() {
		return fmt.Errorf("%w: not an object", ErrInvalidResponse)
	}
	var version, rawID, result, fault strictjson.Value
	var names [3]strictjson.Value
	for i := range spans {
		name, value := memberOf(v, &spans[i])
		switch string(name) {
		case "arc":
			version = value
		case "id":
			rawID = value
		case "responseAgent":
			names[0] = value
		case "targetAgent":
			names[1] = value
		case "traceId":
			names[2] = value
		case "result":
			result = value
		case "error":
			fault = value
		default:
			res.Extra.keep(name, value)
		}
	}
	invalid := func(why string) error { return fmt.Errorf("%w: %s", ErrInvalidResponse, why) }
	if version == nil || !isVersion(version) {
		return ErrVersionMismatch
	}
	switch rawID.Kind() {
	case '"', '0', 'n':
		if res.ID = id; string(rawID) != string(id) {
			res.ID = ID(rawID)
		}
	default:
		return invalid("id must be a string or a number")
	}
	var ok1, ok2, ok3 bool
	res.ResponseAgent, ok1 = sharedText(names[0], req.TargetAgent)
	res.TargetAgent, ok2 = sharedText(names[1], req.RequestAgent)
	if res.TraceID, ok3 = sharedText(names[2], req.TraceID); names[2].Absent() {
		ok3 = true
	}
	switch {
	case !ok1 || !ok2:
		return invalid("responseAgent and targetAgent must be strings")
	case !ok3:
		return invalid("traceId must be a string")
	case result.Absent() == fault.Absent():
		return invalid("needs exactly one of result and error")
	case !result.Absent() && !result.IsObject():
		return invalid("result must be an object")
	}
	if fault.Absent() {
		res.Result = json.RawMessage(result)
	} else {
		var ok bool
		if res.Error, ok = decodeError(fault); !ok {
			return invalid("error must be an object with an integral code")
		}
	}
	if id != "" && !res.ID.Equal(id) && !(res.Error != nil && (rawID.Kind() == 'n' || res.ID.Equal(`"error"`))) {
		return ErrIDMismatch
	}
	return nil
}

// sharedText is the text of v, without memory if it is a string of the caller.
func sharedText(v strictjson.Value, s string) (string, bool) {
	if n := len(v) - 1; n > 0 && v[0] == '"' && string(v[1:n]) == s && strings.IndexByte(s, '\\') < 0 {
		return s, true
	}
	return v.Text()
}

// decodeError reads the error object of a response or a stream (ARC-049, ARC-D68).
func decodeError(v strictjson.Value) (*Error, bool) {
	if !v.IsObject() {
		return nil, false
	}
	code, ok := v.Get("code").Int()
	if !ok {
		return nil, false
	}
	e := &Error{Code: Code(code), Details: rawOf(v.Get("details")), Remote: true}
	if m := v.Get("message"); !m.Absent() {
		if e.Message, ok = m.Text(); !ok {
			return nil, false
		}
	}
	return e, true
}

// AppendResponse appends the response as JSON, both members result and error
// included, the unused one null (ARC-D05). It fails with [ErrInvalidResponse] unless
// exactly one of them is set and the result is an object.
func AppendResponse(dst []byte, res *Response) ([]byte, error) {
	res = orZero(res)
	if (res.Result == nil) == (res.Error == nil) {
		return dst, fmt.Errorf("%w: needs exactly one of result and error", ErrInvalidResponse)
	}
	id, err := wire.Check([]byte(res.ID))
	if err != nil || id.Kind() != '"' && id.Kind() != '0' {
		return dst, fmt.Errorf("%w: id must be a string or a number", ErrInvalidResponse)
	}
	o := wire.Open(dst)
	o.Text("arc", ProtocolVersion)
	o.Raw("id", id)
	o.Text("responseAgent", res.ResponseAgent)
	o.Text("targetAgent", res.TargetAgent)
	o.OptText("traceId", res.TraceID)
	if res.Result != nil {
		v, err := wire.Check(res.Result)
		if err != nil || !v.IsObject() {
			return dst, fmt.Errorf("%w: result must be an object", ErrInvalidResponse)
		}
		o.Key("result")
		o.B = strictjson.AppendCompact(o.B, v)
		o.Raw("error", null)
	} else {
		b, err := res.Error.MarshalJSON()
		if err != nil {
			return dst, fmt.Errorf("%w: %w", ErrInvalidResponse, err)
		}
		o.Raw("result", null)
		o.Raw("error", b)
	}
	b, err := closeEnvelope(o, dst, res.Extra)
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrInvalidResponse, err)
	}
	return b, nil
}

var null = []byte("null")

// A Result is the result of one of the nine standard methods. One of Task,
// Subscription and Chat is set, or none of them for an acknowledgment; Object is
// set for every other method.
type Result struct {
	Task         *Task
	Subscription *Subscription
	Chat         *Chat
	Message      string // of an acknowledgment, for people
	Object       json.RawMessage
}

// DecodeResult reads the result of a response to method. The members decide what
// it is, not the type that it claims (ARC-D31, ARC-D32); a result that fits the method
// in no way is [ErrInvalidResult], an acknowledgment that denies success is
// [ErrNotAcknowledged]. Nothing of a task.notification's result matters.
func DecodeResult(method string, result json.RawMessage) (*Result, error) {
	res, err := decodeResult(method, result)
	if err != nil {
		return nil, err
	}
	return &res, nil
}

func decodeResult(method string, result json.RawMessage) (res Result, err error) {
	if method == MethodTaskNotification {
		return res, nil
	}
	v, err := wire.Check(result)
	if err != nil || !v.IsObject() {
		return res, fmt.Errorf("%w: not an object", ErrInvalidResult)
	}
	isRead := false
	switch method {
	case MethodTaskCreate, MethodTaskSend, MethodTaskInfo, MethodTaskCancel:
		res.Task, isRead = readTask(v.Get("task"))
	case MethodTaskSubscribe:
		res.Subscription, isRead = readMember[Subscription](v.Get("subscription"), "subscriptionId", "subscriptionId")
	case MethodChatStart, MethodChatMessage, MethodChatEnd:
		res.Chat, isRead = readMember[Chat](v.Get("chat"), "chatId", "chatId")
	default:
		return Result{Object: rawOf(v)}, nil
	}
	if isRead {
		return res, nil
	}
	if method == MethodTaskSend || method == MethodChatMessage {
		if yes, ok := v.Get("success").Bool(); ok {
			if !yes {
				return res, ErrNotAcknowledged
			}
			message, _ := v.Get("message").Text()
			return Result{Message: message}, nil
		}
	}
	return res, fmt.Errorf("%w for %s", ErrInvalidResult, method)
}

// readMember reads an object of a result, if it has an id and a second member, both of which are strings.
func readMember[T any](v strictjson.Value, id, second string) (*T, bool) {
	if !isNamed(v, id, second) {
		return nil, false
	}
	got, err := read[T](v)
	return got, err == nil
}

func isNamed(v strictjson.Value, id, second string) bool {
	name, _ := v.Get(id).TextBytes()
	return len(name) > 0 && v.Get(second).Kind() == '"'
}

// readTask reads a task, with memory for the usual history, which is one message.
func readTask(v strictjson.Value) (*Task, bool) {
	if !v.Get("messages").IsArray() {
		return readMember[Task](v, "taskId", "status")
	}
	box := &struct {
		Task
		messages [1]Message
	}{}
	box.Task.Messages = box.messages[:0]
	if !isNamed(v, "taskId", "status") {
		return nil, false
	}
	return &box.Task, readInto(v, &box.Task) == nil
}

// rawOf copies the text of a value; an absent one is nil.
func rawOf(v strictjson.Value) json.RawMessage {
	if v.Absent() {
		return nil
	}
	return bytes.Clone(json.RawMessage(v))
}
