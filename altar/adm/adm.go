// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package adm translates tool definitions, calls and results of the ADM data model
// of the Elixir library ALTAR.
package adm

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/schema"
	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	maxDepth     = 64 // of a text
	maxTypeDepth = 32 // of a parameter
)

var functionName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// check reads an object. The error is a [*altar.ContractError].
func check(data []byte) (strictjson.Value, error) {
	v, reason := form.Check(data, maxDepth)
	if reason != "" {
		return nil, &altar.ContractError{Reason: altar.Reason(reason)}
	}
	return v, nil
}

// located returns an error with its place in a text.
func located(err error, data []byte) error {
	if e, ok := errors.AsType[*altar.ContractError](err); ok {
		e.Line, e.Column, _ = form.Position(data, e.Path)
	}
	return err
}

// A parser keeps the first failure.
type parser struct{ form.Reader }

func (p *parser) fail(reason altar.Reason, path string) { p.Fail(string(reason), path) }

func (p *parser) err() error {
	if !p.Failed() {
		return nil
	}
	return &altar.ContractError{Reason: altar.Reason(p.Reason), Path: p.Path}
}

// ImportOptions adjusts [Import].
type ImportOptions struct {
	// Lossy drops the members of declarations and schemas that a contract cannot express, such as
	// enum, and unknown ones, instead of refusing them.
	Lossy bool
}

// Import reads tool definitions: a ToolManifest, a Tool or a FunctionDeclaration,
// distinguished by their members. Every error is a [*altar.ContractError].
func Import(data []byte, opts *ImportOptions) ([]*altar.Contract, error) {
	v, err := check(data)
	if err != nil {
		return nil, located(err, data)
	}
	p := importer{names: map[string]bool{}}
	if opts != nil {
		p.lossy = opts.Lossy
	}
	switch {
	case !v.Get("tools").Absent():
		p.Fields(v, "", "version", "tools", "metadata")
		if version, ok := p.Text(v, "", "version", false); ok {
			if (&altar.Manifest{Version: version}).Validate() != nil {
				p.fail(form.InvalidValue, "/version")
			}
		}
		p.Object(v, "", "metadata")
		for i, tool := range p.Array(v, "", "tools", true) {
			p.tool(tool, form.PointerIndex("/tools", i))
		}
	case !v.Get("function_declarations").Absent():
		p.tool(v, "")
	default:
		p.function(v, "")
	}
	if err := p.err(); err != nil {
		return nil, located(err, data)
	}
	return p.out, nil
}

// Export returns a manifest as a ToolManifest, without the flags, time limits and metadata of its
// contracts. Names are those for models (ALT-D42); binary is a string with "(base64)" in its
// description. The error is an [*altar.ContractError] if the manifest is not valid, or if two
// contracts have one name for models.
func Export(m *altar.Manifest) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	dst := strictjson.AppendString([]byte(`{"version":`), cmp.Or(m.Version, "1.0.0"))
	dst = append(dst, `,"tools":[{"function_declarations":[`...)
	names := make(map[string]bool, len(m.Contracts))
	w := schema.Writer{ADM: true}
	for i, c := range m.Contracts {
		name := form.ModelName(c.Name)
		if names[name] {
			return nil, &altar.ContractError{Reason: form.DuplicateName, Path: form.PointerIndex("/contracts", i) + "/name", Contract: c.Name}
		}
		names[name] = true
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(append(dst, `{"name":`...), name)
		dst = strictjson.AppendString(append(dst, `,"description":`...), c.Description)
		dst = w.AppendObject(append(dst, `,"parameters":`...), c.Parameters)
		dst = append(dst, '}')
	}
	return append(dst, "]}]}"...), nil
}

type importer struct {
	parser
	lossy bool
	names map[string]bool
	out   []*altar.Contract
}

func (p *importer) tool(v strictjson.Value, path string) {
	if !v.IsObject() {
		p.fail(form.WrongType, path)
		return
	}
	p.Fields(v, path, "function_declarations")
	for i, f := range p.Array(v, path, "function_declarations", true) {
		p.function(f, form.PointerIndex(path+"/function_declarations", i))
	}
}

func (p *importer) function(v strictjson.Value, path string) {
	if !v.IsObject() {
		p.fail(form.WrongType, path)
		return
	}
	if !p.lossy {
		p.Fields(v, path, "name", "description", "parameters")
	}
	c := &altar.Contract{}
	name, ok := p.Text(v, path, "name", true)
	if ok && !functionName.MatchString(name) {
		p.fail(form.InvalidName, path+"/name")
	}
	if ok && p.names[name] {
		p.fail(form.DuplicateName, path+"/name")
	}
	p.names[name] = true
	c.Name = name
	c.Description, _ = p.Text(v, path, "description", false)
	if params := p.Get(v, path, "parameters", false); params != nil {
		c.Parameters = p.parameters(params, path+"/parameters")
	}
	p.out = append(p.out, c)
}

