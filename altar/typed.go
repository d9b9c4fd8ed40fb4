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
// that is written as JSON. Its contract is made of the struct (see
// [ContractOf]), so that what does not fit never reaches f. It panics like
// [Runtime.Handle], and if In is no struct that fits a contract.
func AddTool[In, Out any](r *Runtime, name string, f func(ctx context.Context, in In) (Out, error)) {
	r.HandleContract(mustContract[In](name, false), HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
		var in In
		if err := call.Decode(&in); err != nil {
			return nil, err
		}
		return f(ctx, in)
	}))
}

// AddStreamTool is [AddTool] for a tool that answers in chunks.
func AddStreamTool[In any](r *Runtime, name string, f func(ctx context.Context, in In, out *ChunkWriter) error) {
	r.HandleContractStream(mustContract[In](name, true), StreamHandlerFunc(func(ctx context.Context, call *ToolCall, out *ChunkWriter) error {
		var in In
		if err := call.Decode(&in); err != nil {
			return err
		}
		return f(ctx, in, out)
	}))
}

func mustContract[In any](name string, streaming bool) *Contract {
	c, err := ContractOf[In](name)
	if err != nil {
		panic(err.Error())
	}
	c.Streaming = streaming
	return c
}

// ContractOf returns the contract of a tool whose parameters are the struct In.
//
// A field is a parameter under the name in its json tag, or its own. It is
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
		p, err := fieldParam(f, cmp.Or(name, f.Name), options, above)
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
