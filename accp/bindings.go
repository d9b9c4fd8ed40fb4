// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// MediaType is the media type of frames (ACCP-167). It has no parameters.
const MediaType = "application/accp"

// isMediaType compares a Content-Type without its parameters and case.
func isMediaType(s string) bool {
	t, _, _ := strings.Cut(s, ";")
	return strings.EqualFold(strings.TrimSpace(t), MediaType)
}

// An MCPResource is a frame as MCP carries it: a text resource (ACCP-D57).
type MCPResource struct {
	URI      string `json:"uri"`
	MIMEType string `json:"mimeType"`
	Text     string `json:"text"`
}

// An MCPContent is one item of the content of a tool result.
type MCPContent struct {
	Type     string      `json:"type"`
	Resource MCPResource `json:"resource"`
}

// An MCPResult is the result of an MCP tool call that holds a frame (ACCP-162).
type MCPResult struct {
	Content []MCPContent `json:"content"`
	IsError bool         `json:"isError"`
}

// ToMCPResource wraps a frame, which must have its envelope, as the content of
// a resource (ACCP-161).
func ToMCPResource(frame []byte) (MCPResource, error) {
	_, r, err := mcpResource(frame)
	return r, err
}

func mcpResource(frame []byte) (*Message, MCPResource, error) {
	var c Codec
	m, err := c.DecodeRaw(frame)
	if err == nil {
		err = c.ValidateEnvelope(m)
	}
	if err != nil {
		return nil, MCPResource{}, err
	}
	return m, MCPResource{URI: "accp://frames/" + m.Meta.MID, MIMEType: MediaType, Text: string(frame)}, nil
}

// ToMCPResult wraps a frame as a tool result, which is an error if the intent is
// fail.
func ToMCPResult(frame []byte) (MCPResult, error) {
	m, r, err := mcpResource(frame)
	if err != nil {
		return MCPResult{}, err
	}
	return MCPResult{
		Content: []MCPContent{{Type: "resource", Resource: r}},
		IsError: m.Intent == IntentFail,
	}, nil
}

// ToMCPCall returns the name and the arguments of the MCP tools/call that a
// req:tool frame asks for. Arguments are plain JSON; absent ones are an empty
// object. A reference that nobody resolved is [ErrRefNotFound], arguments that
// are no map and a name that is no string are [ErrToolSchema] (ACCP-D57).
func (c *Codec) ToMCPCall(frame []byte) (name string, arguments json.RawMessage, err error) {
	m, err := c.Decode(frame)
	if err != nil {
		return "", nil, err
	}
	return MCPCall(m)
}

// MCPCall is like [Codec.ToMCPCall] for a decoded message.
func MCPCall(m *Message) (name string, arguments json.RawMessage, err error) {
	if m.Intent != IntentReq || m.Op != OpTool {
		return "", nil, fail(ErrInvalidIntent, "not a req:tool frame")
	}
	v, _ := m.Params.Get("tool_name")
	name, ok := v.Text()
	if !ok {
		return "", nil, fail(ErrToolSchema, "tool_name must be a string")
	}
	args, ok := m.Params.Get("arguments")
	switch {
	case !ok:
		return name, json.RawMessage("{}"), nil
	case args.kind == KindRef:
		return "", nil, fail(ErrRefNotFound, "unresolved reference $%.80s", args.text)
	case args.kind != KindMap:
		return "", nil, fail(ErrToolSchema, "arguments must be a map, not a %s", args.kind)
	}
	arguments, err = args.AppendJSON(nil)
	return name, arguments, err
}

// ToA2APart wraps a frame as the part of an A2A message, as version 1.0 or 0.3
// of that protocol has it (ACCP-D58). The frame must satisfy the grammar.
func ToA2APart(frame []byte, version string) (json.RawMessage, error) {
	var f Frame
	if err := new(Codec).DecodeFrame(frame, &f); err != nil {
		return nil, err
	}
	switch version {
	case "1.0":
		dst := strictjson.AppendString([]byte(`{"text":`), string(frame))
		return append(dst, `,"mediaType":"`+MediaType+`"}`...), nil
	case "0.3":
		dst := strictjson.AppendString([]byte(`{"kind":"text","text":`), string(frame))
		return append(dst, `,"metadata":{"mimeType":"`+MediaType+`"}}`...), nil
	}
	return nil, fmt.Errorf("accp: A2A version %q", version)
}

// FromA2APart returns the frame in a part of either version. A part of another
// media type, or without text, is [ErrInvalidType]; a text that is no frame is the
// error of the grammar.
func FromA2APart(part []byte) ([]byte, error) {
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
	if !ok || !isMediaType(typ) {
		return nil, fail(ErrInvalidType, "the part does not hold a frame")
	}
	var f Frame
	if err := new(Codec).DecodeFrame([]byte(text), &f); err != nil {
		return nil, err
	}
	return []byte(text), nil
}

// A2AState returns the state of an A2A task that an intent stands for, or "" if
// it stands for none (ACCP-165, ACCP-D58).
func (i Intent) A2AState() string {
	switch i {
	case IntentReq:
		return "submitted"
	case IntentAck, IntentStream:
		return "working"
	case IntentWait, IntentEsc:
		return "input-required"
	case IntentDone:
		return "completed"
	case IntentFail:
		return "failed"
	case IntentCancel:
		return "canceled"
	}
	return ""
}
