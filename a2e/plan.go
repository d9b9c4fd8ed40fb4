// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A plan says how a struct is read from and written to an object. Its fields are
// in the order of the struct, which is the order of the catalogue: in it members
// are written, and the first fault is looked for.
//
// The tag of a field is `a2e:"name,option,..."`; a field without a name in it is
// not on the wire. Options:
//
//	required     the member must be there and not null (anything goes for "any")
//	nullable     the member is left out when unset: a nil pointer, slice or raw text
//	null         like nullable, but written as null when unset
//	object       raw text, or a list of it, that must be objects; not set means {}
//	default=X    what an absent member means, see [New]
//	min=X max=X  bounds of a number
//	check        asks the struct's CheckMember about the value
//	alt=X        also takes a form that deployed peers send (A2E-D20): emptyobject
//	             for a list, false for nothing, emptylist for an object, text
//	             for an object
type plan struct {
	typ    reflect.Type
	fields []*field
	extra  uintptr // where unknown members are kept
	keeps  bool    // they are kept
	// some field names what messages are put in order by, see orderKeys
	ordered bool
	check   bool // some field has the option check
}

type field struct {
	name   string
	prefix []byte // the name as written, with a comma, quotes and a colon
	index  []int
	typ    reflect.Type
	offset uintptr // of the field in its struct
	kind   fieldKind
	value  valueCoder

	required, nullable, null, object, check bool
	any                                     bool // raw text of any kind
	def                                     string
	min, max                                *float64
	alt                                     string
}

// A fieldKind marks the fields of a few types, which most are of: they are read and
// written without reflection. What it means for a value is said by the coders of
// the same type; a test holds the two to each other.
type fieldKind uint8

const (
	otherField fieldKind = iota
	stringField
	intField
	boolField
	rawField    // any JSON
	objectField // a JSON object as raw text
)

func kindOfField(f *field) fieldKind {
	switch {
	case f.alt != "" || f.min != nil || f.max != nil || f.check:
		return otherField
	case f.typ == reflect.TypeFor[string]():
		return stringField
	case f.typ == reflect.TypeFor[int64]():
		return intField
	case f.typ == reflect.TypeFor[bool]():
		return boolField
	case f.typ == reflect.TypeFor[json.RawMessage]() && f.object:
		return objectField
	case f.typ == reflect.TypeFor[json.RawMessage]():
		return rawField
	}
	return otherField
}

// A fault is a member that does not fit, by its path below the value at hand.
type fault struct{ field, reason string }

func (f *fault) in(name string) *fault {
	switch {
	case f.field == "":
		f.field = name
	case f.field[0] == '[':
		f.field = name + f.field
	default:
		f.field = name + "." + f.field
	}
	return f
}

func (f *fault) err() *Error { return violation(f.field, f.reason) }

func mistyped() *fault { return &fault{reason: ReasonType} }
func badValue() *fault { return &fault{reason: ReasonValue} }

// A checker says more about a member than its type does. CheckMember is asked
// about members with the option check, as soon as they and those before them
// are read, and returns a path below the member and a reason, or "" for both.
type checker interface {
	CheckMember(name string) (path, reason string)
}

// plans remembers the compiled plans by type. It is a cache, not state.
var plans sync.Map

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	building := map[reflect.Type]*plan{}
	p := compile(t, building)
	for t, p := range building {
		plans.LoadOrStore(t, p)
	}
	return p
}

