// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/vector"
)

// A2E returns the operations of package a2e and its namespaces.
func A2E() Protocol {
	return Protocol{Name: "a2e", Ops: map[string]Op{
		"frame_split":   a2eFrameSplit,
		"decode":        a2eDecode,
		"roundtrip":     a2eRoundtrip,
		"encode":        a2eEncode,
		"type_parse":    a2eTypeParse,
		"error_info":    a2eErrorInfo,
		"event_order":   a2eEventOrder,
		"tool_args":     a2eToolArgs,
		"tool_search":   a2eToolSearch,
		"chain_check":   a2eChainCheck,
		"sse_parse":     a2eSSEParse,
		"sse_format":    a2eSSEFormat,
		"host_script":   Script{Open: a2eHostScript}.Run,
		"client_script": Script{Open: a2eClientScript}.Run,
		"http_script":   Script{Open: a2eHTTPScript}.Run,
	}}
}

// a2eCodec returns a codec of every published type with the mode and the limits
// that the input names.
func a2eCodec(in *Input) *a2e.Codec {
	c := a2e.NewCodec(catalogue.Types()...)
	switch mode := in.StringOr("mode", "compat"); mode {
	case "compat":
	case "strict":
		c.Strict = true
	default:
		in.Fail("mode", "unknown mode %q", mode)
	}
	limits := in.ObjectOr("limits")
	c.MaxMessage = limits.IntOr("maxBytes", 0)
	c.MaxDepth = limits.IntOr("maxDepth", 0)
	return c
}

// a2eRefused turns an error of the package into the failure {code, field, reason, reqId}.
func a2eRefused(err error) error {
	var e *a2e.Error
	if !errors.As(err, &e) {
		return err
	}
	return &Failure{Code: string(e.Code), Err: err,
		Fields: Answer{"field": e.Field, "reason": e.Reason, "reqId": e.ReqID}}
}

func a2eFrameSplit(_ T, in *Input) (Answer, error) {
	c := a2eCodec(in)
	items, err := vector.Call[[]map[string]any](a2etest.Vector, "frame_split", map[string]any{
		"chunks": in.BytesList("chunksB64"), "strict": c.Strict, "maxMessage": c.MaxMessage})
	return Answer{"items": items}, err
}

func a2eDecode(_ T, in *Input) (Answer, error) {
	c := a2eCodec(in)
	switch role := in.StringOr("role", "agent"); role {
	case "agent":
	case "host":
		c.Host = true
	default:
		in.Fail("role", "unknown role %q", role)
	}
	m, err := c.Decode(in.Wire("line"))
	if err != nil {
		return nil, a2eRefused(err)
	}
	out, err := c.Append(nil, m)
	if err != nil {
		return nil, fmt.Errorf("what was decoded cannot be encoded: %w", err)
	}
	return Answer{"typed": m.Body != nil, "json": json.RawMessage(out)}, nil
}

func a2eRoundtrip(_ T, in *Input) (Answer, error) {
	c := a2eCodec(in)
	m, err := c.Decode(in.Wire("line"))
	if err != nil {
		return nil, a2eRefused(err)
	}
	out, err := c.Append(nil, m)
	if err != nil {
		return nil, err
	}
	return Answer{"line": string(out)}, nil
}

// a2eMessage makes the message that the members type, id, ts and fields describe.
func a2eMessage(c *a2e.Codec, msgType, id string, ts, fields json.RawMessage) (*a2e.Message, error) {
	line := append(strictjson.AppendString([]byte(`{"a2e":"1.0","type":`), msgType), `,"id":`...)
	line = append(append(strictjson.AppendString(line, id), `,"ts":`...), ts...)
	if inner := bytes.TrimSpace(fields); len(inner) > 2 {
		if rest := bytes.TrimSpace(inner[1:]); rest[0] != '}' {
			line = append(append(line, ','), rest...)
			return c.Decode(line)
		}
	}
	return c.Decode(append(line, '}'))
}

