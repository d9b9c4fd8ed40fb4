// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package bridge converts frames to the data of MCP and A2A, for the nested modules of both.
package bridge

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Resource is a frame as an MCP text resource (ACCP-D57).
type Resource struct {
	URI      string `json:"uri"`
	MIMEType string `json:"mimeType"`
	Text     string `json:"text"`
}

// A Content is one item of the content of a tool result.
type Content struct {
	Type     string   `json:"type"`
	Resource Resource `json:"resource"`
}

// A Result is the result of an MCP tool call that holds a frame.
type Result struct {
	Content []Content `json:"content"`
	IsError bool      `json:"isError"`
}

// ToResource wraps a frame as the content of an MCP resource. The frame must have an envelope.
func ToResource(frame []byte) (Resource, error) {
	_, r, err := parseResource(frame)
	return r, err
}

func parseResource(frame []byte) (*accp.Message, Resource, error) {
	var c accp.Codec
	m, err := c.DecodeRaw(frame)
	if err == nil {
		err = hook.ValidateEnvelope(&c, m)
	}
	if err != nil {
		return nil, Resource{}, err
	}
	return m, Resource{URI: "accp://frames/" + m.Meta.MID, MIMEType: accp.MediaType, Text: string(frame)}, nil
}

// ToResult wraps a frame as a tool result. A fail frame becomes an error result.
func ToResult(frame []byte) (Result, error) {
	m, r, err := parseResource(frame)
	if err != nil {
		return Result{}, err
	}
	return Result{
		Content: []Content{{Type: "resource", Resource: r}},
		IsError: m.Intent == accp.IntentFail,
	}, nil
}

// A PlainContent is one text of the content of a plain result.
type PlainContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// A PlainResult is the result of a tool call for hosts that do not speak ACCP (ACCP-D57).
type PlainResult struct {
	Content           []PlainContent  `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent,omitempty"`
	IsError           bool            `json:"isError"`
}

// ToPlain returns the plain result for an answering frame.
func ToPlain(frame []byte) (PlainResult, error) {
	m, err := new(accp.Codec).Decode(frame)
	if err != nil {
		return PlainResult{}, err
	}
	return Plain(m), nil
}

// Plain returns the plain result for an answering message: its result as text, as compact JSON unless it
// is a string, or the code and the message of a fail message. A result with an unresolved reference is
// an error result.
func Plain(m *accp.Message) PlainResult {
	if m.Intent == accp.IntentFail {
		code, text := accp.Code(m.Params.Text("code")), m.Params.Text("message")
		if text == "" {
			text = strings.ToLower(code.Info().Name)
		}
		return PlainError(code, text)
	}
	v, ok := m.Params.Get("result")
	return PlainValue(v, ok)
}

// PlainError returns the result of a failed call.
func PlainError(code accp.Code, text string) PlainResult {
	return PlainResult{Content: []PlainContent{{"text", strings.TrimSpace(string(code) + " " + text)}}, IsError: true}
}

// PlainValue returns the result for a value, which may be absent.
func PlainValue(v accp.Value, ok bool) PlainResult {
	text, isText := v.Text()
	if isText || !ok {
		return PlainResult{Content: []PlainContent{{"text", text}}}
	}
	data, err := v.AppendJSON(nil)
	if err != nil {
		return PlainError(accp.ErrRefNotFound, "the result refers to a value of another store")
	}
	out := PlainResult{Content: []PlainContent{{"text", string(data)}}}
	if v.Kind() == accp.KindMap {
		out.StructuredContent = data
	}
	return out
}

// Call returns the name and the arguments of the MCP tools/call for a decoded req:tool message.
// Arguments are plain JSON; absent arguments are an empty object. An unresolved reference is
// [accp.ErrRefNotFound]; arguments that are not a map, or a name that is not a string, are
// [accp.ErrToolSchema] (ACCP-D57).
func Call(m *accp.Message) (name string, arguments json.RawMessage, err error) {
	if m.Intent != accp.IntentReq || m.Op != profile.OpTool {
		return "", nil, accp.Errorf(accp.ErrInvalidIntent, "not a req:tool frame")
	}
	v, _ := m.Params.Get("tool_name")
	name, ok := v.Text()
	if !ok {
		return "", nil, accp.Errorf(accp.ErrToolSchema, "tool_name must be a string")
	}
	args, ok := m.Params.Get("arguments")
	switch {
	case !ok:
		return name, json.RawMessage("{}"), nil
	case args.Kind() == accp.KindRef:
		ref, _ := args.Ref()
		return "", nil, accp.Errorf(accp.ErrRefNotFound, "unresolved reference $%.80s", ref)
	case args.Kind() != accp.KindMap:
		return "", nil, accp.Errorf(accp.ErrToolSchema, "arguments must be a map, not a %s", args.Kind())
	}
	arguments, err = args.AppendJSON(nil)
	return name, arguments, err
}

// ToPart wraps a frame as the part of an A2A message, in version "1.0" or "0.3" of that protocol
// (ACCP-D58). The frame must satisfy the grammar.
func ToPart(frame []byte, version string) (json.RawMessage, error) {
	if _, err := new(accp.Codec).DecodeRaw(frame); err != nil {
		return nil, err
	}
	switch version {
	case "1.0":
		dst := strictjson.AppendString([]byte(`{"text":`), string(frame))
		return append(dst, `,"mediaType":"`+accp.MediaType+`"}`...), nil
	case "0.3":
		dst := strictjson.AppendString([]byte(`{"kind":"text","text":`), string(frame))
		return append(dst, `,"metadata":{"mimeType":"`+accp.MediaType+`"}}`...), nil
	}
	return nil, fmt.Errorf("accp: A2A version %q", version)
}

// FromPart returns the frame in a part of either version. A part of another media type, or
// without text, is [accp.ErrInvalidType]; a malformed frame is the error of the grammar.
func FromPart(part []byte) ([]byte, error) {
	v, err := strictjson.Check(part, strictjson.Options{MaxDepth: 64})
	if err != nil {
		return nil, fmt.Errorf("accp: A2A part: %w", err)
	}
	meta := v.Get("metadata")
	typ := ""
	for _, t := range []strictjson.Value{v.Get("mediaType"), meta.Get("mimeType"), meta.Get("contentType")} {
		if s, ok := t.Text(); ok {
			typ = s
			break
		}
	}
	text, ok := v.Get("text").Text()
	if !ok || !isFrameType(typ) {
		return nil, accp.Errorf(accp.ErrInvalidType, "the part does not hold a frame")
	}
	if _, err := new(accp.Codec).DecodeRaw([]byte(text)); err != nil {
		return nil, err
	}
	return []byte(text), nil
}

// IsFinal reports whether m is the final chunk of a stream.
func IsFinal(m *accp.Message) bool {
	v, _ := m.Params.Get("is_final")
	isFinal, _ := v.Bool()
	return isFinal
}

// TaskState returns the A2A task state for an intent, or "" if it has none (ACCP-D58).
func TaskState(i accp.Intent) string {
	switch i {
	case accp.IntentReq:
		return "submitted"
	case accp.IntentAck, accp.IntentStream:
		return "working"
	case accp.IntentWait, accp.IntentEsc:
		return "input-required"
	case accp.IntentDone:
		return "completed"
	case accp.IntentFail:
		return "failed"
	case accp.IntentCancel:
		return "canceled"
	}
	return ""
}

// isFrameType compares a media type, ignoring parameters and case.
func isFrameType(s string) bool {
	t, _, _ := strings.Cut(s, ";")
	return strings.EqualFold(strings.TrimSpace(t), accp.MediaType)
}