// compile makes the plan of a struct. Mistakes in tags are the programmer's own
// and panic.
func compile(t reflect.Type, building map[reflect.Type]*plan) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	if p, ok := building[t]; ok {
		return p
	}
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("a2e: the model %v is not a struct", t))
	}
	p := &plan{typ: t}
	building[t] = p
	for _, sf := range reflect.VisibleFields(t) {
		if sf.Type == reflect.TypeFor[Members]() && sf.Tag.Get("a2e") == "" {
			p.extra, p.keeps = offsetOf(t, sf.Index), true
			continue
		}
		tag, ok := sf.Tag.Lookup("a2e")
		if !ok || !sf.IsExported() {
			continue
		}
		f := newField(t, sf, tag)
		f.value = coderOf(sf.Type, f, building)
		f.typ, f.offset = sf.Type, offsetOf(t, sf.Index)
		f.kind = kindOfField(f)
		switch f.name {
		case "memory_id", "plan_id", "episode_id", "episode_ids", "proc_id":
			p.ordered = true
		}
		if f.check {
			p.check = true
			if !reflect.PointerTo(t).Implements(reflect.TypeFor[checker]()) {
				panic(fmt.Sprintf("a2e: %v has no CheckMember", t))
			}
		}
		p.fields = append(p.fields, f)
	}
	if len(p.fields) > maxFields {
		panic(fmt.Sprintf("a2e: %v has more than %d members", t, maxFields))
	}
	return p
}

// offsetOf returns where a field lies in a struct or in one that is embedded in it.
func offsetOf(t reflect.Type, index []int) (offset uintptr) {
	for _, i := range index {
		if t.Kind() != reflect.Struct {
			panic(fmt.Sprintf("a2e: a model embeds %v, which is no struct", t))
		}
		f := t.Field(i)
		offset += f.Offset
		t = f.Type
	}
	return offset
}

const maxFields = 32

func newField(t reflect.Type, sf reflect.StructField, tag string) *field {
	parts := strings.Split(tag, ",")
	f := &field{name: parts[0], index: sf.Index}
	if f.name == "" {
		panic(fmt.Sprintf("a2e: %v.%s: the tag names no member", t, sf.Name))
	}
	f.prefix = append(strictjson.AppendString([]byte{','}, f.name), ':')
	for _, option := range parts[1:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "required":
			f.required = true
		case "nullable":
			f.nullable = true
		case "null":
			f.null = true
		case "object":
			f.object = true
		case "check":
			f.check = true
		case "default":
			f.def = value
		case "alt":
			f.alt = value
		case "min", "max":
			bound, err := strconv.ParseFloat(value, 64)
			if err != nil {
				panic(fmt.Sprintf("a2e: %v.%s: %v", t, sf.Name, err))
			}
			if key == "min" {
				f.min = &bound
			} else {
				f.max = &bound
			}
		default:
			panic(fmt.Sprintf("a2e: %v.%s: unknown option %q", t, sf.Name, option))
		}
	}
	return f
}

// find returns which field has that name, beginning the search at the guess.
func (p *plan) find(name []byte, guess int) int {
	for i := guess; i < len(p.fields); i++ {
		if p.fields[i].name == string(name) {
			return i
		}
	}
	for i := range min(guess, len(p.fields)) {
		if p.fields[i].name == string(name) {
			return i
		}
	}
	return -1
}

// decode reads an object, whose members stand at spans if they are known, into
// the struct at dst. With top, that is the body of a message: the members of
// the envelope are passed over, and unknown ones go to top. Else they go to the
// struct itself.
func (p *plan) decode(d *decoder, v strictjson.Value, spans []strictjson.Span, dst unsafe.Pointer, top *Members) *fault {
	if !v.IsObject() {
		return mistyped()
	}
	var room [usualMembers]strictjson.Span
	if spans == nil {
		spans = v.Spans(room[:0])
	}
	var found [maxFields]int32 // one more than the number of the span
	var extra []byte
	guess := 0
	for k := range spans {
		s := &spans[k]
		name := nameOf(v, s)
		if i := p.find(name, guess); i >= 0 {
			found[i], guess = int32(k)+1, i+1
			continue
		}
		if top == nil && !p.keeps || top != nil && isEnvelope(name) {
			continue
		}
		if extra == nil {
			extra = []byte{'{'}
		}
		extra = appendMember(extra, v[s.Name:s.NameEnd], v[s.Value:s.ValueEnd])
	}
	for i, f := range p.fields {
		var value strictjson.Value
		if k := found[i]; k > 0 {
			s := &spans[k-1]
			value = v[s.Value:s.ValueEnd:s.ValueEnd]
		}
		if ft := f.decode(d, value, unsafe.Add(dst, f.offset)); ft != nil {
			return ft.in(f.name)
		}
		if f.check {
			if path, reason := p.checker(dst).CheckMember(f.name); reason != "" {
				return (&fault{field: path, reason: reason}).in(f.name)
			}
		}
	}
	if extra != nil {
		if top == nil {
			top = (*Members)(unsafe.Add(dst, p.extra))
		}
		*top = Members{text: append(extra, '}')}
	}
	return nil
}

