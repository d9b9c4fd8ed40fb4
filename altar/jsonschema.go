// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// base64Encoding marks a string of JSON Schema that holds bytes.
const base64Encoding = "base64"

// int64Text is what an integer looks like as a string; see [SchemaOptions].
const int64Text = `^-?(0|[1-9][0-9]{0,18})$`

var int64Pattern = regexp.MustCompile(int64Text)

// SchemaOptions adjusts [JSONSchema].
type SchemaOptions struct {
	// IntegerStrings lets integers be written as strings too, for models and
	// libraries that would round what is above 2^53. [ModelArguments] takes
	// both.
	IntegerStrings bool
}

// JSONSchema returns the parameters of a contract as a JSON Schema of an object,
// as tool-calling APIs of language models want it. Binary is a string with
// contentEncoding base64, an integer has format int64; an object with properties
// is closed.
func JSONSchema(params []Parameter, opts *SchemaOptions) *jsonschema.Schema {
	var o SchemaOptions
	if opts != nil {
		o = *opts
	}
	return o.object(params, true)
}

func (o *SchemaOptions) object(params []Parameter, closed bool) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object"}
	if !closed && len(params) == 0 {
		return s
	}
	s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	s.Properties = make(map[string]*jsonschema.Schema, len(params))
	for i := range params {
		p := &params[i]
		s.Properties[p.Name] = o.parameter(p)
		s.PropertyOrder = append(s.PropertyOrder, p.Name)
		if p.Required {
			s.Required = append(s.Required, p.Name)
		}
	}
	return s
}

func (o *SchemaOptions) parameter(p *Parameter) *jsonschema.Schema {
	t, err := ParseParamType(p.Type)
	if err != nil {
		return &jsonschema.Schema{Description: p.Description} // of a later version: anything goes
	}
	var s *jsonschema.Schema
	switch t.Base {
	case KindInteger:
		s = &jsonschema.Schema{Type: "integer", Format: "int64"}
		if o.IntegerStrings {
			s = &jsonschema.Schema{Types: []string{"integer", "string"}, Format: "int64", Pattern: int64Text}
		}
	case KindFloat:
		s = &jsonschema.Schema{Type: "number"}
	case KindBoolean:
		s = &jsonschema.Schema{Type: "boolean"}
	case KindBinary:
		s = &jsonschema.Schema{Type: "string", ContentEncoding: base64Encoding}
	case KindObject:
		s = o.object(p.Properties, false)
	default:
		s = &jsonschema.Schema{Type: "string"}
	}
	for range t.Dims {
		s = &jsonschema.Schema{Type: "array", Items: s}
	}
	s.Description = p.Description
	return s
}

// FromJSONSchemaOptions adjusts [FromJSONSchema].
type FromJSONSchemaOptions struct {
	// Lossy drops keywords that a contract cannot express, such as enum or minimum, instead of
	// refusing them.
	Lossy bool
}

// FromJSONSchema returns the parameters that a JSON Schema of an object
// describes. It is the inverse of [JSONSchema]. The error is a [*ContractError];
// what has no counterpart is unsupported_constraint.
func FromJSONSchema(s *jsonschema.Schema, opts *FromJSONSchemaOptions) ([]Parameter, error) {
	r := schemaReader{}
	if opts != nil {
		r.lossy = opts.Lossy
	}
	t, params := r.read(s, "")
	if r.err == nil && t != string(KindObject) {
		r.fail(ReasonInvalidType, "/type")
	}
	if r.err != nil {
		return nil, r.err
	}
	c := Contract{Name: "c", Parameters: params}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return params, nil
}

type schemaReader struct {
	contractParser
	lossy bool
}

func (r *schemaReader) read(s *jsonschema.Schema, path string) (typ string, properties []Parameter) {
	if s == nil {
		r.fail(ReasonMissingField, path)
		return "", nil
	}
	if !r.lossy {
		r.constraints(s, path)
	}
	kinds := s.Types
	if s.Type != "" {
		kinds = []string{s.Type}
	}
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return k == "null" })
	if len(kinds) == 2 && slices.Contains(kinds, "integer") && s.Format == "int64" {
		kinds = []string{"integer"}
	}
	if len(kinds) != 1 {
		r.fail(ReasonInvalidType, path+"/type")
		return "", nil
	}
	switch kinds[0] {
	case "string":
		if s.ContentEncoding == base64Encoding {
			return string(KindBinary), nil
		}
		return string(KindString), nil
	case "integer":
		return string(KindInteger), nil
	case "number":
		return string(KindFloat), nil
	case "boolean":
		return string(KindBoolean), nil
	case "array":
		inner, properties := r.read(s.Items, path+"/items")
		return "array[" + inner + "]", properties
	case "object":
		return string(KindObject), r.properties(s, path)
	}
	r.fail(ReasonInvalidType, path+"/type")
	return "", nil
}

