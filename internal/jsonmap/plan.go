// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A mapping reads and writes the values of one Go type.
type mapping interface {
	// read reads the value at c, which it passes in any case, into an addressable dst, and
	// returns the first fault.
	read(c *strictjson.Cursor, dst reflect.Value) *Fault
	append(b []byte, src reflect.Value, depth int) ([]byte, *Fault)
	want() string // the name of the type in faults
}

type (
	selfReader interface {
		ReadJSON(*strictjson.Cursor) *Fault
	}
	selfAppender interface {
		AppendJSON([]byte) ([]byte, *Fault)
	}
	memberReader interface {
		ReadMember(name string, value json.RawMessage) (isRead bool)
	}
	checker      interface{ CheckMember(name string) *Fault }
	errorChecker interface{ CheckMember(name string) error }
)

// mappings is a cache by type, filled as types are met.
var mappings sync.Map // of reflect.Type to mapping

func mappingOf(t reflect.Type) (mapping, error) {
	if m, ok := mappings.Load(t); ok {
		return m.(mapping), nil
	}
	b := builder{plans: map[reflect.Type]*plan{}}
	m := b.mapping(t)
	if b.err != nil {
		return nil, b.err
	}
	mappings.Store(t, m)
	return m, nil
}

// A builder compiles a type. It keeps the first error.
type builder struct {
	plans map[reflect.Type]*plan // of structs, complete or being compiled
	depth int
	err   error
}

func (b *builder) fail(format string, args ...any) mapping {
	if b.err == nil {
		b.err = fmt.Errorf("jsonmap: "+format, args...)
	}
	return anyMapping{}
}

func (b *builder) mapping(t reflect.Type) mapping {
	switch t {
	case reflect.TypeFor[JSON]():
		return jsonLeaf
	case reflect.TypeFor[json.RawMessage]():
		return rawLeaf
	case reflect.TypeFor[json.Number]():
		return numberLeaf
	}
	b.depth++
	defer func() { b.depth-- }()
	if b.depth > maxDepth {
		return b.fail("%v contains itself", t)
	}
	return b.methods(t)
}

func (b *builder) byKind(t reflect.Type) mapping {
	switch t.Kind() {
	case reflect.String:
		return stringLeaf
	case reflect.Bool:
		return boolLeaf
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return intLeaf
	case reflect.Float32, reflect.Float64:
		return floatLeaf
	case reflect.Pointer:
		return &pointerMapping{elem: b.mapping(t.Elem()), typ: t.Elem()}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return bytesLeaf
		}
		return &sliceMapping{elem: b.mapping(t.Elem()), values: newBuffers(t), empty: reflect.MakeSlice(t, 0, 0)}
	case reflect.Map:
		k := t.Key()
		if k.Kind() != reflect.String || reflect.PointerTo(k).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			return b.fail("%v: the key is not a string", t)
		}
		keys, values := reflect.SliceOf(k), reflect.SliceOf(t.Elem())
		return &mapMapping{elem: b.mapping(t.Elem()), typ: t, keys: newBuffers(keys), values: newBuffers(values)}
	case reflect.Struct:
		return b.plan(t)
	case reflect.Interface:
		if t.NumMethod() == 0 {
			return anyMapping{}
		}
	}
	return b.fail("values of type %v cannot be mapped to JSON", t)
}

// A plan is the mapping of a struct.
type plan struct {
	fields []field
	byName map[string]int // nil if there are few fields
	extra  []int          // index of the field for unknown members, or nil
	kept   []int          // index of the field for the members that other fields do not hold, or nil
	checks bool           // the struct has CheckMember
	reads  bool           // the struct has ReadMember
}

type field struct {
	name    string
	prefix  []byte // the name as it is written, with a comma, quotes and a colon
	index   []int
	mapping mapping

	required, omitEmpty, omitZero bool
	holdsNull                     bool
	other                         []int // index of the field for values of other types, or nil
	always                        bool  // an absent member has a value

	defaultValue reflect.Value // for an absent member, or invalid
	defaultText  []byte        // written for the zero value, or nil
	keepsEmpty   bool          // an empty string that was read is kept with the unknown members
}

// Bounds of a struct.
const (
	fewFields = 12
	maxFields = 256
)