// checker returns the struct at v as what it can be asked.
func (p *plan) checker(v unsafe.Pointer) checker {
	return reflect.NewAt(p.typ, v).Interface().(checker)
}

func isEnvelope(name []byte) bool {
	switch string(name) {
	case "a2e", "type", "id", "ts":
		return true
	}
	return false
}

// in returns the field in a struct.
func (f *field) in(v reflect.Value) reflect.Value {
	if len(f.index) == 1 {
		return v.Field(f.index[0])
	}
	return v.FieldByIndex(f.index)
}

func (f *field) decode(d *decoder, v strictjson.Value, dst unsafe.Pointer) *fault {
	if f.alt != "" {
		v = f.other(v)
	}
	if v == nil || v.Kind() == 'n' && !(f.any && f.required) {
		if f.required {
			return &fault{reason: ReasonRequired}
		}
		return nil // dst has its default already
	}
	switch f.kind {
	case stringField:
		s, ok := d.text(v)
		if !ok {
			return mistyped()
		}
		*(*string)(dst) = s
		return nil
	case intField:
		if n, ok := v.Int(); ok {
			*(*int64)(dst) = n
			return nil
		}
	case boolField:
		b, ok := v.Bool()
		if !ok {
			return mistyped()
		}
		*(*bool)(dst) = b
		return nil
	case objectField:
		if !v.IsObject() {
			return mistyped()
		}
		*(*json.RawMessage)(dst) = json.RawMessage(v)
		return nil
	case rawField:
		*(*json.RawMessage)(dst) = json.RawMessage(v)
		return nil
	}
	value := reflect.NewAt(f.typ, dst).Elem()
	if ft := f.value.decode(d, v, value); ft != nil {
		return ft
	}
	if (f.min != nil || f.max != nil) && !f.within(value) {
		return badValue()
	}
	return nil
}

func (f *field) within(dst reflect.Value) bool {
	x := 0.0
	if dst.CanInt() {
		x = float64(dst.Int())
	} else {
		x = dst.Float()
	}
	return (f.min == nil || x >= *f.min) && (f.max == nil || x <= *f.max)
}

// other turns the odd forms of deployed peers into the usual one.
func (f *field) other(v strictjson.Value) strictjson.Value {
	switch {
	case f.alt == "emptyobject" && v.IsObject() && !isFilled(v):
		return strictjson.Value("[]")
	case f.alt == "false" && v.Kind() == 'f':
		return nil
	case f.alt == "emptylist" && v.IsArray():
		if e := v.Elements(); !e.Next() {
			return nil
		}
	case f.alt == "text" && v.Kind() == '"':
		text, _ := v.TextBytes()
		if inner, err := strictjson.Check(text, strictjson.Options{}); err == nil && inner.IsObject() {
			return inner
		}
		return append(appendMember([]byte{'{'}, []byte(`"text"`), v), '}')
	}
	return v
}

func isFilled(v strictjson.Value) bool {
	m := v.Members()
	return m.Next()
}

// encode appends the members of the struct at src to an object that is open in
// e.dst.
func (p *plan) encode(e *encoder, src unsafe.Pointer) *fault {
	for _, f := range p.fields {
		ft := f.encode(e, unsafe.Add(src, f.offset))
		if ft == nil && f.check {
			if path, reason := p.checker(src).CheckMember(f.name); reason != "" {
				ft = &fault{field: path, reason: reason}
			}
		}
		if ft != nil {
			return ft.in(f.name)
		}
	}
	if p.keeps {
		e.members(*(*Members)(unsafe.Add(src, p.extra)), p)
	}
	return nil
}

