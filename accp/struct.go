// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"encoding"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/internal/guard"
)

// Marshal returns the params for a struct. Each exported field becomes a param under the name in its json tag, or
// its own name in lower case. The tag accp has what only schemas have:
//
//	type Report struct {
//		Revenue string   `json:"revenue" accp:"dec"`              // a decimal, from its text
//		Growth  *float64 `json:"growth_pct"`                      // nil: absent
//		Period  string   `json:"period" accp:"default=quarterly"` // for SchemaOf
//		Notes   string   `json:"notes,omitempty" accp:"abbr=n"`
//		Secret  string   `json:"-"`
//	}
//
// Strings, booleans, integers of all sizes, [*big.Int], floats, [Value], slices, maps with string
// keys, and structs become values of the matching kind; floats become decimals. An
// [encoding.TextMarshaler], such as a [time.Time], becomes a string. A nil pointer is
// omitted, and so is a zero value with omitempty or omitzero. A nil slice or map becomes an empty one.
// Another struct whose fields are all unexported is an error, and so is a value that contains itself.
// The tag jsonschema has the description of a field for tools, and no effect here.
func Marshal(v any) (Params, error) {
	rv := reflect.Indirect(reflect.ValueOf(v))
	if rv.Kind() != reflect.Struct {
		return nil, fmt.Errorf("accp: marshal: %T is not a struct", v)
	}
	return structParams(rv, 0)
}

// checkStruct returns an error unless a type is a struct that params fit.
func checkStruct(t reflect.Type) error {
	if t.Kind() != reflect.Struct {
		return fmt.Errorf("%s is not a struct", t)
	}
	_, err := fieldsOf(t)
	return err
}

// tagged is a field of a struct with the options of its tag.
type tagged struct {
	index     int
	name      string
	abbr      string
	def       string
	hasDef    bool
	omitEmpty bool
	dec       bool
}

// structs is a cache by type, filled as types are met.
var structs sync.Map // of reflect.Type to []tagged

func fieldsOf(t reflect.Type) ([]tagged, error) {
	if fields, ok := structs.Load(t); ok {
		return fields.([]tagged), nil
	}
	fields, err := newFields(t)
	if err == nil {
		structs.Store(t, fields)
	}
	return fields, err
}

func newFields(t reflect.Type) ([]tagged, error) {
	var out []tagged
	isOpaque := t.NumField() > 0
	for i := range t.NumField() {
		f := t.Field(i)
		isOpaque = isOpaque && !f.IsExported()
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		isOmitted := func(o string) bool { return o == "omitempty" || o == "omitzero" }
		x := tagged{index: i, name: name, omitEmpty: slices.ContainsFunc(strings.Split(options, ","), isOmitted)}
		if !validName(x.name) {
			return nil, fmt.Errorf("accp: field %s.%s: invalid name %q", t, f.Name, x.name)
		}
		if err := x.setOptions(f.Tag.Get("accp")); err != nil {
			return nil, fmt.Errorf("accp: field %s.%s: %w", t, f.Name, err)
		}
		if x.dec && f.Type.Kind() != reflect.String {
			return nil, fmt.Errorf("accp: field %s.%s: dec is for strings", t, f.Name)
		}
		out = append(out, x)
	}
	if isOpaque {
		return nil, fmt.Errorf("accp: %s has no exported field", t)
	}
	return out, nil
}

// setOptions sets the options of a tag.
func (f *tagged) setOptions(tag string) error {
	for tag != "" {
		var option string
		option, tag, _ = strings.Cut(tag, ",")
		key, val, _ := strings.Cut(option, "=")
		switch key {
		case "abbr":
			f.abbr = val
		case "default":
			f.def, f.hasDef = val, true
		case "dec":
			f.dec = true
		default:
			return fmt.Errorf("unknown option %q", option)
		}
	}
	return nil
}

// isOmitted reports whether a value of the field is no param.
func (f *tagged) isOmitted(v reflect.Value) bool {
	return v.Kind() == reflect.Pointer && v.IsNil() || f.omitEmpty && v.IsZero()
}

func structParams(rv reflect.Value, depth int) (Params, error) {
	fields, err := fieldsOf(rv.Type())
	if err != nil {
		return nil, err
	}
	count := 0
	for _, f := range fields {
		if !f.isOmitted(rv.Field(f.index)) {
			count++
		}
	}
	if count == 0 {
		return nil, nil
	}
	out := make(Params, 0, count)
	for _, f := range fields {
		fv := rv.Field(f.index)
		if f.isOmitted(fv) {
			continue
		}
		var v Value
		if f.dec {
			if fv.Len() == 0 {
				continue // without text
			}
			v, err = Decimal(fv.String())
		} else {
			v, err = valueOf(fv, depth)
		}
		if err != nil {
			return nil, fmt.Errorf("accp: %s: %w", f.name, err)
		}
		out = append(out, Param{f.name, v})
	}
	return out, nil
}

