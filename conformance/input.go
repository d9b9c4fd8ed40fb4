// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Input is the object in of a case, an object inside it, or one step of a
// script. Its methods read members by name; each call counts the member as
// read, and an unread member fails the case.
//
// A required member that is missing, and any member of another type than asked
// for, fails the case too: the method then returns a zero value and the fault
// is kept (see [Input.Err]), so that an [Op] need not check each of them.
//
// An Input is for one goroutine.
type Input struct {
	path  string
	value strictjson.Value
	read  map[string]bool
	kids  []*Input
	run   *caseRun
}

// caseRun is what the inputs of one case share.
type caseRun struct {
	err    error // the first fault of the input
	want   strictjson.Value
	memory memory
	script bool // steps were compared one by one
	got    []strictjson.Value
}

func newInput(path string, value strictjson.Value, run *caseRun) *Input {
	return &Input{path: path, value: value, read: make(map[string]bool), run: run}
}

// Err returns the first fault found in the input of this case so far, or nil.
// An Op that cannot continue with zero values returns it.
func (in *Input) Err() error { return in.run.err }

// Fail records that a member does not make sense, such as an unknown word.
func (in *Input) Fail(name, format string, args ...any) {
	if in.run.err == nil {
		in.run.err = fmt.Errorf("%s.%s: %s", in.path, name, fmt.Sprintf(format, args...))
	}
}

// Has reports whether there is a member of that name, null or not. It does not
// count as reading it.
func (in *Input) Has(name string) bool { return in.value.Get(name) != nil }

// IsNull reports whether there is a member of that name that is null, and counts
// it as read then.
func (in *Input) IsNull(name string) bool {
	if in.value.Get(name).Kind() != 'n' {
		return false
	}
	in.read[name] = true
	return true
}

// Names returns the names of all members in the order of the text.
func (in *Input) Names() []string {
	var names []string
	for m := in.value.Members(); m.Next(); {
		names = append(names, string(m.Name))
	}
	return names
}

func (in *Input) member(name string, required bool) strictjson.Value {
	in.read[name] = true
	v := in.value.Get(name)
	if v == nil && required {
		in.Fail(name, "missing")
	}
	return v
}

func (in *Input) wrongType(name, want string, v strictjson.Value) {
	in.Fail(name, "want %s, not %s", want, clip(string(v)))
}

// String returns a required string.
func (in *Input) String(name string) string {
	return in.text(name, in.member(name, true), "")
}

// StringOr returns an optional string, or def if it is absent.
func (in *Input) StringOr(name, def string) string {
	return in.text(name, in.member(name, false), def)
}

func (in *Input) text(name string, v strictjson.Value, def string) string {
	if v == nil {
		return def
	}
	s, ok := v.Text()
	if !ok {
		in.wrongType(name, "a string", v)
		return def
	}
	return s
}

// Wire returns raw input: the bytes of the string name, or those that the
// member of that name with "B64" after it holds as base64. One of the two is
// required.
func (in *Input) Wire(name string) []byte {
	b, ok := in.WireOr(name)
	if !ok {
		in.Fail(name, "missing")
	}
	return b
}

// WireOr is like [Input.Wire] for optional input, and reports whether there was any.
func (in *Input) WireOr(name string) (data []byte, ok bool) {
	plain, coded := in.Has(name), in.Has(name+"B64")
	switch {
	case plain && coded:
		in.read[name], in.read[name+"B64"] = true, true
		in.Fail(name, "stands beside %sB64", name)
		return nil, true
	case coded:
		return in.Bytes(name + "B64"), true
	case plain:
		return []byte(in.String(name)), true
	}
	return nil, false
}

// Bytes returns the bytes of a required string in standard base64; the whole
// name is given, with its "B64".
func (in *Input) Bytes(name string) []byte {
	return in.decode64(name, in.String(name))
}

// BytesList returns a required list of strings in standard base64, decoded.
func (in *Input) BytesList(name string) [][]byte {
	texts := in.Strings(name)
	list := make([][]byte, len(texts))
	for i, s := range texts {
		list[i] = in.decode64(name, s)
	}
	return list
}

func (in *Input) decode64(name, s string) []byte {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		in.Fail(name, "not base64: %v", err)
		return nil
	}
	return b
}

// Int returns a required integer.
func (in *Input) Int(name string) int { return in.integer(name, in.member(name, true), 0) }

// IntOr returns an optional integer, or def if it is absent.
func (in *Input) IntOr(name string, def int) int {
	return in.integer(name, in.member(name, false), def)
}

