// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Answer holds the members that an operation, or one step of a script,
// answered. It is compared with want member by member: each member of want must
// exist and be equal, and there must be no further one, unless it is wrapped in
// [Optional] or [Default].
//
// The member "json" is compared, at every depth, with the member json or
// jsonSubset of want.
//
// Values are nil, bool, string, integers, [json.Number], [json.RawMessage] (JSON
// text, checked strictly: a duplicate member name fails the case), another
// Answer, [Headers], and slices and maps of those. Anything else fails the
// case; there are no floats, because numbers are exact, and no []byte, because
// it could be text or base64.
type Answer map[string]any

// Optional returns an answer of which only those members are compared that
// want names, like [Optional] on each of them.
func (a Answer) Optional() Answer {
	out := make(Answer, len(a))
	for name, v := range a {
		out[name] = Optional(v)
	}
	return out
}

// Optional marks a member of an [Answer] that is compared only if want names it.
func Optional(value any) any {
	if o, ok := value.(optional); ok {
		return o
	}
	return optional{value: value}
}

// Default marks a member of an [Answer] that want may omit when its value
// is def, such as an empty list.
func Default(value, def any) any { return optional{value: value, def: def, hasDef: true} }

// unseen is the value of a member of an [Answer] that cannot be observed here. It equals
// everything that is wanted.
type unseen struct{}

type optional struct {
	value, def any
	hasDef     bool
}

// Headers are the header fields of an HTTP message as a member of an [Answer].
// Only those are compared that want names, without regard to upper and lower case;
// several values of one field are joined by ", ", and null in want says that
// the field must be absent.
type Headers http.Header

// A got is an answer made ready for comparing: exactly one of its fields is set, or none for
// a value that cannot be observed.
type got struct {
	json    strictjson.Value // a complete value
	object  map[string]member
	list    []got
	headers Headers
}

type member struct {
	got
	optional bool
	def      *got // with optional: what it must be if it is not named
}

// normal turns a value of an answer into a got.
func normal(path string, v any) (got, error) {
	switch v := v.(type) {
	case unseen:
		return got{}, nil
	case optional:
		return got{}, fmt.Errorf("%s: only members of an Answer may be optional", path)
	case Answer:
		g := got{object: make(map[string]member, len(v))}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			m, err := normalMember(path+"."+name, v[name])
			if err != nil {
				return got{}, err
			}
			g.object[name] = m
		}
		return g, nil
	case Headers:
		if v == nil {
			v = Headers{}
		}
		return got{headers: v}, nil
	case json.RawMessage:
		return checked(path, v)
	case strictjson.Value:
		return checked(path, v)
	case json.Number:
		return checked(path, []byte(v))
	case json.Marshaler:
		if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && p.IsNil() {
			return checked(path, []byte("null"))
		}
		text, err := v.MarshalJSON()
		if err != nil {
			return got{}, fmt.Errorf("%s: %w", path, err)
		}
		return checked(path, text)
	}
	return normalReflect(path, reflect.ValueOf(v))
}

func normalMember(path string, v any) (member, error) {
	o, isOptional := v.(optional)
	if !isOptional {
		g, err := normal(path, v)
		return member{got: g}, err
	}
	g, err := normal(path, o.value)
	if err != nil {
		return member{}, err
	}
	m := member{got: g, optional: true}
	if o.hasDef {
		d, err := normal(path, o.def)
		if err != nil {
			return member{}, err
		}
		m.def = &d
	}
	return m, nil
}

func normalReflect(path string, v reflect.Value) (got, error) {
	leaf := func(text string) (got, error) { return got{json: strictjson.Value(text)}, nil }
	switch v.Kind() {
	case reflect.Invalid:
		return leaf("null")
	case reflect.Bool:
		return leaf(strconv.FormatBool(v.Bool()))
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return got{}, fmt.Errorf("%s: the string %q is not valid UTF-8", path, v.String())
		}
		return got{json: strictjson.AppendString(nil, v.String())}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return leaf(strconv.FormatInt(v.Int(), 10))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return leaf(strconv.FormatUint(v.Uint(), 10))
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return leaf("null")
		}
		return normal(path, v.Elem().Interface())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			break
		}
		g := got{list: make([]got, v.Len())} // a nil slice is an empty list
		for i := range v.Len() {
			e, err := normal(path+"["+strconv.Itoa(i)+"]", v.Index(i).Interface())
			if err != nil {
				return got{}, err
			}
			g.list[i] = e
		}
		return g, nil
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			break
		}
		a := make(Answer, v.Len())
		for it := v.MapRange(); it.Next(); {
			a[it.Key().String()] = it.Value().Interface()
		}
		return normal(path, a)
	}
	return got{}, fmt.Errorf("%s: an answer cannot hold a %s", path, v.Type())
}

// maxDepth bounds the nesting of everything that is read here. It is far above
// what any protocol accepts, so that vectors can try.
const maxDepth = 10000

// checked reads a JSON text of an answer. A lone surrogate escape compares equal
// to U+FFFD, because the text of a vector cannot hold one.
func checked(path string, text []byte) (got, error) {
	v, err := strictjson.Check(text, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
	if err != nil {
		return got{}, fmt.Errorf("%s: the answer is not strict JSON: %w: %s", path, err, clip(string(text)))
	}
	return got{json: v}, nil
}

func (g got) isUnseen() bool {
	return g.object == nil && g.headers == nil && g.json == nil && g.list == nil
}

// text returns g as JSON, for people and for comparing. Optional members
// with their default are omitted.
func (g got) text() strictjson.Value { return g.append(nil) }

func (g got) append(dst []byte) []byte {
	switch {
	case g.object != nil:
		dst = append(dst, '{')
		first := true
		for _, name := range slices.Sorted(maps.Keys(g.object)) {
			m := g.object[name]
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = strictjson.AppendString(dst, name)
			dst = append(dst, ':')
			dst = m.append(dst)
		}
		return append(dst, '}')
	case g.headers != nil:
		dst = append(dst, '{')
		for i, name := range slices.Sorted(maps.Keys(g.headers)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strictjson.AppendString(dst, name)
			dst = append(dst, ':')
			dst = strictjson.AppendString(dst, strings.Join(g.headers[name], ", "))
		}
		return append(dst, '}')
	case g.json != nil:
		return append(dst, g.json...)
	case g.isUnseen():
		return append(dst, `"(not observed)"`...)
	}
	dst = append(dst, '[')
	for i, e := range g.list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.append(dst)
	}
	return append(dst, ']')
}

// clip shortens a text for a message.
func clip(s string) string { return shorten(s, 400) }

func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + fmt.Sprintf("… (%d bytes)", len(s))
}