var typeValue, typeBigInt = reflect.TypeFor[Value](), reflect.TypeFor[*big.Int]()

// maxNesting bounds the pointers, lists, maps and structs around a value. A frame holds fewer.
const maxNesting = 400

func valueOf(rv reflect.Value, depth int) (Value, error) {
	if depth == maxNesting {
		return Value{}, fail(ErrParse, "nested too deep")
	}
	return valueAt(rv, depth+1)
}

func valueAt(rv reflect.Value, depth int) (Value, error) {
	if rv.Kind() == reflect.Invalid {
		return Value{}, nil
	}
	switch rv.Type() {
	case typeValue:
		return rv.Interface().(Value), nil
	case typeBigInt:
		if rv.IsNil() {
			return Value{}, nil
		}
		return Value{kind: KindInt, text: rv.Interface().(*big.Int).String()}, nil
	}
	if hasText(rv.Type(), typeTextMarshaler) {
		return textOf(rv)
	}
	return valueOfKind(rv, depth)
}

func valueOfKind(rv reflect.Value, depth int) (Value, error) {
	switch rv.Kind() {
	case reflect.Pointer, reflect.Interface:
		return valueOf(rv.Elem(), depth)
	case reflect.String:
		return String(rv.String()), nil
	case reflect.Bool:
		return Bool(rv.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return Int(rv.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return Value{kind: KindInt, text: strconv.FormatUint(rv.Uint(), 10)}, nil
	case reflect.Float32:
		return Decimal(strconv.FormatFloat(rv.Float(), 'f', -1, 32))
	case reflect.Float64:
		return floatValue(rv.Float())
	case reflect.Slice, reflect.Array:
		return arrayOf(rv, depth)
	case reflect.Map:
		return mapOf(rv, depth)
	case reflect.Struct:
		list, err := structParams(rv, depth)
		return Value{kind: KindMap, list: list}, err
	}
	return Value{}, errNoValue(rv)
}

var typeTextMarshaler, typeTextUnmarshaler = reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()

// hasText reports whether a pointer to a type implements an interface of package encoding. A big.Int is a number.
func hasText(t, method reflect.Type) bool {
	return t.PkgPath() != "" && t != typeBigInt.Elem() && reflect.PointerTo(t).Implements(method)
}

func textOf(rv reflect.Value) (Value, error) {
	p := reflect.New(rv.Type())
	p.Elem().Set(rv)
	var text []byte
	err := guard.Call("MarshalText", func() (err error) {
		text, err = p.Interface().(encoding.TextMarshaler).MarshalText()
		return err
	})
	return String(string(text)), err
}

// setText calls the UnmarshalText of rv with a string.
func setText(rv reflect.Value, v Value) error {
	if v.kind != KindString {
		return errNoFit(rv, v)
	}
	err := guard.Call("UnmarshalText", func() error {
		return rv.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(v.text))
	})
	if err != nil {
		return &Error{Code: ErrInvalidType, Message: "the text does not fit a " + rv.Type().String(), Cause: err}
	}
	return nil
}

func errNoValue(rv reflect.Value) error { return fmt.Errorf("accp: cannot marshal a %s", rv.Type()) }

func arrayOf(rv reflect.Value, depth int) (Value, error) {
	v := Value{kind: KindArray}
	for i := range rv.Len() {
		x, err := valueOf(rv.Index(i), depth)
		if err != nil {
			return Value{}, err
		}
		v.list = append(v.list, Param{Value: x})
	}
	return v, nil
}

func mapOf(rv reflect.Value, depth int) (Value, error) {
	if rv.Type().Key().Kind() != reflect.String {
		return Value{}, errNoValue(rv)
	}
	v := Value{kind: KindMap}
	for it := rv.MapRange(); it.Next(); {
		x, err := valueOf(it.Value(), depth)
		if err != nil {
			return Value{}, err
		}
		v.list = append(v.list, Param{it.Key().String(), x})
	}
	v.list = Params(v.list).sorted()
	return v, nil
}

// Unmarshal sets the fields of the struct that v points to. It ignores a param without a field, and
// leaves a field without a param unchanged. A value of another type than the field, a number out
// of its range, or a text that an [encoding.TextUnmarshaler] refuses is [ErrInvalidType].
func Unmarshal(params Params, v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() || rv.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("accp: cannot unmarshal into %T, which is no pointer to a struct", v)
	}
	return setStruct(rv.Elem(), params)
}