func a2eEncode(_ T, in *Input) (Answer, error) {
	c := a2e.NewCodec(catalogue.Types()...)
	c.EscapeNonASCII = in.Bool("ascii")
	msgType, id, ts, fields := in.String("type"), in.String("id"), in.Raw("ts"), in.Raw("fields")
	if in.Err() != nil {
		return nil, in.Err()
	}
	if a2e.NewCodec().Types.Add(a2e.TypeOf[struct{}](msgType)) != nil && c.Types.Lookup(msgType) == nil {
		return nil, a2eRefused(a2e.SchemaViolation("type", a2e.ReasonValue))
	}
	m, err := a2eMessage(c, msgType, id, ts, fields)
	if err != nil {
		return nil, a2eRefused(err)
	}
	line, err := c.Append(nil, m)
	if err != nil {
		return nil, a2eRefused(err)
	}
	return Answer{"frame": string(line) + "\n"}, nil
}

func a2eTypeParse(_ T, in *Input) (Answer, error) {
	type parsed struct{ Namespace, Verb, Suffix, Kind, Response string }
	list, err := vector.Call[[]parsed](a2etest.Vector, "type_parse", in.Strings("types"))
	types := []Answer{}
	for _, t := range list {
		types = append(types, Answer{"namespace": t.Namespace, "verb": t.Verb, "suffix": t.Suffix,
			"kind": t.Kind, "response": t.Response})
	}
	return Answer{"types": types}, err
}

func a2eErrorInfo(_ T, in *Input) (Answer, error) {
	type info struct{ Known, Retryable bool }
	list, err := vector.Call[[]info](a2etest.Vector, "error_info", in.Strings("codes"))
	codes := []Answer{}
	for _, c := range list {
		codes = append(codes, Answer{"known": c.Known, "retryable": c.Retryable})
	}
	return Answer{"codes": codes}, err
}

func a2eEventOrder(_ T, in *Input) (Answer, error) {
	order, err := vector.Call[[]string](a2etest.Vector, "event_order", in.Ints("seqs"))
	return Answer{"order": order}, err
}

// a2eModel decodes an object of a vector as a model. An invalid object is a
// fault of the vector.
func a2eModel[T any](in *Input, name string, raw json.RawMessage) *T {
	v, err := a2e.DecodeModel[T](raw, name)
	if err != nil {
		in.Fail(name, "%v", err)
		return new(T)
	}
	return v
}

func a2eToolArgs(_ T, in *Input) (Answer, error) {
	var parameters []tools.Parameter
	for _, raw := range in.RawList("parameters") {
		parameters = append(parameters, *a2eModel[tools.Parameter](in, "parameters", raw))
	}
	arguments := in.Raw("arguments")
	if in.Err() != nil {
		return nil, in.Err()
	}
	if err := tools.ValidateArguments(parameters, arguments); err != nil {
		return nil, a2eRefused(err)
	}
	return Answer{}, nil
}

func a2eToolSearch(_ T, in *Input) (Answer, error) {
	var list []tools.Definition
	for _, raw := range in.RawList("tools") {
		list = append(list, *a2eModel[tools.Definition](in, "tools", raw))
	}
	request := a2eModel[tools.ListRequest](in, "request", in.Raw("request"))
	names := []string{}
	for _, t := range tools.FilterDefinitions(list, request) {
		names = append(names, t.Name)
	}
	return Answer{"names": names}, nil
}

func a2eChainCheck(_ T, in *Input) (Answer, error) {
	fields := append(append([]byte(`{"nodes":`), in.Raw("nodes")...), `,"entry_node":`...)
	fields = append(strictjson.AppendString(fields, in.String("entry_node")), '}')
	m, err := a2eMessage(a2e.NewCodec(chains.Types()...), "chain/req", "c", json.RawMessage("1"), fields)
	if err != nil {
		return nil, a2eRefused(err)
	}
	request := m.Body.(*chains.Request)
	if err := chains.Validate(request.Nodes, request.EntryNode); err != nil {
		return nil, a2eRefused(err)
	}
	return Answer{}, nil
}

// a2eSSE are the messages of an event stream.
type a2eSSE struct {
	Messages []string
	LastID   string
}

func a2eSSEParse(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[a2eSSE](a2etest.Vector, "sse_parse", map[string]any{"chunks": in.BytesList("chunksB64")})
	return Answer{"messages": out.Messages, "lastId": out.LastID}, err
}

func a2eSSEFormat(_ T, in *Input) (Answer, error) {
	id := ""
	if n := in.Int64Or("id", 0); n > 0 {
		id = strconv.FormatInt(n, 10)
	}
	text, err := vector.Call[[]byte](a2etest.Vector, "sse_format", map[string]any{"line": in.Wire("line"), "id": id})
	if err != nil {
		return nil, err
	}
	return Answer{"text": string(text)}, nil
}