func (b *builder) plan(t reflect.Type) mapping {
	if p, ok := b.plans[t]; ok {
		return p
	}
	pointer := reflect.PointerTo(t)
	p := &plan{checks: pointer.Implements(reflect.TypeFor[checker]()) || pointer.Implements(reflect.TypeFor[errorChecker]()), reads: pointer.Implements(reflect.TypeFor[memberReader]())}
	b.plans[t] = p
	b.fields(p, t, t, nil)
	if len(p.fields) > maxFields {
		return b.fail("%v has more than %d members", t, maxFields)
	}
	names := make(map[string]int, len(p.fields))
	for i, f := range p.fields {
		if _, isTwice := names[f.name]; isTwice {
			return b.fail("%v has two fields for the member %q", t, f.name)
		}
		names[f.name] = i
	}
	if len(p.fields) > fewFields {
		p.byName = names
	}
	return p
}

// fields adds the fields of t, which is root or embedded in it at an index.
func (b *builder) fields(p *plan, root, t reflect.Type, index []int) {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(index[:len(index):len(index)], i)
		tag, hasTag := sf.Tag.Lookup("json")
		switch {
		case isKept(sf):
			p.kept = at
		case strings.HasPrefix(sf.Tag.Get("jsonmap"), otherTag) && tag == "-":
			p.setOther(b, root, sf, at)
		case tag == "-":
		case sf.Anonymous && !hasTag:
			if sf.Type.Kind() != reflect.Struct {
				b.fail("%v embeds %v, which is not a struct", root, sf.Type)
				return
			}
			b.fields(p, root, sf.Type, at)
		case !sf.IsExported():
			if hasTag {
				b.fail("%v.%s has a tag but is not exported", root, sf.Name)
			}
		case isMembers(sf.Type) && !hasTag:
			if p.extra != nil {
				b.fail("%v has two fields for unknown members", root)
			}
			p.extra = at
		default:
			p.fields = append(p.fields, b.field(root, sf, tag, at))
		}
	}
}

func (b *builder) field(root reflect.Type, sf reflect.StructField, tag string, index []int) field {
	parts := strings.Split(tag, ",")
	f := field{name: parts[0], index: index}
	if f.name == "" {
		b.fail("%v.%s: no json tag names its member", root, sf.Name)
	}
	for _, option := range parts[1:] {
		switch option {
		case "omitempty":
			f.omitEmpty = true
		case "omitzero":
			f.omitZero = true
		default:
			b.fail("%v.%s: unknown option %q", root, sf.Name, option)
		}
	}
	f.required = !f.omitEmpty && !f.omitZero && sf.Type.Kind() != reflect.Pointer
	f.prefix = append(strictjson.AppendString([]byte{','}, f.name), ':')
	f.mapping = b.mapping(sf.Type)
	f.holdsNull = f.mapping == jsonLeaf || f.mapping == rawLeaf || f.mapping == anyMapping{}
	for _, option := range strings.FieldsFunc(sf.Tag.Get("jsonmap"), func(r rune) bool { return r == ',' }) {
		text, isDefault := strings.CutPrefix(option, "default=")
		switch {
		case option == "always" && !f.required:
			f.omitEmpty, f.omitZero, f.always = false, false, true
		case option == "not" && f.mapping == boolLeaf:
			f.mapping = notLeaf
		case option == "object" && f.mapping == rawLeaf:
			f.mapping, f.holdsNull = objectLeaf, false
		case option == "object" && sf.Type == reflect.TypeFor[[]json.RawMessage]():
			f.mapping.(*sliceMapping).elem = objectLeaf
		case option == "unset" && !f.required:
			f.holdsNull = false
		case isDefault && !f.required:
			f.omitEmpty, f.omitZero, f.always = false, false, true
			b.setDefault(&f, root, sf, text)
		default:
			b.fail("%v.%s: unknown option %q of the tag jsonmap", root, sf.Name, option)
		}
	}
	return f
}