func setStruct(rv reflect.Value, params Params) error {
	fields, err := fieldsOf(rv.Type())
	if err != nil {
		return err
	}
	get := indexed(params)
	for _, f := range fields {
		v, ok := get(f.name)
		if !ok {
			continue
		}
		if f.dec {
			text, isNumber := v.Number()
			if !isNumber {
				return fail(ErrInvalidType, "%s must be a number, not a %s", f.name, v.kind)
			}
			rv.Field(f.index).SetString(text)
			continue
		}
		if err := setValue(rv.Field(f.index), v); err != nil {
			return fmt.Errorf("accp: %s: %w", f.name, err)
		}
	}
	return nil
}

func setValue(rv reflect.Value, v Value) error {
	switch rv.Type() {
	case typeValue:
		rv.Set(reflect.ValueOf(v))
		return nil
	case typeBigInt:
		n, ok := new(big.Int).SetString(v.text, 10)
		if v.kind != KindInt || !ok {
			return errNoFit(rv, v)
		}
		rv.Set(reflect.ValueOf(n))
		return nil
	}
	if (v.kind == KindString || rv.Kind() == reflect.Struct) && hasText(rv.Type(), typeTextUnmarshaler) {
		return setText(rv, v)
	}
	return setValueOfKind(rv, v)
}

func setValueOfKind(rv reflect.Value, v Value) error {
	switch kind := rv.Kind(); {
	case kind == reflect.Pointer:
		return setPointer(rv, v)
	case kind == reflect.Slice && v.kind == KindArray:
		return setSlice(rv, v)
	case kind == reflect.Map && v.kind == KindMap && rv.Type().Key().Kind() == reflect.String:
		return setMap(rv, v)
	case kind == reflect.Struct && v.kind == KindMap:
		return setStruct(rv, v.list)
	case !setScalar(rv, v):
		return errNoFit(rv, v)
	}
	return nil
}

func errNoFit(rv reflect.Value, v Value) error {
	return fail(ErrInvalidType, "a %s does not fit a %s", v.kind, rv.Type())
}

func setPointer(rv reflect.Value, v Value) error {
	if v.kind == KindNull {
		rv.SetZero()
		return nil
	}
	p := reflect.New(rv.Type().Elem())
	if err := setValue(p.Elem(), v); err != nil {
		return err
	}
	rv.Set(p)
	return nil
}

func setSlice(rv reflect.Value, v Value) error {
	out := reflect.MakeSlice(rv.Type(), len(v.list), len(v.list))
	for i := range v.list {
		if err := setValue(out.Index(i), v.list[i].Value); err != nil {
			return err
		}
	}
	rv.Set(out)
	return nil
}

func setMap(rv reflect.Value, v Value) error {
	out := reflect.MakeMapWithSize(rv.Type(), len(v.list))
	for _, p := range v.list {
		x := reflect.New(rv.Type().Elem()).Elem()
		if err := setValue(x, p.Value); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(p.Key).Convert(rv.Type().Key()), x)
	}
	rv.Set(out)
	return nil
}

// setScalar reports whether v fits rv, which it then sets.
func setScalar(rv reflect.Value, v Value) bool {
	isFit := false
	switch rv.Kind() {
	case reflect.String:
		if isFit = v.kind == KindString; isFit {
			rv.SetString(v.text)
		}
	case reflect.Bool:
		if isFit = v.kind == KindBool; isFit {
			rv.SetBool(v.text == "true")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := v.Int()
		if isFit = ok && !rv.OverflowInt(n); isFit {
			rv.SetInt(n)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(v.text, 10, 64)
		if isFit = v.kind == KindInt && err == nil && !rv.OverflowUint(n); isFit {
			rv.SetUint(n)
		}
	case reflect.Float32, reflect.Float64:
		text, ok := v.Number()
		n, err := strconv.ParseFloat(text, rv.Type().Bits())
		if isFit = ok && err == nil; isFit {
			rv.SetFloat(n)
		}
	}
	return isFit
}

// SchemaOf derives a schema from a struct: the fields, their short forms in abbr, and the defaults
// in the notation of frames.
func SchemaOf(name, code string, version int64, v any) (Schema, error) {
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return Schema{}, fmt.Errorf("accp: schema: %T is not a struct", v)
	}
	fields, err := fieldsOf(t)
	if err != nil {
		return Schema{}, err
	}
	s := Schema{Name: name, Code: code, Version: version, Abbr: map[string]string{}}
	var c Codec
	for _, f := range fields {
		s.Fields = append(s.Fields, f.name)
		if f.abbr != "" {
			s.Abbr[f.abbr] = f.name
		}
		if f.hasDef {
			d, err := c.DecodeValue([]byte(f.def))
			if err != nil {
				return Schema{}, fmt.Errorf("accp: default of %s: %w", f.name, err)
			}
			s.Defaults = append(s.Defaults, Param{f.name, d})
		}
	}
	return s, s.validate()
}