func (p *importer) parameters(v strictjson.Value, path string) []altar.Parameter {
	if !v.IsObject() {
		p.fail(form.WrongType, path)
		return nil
	}
	if m := v.Members(); !m.Next() {
		return nil
	}
	if v.Get("type").Absent() {
		return p.short(v, path)
	}
	s := p.schema(v, path, 0)
	if !p.Failed() && s.Type != form.KindObject {
		p.fail(form.InvalidType, path+"/type")
	}
	return s.Properties
}

// short reads parameters in the short form: an object of type names.
func (p *importer) short(v strictjson.Value, path string) []altar.Parameter {
	var out altar.Parameter
	for m := v.Members(); m.Next(); {
		if word, _ := m.Value.Text(); admTypes[word] == "" {
			p.fail(form.MissingField, path+"/type")
			return nil
		}
		p.property(&out, string(m.Name), strictjson.Value(`{"type":`+string(m.Value)+`}`), form.Pointer(path, string(m.Name)), 0)
	}
	sortParameters(out.Properties)
	return out.Properties
}

var admTypes = map[string]string{
	"STRING": form.KindString, "INTEGER": form.KindInteger, "NUMBER": form.KindFloat, "BOOLEAN": form.KindBoolean, "OBJECT": form.KindObject, "ARRAY": "array",
	"string": form.KindString, "integer": form.KindInteger, "number": form.KindFloat, "boolean": form.KindBoolean, "object": form.KindObject, "array": "array",
}

var admConstraints = []string{"enum", "format", "minimum", "maximum", "pattern", "min_items", "max_items",
	"min_length", "max_length", "minItems", "maxItems", "minLength", "maxLength",
	"default", "nullable", "examples", "title"}

// schema reads one schema, whose type begins at a depth, into the type and the
// properties of a parameter.
func (p *importer) schema(v strictjson.Value, path string, depth int) (out altar.Parameter) {
	if !v.IsObject() {
		p.fail(form.WrongType, path)
		return out
	}
	p.checkMembers(v, path)
	word, ok := p.Text(v, path, "type", true)
	if !ok {
		return out
	}
	kind, ok := admTypes[word]
	if !ok {
		p.fail(form.InvalidType, path+"/type")
		return out
	}
	if depth > maxTypeDepth {
		p.fail(form.TooDeep, path+"/type")
		return out
	}
	out.Description, _ = p.Text(v, path, "description", false)
	if kind == "array" {
		items := p.Get(v, path, "items", true)
		if p.Failed() {
			return out
		}
		inner := p.schema(items, path+"/items", depth+1)
		out.Type, out.Properties = "array["+inner.Type+"]", inner.Properties
	} else {
		out.Type = kind
		if p.Get(v, path, "items", false) != nil {
			p.fail(form.PropertiesNotAllowed, path+"/items")
		}
	}
	if kind != form.KindObject {
		for _, name := range []string{"properties", "required"} {
			if p.Get(v, path, name, false) != nil {
				p.fail(form.PropertiesNotAllowed, path+"/"+name)
			}
		}
		return out
	}
	p.properties(v, path, depth, &out)
	return out
}

// checkMembers fails on the members of a schema that a contract cannot express.
func (p *importer) checkMembers(v strictjson.Value, path string) {
	for m := v.Members(); m.Next() && !p.lossy; {
		name := string(m.Name)
		switch {
		case slices.Contains(admConstraints, name):
			if !m.Value.Absent() {
				p.fail(form.UnsupportedConstraint, form.Pointer(path, name))
			}
		case !slices.Contains([]string{"type", "description", "items", "properties", "required"}, name):
			p.fail(form.UnknownField, form.Pointer(path, name))
		}
	}
}

func (p *importer) properties(v strictjson.Value, path string, depth int, out *altar.Parameter) {
	props := p.Get(v, path, "properties", false)
	if props != nil && !props.IsObject() {
		p.fail(form.WrongType, path+"/properties")
		return
	}
	for m := props.Members(); m.Next() && !p.Failed(); {
		p.property(out, string(m.Name), m.Value, form.Pointer(path+"/properties", string(m.Name)), depth)
	}
	sortParameters(out.Properties)
	for i, item := range p.Array(v, path, "required", false) {
		at := form.PointerIndex(path+"/required", i)
		name, ok := item.Text()
		if !ok {
			p.fail(form.WrongType, at)
			return
		}
		place, isKnown := slices.BinarySearchFunc(out.Properties, name, compareName)
		if !isKnown {
			p.fail(form.InvalidValue, at)
			return
		}
		out.Properties[place].Required = true
	}
}

// property adds a property of an object whose type begins at a depth.
func (p *importer) property(object *altar.Parameter, name string, v strictjson.Value, path string, depth int) {
	if (&altar.Contract{Name: "c", Parameters: []altar.Parameter{{Name: name, Type: "string"}}}).Validate() != nil {
		p.fail(form.InvalidName, path)
	}
	prop := p.schema(v, path, depth+1)
	prop.Name = name
	object.Properties = append(object.Properties, prop)
}

func sortParameters(list []altar.Parameter) {
	slices.SortFunc(list, func(a, b altar.Parameter) int { return compareName(a, b.Name) })
}

func compareName(p altar.Parameter, name string) int { return strings.Compare(p.Name, name) }