func (in *Input) integer(name string, v strictjson.Value, def int) int {
	if v == nil {
		return def
	}
	n, ok := v.Int()
	if !ok || int64(int(n)) != n {
		in.wrongType(name, "an integer", v)
		return def
	}
	return int(n)
}

// Ints returns a required list of integers.
func (in *Input) Ints(name string) []int {
	var list []int
	for i, v := range in.elements(name) {
		list = append(list, in.integer(name+"["+strconv.Itoa(i)+"]", v, 0))
	}
	return list
}

// Bool returns an optional boolean, false if it is absent.
func (in *Input) Bool(name string) bool { return in.BoolOr(name, false) }

// BoolOr returns an optional boolean, or def if it is absent.
func (in *Input) BoolOr(name string, def bool) bool {
	v := in.member(name, false)
	if v == nil {
		return def
	}
	b, ok := v.Bool()
	if !ok {
		in.wrongType(name, "a boolean", v)
		return def
	}
	return b
}

// Time returns a required RFC 3339 timestamp.
func (in *Input) Time(name string) time.Time {
	s := in.String(name)
	var at time.Time
	if err := at.UnmarshalText([]byte(s)); err != nil {
		in.Fail(name, "want an RFC 3339 timestamp, not %q", s)
	}
	return at
}

// Strings returns a required list of strings.
func (in *Input) Strings(name string) []string {
	list := []string{}
	for i, v := range in.elements(name) {
		list = append(list, in.text(name+"["+strconv.Itoa(i)+"]", v, ""))
	}
	return list
}

// StringsOr returns an optional list of strings, nil if it is absent.
func (in *Input) StringsOr(name string) []string {
	if !in.Has(name) {
		return nil
	}
	return in.Strings(name)
}

// Raw returns the text of an optional member exactly as in the file, nil if it
// is absent.
func (in *Input) Raw(name string) json.RawMessage {
	return json.RawMessage(slices.Clone(in.member(name, false)))
}

// RawList returns the texts of the elements of a required list.
func (in *Input) RawList(name string) []json.RawMessage {
	list := []json.RawMessage{}
	for _, v := range in.elements(name) {
		list = append(list, json.RawMessage(slices.Clone(v)))
	}
	return list
}

// Object returns a required object, whose members must be read in turn.
func (in *Input) Object(name string) *Input {
	return in.object(name, in.member(name, true))
}

// ObjectOr returns an optional object; if it is absent, one without members.
func (in *Input) ObjectOr(name string) *Input {
	return in.object(name, in.member(name, false))
}

// Objects returns a required list of objects, whose members must be read in turn.
func (in *Input) Objects(name string) []*Input {
	var list []*Input
	for i, v := range in.elements(name) {
		list = append(list, in.object(name+"["+strconv.Itoa(i)+"]", v))
	}
	return list
}

func (in *Input) object(name string, v strictjson.Value) *Input {
	if v != nil && !v.IsObject() {
		in.wrongType(name, "an object", v)
		v = nil
	}
	child := newInput(in.path+"."+name, v, in.run)
	in.kids = append(in.kids, child)
	return child
}

// SetHeaders changes h by an optional object of header fields: a string sets a
// field, a list of strings sets it once per element, and null removes it.
func (in *Input) SetHeaders(name string, h http.Header) {
	fields := in.ObjectOr(name)
	for _, field := range fields.Names() {
		switch {
		case fields.IsNull(field):
			h.Del(field)
		case fields.value.Get(field).IsArray():
			h[http.CanonicalHeaderKey(field)] = fields.Strings(field)
		default:
			h.Set(field, fields.String(field))
		}
	}
}

func (in *Input) elements(name string) []strictjson.Value {
	v := in.member(name, true)
	if v == nil {
		return nil
	}
	if !v.IsArray() {
		in.wrongType(name, "a list", v)
		return nil
	}
	var list []strictjson.Value
	for e := v.Elements(); e.Next(); {
		list = append(list, e.Value)
	}
	return list
}

// noOption fails the case if it names an option of a fixture that the package
// does not have. Without the option the case would show something else.
func (in *Input) noOption(pkg string, names ...string) {
	for _, name := range names {
		if in.Has(name) {
			in.Fail(name, "package %s has no such option", pkg)
		}
	}
}

// unread returns an error that names the first unread member.
func (in *Input) unread() error {
	for _, name := range in.Names() {
		if !in.read[name] {
			return fmt.Errorf("%s.%s: the operation does not know this member", in.path, name)
		}
	}
	for _, child := range in.kids {
		if err := child.unread(); err != nil {
			return err
		}
	}
	return nil
}