// setDefault sets what an absent member means: a word for a string, JSON for other types.
func (b *builder) setDefault(f *field, root reflect.Type, sf reflect.StructField, text string) {
	t := sf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.String {
		text = string(strictjson.AppendString(nil, text))
	}
	v := reflect.New(sf.Type).Elem()
	c := strictjson.NewCursor([]byte(text), strictjson.Options{})
	if bad := f.mapping.read(c, v); bad != nil || c.Err() != nil || v.IsZero() {
		b.fail("%v.%s: the default does not fit", root, sf.Name)
		return
	}
	f.defaultValue, f.defaultText = v, []byte(text)
	f.keepsEmpty = sf.Type.Kind() == reflect.String
}

// setDefault stores what an absent member means. Values do not share a pointer or a slice, which is used again by the
// next Read.
func (f *field) setDefault(dst reflect.Value) {
	switch dst.Kind() {
	case reflect.Pointer:
		p := reflect.New(dst.Type().Elem())
		p.Elem().Set(f.defaultValue.Elem())
		dst.Set(p)
	case reflect.Slice:
		dst.Set(reflect.AppendSlice(reflect.Zero(dst.Type()), f.defaultValue))
	default:
		dst.Set(f.defaultValue)
	}
}

// find returns which field has that name, or -1.
func (p *plan) find(name []byte) int {
	if p.byName != nil {
		if i, ok := p.byName[string(name)]; ok {
			return i
		}
		return -1
	}
	for i := range p.fields {
		if p.fields[i].name == string(name) {
			return i
		}
	}
	return -1
}

// in returns the part of a struct at an index.
func in(v reflect.Value, index []int) reflect.Value {
	v = v.Field(index[0])
	for _, i := range index[1:] {
		v = v.Field(i)
	}
	return v
}

func (p *plan) want() string { return "object" }

func (p *plan) read(c *strictjson.Cursor, dst reflect.Value) *Fault {
	if !c.Object() {
		return wrongType(c, "object")
	}
	return p.readRest(c, dst, nil, nil)
}

// readRest is the method read behind the bracket of an object; see [ReadRest].
func (p *plan) readRest(c *strictjson.Cursor, dst reflect.Value, rest *Members, other Other) *Fault {
	r := structReader{plan: p, rest: rest}
	if rest == nil && p.extra != nil {
		r.rest = membersAt(in(dst, p.extra))
	}
	r.members(c, dst, other)
	for i := range p.fields {
		f := &p.fields[i]
		switch {
		case r.has(i):
		case f.required && p.kept == nil:
			r.note(i, &Fault{Reason: Missing, Want: f.mapping.want()})
		case f.always:
			if f.defaultText != nil {
				f.setDefault(in(dst, f.index))
			}
			r.seen[i/64] |= 1 << (i % 64)
		}
	}
	if p.checks && !c.Failed() {
		model := dst.Addr().Interface()
		for i := range p.fields {
			if r.fault != nil && i >= r.at {
				break
			}
			if r.has(i) {
				r.note(i, check(model, p.fields[i].name))
			}
		}
	}
	if r.fault == nil {
		return nil
	}
	return r.fault.In(p.fields[r.at].name)
}

// A structReader is the state of reading one struct.
type structReader struct {
	*plan
	rest  *Members               // for unknown members, or nil
	seen  [maxFields / 64]uint64 // bits by field
	fault *Fault                 // that of the first field with one
	at    int                    // the field of the fault
}

func (r *structReader) has(i int) bool { return r.seen[i/64]&(1<<(i%64)) != 0 }

func (r *structReader) note(i int, f *Fault) {
	if f != nil && (r.fault == nil || i <= r.at) {
		r.fault, r.at = f, i
	}
}

func (r *structReader) members(c *strictjson.Cursor, dst reflect.Value, other Other) {
	var extra []byte
	guess := 0 // members mostly come in the order of the type
	for c.Name() {
		i := guess
		if guess == len(r.fields) || string(c.Key()) != r.fields[guess].name {
			if other != nil && other.ReadOther(c) {
				continue
			}
			i = r.find(c.Key())
		}
		if i < 0 {
			switch {
			case r.kept != nil:
				r.keepUnknown(c, dst)
			case r.rest != nil:
				extra = addMember(extra, c)
			}
			continue
		}
		guess = i + 1
		f := &r.fields[i]
		if !f.holdsNull && c.Null() {
			continue
		}
		if r.kept != nil {
			r.seen[i/64] |= 1 << (i % 64)
			r.readKept(c, dst, f)
			continue
		}
		start := c.Offset()
		bad := f.mapping.read(c, in(dst, f.index))
		if bad != nil && r.readsOther(bad, dst, f.name, c, start) {
			continue
		}
		r.seen[i/64] |= 1 << (i % 64)
		r.note(i, bad)
		if bad == nil && f.keepsEmpty && r.rest != nil && in(dst, f.index).Len() == 0 {
			if extra == nil {
				extra = append(extra, '{')
			}
			extra = f.appendEmpty(extra)
		}
	}
	if extra != nil {
		r.rest.text = append(extra, '}')
	}
}

