// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package adm

import (
	"regexp"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

var callID = regexp.MustCompile(`^[!-~]{1,128}$`)

// DecodeCall reads an ADM FunctionCall {call_id, name, args} as a call of this
// protocol, for a session.
func DecodeCall(data []byte, sessionID string) (*altar.ToolCall, error) {
	v, err := check(data)
	if err != nil {
		return nil, err
	}
	p := parser{}
	p.Fields(v, "", "call_id", "name", "args")
	id, _ := p.Text(v, "", "call_id", true)
	name, _ := p.Text(v, "", "name", true)
	args := p.Object(v, "", "args")
	switch {
	case p.Failed():
	case !callID.MatchString(id):
		p.fail(form.InvalidValue, "/call_id")
	case strings.TrimSpace(name) == "":
		p.fail(form.InvalidValue, "/name")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	if args == nil {
		args = strictjson.Value("{}")
	}
	return &altar.ToolCall{InvocationID: id, SessionID: sessionID, ToolName: name, Parameters: strictjson.AppendCompact(nil, args)}, nil
}

// AppendResult appends a result as an ADM ToolResult {call_id, content,
// is_error}; an error becomes its message.
func AppendResult(dst []byte, r *altar.ToolResult) []byte {
	dst = strictjson.AppendString(append(dst, `{"call_id":`...), r.InvocationID)
	if r.Error != nil {
		dst = strictjson.AppendString(append(dst, `,"content":{"error":`...), r.Error.Message)
		return append(dst, `},"is_error":true}`...)
	}
	payload := []byte(r.Payload)
	if len(payload) == 0 {
		payload = []byte("null")
	}
	dst = append(append(dst, `,"content":`...), payload...)
	return append(dst, `,"is_error":false}`...)
}

// DecodeResult reads an ADM ToolResult in both its forms: that of the library, {call_id, content,
// is_error}, and the published one with status and error (ALT-D44). Other members are ignored, and
// call_id may be missing.
func DecodeResult(data []byte) (*altar.ToolResult, error) {
	v, err := check(data)
	if err != nil {
		return nil, err
	}
	p := parser{}
	r := &altar.ToolResult{}
	r.InvocationID, _ = p.Text(v, "", "call_id", false)
	content := v.Get("content")
	switch isError := p.isError(v); {
	case !isError:
		if content == nil {
			content = strictjson.Value("null")
		}
		r.Payload = strictjson.AppendCompact(nil, content)
	case !v.Get("status").Absent():
		r.Error = decodeError(p.Get(v, "", "error", true))
	case !content.Absent() && !content.IsObject():
		p.fail(form.WrongType, "/content")
	default:
		r.Error = decodeError(p.Get(content, "/content", "error", true))
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return r, nil
}

// isError reports whether a result in either form is an error.
func (p *parser) isError(v strictjson.Value) bool {
	status, ok := p.Text(v, "", "status", false)
	if !ok {
		return p.Flag(v, "", "is_error")
	}
	if status != "SUCCESS" && status != "ERROR" {
		p.fail(form.InvalidValue, "/status")
	}
	return status == "ERROR"
}

// decodeError reads the error of a result: text, an object with a message, or any other value.
func decodeError(v strictjson.Value) *altar.Error {
	e := &altar.Error{Code: altar.ErrExecutionFailed}
	text, ok := v.Text()
	if !ok {
		text, _ = v.Get("message").Text()
	}
	if text == "" {
		text = string(strictjson.AppendCompact(nil, v))
	}
	e.Message = text
	original, _ := v.Get("type").Text()
	if code := altar.Code(original); slices.Contains(codes, code) {
		e.Code, original = code, ""
	}
	details := []byte{'{'}
	add := func(name string, value []byte) {
		if len(details) > 1 {
			details = append(details, ',')
		}
		details = append(strictjson.AppendString(details, name), ':')
		details = append(details, value...)
	}
	kept := v.Get("details")
	for m := kept.Members(); m.Next(); {
		if original == "" || string(m.Name) != "original_code" {
			add(string(m.Name), strictjson.AppendCompact(nil, m.Value))
		}
	}
	if !kept.Absent() && !kept.IsObject() {
		add("details", strictjson.AppendCompact(nil, kept))
	}
	if original != "" {
		add("original_code", strictjson.AppendString(nil, original))
	}
	if len(details) > 1 {
		e.Details = append(details, '}')
	}
	return e
}

// codes are the codes of the protocol. A result with any other code keeps it in its details.
var codes = []altar.Code{altar.ErrToolNotFound, altar.ErrInvalidParameters, altar.ErrRuntimeUnavailable, altar.ErrSessionInvalid,
	altar.ErrAuthorizationFailed, altar.ErrExecutionTimeout, altar.ErrExecutionFailed, altar.ErrInternal}
