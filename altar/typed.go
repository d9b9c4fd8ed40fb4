// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/fivewire/fivewire/altar/internal/form"
)

// AddTool adds a tool that takes its parameters as a struct and returns a value
// that is written as JSON. Its contract is that of [RuntimeOptions].Manifest, or is
// made of the struct (see [ContractOf]), so that what does not fit never reaches f.
// It panics like [Runtime.Handle], if In is no struct that fits a contract, and if In
// cannot hold all that the contract of the manifest permits.
func AddTool[In, Out any](r *Runtime, name string, f func(ctx context.Context, in In) (Out, error)) {
	var tool HandlerFunc
	if f != nil {
		tool = func(ctx context.Context, call *ToolCall) (any, error) {
			var in In
			if err := call.Decode(&in); err != nil {
				return nil, err
			}
			return f(ctx, in)
		}
	}
	r.add(&runtimeTool{name: name, tool: tool}, typedContract[In](r, name))
}

// AddStreamTool is [AddTool] for a tool that answers in chunks.
func AddStreamTool[In any](r *Runtime, name string, f func(ctx context.Context, in In, out *ChunkWriter) error) {
	var stream StreamHandlerFunc
	if f != nil {
		stream = func(ctx context.Context, call *ToolCall, out *ChunkWriter) error {
			var in In
			if err := call.Decode(&in); err != nil {
				return err
			}
			return f(ctx, in, out)
		}
	}
	r.add(&runtimeTool{name: name, stream: stream}, typedContract[In](r, name))
}

// typedContract returns the contract of a tool with the parameters In: that of the manifest, if there is one.
func typedContract[In any](r *Runtime, name string) *Contract {
	c, err := ContractOf[In](name)
	if err != nil {
		panic(err.Error())
	}
	expected := r.expected(name)
	if expected == nil {
		return c
	}
	if err := holds(c.Parameters, expected.Parameters, ""); err != nil {
		panic(fmt.Sprintf("altar: %s does not fit the contract %q of the manifest: %v", reflect.TypeFor[In](), name, err))
	}
	return expected
}

// holds returns an error unless the parameters of a struct hold all values that a contract permits.
func holds(fields, contract []Parameter, path string) error {
	var list []error
	add := func(name, format string, args ...any) {
		list = append(list, fmt.Errorf("%s: %s", path+"/"+name, fmt.Sprintf(format, args...)))
	}
	byName := make(map[string]Parameter)
	for _, f := range fields {
		byName[f.Name] = f
	}
	for _, p := range contract {
		f, ok := byName[p.Name]
		delete(byName, p.Name)
		switch {
		case !ok:
			add(p.Name, "no field")
		case f.Type != p.Type:
			add(p.Name, "the contract has %s, the field %s", p.Type, f.Type)
		case f.Required && !p.Required:
			add(p.Name, "optional in the contract, so the field must be a pointer, omitempty or omitzero")
		case len(f.Properties) > 0 && len(p.Properties) == 0:
			add(p.Name, "a free-form object in the contract, so the field must be a map or json.RawMessage")
		case len(f.Properties) > 0:
			list = append(list, holds(f.Properties, p.Properties, path+"/"+p.Name))
		}
	}
	for _, f := range fields {
		if _, isExtra := byName[f.Name]; isExtra {
			add(f.Name, "no parameter of the contract")
		}
	}
	return errors.Join(list...)
}

// ContractOf returns the contract of a tool whose parameters are the struct In.
//
// A field is a parameter under the name in its json tag, which must have one. It is
// required unless it is a pointer, or omitempty or omitzero. Its description is
// its tag "description" or, as other libraries have it, "jsonschema". Types map
// so: string and whatever reads itself from text to string, integers to
// integer, floats to float, bool to boolean, []byte to binary, slices and arrays
// to array, structs to object with properties, maps with string keys and
// [json.RawMessage] to free-form object. Of a smaller integer than int64, a
// value that is too large is refused when the parameters are decoded.
func ContractOf[In any](name string) (*Contract, error) {
	t := reflect.TypeFor[In]()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("altar: contract %q: %s is not a struct", name, t)
	}
	params, err := structParams(t, nil)
	if err != nil {
		return nil, fmt.Errorf("altar: contract %q: %w", name, err)
	}
	c := &Contract{Name: name, Parameters: params}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

func structParams(t reflect.Type, above []reflect.Type) ([]Parameter, error) {
	for _, up := range above {
		if up == t {
			return nil, fmt.Errorf("%s contains itself", t)
		}
	}
	above = append(above, t)
	var out []Parameter
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _ := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if name == "-" && options == "" {
			continue
		}
		if f.Anonymous && name == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				params, err := structParams(inner, above)
				if err != nil {
					return nil, err
				}
				out = append(out, params...)
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			return nil, fmt.Errorf("field %s.%s: no name in a json tag", t, f.Name)
		}
		p, err := fieldParam(f, name, options, above)
		if err != nil {
			return nil, fmt.Errorf("field %s.%s: %w", t, f.Name, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// fieldParam returns the parameter of a field with the options of its json tag.
func fieldParam(f reflect.StructField, name, options string, above []reflect.Type) (p Parameter, err error) {
	p = Parameter{Name: name, Required: f.Type.Kind() != reflect.Pointer, Description: cmp.Or(f.Tag.Get("description"), f.Tag.Get("jsonschema"))}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty", "omitzero":
			p.Required = false
		case "string":
			return p, errors.New("the json option string has no counterpart")
		}
	}
	p.Type, p.Properties, err = goType(f.Type, above)
	return p, err
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

func goType(t reflect.Type, above []reflect.Type) (string, []Parameter, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[json.RawMessage]() {
		return form.KindObject, nil, nil
	}
	if reflect.PointerTo(t).Implements(textUnmarshaler) {
		return form.KindString, nil, nil
	}
	switch t.Kind() {
	case reflect.String:
		return form.KindString, nil, nil
	case reflect.Bool:
		return form.KindBoolean, nil, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return form.KindInteger, nil, nil
	case reflect.Float32, reflect.Float64:
		return form.KindFloat, nil, nil
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return form.KindBinary, nil, nil
		}
		inner, properties, err := goType(t.Elem(), above)
		return "array[" + inner + "]", properties, err
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			return form.KindObject, nil, nil
		}
	case reflect.Struct:
		properties, err := structParams(t, above)
		return form.KindObject, properties, err
	}
	return "", nil, fmt.Errorf("the type %s has no counterpart", t)
}
