// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDepth is how deep a message may be nested, the envelope included (D-01).
const maxDepth = 128

// checkJSON checks text by D-01. The error is a [*strictjson.Error].
func checkJSON(text []byte) (strictjson.Value, error) {
	return strictjson.Check(text, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
}

// A reader turns checked JSON into messages. A strict one checks what a request
// must be and remembers the first fault; a lenient one, for what peers answer,
// takes what fits and keeps the rest as [Extra]. Nothing it returns shares memory
// with the input.
type reader struct {
	lenient bool
	fault   *Error
}

// A path says where a value stands. It becomes text only when there is a fault.
type path struct {
	parent *path
	name   string // empty for an element of an array
	index  int
}

func (p *path) member(name string) path { return path{parent: p, name: name} }
func (p *path) element(i int) path      { return path{parent: p, index: i} }

func (p *path) String() string {
	if p.parent == nil {
		return p.name // the params themselves have none
	}
	if p.name == "" {
		return p.parent.String() + "[" + strconv.Itoa(p.index) + "]"
	}
	if up := p.parent.String(); up != "" {
		return up + "." + p.name
	}
	return p.name
}

// fieldError is an error that names a member of the request (D-06).
func fieldError(code Code, field, issue string) *Error {
	d := append([]byte(nil), `{"field":`...)
	d = strictjson.AppendString(d, field)
	d = append(d, `,"issue":`...)
	d = strictjson.AppendString(d, issue)
	return &Error{Code: code, Message: code.Message(), Details: append(d, '}')}
}

func (r *reader) fail(p path, issue string) { r.failWith(ErrInvalidParams, p, issue) }

func (r *reader) failWith(code Code, p path, issue string) {
	if r.fault == nil && !r.lenient {
		field := p.String()
		if field == "" {
			field = "params"
		}
		r.fault = fieldError(code, field, issue)
	}
}

// raw copies the text of a value; an absent one is nil.
func raw(v strictjson.Value) json.RawMessage {
	if v.Absent() {
		return nil
	}
	return bytes.Clone(json.RawMessage(v))
}

// A fields is an object taken apart: the values of the members that the
// specification names, in its order, and the others.
type fields struct {
	r     *reader
	at    *path
	names []string
	vals  []strictjson.Value
	extra Extra
}

// object takes v apart. Its memory for the values is the caller's.
func (r *reader) object(at *path, v strictjson.Value, names []string, vals []strictjson.Value) fields {
	f := fields{r: r, at: at, names: names, vals: vals}
	if !v.IsObject() {
		r.fail(*at, "must be an object")
		return f
	}
next:
	for m := v.Members(); m.Next(); {
		for i, name := range names {
			if string(m.Name) == name {
				vals[i] = m.Value
				continue next
			}
		}
		f.keep(string(m.Name), m.Value)
	}
	return f
}

func (f *fields) keep(name string, v strictjson.Value) {
	if f.extra == nil {
		f.extra = Extra{}
	}
	f.extra[name] = bytes.Clone(json.RawMessage(v))
}

func (f *fields) path(i int) path { return f.at.member(f.names[i]) }

// misfit is called for a member of the wrong type.
func (f *fields) misfit(i int, issue string) {
	if f.r.lenient {
		f.keep(f.names[i], f.vals[i])
		return
	}
	f.r.fail(f.path(i), issue)
}

// require checks presence.
func (f *fields) require(i int) bool {
	if f.vals[i] == nil {
		f.r.fail(f.path(i), "is required")
		return false
	}
	return true
}

// text reads an optional string.
func (f *fields) text(i int) string {
	v := f.vals[i]
	if v.Absent() {
		return ""
	}
	s, ok := v.Text()
	if !ok {
		f.misfit(i, "must be a string")
	} else if s == "" {
		f.keep(f.names[i], v) // the field would not tell it from an absent one
	}
	return s
}

// peerText reads a string that only some peers send, and that nobody checks.
func (f *fields) peerText(i int) string {
	v := f.vals[i]
	if v.Absent() {
		return ""
	}
	s, ok := v.Text()
	if !ok || s == "" {
		f.keep(f.names[i], v)
	}
	return s
}

// needText reads a required string, which may be empty.
func (f *fields) needText(i int) string {
	if !f.require(i) {
		return ""
	}
	s, ok := f.vals[i].Text()
	if !ok {
		f.misfit(i, "must be a string")
	}
	return s
}

// id reads a required string of 1 to most bytes without control characters.
func (f *fields) id(i, most int) string {
	s := f.needText(i)
	f.checkID(i, s, most)
	return s
}

func (f *fields) checkID(i int, s string, most int) {
	switch {
	case f.r.lenient:
	case s == "":
		f.r.fail(f.path(i), "must not be empty")
	case len(s) > most:
		f.r.fail(f.path(i), "is too long")
	case hasControl(s):
		f.r.fail(f.path(i), "must not hold control characters")
	}
}

// hasControl reports whether s holds what must never get into a header, a log
// line or a line of a stream.
func hasControl(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// time reads an optional timestamp.
func (f *fields) time(i int) Timestamp {
	ts := Timestamp(f.text(i))
	if ts == "" && f.vals[i].Absent() {
		return ""
	}
	if _, err := ts.Time(); err != nil {
		f.r.fail(f.path(i), "must be an RFC 3339 time")
	}
	return ts
}

// peerTime reads a timestamp that nobody checks.
func (f *fields) peerTime(i int) Timestamp { return Timestamp(f.peerText(i)) }

// flag reads an optional boolean.
func (f *fields) flag(i int, otherwise bool) bool {
	v := f.vals[i]
	if v.Absent() {
		return otherwise
	}
	b, ok := v.Bool()
	if !ok {
		f.misfit(i, "must be a boolean")
		return otherwise
	}
	return b
}

// any reads an optional object as it stands.
func (f *fields) any(i int) json.RawMessage {
	v := f.vals[i]
	if !v.Absent() && !v.IsObject() {
		f.misfit(i, "must be an object")
		return nil
	}
	return raw(v)
}

// count reads an optional number that is not negative.
func (f *fields) count(i int) json.Number {
	v := f.vals[i]
	switch {
	case v.Absent():
		return ""
	case v.Kind() != '0':
		f.misfit(i, "must be a number")
		return ""
	case v[0] == '-' && !strictjson.EqualNumbers(v, strictjson.Value("0")):
		f.r.fail(f.path(i), "must not be negative")
	}
	return json.Number(v)
}

// peerNumber reads a number that only some peers send.
func (f *fields) peerNumber(i int) json.Number {
	v := f.vals[i]
	if v.Absent() {
		return ""
	}
	if v.Kind() != '0' {
		f.keep(f.names[i], v)
		return ""
	}
	return json.Number(v)
}

var messageMembers = []string{"role", "parts", "timestamp", "agentId"}

// message reads a message, or returns nil for what is no object.
func (r *reader) message(at path, v strictjson.Value) *Message {
	m := &Message{}
	if !r.messageInto(m, at, v) {
		return nil
	}
	return m
}

// messageInto reads a message into m, whose Parts may bring memory to use.
func (r *reader) messageInto(m *Message, at path, v strictjson.Value) bool {
	var vals [4]strictjson.Value
	f := r.object(&at, v, messageMembers, vals[:])
	if !v.IsObject() {
		return false
	}
	m.Role = Role(f.needText(0))
	if !r.lenient && m.Role != RoleUser && m.Role != RoleAgent && m.Role != RoleSystem {
		r.fail(f.path(0), "must be user, agent or system")
	}
	m.Parts = f.parts(1, m.Parts)
	m.Timestamp = f.time(2)
	m.AgentID = f.peerText(3)
	m.Extra = f.extra
	return true
}

// parts reads the required array of parts into room, if there is any.
func (f *fields) parts(i int, room []Part) []Part {
	if !f.require(i) {
		return nil
	}
	v := f.vals[i]
	if !v.IsArray() {
		f.misfit(i, "must be an array")
		return nil
	}
	ps, ok := f.r.partList(f.path(i), v, room)
	if !ok {
		f.keep(f.names[i], v)
		return nil
	}
	if len(ps) == 0 {
		f.r.fail(f.path(i), "must not be empty")
	}
	return ps
}

// partList reads an array of parts. A lenient reader gives up on one that holds
// anything but objects.
func (r *reader) partList(at path, v strictjson.Value, room []Part) (ps []Part, ok bool) {
	ps = room
	if ps == nil {
		ps = []Part{}
	}
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		if r.lenient && !e.Value.IsObject() {
			return nil, false
		}
		ps = append(ps, r.part(at.element(i), e.Value))
		if r.fault != nil {
			break // the first fault decides; what follows need not be read
		}
	}
	return ps, true
}

var partMembers = []string{"type", "content", "mimeType", "filename", "size", "encoding", "width", "height", "duration"}

func (r *reader) part(at path, v strictjson.Value) (p Part) {
	var vals [9]strictjson.Value
	f := r.object(&at, v, partMembers, vals[:])
	if !v.IsObject() {
		return p
	}
	p.Type = partType(f.needText(0))
	switch p.Type {
	case TypeText, TypeFile, TypeImage, TypeAudio:
		p.Content = f.needText(1)
	case TypeData:
		if !f.require(1) {
			break
		}
		switch f.vals[1].Kind() {
		case '"':
			p.Content = f.text(1)
		case '{', '[':
			p.Data = raw(f.vals[1])
		default:
			f.misfit(1, "must be a string, an object or an array")
		}
	default:
		r.fail(f.path(0), "must be TextPart, DataPart, FilePart, ImagePart or AudioPart")
		if s, ok := f.vals[1].Text(); ok {
			p.Content = s
		} else {
			p.Data = raw(f.vals[1])
		}
	}
	p.MIMEType = f.text(2)
	p.Filename = f.text(3)
	p.Size = f.peerNumber(4)
	p.Encoding = f.peerText(5)
	p.Width, p.Height, p.Duration = f.peerNumber(6), f.peerNumber(7), f.peerNumber(8)
	p.Extra = f.extra
	return p
}

// partType reads the short names that stand all over the protocol's site as
// those of the specification (D-59).
func partType(s string) PartType {
	switch s {
	case "text":
		return TypeText
	case "data":
		return TypeData
	case "file":
		return TypeFile
	case "image":
		return TypeImage
	case "audio":
		return TypeAudio
	}
	return PartType(s)
}

var artifactMembers = []string{"artifactId", "name", "parts", "description", "mimeType", "createdAt", "version", "createdBy", "metadata"}

// artifact reads an artifact. Its parts are not looked into, even by a strict
// reader: they are the peer's product, not a question to us.
func (r *reader) artifact(at path, v strictjson.Value) *Artifact {
	var vals [9]strictjson.Value
	f := r.object(&at, v, artifactMembers, vals[:])
	if !v.IsObject() {
		return nil
	}
	a := &Artifact{ID: f.needText(0)}
	if a.ID == "" {
		r.fail(f.path(0), "must not be empty")
	}
	a.Name = f.text(1)
	switch v := f.vals[2]; {
	case v.Absent():
	case !v.IsArray():
		f.misfit(2, "must be an array")
	default:
		lenient := reader{lenient: true}
		ps, ok := lenient.partList(f.path(2), v, nil)
		if !ok {
			f.keep("parts", v)
		}
		a.Parts = ps
	}
	a.Description, a.MIMEType = f.peerText(3), f.peerText(4)
	a.CreatedAt, a.Version, a.CreatedBy = f.peerTime(5), f.peerText(6), f.peerText(7)
	if v := f.vals[8]; v.IsObject() {
		a.Metadata = raw(v)
	} else if !v.Absent() {
		f.keep("metadata", v)
	}
	a.Extra = f.extra
	return a
}
