// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// ValidateArguments holds the arguments of a call against the parameters of a tool
// (A2E-D32). Arguments that no parameter names pass. The error is an [*a2e.Error]
// with the innermost field below "arguments".
func ValidateArguments(parameters []Parameter, arguments json.RawMessage) error {
	v, err := wire.CheckJSON(arguments)
	if err != nil || !v.IsObject() {
		return refuse("arguments", a2e.ReasonType, "object", wire.KindName(v))
	}
	c := checker{}
	for i := range parameters {
		if err := c.check("arguments."+parameters[i].Name, &parameters[i], v.Get(parameters[i].Name)); err != nil {
			return err
		}
	}
	return nil
}

// A checker holds the member items of the arrays so far, which are read once.
type checker map[*Parameter]*Parameter

// refuse returns a violation with the wanted and the received type or value, see [wire.Violation].
func refuse(field, reason, want, got string) error {
	err := a2e.SchemaViolation(field, reason)
	err.Message = wire.Violation(err.Message, want, got)
	err.Capability = Capability
	return err
}

func (c checker) check(path string, p *Parameter, v strictjson.Value) error {
	switch {
	case v.Absent() && p.Required:
		return refuse(path, a2e.ReasonRequired, p.Type, "")
	case v.Absent():
		return nil
	case !fits(p.Type, v):
		return refuse(path, a2e.ReasonType, p.Type, wire.KindName(v))
	case len(p.Enum) > 0 && !slices.Contains(p.Enum, enumText(v)):
		return refuse(path, a2e.ReasonValue, "one of "+strings.Join(p.Enum, ", "), enumText(v))
	case v.IsArray():
		return c.checkElements(path, p, v)
	case !v.IsObject():
		return nil
	}
	for i := range p.Properties {
		m := &p.Properties[i]
		if err := c.check(path+"."+m.Name, &m.Value, v.Get(m.Name)); err != nil {
			return err
		}
	}
	return nil
}

// checkElements checks an array against the member items of its parameter (A2E-D32).
func (c checker) checkElements(path string, p *Parameter, v strictjson.Value) error {
	items, isKnown := c[p]
	if !isKnown {
		var err error
		if items, err = itemsOf(p); err != nil {
			return err
		}
		c[p] = items
	}
	if items == nil {
		return nil
	}
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		name := path + "[" + strconv.Itoa(i) + "]"
		if e.Value.Kind() == 'n' {
			return refuse(name, a2e.ReasonType, items.Type, "null")
		}
		if err := c.check(name, items, e.Value); err != nil {
			return err
		}
	}
	return nil
}

// itemsOf returns the member items of the parameter of an array, whose members are all optional, or nil.
func itemsOf(p *Parameter) (*Parameter, error) {
	raw := strictjson.Value(p.Extra.Get("items"))
	if !raw.IsObject() {
		return nil, nil
	}
	type schema struct {
		Type       string                       `json:"type,omitzero"`
		Enum       []string                     `json:"enum,omitzero"`
		Properties a2e.OrderedObject[Parameter] `json:"properties,omitzero"`
		Extra      a2e.Members
	}
	s, err := a2e.DecodeModel[schema](json.RawMessage(raw), "items")
	if err != nil {
		return nil, err
	}
	return &Parameter{Type: s.Type, Enum: s.Enum, Properties: s.Properties, Extra: s.Extra}, nil
}

func fits(name string, v strictjson.Value) bool {
	switch name {
	case "string":
		return v.Kind() == '"'
	case "integer":
		return v.Kind() == '0' && strictjson.IsIntegral(v)
	case "number":
		return v.Kind() == '0'
	case "boolean":
		return v.Kind() == 't' || v.Kind() == 'f'
	case "object":
		return v.IsObject()
	case "array":
		return v.IsArray()
	}
	return true
}

// enumText is what a value is compared by: strings by their text, other values
// by their JSON text.
func enumText(v strictjson.Value) string {
	if s, ok := v.Text(); ok {
		return s
	}
	return string(strictjson.AppendCompact(nil, v))
}

// FilterDefinitions returns the tools that match a list request, in their order (A2E-D33).
func FilterDefinitions(list []Definition, r *ListRequest) []Definition {
	var found []Definition
	query := strings.ToLower(r.Query)
	for i := range list {
		t := &list[i]
		if t.DeferLoading && !r.IncludeDeferred || !ofKind(t, r.FilterKind) || !tagged(t, r.FilterTags) {
			continue
		}
		if query == "" || strings.Contains(strings.ToLower(t.Name), query) ||
			strings.Contains(strings.ToLower(t.Description), query) ||
			slices.ContainsFunc(t.Tags, func(tag string) bool { return strings.Contains(strings.ToLower(tag), query) }) {
			found = append(found, *t)
		}
	}
	return found
}

// ofKind compares only tools that have a kind.
func ofKind(t *Definition, kind string) bool {
	if kind == "" || t.Extra.Get("kind") == nil {
		return true
	}
	own, _ := t.Extra.Text("kind")
	return own == kind
}

func tagged(t *Definition, tags []string) bool {
	for _, tag := range tags {
		want := strings.ToLower(tag)
		if !slices.ContainsFunc(t.Tags, func(own string) bool { return strings.ToLower(own) == want }) {
			return false
		}
	}
	return true
}
