// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// AddTool adds a Go function as a tool. The parameters are derived from the fields of the structs In
// and Out, by their json tags and jsonschema descriptions; the definition has the whole JSON Schemas as
// the members input_schema and output_schema. Arguments are checked against the schema of In, and
// numbers stay exact in fields of type [json.Number]. If change is not nil, it may complete the
// definition.
func AddTool[In, Out any](s *Set, name, description string, fn func(ctx context.Context, call *a2e.Call, in In) (Out, error),
	change func(*Definition)) {
	if fn == nil {
		panic(fmt.Sprintf("tools: the tool %q does nothing", name))
	}
	own, err := schemaOf[In]()
	if err != nil {
		panic(fmt.Sprintf("tools: the arguments of %q: %v", name, err))
	}
	if own.Type != "object" {
		panic(fmt.Sprintf("tools: the arguments of %q are not a struct", name))
	}
	d := &Definition{Name: name, Description: description}
	parameters := parametersOf(own, false)
	for _, p := range parameters {
		d.InputParameters = append(d.InputParameters, p.Value)
	}
	public := own.CloneSchemas()
	withNulls(public, false)
	setSchema(d, "input_schema", public)
	if result, err := schemaOf[Out](); err == nil && reflect.TypeFor[Out]() != reflect.TypeFor[*Result]() {
		withNulls(result, true)
		for _, p := range parametersOf(result, true) {
			d.OutputParameters = append(d.OutputParameters, p.Value)
		}
		setSchema(d, "output_schema", result)
	}
	if change != nil {
		change(d)
	}
	s.Add(Tool{Definition: *d, Run: func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error) {
		v, err := wire.CheckJSON(arguments)
		if err != nil || !v.IsObject() {
			return nil, refuse("arguments", a2e.ReasonType, "object", wire.KindName(v))
		}
		v = withoutNulls(v, parameters)
		if err := checkSchema("arguments", own, v); err != nil {
			return nil, err
		}
		var in In
		if err := strictjson.Decode(v, &in); err != nil {
			return nil, decodeError(v, err)
		}
		out, err := fn(ctx, call, in)
		if err != nil {
			return nil, err
		}
		return out, nil
	}})
}

// decodeError returns the violation of arguments that fit the schema and not the Go type.
func decodeError(v strictjson.Value, err error) error {
	path, goType := strictjson.FaultOf(err)
	if path == "" {
		e := a2e.SchemaViolation("arguments", a2e.ReasonValue)
		e.Message += ": " + wire.Clip(err.Error())
		e.Capability = Capability
		return e
	}
	field := "arguments"
	for name := range strings.SplitSeq(path, ".") {
		n, err := strconv.Atoi(name)
		if !v.IsArray() || err != nil {
			field += "." + name
			v = v.Get(name)
			continue
		}
		field += "[" + name + "]"
		e := v.Elements()
		for e.Next() && n > 0 {
			n--
		}
		v = e.Value
	}
	return refuse(field, a2e.ReasonValue, goType, string(v))
}

// setSchema adds a schema to a definition, unless every value fits it.
func setSchema(d *Definition, name string, s *jsonschema.Schema) {
	if raw, err := json.Marshal(s); err == nil && raw[0] == '{' && len(raw) > 2 {
		_ = d.Extra.Set(name, json.RawMessage(raw))
	}
}

// schemaOf returns the schema of a Go type. Objects may have unschemas members (A2E-D32).
func schemaOf[T any]() (*jsonschema.Schema, error) {
	schemas := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.Number]():     {Type: "number"},
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[[]byte]():          {Types: []string{"null", "string"}},
		reflect.TypeFor[time.Time]():       {Type: "string"},
	}
	addOwnForms(reflect.TypeFor[T](), schemas, map[reflect.Type]bool{})
	s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: schemas})
	if err == nil {
		openObjects(s)
	}
	return s, err
}

// addOwnForms adds schemas for the types inside t that write their own JSON: a string for those that
// write a text, and else any value.
func addOwnForms(t reflect.Type, schemas map[reflect.Type]*jsonschema.Schema, seen map[reflect.Type]bool) {
	if seen[t] || schemas[t] != nil {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		addOwnForm(t.Elem(), schemas)
		addOwnForms(t.Elem(), schemas, seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if !f.Anonymous { // whose members belong to the struct
				addOwnForm(f.Type, schemas)
			}
			addOwnForms(f.Type, schemas, seen)
		}
	}
}

func addOwnForm(t reflect.Type, schemas map[reflect.Type]*jsonschema.Schema) {
	implements := func(i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }
	switch {
	case schemas[t] != nil || t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface:
	case implements(reflect.TypeFor[json.Marshaler]()) || implements(reflect.TypeFor[json.Unmarshaler]()):
		schemas[t] = &jsonschema.Schema{}
	case implements(reflect.TypeFor[encoding.TextMarshaler]()) || implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		schemas[t] = &jsonschema.Schema{Type: "string"}
	}
}

// openObjects permits unschemas members in all objects.
func openObjects(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, property := range s.Properties {
		openObjects(property)
	}
	openObjects(s.AdditionalProperties)
	openObjects(s.Items)
}

// withNulls removes null from the types of members, because null means absent in arguments, or adds it to
// those of maps, because that is how Go writes a nil map.
func withNulls(s *jsonschema.Schema, isOutput bool) {
	if s == nil {
		return
	}
	if isOutput && s.Type == "object" && s.Properties == nil && s.AdditionalProperties != nil {
		s.Type, s.Types = "", []string{"null", "object"}
	}
	for _, property := range s.Properties {
		if !isOutput && len(property.Types) > 0 {
			property.Type, property.Types = typeName(property), nil
		}
		withNulls(property, isOutput)
	}
	withNulls(s.AdditionalProperties, isOutput)
	withNulls(s.Items, isOutput)
}

