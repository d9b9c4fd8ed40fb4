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
	"strings"
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

	repeatable bool // see [Input.Repeatable]
	isRepeated bool
	now        time.Time             // of a step that another process sends
	notes      map[string]*inputNote // the read members; nil unless the run records
}

// caseRun is what the inputs of one case share.
type caseRun struct {
	err    error // the first fault of the input
	want   strictjson.Value
	memory memory
	script bool // steps were compared one by one
	isLive bool // the script runs in real time
	got    []strictjson.Value

	feed  func() (*Input, bool) // the steps of a script that another process runs; nil otherwise
	reply func(strictjson.Value, error)
	notes map[string]*inputNote // of the input in; nil unless the run records
}

// An inputNote records how an operation reads a member.
type inputNote struct {
	kind     string
	required bool
	def      any
	members  map[string]*inputNote
}

// note records that a member is read.
func (in *Input) note(name, kind string, required bool, def any) {
	if in.notes == nil || strings.ContainsAny(name, "[") {
		return
	}
	n := in.notes[name]
	if n == nil {
		n = &inputNote{required: true}
		in.notes[name] = n
	}
	n.kind = kind
	n.required = n.required && required
	if !required {
		n.def = def
	}
}

func newInput(path string, value strictjson.Value, run *caseRun) *Input {
	return &Input{path: path, value: value, read: make(map[string]bool), run: run}
}

// Repeatable says that a step may run again until its answer is the wanted one (see
// [Script.Settle]), because it only reads, or acts in its first run only, which is the one
// for which it returns true.
func (in *Input) Repeatable() (isFirst bool) {
	in.repeatable = true
	return !in.isRepeated
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

// member returns a member, and records that it is read as a kind of value, with the
// default value def unless it is required.
func (in *Input) member(name, kind string, required bool, def any) strictjson.Value {
	in.note(name, kind, required, def)
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
	return in.text(name, in.member(name, "string", true, nil), "")
}

// StringOr returns an optional string, or def if it is absent.
func (in *Input) StringOr(name, def string) string {
	return in.text(name, in.member(name, "string", false, def), def)
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
	if in.notes != nil {
		in.notes[name].required = true
	}
	return b
}

// WireOr is like [Input.Wire] for optional input, and reports whether there was any.
func (in *Input) WireOr(name string) (data []byte, ok bool) {
	defer in.noteWire(name)
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

func (in *Input) noteWire(name string) {
	if in.notes != nil {
		delete(in.notes, name+"B64")
		in.notes[name] = &inputNote{kind: "bytes"}
	}
}

// Bytes returns the bytes of a required string in standard base64; the whole
// name is given, with its "B64".
func (in *Input) Bytes(name string) []byte {
	text := in.String(name)
	in.note(name, "base64", true, nil)
	return in.decode64(name, text)
}

// BytesList returns a required list of strings in standard base64, decoded.
func (in *Input) BytesList(name string) [][]byte {
	texts := in.Strings(name)
	in.note(name, "list of base64", true, nil)
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
func (in *Input) Int(name string) int {
	return in.integer(name, in.member(name, "integer", true, nil), 0)
}

// IntOr returns an optional integer, or def if it is absent.
func (in *Input) IntOr(name string, def int) int {
	return in.integer(name, in.member(name, "integer", false, def), def)
}

func (in *Input) integer(name string, v strictjson.Value, def int) int {
	n := in.integer64(name, v, int64(def))
	if int64(int(n)) != n {
		in.wrongType(name, "an integer of this processor", v)
		return def
	}
	return int(n)
}

// Int64 returns an integer of 64 bits.
func (in *Input) Int64(name string) int64 {
	return in.integer64(name, in.member(name, "integer", true, nil), 0)
}

// Int64Or returns an optional integer of 64 bits, or def if it is absent.
func (in *Input) Int64Or(name string, def int64) int64 {
	return in.integer64(name, in.member(name, "integer", false, def), def)
}

func (in *Input) integer64(name string, v strictjson.Value, def int64) int64 {
	if v == nil {
		return def
	}
	n, ok := v.Int()
	if !ok {
		in.wrongType(name, "an integer", v)
		return def
	}
	return n
}

// Ints returns a required list of integers.
func (in *Input) Ints(name string) []int64 {
	var list []int64
	for i, v := range in.elements(name, "list of integers") {
		list = append(list, in.integer64(name+"["+strconv.Itoa(i)+"]", v, 0))
	}
	return list
}

// Bool returns an optional boolean, false if it is absent.
func (in *Input) Bool(name string) bool { return in.BoolOr(name, false) }

// BoolOr returns an optional boolean, or def if it is absent.
func (in *Input) BoolOr(name string, def bool) bool {
	v := in.member(name, "boolean", false, def)
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
	in.note(name, "timestamp", true, nil)
	var at time.Time
	if err := at.UnmarshalText([]byte(s)); err != nil {
		in.Fail(name, "want an RFC 3339 timestamp, not %q", s)
	}
	return at
}

// Strings returns a required list of strings.
func (in *Input) Strings(name string) []string {
	list := []string{}
	for i, v := range in.elements(name, "list of strings") {
		list = append(list, in.text(name+"["+strconv.Itoa(i)+"]", v, ""))
	}
	return list
}

// StringsOr returns an optional list of strings, nil if it is absent.
func (in *Input) StringsOr(name string) []string {
	in.note(name, "list of strings", false, nil)
	if !in.Has(name) {
		return nil
	}
	return in.Strings(name)
}

// Raw returns the text of an optional member exactly as in the file, nil if it
// is absent.
func (in *Input) Raw(name string) json.RawMessage {
	return json.RawMessage(slices.Clone(in.member(name, "JSON", false, nil)))
}

// RawList returns the texts of the elements of a required list.
func (in *Input) RawList(name string) []json.RawMessage {
	list := []json.RawMessage{}
	for _, v := range in.elements(name, "list of JSON") {
		list = append(list, json.RawMessage(slices.Clone(v)))
	}
	return list
}

// Object returns a required object, whose members must be read in turn.
func (in *Input) Object(name string) *Input {
	return in.object(name, in.member(name, "object", true, nil))
}

// ObjectOr returns an optional object; if it is absent, one without members.
func (in *Input) ObjectOr(name string) *Input {
	return in.object(name, in.member(name, "object", false, nil))
}

// Objects returns a required list of objects, whose members must be read in turn.
func (in *Input) Objects(name string) []*Input {
	var list []*Input
	for i, v := range in.elements(name, "list of objects") {
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
	if in.notes != nil {
		base, _, _ := strings.Cut(name, "[")
		n := in.notes[base]
		if n.members == nil {
			n.members = make(map[string]*inputNote)
		}
		child.notes = n.members
	}
	in.kids = append(in.kids, child)
	return child
}

// SetHeaders changes h by an optional object of header fields: a string sets a
// field, a list of strings sets it once per element, and null removes it.
func (in *Input) SetHeaders(name string, h http.Header) {
	fields := in.ObjectOr(name)
	in.note(name, "header fields", false, nil)
	fields.notes = nil
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

func (in *Input) elements(name, kind string) []strictjson.Value {
	v := in.member(name, kind, true, nil)
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
