// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package llm connects the tools of a Host to language models: lists of tools in the forms of the
// vendors, the calls that a model makes, and the results that it receives.
package llm

import (
	"encoding/json"
	"fmt"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/schema"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDepth bounds the nesting of a text from outside (ALT-D06).
const maxDepth = 64

// A Vendor is a tool-calling API.
type Vendor string

// The vendors.
const (
	OpenAIChat      Vendor = "openai_chat"      // Chat Completions of OpenAI, and the many servers with the same API
	OpenAIResponses Vendor = "openai_responses" // Responses of OpenAI
	Anthropic       Vendor = "anthropic"        // Messages of Anthropic
	Gemini          Vendor = "gemini"           // GenerateContent of Google: function declarations and parts
)

func (v Vendor) check() error {
	switch v {
	case OpenAIChat, OpenAIResponses, Anthropic, Gemini:
		return nil
	}
	return fmt.Errorf("altar: llm: unknown vendor %q", string(v))
}

// A Tool is a tool as one vendor's API has it. Its JSON form is that of the vendor.
type Tool struct {
	Name       string // for the model; a [Call] has it
	Contract   string // for [altar.Session.Call]
	Parameters []altar.Parameter
	JSON       json.RawMessage
}

// MarshalJSON returns t.JSON, so that a list of tools is written as the vendor has it.
func (t Tool) MarshalJSON() ([]byte, error) { return t.JSON, nil }

// ToolsOptions adjusts [Tools]. Nil means the zero value.
type ToolsOptions struct {
	// Strict makes a model write all parameters, with null for optional ones. Gemini has no strict form.
	Strict bool

	// TextIntegers makes a model write integers as strings of digits, which [Arguments] accepts. An SDK that decodes
	// arguments as float64 then keeps integers above 2^53 exact.
	TextIntegers bool
}

// Tools returns tools in the form of a vendor (ALT-D43). Names that the vendors refuse are
// rewritten. A rewritten name depends on the contract alone, so that it is the same in each list
// (ALT-D42). The error is an [*altar.ContractError] if two tools, or two parameters of one level,
// have one name.
func Tools(list []altar.ToolInfo, vendor Vendor, opts *ToolsOptions) ([]Tool, error) {
	if err := vendor.check(); err != nil {
		return nil, err
	}
	var o ToolsOptions
	if opts != nil {
		o = *opts
	}
	w := schema.Writer{Models: true, Strict: o.Strict && vendor != Gemini, TextIntegers: o.TextIntegers}
	out := make([]Tool, len(list))
	names := make(map[string]bool, len(list))
	for i := range list {
		t := &list[i]
		name := form.ModelName(t.Name)
		if names[name] {
			return nil, &altar.ContractError{Reason: form.DuplicateName, Path: "/name", Contract: t.Name}
		}
		names[name] = true
		if path := duplicate(t.Parameters, "/parameters"); path != "" {
			return nil, &altar.ContractError{Reason: form.DuplicateName, Path: path, Contract: t.Name}
		}
		out[i] = Tool{Name: name, Contract: t.Name, Parameters: t.Parameters, JSON: appendTool(nil, &w, t, name, vendor)}
	}
	return out, nil
}

// duplicate returns the place of the first parameter whose name for models another one of its
// level has, or "".
func duplicate(params []altar.Parameter, path string) string {
	names := make(map[string]bool, len(params))
	for i := range params {
		at := form.PointerIndex(path, i)
		name := form.ModelParameter(params[i].Name)
		if names[name] {
			return at + "/name"
		}
		names[name] = true
		if inner := duplicate(params[i].Properties, at+"/properties"); inner != "" {
			return inner
		}
	}
	return ""
}

func appendTool(dst []byte, w *schema.Writer, t *altar.ToolInfo, name string, vendor Vendor) []byte {
	dst = append(dst, '{')
	switch vendor {
	case OpenAIChat:
		dst = append(dst, `"type":"function","function":{`...)
	case OpenAIResponses:
		dst = append(dst, `"type":"function",`...)
	}
	dst = strictjson.AppendString(append(dst, `"name":`...), name)
	if t.Description != "" {
		dst = strictjson.AppendString(append(dst, `,"description":`...), t.Description)
	}
	switch vendor {
	case Anthropic:
		dst = append(dst, `,"input_schema":`...)
	case Gemini:
		dst = append(dst, `,"parametersJsonSchema":`...)
	default:
		dst = append(dst, `,"parameters":`...)
	}
	dst = w.AppendObject(dst, t.Parameters)
	switch {
	case w.Strict:
		dst = append(dst, `,"strict":true`...)
	case vendor == OpenAIResponses:
		dst = append(dst, `,"strict":false`...)
	}
	if vendor == OpenAIChat {
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// A Call is a call that a model asks for.
type Call struct {
	ID        string          // of the call; a vendor without ids has none
	Name      string          // of a [Tool]
	Arguments json.RawMessage // as the model wrote them, for [Arguments]
}

// DecodeCall reads a call: an element of tool_calls (OpenAI Chat), an item of type function_call
// (OpenAI Responses), a block of type tool_use (Anthropic), or a part with functionCall (Gemini).
func DecodeCall(vendor Vendor, data []byte) (*Call, error) {
	if err := vendor.check(); err != nil {
		return nil, err
	}
	v, reason := form.Check(data, maxDepth)
	if reason != "" {
		return nil, fmt.Errorf("altar: llm: call: %s", reason)
	}
	id, arguments := "id", "arguments"
	switch vendor {
	case OpenAIChat:
	case OpenAIResponses:
		id = "call_id"
	case Anthropic:
		arguments = "input"
	case Gemini:
		arguments = "args"
	}
	function := v
	switch vendor {
	case OpenAIChat:
		function = v.Get("function")
	case Gemini:
		v = v.Get("functionCall")
		function = v
	}
	c := &Call{}
	c.ID, _ = v.Get(id).Text()
	c.Name, _ = function.Get("name").Text()
	if c.Name == "" || c.ID == "" && vendor != Gemini {
		return nil, fmt.Errorf("altar: llm: call: missing name or %s", id)
	}
	args := function.Get(arguments)
	if text, ok := args.Text(); ok {
		c.Arguments = json.RawMessage(text)
	} else if !args.Absent() {
		c.Arguments = strictjson.AppendCompact(nil, args)
	}
	return c, nil
}

// Result returns the result of a call as the vendor takes it back: a message (OpenAI Chat), an
// input item (OpenAI Responses), a content block (Anthropic) or a part (Gemini). A payload that is
// a JSON string becomes its text. The model receives the code and the message of an
// [*altar.Error], of any other error the text.
func Result(vendor Vendor, c *Call, payload json.RawMessage, err error) (json.RawMessage, error) {
	if e := vendor.check(); e != nil {
		return nil, e
	}
	v := strictjson.Value("null")
	if len(payload) > 0 {
		checked, e := strictjson.Check(payload, strictjson.Options{})
		if e != nil {
			return nil, fmt.Errorf("altar: llm: result: %w", e)
		}
		v = checked
	}
	failure := ""
	if err != nil {
		failure = errorText(err)
	}
	dst := []byte{'{'}
	switch vendor {
	case OpenAIChat:
		dst = strictjson.AppendString(append(dst, `"role":"tool","tool_call_id":`...), c.ID)
		dst = appendContent(append(dst, `,"content":`...), v, failure)
	case OpenAIResponses:
		dst = strictjson.AppendString(append(dst, `"type":"function_call_output","call_id":`...), c.ID)
		dst = appendContent(append(dst, `,"output":`...), v, failure)
	case Anthropic:
		dst = strictjson.AppendString(append(dst, `"type":"tool_result","tool_use_id":`...), c.ID)
		text := strictjson.AppendString(nil, failure)
		if err == nil {
			text = appendContent(nil, v, "")
		}
		dst = append(dst, `,"content":[`...)
		if len(text) > len(`""`) { // the API refuses an empty block
			dst = append(append(append(dst, `{"type":"text","text":`...), text...), '}')
		}
		dst = append(dst, ']')
		if err != nil {
			dst = append(dst, `,"is_error":true`...)
		}
	case Gemini:
		dst = append(dst, `"functionResponse":{`...)
		if c.ID != "" {
			dst = append(strictjson.AppendString(append(dst, `"id":`...), c.ID), ',')
		}
		dst = strictjson.AppendString(append(dst, `"name":`...), c.Name)
		if err != nil {
			dst = strictjson.AppendString(append(dst, `,"response":{"error":`...), failure)
		} else {
			dst = strictjson.AppendCompact(append(dst, `,"response":{"output":`...), v)
		}
		dst = append(dst, "}}"...)
	}
	return append(dst, '}'), nil
}

// appendContent appends a payload or a failure as the text of a JSON string.
func appendContent(dst []byte, v strictjson.Value, failure string) []byte {
	if failure != "" {
		return strictjson.AppendString(dst, append(strictjson.AppendString([]byte(`{"error":`), failure), '}'))
	}
	if text, ok := v.Text(); ok {
		return strictjson.AppendString(dst, text)
	}
	return strictjson.AppendString(dst, strictjson.AppendCompact(nil, v))
}
