// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// ADMOptions adjusts [ImportADM].
type ADMOptions struct {
	// Lossy drops constraints that a contract cannot express, such as enum,
	// instead of refusing them.
	Lossy bool
}

// ImportADM reads tool definitions of the ADM data model of the Elixir library: a ToolManifest, a
// Tool or a FunctionDeclaration, distinguished by their members (section c of the protocol
// reference). Every error is a [*ContractError].
func ImportADM(data []byte, opts *ADMOptions) ([]*Contract, error) {
	v, reason := check(data, 0)
	if reason != "" {
		return nil, &ContractError{Reason: reason}
	}
	p := admParser{names: map[string]bool{}}
	if opts != nil {
		p.lossy = opts.Lossy
	}
	switch {
	case !v.Get("tools").Absent():
		p.fields(v, "", "version", "tools", "metadata")
		if version, ok := p.text(v, "", "version", false); ok {
			if _, valid := parseSemver(version); !valid {
				p.fail(ReasonInvalidValue, "/version")
			}
		}
		p.object(v, "", "metadata")
		for i, tool := range p.array(v, "", "tools", true) {
			p.tool(tool, pointerIndex("/tools", i))
		}
	case !v.Get("function_declarations").Absent():
		p.tool(v, "")
	default:
		p.function(v, "")
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.out, nil
}

type admParser struct {
	contractParser
	lossy bool
	names map[string]bool
	out   []*Contract
}

func (p *admParser) tool(v strictjson.Value, path string) {
	if !v.IsObject() {
		p.fail(ReasonWrongType, path)
		return
	}
	p.fields(v, path, "function_declarations")
	for i, f := range p.array(v, path, "function_declarations", true) {
		p.function(f, pointerIndex(path+"/function_declarations", i))
	}
}

func (p *admParser) function(v strictjson.Value, path string) {
	if !v.IsObject() {
		p.fail(ReasonWrongType, path)
		return
	}
	p.fields(v, path, "name", "description", "parameters")
	c := &Contract{}
	name, ok := p.text(v, path, "name", true)
	if ok && (!validContractName(name) || strings.ContainsAny(name, "./")) {
		p.fail(ReasonInvalidName, path+"/name")
	}
	if ok && p.names[name] {
		p.fail(ReasonDuplicateName, path+"/name")
	}
	p.names[name] = true
	c.Name = name
	c.Description, _ = p.text(v, path, "description", false)
	if params := p.get(v, path, "parameters", false); params != nil {
		c.Parameters = p.parameters(params, path+"/parameters")
	}
	p.out = append(p.out, c)
}

func (p *admParser) parameters(v strictjson.Value, path string) []Parameter {
	if !v.IsObject() {
		p.fail(ReasonWrongType, path)
		return nil
	}
	if m := v.Members(); !m.Next() {
		return nil
	}
	s := p.schema(v, path, 0)
	if p.err == nil && s.Type != string(KindObject) {
		p.fail(ReasonInvalidType, path+"/type")
	}
	return s.Properties
}

var admTypes = map[string]Kind{
	"STRING": KindString, "INTEGER": KindInteger, "NUMBER": KindFloat, "BOOLEAN": KindBoolean, "OBJECT": KindObject, "ARRAY": "array",
	"string": KindString, "integer": KindInteger, "number": KindFloat, "boolean": KindBoolean, "object": KindObject, "array": "array",
}

var admConstraints = []string{"enum", "format", "minimum", "maximum", "pattern", "min_items", "max_items",
	"min_length", "max_length", "minItems", "maxItems", "minLength", "maxLength"}

// schema reads one schema, whose type begins at a depth, into the type and the
// properties of a parameter.
func (p *admParser) schema(v strictjson.Value, path string, depth int) (out Parameter) {
	if !v.IsObject() {
		p.fail(ReasonWrongType, path)
		return out
	}
	for m := v.Members(); m.Next(); {
		name := string(m.Name)
		switch {
		case slices.Contains(admConstraints, name):
			if !p.lossy && !m.Value.Absent() {
				p.fail(ReasonUnsupportedConstraint, pointer(path, name))
			}
		case !slices.Contains([]string{"type", "description", "items", "properties", "required"}, name):
			p.fail(ReasonUnknownField, pointer(path, name))
		}
	}
	word, ok := p.text(v, path, "type", true)
	if !ok {
		return out
	}
	kind, ok := admTypes[word]
	if !ok {
		p.fail(ReasonInvalidType, path+"/type")
		return out
	}
	if depth > maxTypeDepth {
		p.fail(ReasonTooDeep, path+"/type")
		return out
	}
	out.Description, _ = p.text(v, path, "description", false)
	if kind == "array" {
		items := p.get(v, path, "items", true)
		if p.err != nil {
			return out
		}
		inner := p.schema(items, path+"/items", depth+1)
		out.Type, out.Properties = "array["+inner.Type+"]", inner.Properties
	} else {
		out.Type = string(kind)
		if p.get(v, path, "items", false) != nil {
			p.fail(ReasonPropertiesNotAllowed, path+"/items")
		}
	}
	if kind != KindObject {
		for _, name := range []string{"properties", "required"} {
			if p.get(v, path, name, false) != nil {
				p.fail(ReasonPropertiesNotAllowed, path+"/"+name)
			}
		}
		return out
	}
	p.properties(v, path, depth, &out)
	return out
}

func (p *admParser) properties(v strictjson.Value, path string, depth int, out *Parameter) {
	props := p.get(v, path, "properties", false)
	if props != nil && !props.IsObject() {
		p.fail(ReasonWrongType, path+"/properties")
		return
	}
	for m := props.Members(); m.Next() && p.err == nil; {
		name := string(m.Name)
		at := pointer(path+"/properties", name)
		if !validText(name, 128) {
			p.fail(ReasonInvalidName, at)
		}
		prop := p.schema(m.Value, at, depth+1)
		prop.Name = name
		out.Properties = append(out.Properties, prop)
	}
	slices.SortFunc(out.Properties, func(a, b Parameter) int { return strings.Compare(a.Name, b.Name) })
	for i, item := range p.array(v, path, "required", false) {
		at := pointerIndex(path+"/required", i)
		name, ok := item.Text()
		if !ok {
			p.fail(ReasonWrongType, at)
			return
		}
		found := slices.IndexFunc(out.Properties, func(p Parameter) bool { return p.Name == name })
		if found < 0 {
			p.fail(ReasonInvalidValue, at)
			return
		}
		out.Properties[found].Required = true
	}
}

// ParseADMCall reads an ADM FunctionCall {call_id, name, args} as a call of this
// protocol, for a session.
func ParseADMCall(data []byte, sessionID string) (*ToolCall, error) {
	v, reason := check(data, 0)
	if reason != "" {
		return nil, &ContractError{Reason: reason}
	}
	p := contractParser{}
	p.fields(v, "", "call_id", "name", "args")
	id, _ := p.text(v, "", "call_id", true)
	name, _ := p.text(v, "", "name", true)
	args := p.object(v, "", "args")
	switch {
	case p.err != nil:
	case !validInvocationID(id):
		p.fail(ReasonInvalidValue, "/call_id")
	case strings.TrimSpace(name) == "":
		p.fail(ReasonInvalidValue, "/name")
	}
	if p.err != nil {
		return nil, p.err
	}
	if args == nil {
		args = []byte("{}")
	}
	return &ToolCall{InvocationID: id, SessionID: sessionID, ToolName: name, Parameters: args}, nil
}

// AppendADMResult appends a result as an ADM ToolResult {call_id, content,
// is_error}; an error becomes its message.
func AppendADMResult(dst []byte, r *ToolResult) []byte {
	dst = appendString(append(dst, `{"call_id":`...), r.InvocationID)
	if r.Error != nil {
		dst = appendString(append(dst, `,"content":{"error":`...), r.Error.Message)
		return append(dst, `},"is_error":true}`...)
	}
	payload := []byte(r.Payload)
	if len(payload) == 0 {
		payload = []byte("null")
	}
	dst = append(append(dst, `,"content":`...), payload...)
	return append(dst, `,"is_error":false}`...)
}

// ParseADMResult reads an ADM ToolResult; the error of a failed one has code
// EXECUTION_FAILED.
func ParseADMResult(data []byte) (*ToolResult, error) {
	v, reason := check(data, 0)
	if reason != "" {
		return nil, &ContractError{Reason: reason}
	}
	p := contractParser{}
	p.fields(v, "", "call_id", "content", "is_error")
	r := &ToolResult{}
	r.InvocationID, _ = p.text(v, "", "call_id", true)
	content := v.Get("content")
	if p.flag(v, "", "is_error") {
		text, ok := content.Get("error").Text()
		if !ok || text == "" {
			p.fail(ReasonWrongType, "/content/error")
		}
		r.Error = &Error{Code: ErrExecutionFailed, Message: text}
	} else {
		if content == nil {
			content = strictjson.Value("null")
		}
		r.Payload = appendText(nil, content)
	}
	if p.err != nil {
		return nil, p.err
	}
	return r, nil
}