func (f *field) encode(e *encoder, src unsafe.Pointer) *fault {
	switch f.kind {
	case stringField:
		e.key(f.prefix)
		return e.text(*(*string)(src))
	case intField:
		e.key(f.prefix)
		e.dst = strconv.AppendInt(e.dst, *(*int64)(src), 10)
		return nil
	case boolField:
		e.key(f.prefix)
		e.dst = strconv.AppendBool(e.dst, *(*bool)(src))
		return nil
	case objectField:
		if raw := *(*json.RawMessage)(src); raw != nil {
			e.key(f.prefix)
			return e.object(raw)
		}
	}
	value := reflect.NewAt(f.typ, src).Elem()
	unset := f.unset(value)
	if unset && (f.nullable || f.null) {
		if f.null {
			e.key(f.prefix)
			e.dst = append(e.dst, "null"...)
		}
		return nil
	}
	if unset && f.object {
		if f.required {
			return &fault{reason: ReasonRequired}
		}
		e.key(f.prefix)
		e.dst = append(e.dst, "{}"...)
		return nil
	}
	e.key(f.prefix)
	if ft := f.value.encode(e, value); ft != nil {
		return ft
	}
	if (f.min != nil || f.max != nil) && !f.within(value) {
		return badValue()
	}
	return nil
}

func (f *field) unset(src reflect.Value) bool {
	switch src.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return src.IsNil()
	}
	return false
}

// defaults sets what absent members of a struct mean.
func (p *plan) defaults(dst reflect.Value) {
	for _, f := range p.fields {
		if f.def == "" {
			continue
		}
		v := f.in(dst)
		switch v.Kind() {
		case reflect.String:
			v.SetString(f.def)
		case reflect.Bool:
			v.SetBool(f.def == "true")
		case reflect.Float64:
			x, err := strconv.ParseFloat(f.def, 64)
			mustDefault(p.typ, f, err)
			v.SetFloat(x)
		case reflect.Int64, reflect.Int:
			x, err := strconv.ParseInt(f.def, 10, 64)
			mustDefault(p.typ, f, err)
			v.SetInt(x)
		default:
			mustDefault(p.typ, f, fmt.Errorf("no default for a %v", v.Type()))
		}
	}
}

func mustDefault(t reflect.Type, f *field, err error) {
	if err != nil {
		panic(fmt.Sprintf("a2e: %v: default of %s: %v", t, f.name, err))
	}
}

// New returns a T in which every member has the value that the catalogue gives
// it when it is absent, such as a timeout of 30 seconds. A struct literal, in
// contrast, says exactly what it holds: its timeout of 0 is sent as 0.
func New[T any]() *T {
	v := new(T)
	planOf(reflect.TypeFor[T]()).defaults(reflect.ValueOf(v).Elem())
	return v
}

// DecodeModel reads one JSON object into a model, a struct whose fields have a2e
// tags, by the rules of the catalogue: required members, types, defaults. The
// path of the error begins with prefix. It is for the parts of messages that
// are free-form on the wire but have a model all the same.
func DecodeModel[T any](object json.RawMessage, prefix string) (*T, error) {
	v, err := strictjson.Check(object, strictjson.Options{MaxDepth: defaultDepth})
	if err != nil {
		return nil, violation(prefix, ReasonType)
	}
	dst := New[T]()
	if ft := planOf(reflect.TypeFor[T]()).decode(&decoder{}, v, nil, unsafe.Pointer(dst), nil); ft != nil {
		if prefix != "" {
			ft = ft.in(prefix)
		}
		return nil, ft.err()
	}
	return dst, nil
}

// EncodeModel writes a model as one JSON object. It is the counterpart of
// [DecodeModel].
func EncodeModel[T any](model *T) (json.RawMessage, error) {
	e := &encoder{dst: []byte{'{'}}
	if ft := planOf(reflect.TypeFor[T]()).encode(e, unsafe.Pointer(model)); ft != nil {
		return nil, ft.err()
	}
	return slices.Clip(append(e.dst, '}')), nil
}
