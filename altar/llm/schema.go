// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/json"
	"slices"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/schema"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// SchemaOf returns the parameters of a contract as a JSON Schema of an object, for libraries and
// other protocols; see [Tools] for models. Binary is a string with contentEncoding base64, an
// integer has format int64, and an object with properties is closed.
func SchemaOf(params []altar.Parameter) json.RawMessage {
	w := schema.Writer{}
	return w.AppendObject(nil, params)
}

// ParametersOptions adjusts [ParametersOf].
type ParametersOptions struct {
	// Lossy drops keywords that a contract cannot express, such as enum or minimum, instead of
	// refusing them.
	Lossy bool
}

// ParametersOf returns the parameters that a JSON Schema of an object describes. It is the inverse
// of [SchemaOf]. The error is an [*altar.ContractError]; a keyword without a counterpart is
// unsupported_constraint.
func ParametersOf(text []byte, opts *ParametersOptions) ([]altar.Parameter, error) {
	v, reason := form.Check(text, maxDepth)
	if reason != "" {
		return nil, located(altar.Reason(reason), "", text)
	}
	r := schemaReader{}
	if opts != nil {
		r.lossy = opts.Lossy
	}
	t, params := r.read(v, "")
	if !r.Failed() && t != form.KindObject {
		r.fail(form.InvalidType, "/type")
	}
	if r.Failed() {
		return nil, located(altar.Reason(r.Reason), r.Path, text)
	}
	c := altar.Contract{Name: "c", Parameters: params}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return params, nil
}

func located(reason altar.Reason, path string, text []byte) error {
	e := &altar.ContractError{Reason: reason, Path: path}
	e.Line, e.Column, _ = form.Position(text, path)
	return e
}

type schemaReader struct {
	form.Reader
	lossy bool
}

func (r *schemaReader) fail(reason altar.Reason, path string) { r.Fail(string(reason), path) }

func (r *schemaReader) read(s strictjson.Value, path string) (typ string, properties []altar.Parameter) {
	if s.Absent() {
		r.fail(form.MissingField, path)
		return "", nil
	}
	kind, isInt64 := schemaType(s)
	if !r.lossy {
		r.constraints(s, path, isInt64)
	}
	switch kind {
	case "string":
		if encoding, _ := s.Get("contentEncoding").Text(); encoding == schema.Base64 {
			return form.KindBinary, nil
		}
		return form.KindString, nil
	case "integer":
		return form.KindInteger, nil
	case "number":
		return form.KindFloat, nil
	case "boolean":
		return form.KindBoolean, nil
	case "array":
		inner, properties := r.read(s.Get("items"), path+"/items")
		return "array[" + inner + "]", properties
	case "object":
		return form.KindObject, r.properties(s, path)
	}
	r.fail(form.InvalidType, path+"/type")
	return "", nil
}

// schemaType returns the one type of a schema besides null, or "". An integer of 64 bits that may
// also be a string of digits is an integer.
func schemaType(s strictjson.Value) (kind string, isInt64 bool) {
	if kind, ok := s.Get("type").Text(); ok {
		return kind, false
	}
	var kinds []string
	for e := s.Get("type").Elements(); e.Next(); {
		if kind, _ := e.Value.Text(); kind != "null" {
			kinds = append(kinds, kind)
		}
	}
	format, _ := s.Get("format").Text()
	switch {
	case len(kinds) == 1:
		return kinds[0], false
	case len(kinds) == 2 && slices.Contains(kinds, "integer") && slices.Contains(kinds, "string") && format == "int64":
		return "integer", true
	}
	return "", false
}

func (r *schemaReader) properties(s strictjson.Value, path string) []altar.Parameter {
	var out []altar.Parameter
	places := map[string]int{}
	for m := r.Object(s, path, "properties").Members(); m.Next(); {
		p := altar.Parameter{Name: string(m.Name)}
		p.Type, p.Properties = r.read(m.Value, form.Pointer(path+"/properties", p.Name))
		p.Description, _ = m.Value.Get("description").Text()
		places[p.Name] = len(out)
		out = append(out, p)
	}
	for i, name := range r.Array(s, path, "required", false) {
		text, ok := name.Text()
		place, isKnown := places[text]
		if !ok || !isKnown {
			r.fail(form.InvalidValue, form.PointerIndex(path+"/required", i))
			continue
		}
		out[place].Required = true
	}
	return out
}

// constraints are the keywords that parameters cannot express.
var constraints = []string{"enum", "const", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
	"minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "prefixItems", "contains",
	"minProperties", "maxProperties", "patternProperties", "propertyNames", "additionalProperties", "unevaluatedProperties",
	"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}

// constraints refuses keywords that parameters cannot express, except for the pattern of an integer
// that may be a string, and for other properties without a schema.
func (r *schemaReader) constraints(s strictjson.Value, path string, isInt64 bool) {
	for _, name := range constraints {
		v := s.Get(name)
		value, isBool := v.Bool()
		switch {
		case v == nil, v.Absent() && name != "const", name == "uniqueItems" && isBool && !value, name == "pattern" && isInt64:
			continue
		case (name == "additionalProperties" || name == "unevaluatedProperties") && (isBool || isEmptyObject(v)):
			continue
		}
		r.fail(form.UnsupportedConstraint, form.Pointer(path, name))
	}
}

func isEmptyObject(v strictjson.Value) bool {
	m := v.Members()
	return v.IsObject() && !m.Next()
}
