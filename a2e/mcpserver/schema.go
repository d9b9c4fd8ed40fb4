// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxPrefix is the length of a replaced name before its hash.
const maxPrefix = 100

// nameOf returns the name of a tool in MCP.
func nameOf(name string) string {
	if toolName.MatchString(name) {
		return name
	}
	own := strings.Map(func(r rune) rune {
		if toolName.MatchString(string(r)) {
			return r
		}
		return '_'
	}, name)
	sum := sha256.Sum256([]byte(name))
	return own[:min(len(own), maxPrefix)] + "_" + hex.EncodeToString(sum[:4])
}

// schemaOfTool returns a JSON Schema of a tool: the whole one in a member of its definition, or else one of
// its parameters.
func schemaOfTool(d *tools.Definition, member string, parameters []tools.Parameter) (any, error) {
	whole := d.Extra.Get(member)
	if kind, _ := strictjson.Value(whole).Get("type").Text(); kind == "object" {
		return whole, nil
	}
	return objectSchema(parameters)
}

// objectSchema returns the JSON Schema of an object with parameters as members.
func objectSchema(list []tools.Parameter) (out a2e.Members, err error) {
	var properties a2e.Members
	for i := range list {
		text, err := a2e.EncodeModel(&list[i])
		if err != nil {
			return out, err
		}
		if err := properties.Set(list[i].Name, text); err != nil {
			return out, err
		}
	}
	text, err := properties.MarshalJSON()
	if err != nil {
		return out, err
	}
	err = out.Set("type", "object")
	if err == nil {
		err = addProperties(&out, strictjson.Value(text))
	}
	return out, err
}

// addProperties adds the members of an object, which are parameters.
func addProperties(out *a2e.Members, parameters strictjson.Value) error {
	var properties a2e.Members
	required := []string{}
	for m := parameters.Members(); m.Next(); {
		name := string(m.Name)
		if isRequired, _ := m.Value.Get("required").Bool(); isRequired {
			required = append(required, name)
		}
		schema, err := schemaOf(m.Value)
		if err != nil {
			return err
		}
		if err := properties.Set(name, schema); err != nil {
			return err
		}
	}
	err := out.Set("properties", properties)
	if err == nil && len(required) > 0 {
		err = out.Set("required", required)
	}
	return err
}

// schemaOf returns the JSON Schema of a parameter, or of a value in it: members whose form
// differs are converted. A value that is a schema is returned as an equal one.
func schemaOf(parameter strictjson.Value) (any, error) {
	if !parameter.IsObject() {
		return json.RawMessage(parameter), nil
	}
	var out a2e.Members
	kind, _ := parameter.Get("type").Text()
	for m := parameter.Members(); m.Next(); {
		if isNoSchema(string(m.Name), m.Value, kind) {
			continue
		}
		var value any = json.RawMessage(m.Value)
		var err error
		switch name := string(m.Name); {
		case name == "properties":
			err = addProperties(&out, m.Value)
			value = nil
		case name == "items":
			value, err = schemaOf(m.Value)
		case name == "enum" && kind != "string":
			value = valuesOf(m.Value)
		}
		if err == nil && value != nil {
			err = out.Set(string(m.Name), value)
		}
		if err != nil {
			return nil, err
		}
	}
	if kind == "array" && parameter.Get("items").Absent() { // which some models require
		return out, out.Set("items", struct{}{})
	}
	return out, nil
}

// isNoSchema reports whether a member of a parameter has no place in its schema.
func isNoSchema(name string, v strictjson.Value, kind string) bool {
	switch name {
	case "name":
		return true
	case "type":
		return kind == "any"
	case "description":
		return len(v) == len(`""`)
	case "required":
		return !v.IsArray()
	}
	return false
}

// valuesOf returns the values of an enum of another type than string, whose texts are JSON.
func valuesOf(list strictjson.Value) []json.RawMessage {
	values := []json.RawMessage{}
	for e := list.Elements(); e.Next(); {
		value := json.RawMessage(e.Value)
		if text, ok := e.Value.Text(); ok && json.Valid([]byte(text)) {
			value = json.RawMessage(text)
		}
		values = append(values, value)
	}
	return values
}