func (r *schemaReader) properties(s *jsonschema.Schema, path string) []Parameter {
	names := slices.Sorted(maps.Keys(s.Properties))
	if len(s.PropertyOrder) == len(names) && len(names) > 0 {
		order := slices.Sorted(slices.Values(s.PropertyOrder))
		if slices.Equal(order, names) {
			names = s.PropertyOrder
		}
	}
	var out []Parameter
	for _, name := range names {
		at := pointer(path+"/properties", name)
		p := Parameter{Name: name, Required: slices.Contains(s.Required, name)}
		p.Type, p.Properties = r.read(s.Properties[name], at)
		if inner := s.Properties[name]; inner != nil {
			p.Description = inner.Description
		}
		out = append(out, p)
	}
	for i, name := range s.Required {
		if s.Properties[name] == nil {
			r.fail(ReasonInvalidValue, pointerIndex(path+"/required", i))
		}
	}
	return out
}

// constraints refuses keywords that parameters cannot express.
func (r *schemaReader) constraints(s *jsonschema.Schema, path string) {
	for _, c := range []struct {
		name string
		set  bool
	}{
		{"enum", s.Enum != nil}, {"const", s.Const != nil}, {"multipleOf", s.MultipleOf != nil},
		{"minimum", s.Minimum != nil}, {"maximum", s.Maximum != nil},
		{"exclusiveMinimum", s.ExclusiveMinimum != nil}, {"exclusiveMaximum", s.ExclusiveMaximum != nil},
		{"minLength", s.MinLength != nil}, {"maxLength", s.MaxLength != nil},
		{"pattern", s.Pattern != "" && s.Pattern != int64Text},
		{"minItems", s.MinItems != nil}, {"maxItems", s.MaxItems != nil}, {"uniqueItems", s.UniqueItems},
		{"prefixItems", s.PrefixItems != nil || s.ItemsArray != nil}, {"contains", s.Contains != nil},
		{"minProperties", s.MinProperties != nil}, {"maxProperties", s.MaxProperties != nil},
		{"patternProperties", s.PatternProperties != nil}, {"propertyNames", s.PropertyNames != nil},
		{"$ref", s.Ref != "" || s.DynamicRef != ""}, {"allOf", s.AllOf != nil}, {"anyOf", s.AnyOf != nil},
		{"oneOf", s.OneOf != nil}, {"not", s.Not != nil}, {"if", s.If != nil},
		{"dependentRequired", s.DependentRequired != nil}, {"dependentSchemas", s.DependentSchemas != nil},
	} {
		if c.set {
			r.fail(ReasonUnsupportedConstraint, pointer(path, c.name))
		}
	}
}

// A ModelTool is a tool as it is offered to a language model.
type ModelTool struct {
	Name        string             `json:"name"` // see [ModelTools]
	Description string             `json:"description"`
	Parameters  *jsonschema.Schema `json:"parameters"`
}

// ModelTools returns tools as tool-calling APIs want them. Such an API takes
// names of letters, digits, "_" and "-" only, up to 64, so that contract names
// are rewritten; contract finds the name again that a call must have.
func ModelTools(tools []ToolInfo, opts *SchemaOptions) (list []ModelTool, contract map[string]string) {
	contract = make(map[string]string, len(tools))
	for _, t := range tools {
		name := strings.NewReplacer("/", "__", ".", "_").Replace(t.Name)
		name = name[:min(len(name), 64)]
		for n := 2; contract[name] != ""; n++ {
			suffix := "_" + strconv.Itoa(n)
			name = name[:min(len(name), 64-len(suffix))] + suffix
		}
		contract[name] = t.Name
		list = append(list, ModelTool{Name: name, Description: t.Description, Parameters: JSONSchema(t.Parameters, opts)})
	}
	return list, contract
}

// ModelArguments turns the arguments that a model wrote for a tool into
// parameters: integers may be strings, whatever [SchemaOptions] said. All other
// faults are left to the Host, whose answer tells the model everything at once.
func ModelArguments(params []Parameter, arguments []byte) ([]byte, error) {
	v, reason := check(arguments, 0)
	if reason != "" {
		return nil, formFault(reason, "", "the arguments are not a JSON object")
	}
	return appendArguments(nil, compile(params), v), nil
}

func appendArguments(dst []byte, o *object, v strictjson.Value) []byte {
	dst = append(dst, '{')
	first := true
	for m := v.Members(); m.Next(); {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendValueString(dst, m.Key), ':')
		if i := o.find(m.Name); i >= 0 {
			dst = appendArgument(dst, &o.fields[i], m.Value)
		} else {
			dst = appendText(dst, m.Value)
		}
	}
	return append(dst, '}')
}

func appendArgument(dst []byte, f *field, v strictjson.Value) []byte {
	switch {
	case v.IsArray():
		dst = append(dst, '[')
		first := true
		for e := v.Elements(); e.Next(); {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = appendArgument(dst, f, e.Value)
		}
		return append(dst, ']')
	case v.IsObject() && f.sub != nil:
		return appendArguments(dst, f.sub, v)
	case v.Kind() == '"' && f.base == KindInteger:
		if s, _ := v.TextBytes(); int64Pattern.Match(s) {
			return append(dst, s...)
		}
	}
	return appendText(dst, v)
}