// parametersOf turns the properties of a schema into parameters, in the order in which the struct has
// them. A result that may be null is not required, because null means absent.
func parametersOf(s *jsonschema.Schema, isOutput bool) a2e.OrderedObject[Parameter] {
	var list a2e.OrderedObject[Parameter]
	for _, name := range s.PropertyOrder {
		property := s.Properties[name]
		if property == nil {
			continue
		}
		p := Parameter{Name: name, Type: typeName(property), Description: property.Description,
			Required: slices.Contains(s.Required, name), Properties: parametersOf(property, isOutput)}
		if isOutput && slices.Contains(property.Types, "null") {
			p.Required = false
		}
		if items := itemsSchema(property, isOutput); items != nil {
			_ = p.Extra.Set("items", items)
		}
		list = append(list, a2e.Member[Parameter]{Name: name, Value: p})
	}
	return list
}

// typeName returns the type of a parameter with a schema.
func typeName(s *jsonschema.Schema) string {
	for _, t := range append(slices.Clone(s.Types), s.Type) { // such as null and string
		if t != "null" && t != "" {
			return t
		}
	}
	return "any"
}

// itemsSchema returns the member items of a parameter, or nil for elements that may be null, which it
// would refuse (A2E-D32).
func itemsSchema(s *jsonschema.Schema, isOutput bool) json.RawMessage {
	if s.Items == nil || s.Items.Type == "" {
		return nil
	}
	var items a2e.Members
	_ = items.Set("type", s.Items.Type)
	if properties := parametersOf(s.Items, isOutput); len(properties) > 0 {
		text, err := a2e.EncodeModel(&struct {
			Properties a2e.OrderedObject[Parameter] `json:"properties"`
		}{properties})
		if err != nil {
			return nil
		}
		_ = items.Set("properties", json.RawMessage(strictjson.Value(text).Get("properties")))
	}
	text, _ := items.MarshalJSON()
	return text
}

// withoutNulls removes the members of an object that are null, at every depth with parameters, because
// null means absent (A2E-D32).
func withoutNulls(v strictjson.Value, parameters a2e.OrderedObject[Parameter]) strictjson.Value {
	out := []byte{'{'}
	for m := v.Members(); m.Next(); {
		value := m.Value
		if p, ok := parameters.Get(string(m.Name)); ok && value.Kind() == 'n' {
			continue
		} else if ok && value.IsObject() && len(p.Properties) > 0 {
			value = withoutNulls(value, p.Properties)
		} else if ok && value.IsArray() {
			value = elementsWithoutNulls(value, &p)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, m.Key...), ':'), value...)
	}
	return append(out, '}')
}

func elementsWithoutNulls(v strictjson.Value, p *Parameter) strictjson.Value {
	items, err := itemsOf(p)
	if err != nil || items == nil || len(items.Properties) == 0 {
		return v
	}
	out := []byte{'['}
	for e := v.Elements(); e.Next(); {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, withoutNulls(e.Value, items.Properties)...)
	}
	return append(out, ']')
}

// checkSchema checks a value against a schema of a Go type, and returns the violation of its innermost
// part.
func checkSchema(path string, s *jsonschema.Schema, v strictjson.Value) error {
	types := s.Types
	if s.Type != "" {
		types = []string{s.Type}
	}
	switch {
	case len(types) > 0 && !slices.ContainsFunc(types, func(name string) bool { return name == "null" && v.Kind() == 'n' || name != "null" && fits(name, v) }):
		return refuse(path, a2e.ReasonType, strings.Join(types, " or "), wire.KindName(v))
	case v.IsObject():
		return checkMembers(path, s, v)
	case v.IsArray():
		return checkList(path, s, v)
	case v.Kind() == '0':
		n, _ := json.Number(v).Float64()
		if s.Minimum != nil && n < *s.Minimum || s.Maximum != nil && n > *s.Maximum {
			return refuse(path, a2e.ReasonValue, rangeText(s), string(v))
		}
	}
	return nil
}

func checkMembers(path string, s *jsonschema.Schema, v strictjson.Value) error {
	for _, name := range s.Required {
		if v.Get(name) == nil {
			return refuse(path+"."+name, a2e.ReasonRequired, typeName(s.Properties[name]), "")
		}
	}
	for m := v.Members(); m.Next(); {
		inner := s.Properties[string(m.Name)]
		if inner == nil {
			inner = s.AdditionalProperties
		}
		if inner == nil {
			continue
		}
		if err := checkSchema(path+"."+string(m.Name), inner, m.Value); err != nil {
			return err
		}
	}
	return nil
}

func checkList(path string, s *jsonschema.Schema, v strictjson.Value) error {
	n := 0
	for e := v.Elements(); e.Next(); n++ {
		if s.Items == nil {
			continue
		}
		if err := checkSchema(path+"["+strconv.Itoa(n)+"]", s.Items, e.Value); err != nil {
			return err
		}
	}
	if s.MinItems != nil && n < *s.MinItems || s.MaxItems != nil && n > *s.MaxItems {
		return refuse(path, a2e.ReasonValue, fmt.Sprintf("%d elements", *s.MinItems), strconv.Itoa(n))
	}
	return nil
}

// rangeText returns the range of an integer type.
func rangeText(s *jsonschema.Schema) string {
	if s.Maximum == nil {
		return fmt.Sprintf("at least %.0f", *s.Minimum)
	}
	return fmt.Sprintf("%.0f to %.0f", *s.Minimum, *s.Maximum)
}