// readsOther reports whether the struct reads the value at start, which has another type than its field.
func (p *plan) readsOther(bad *Fault, dst reflect.Value, name string, c *strictjson.Cursor, start int) bool {
	if !p.reads || bad.Reason != WrongType || bad.Path != "" {
		return false
	}
	value := c.Since(start)
	if value == nil {
		return false
	}
	isRead := false
	f := callMethod("ReadMember", func() error {
		isRead = dst.Addr().Interface().(memberReader).ReadMember(name, json.RawMessage(value))
		return nil
	})
	if f != nil {
		bad.Cause = f.Cause
	}
	return isRead
}

// check checks a member of a struct, to which model points.
func check(model any, name string) *Fault {
	switch k := model.(type) {
	case checker:
		return k.CheckMember(name)
	case errorChecker:
		if f := callMethod("CheckMember", func() error { return k.CheckMember(name) }); f != nil {
			return &Fault{Reason: Invalid, Cause: f.Cause}
		}
	}
	return nil
}

func (p *plan) append(b []byte, src reflect.Value, depth int) ([]byte, *Fault) {
	if p.kept != nil {
		return p.appendKept(b, src, depth)
	}
	var rest Members
	if p.extra != nil {
		rest = *membersAt(in(src, p.extra))
	}
	b, ft := p.appendFields(b, src, depth, rest)
	if ft != nil {
		return b, ft
	}
	return append(rest.append(b, p), '}'), nil
}

// appendFields appends an object without its unknown members, rest, and its last bracket.
func (p *plan) appendFields(b []byte, src reflect.Value, depth int, rest Members) ([]byte, *Fault) {
	var model any
	if p.checks {
		model = addressable(src).Interface()
	}
	b = append(b, '{')
	for i := range p.fields {
		f := &p.fields[i]
		v := in(src, f.index)
		if f.isOmitted(v) {
			continue
		}
		var ft *Fault
		if model != nil {
			if ft = check(model, f.name); ft != nil {
				return b, ft.In(f.name)
			}
		}
		if f.keepsEmpty && rest.text != nil && v.Len() == 0 && rest.text.Get(f.name) != nil {
			b = f.appendEmpty(b)
			continue
		}
		if b, ft = f.append(b, v, depth); ft != nil {
			return b, ft
		}
	}
	return b, nil
}

// appendEmpty appends an empty string behind other members of its object.
func (f *field) appendEmpty(b []byte) []byte {
	prefix := f.prefix
	if b[len(b)-1] == '{' {
		prefix = prefix[1:]
	}
	return append(append(b, prefix...), `""`...)
}

// append appends a member behind others of its object.
func (f *field) append(b []byte, v reflect.Value, depth int) ([]byte, *Fault) {
	prefix := f.prefix
	if b[len(b)-1] == '{' {
		prefix = prefix[1:]
	}
	b = append(b, prefix...)
	if f.defaultText != nil && v.IsZero() {
		return append(b, f.defaultText...), nil
	}
	b, ft := deeper(f.mapping, b, v, depth)
	if ft != nil {
		return b, ft.In(f.name)
	}
	return b, nil
}

func (f *field) isOmitted(v reflect.Value) bool {
	switch k := v.Kind(); {
	case !f.omitZero && !f.omitEmpty:
		return false
	case k == reflect.String, f.omitEmpty && (k == reflect.Slice || k == reflect.Map):
		return v.Len() == 0
	case k == reflect.Struct && !f.omitZero:
		return false
	}
	return v.IsZero()
}

// addressable returns a pointer to v, or to a copy of it.
func addressable(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v.Addr()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p
}
