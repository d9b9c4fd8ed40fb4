// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	defaultMaxMessage = 16 << 20 // A2E-D06
	defaultMaxOutput  = 64 << 20 // A2E-D57
	defaultDepth      = 256      // A2E-D07
	maxDepth          = 10000
)

// A Codec turns lines into messages and back. It may be used by several
// goroutines as long as none changes its fields.
type Codec struct {
	// Types are the models to decode into. Nil means the base types only.
	Types *Registry

	Dialect

	// Host selects the reading of a host: two types that deployed agents use in the wrong direction
	// are read as the intended types (A2E-D20).
	Host bool

	// MaxMessage bounds a line that is read, and MaxOutput one that is written. Zero means 16 MiB
	// and 64 MiB; a negative value removes the bound.
	MaxMessage, MaxOutput int

	// MaxDepth bounds the nesting of a line that is read; the message itself is 1. Zero and negative
	// values mean 256.
	MaxDepth int
}

// A Dialect adjusts the form of messages to deployed peers. It is a part of the options of hosts,
// clients and codecs.
type Dialect struct {
	// Strict refuses the dialects of deployed peers that the default mode accepts: a version member
	// in place of a2e, ids that are not UUIDs, a last line without line feed, answers without
	// req_id (A2E-D02).
	Strict bool

	// EscapeNonASCII writes everything above U+007E as escapes.
	EscapeNonASCII bool

	// WriteVersion writes "version":"1.0" in addition to a2e, for peers that require it.
	WriteVersion bool

	// AllowNonFinite reads NaN, Infinity and -Infinity as null.
	AllowNonFinite bool
}

// maxBytes returns MaxMessage, 0 for no bound.
func (c *Codec) maxBytes() int { return max(cmp.Or(c.MaxMessage, defaultMaxMessage), 0) }

// readingFrom returns c, or a codec with the limit of a connection if that is lower.
func (c *Codec) readingFrom(conn any) *Codec {
	x, ok := conn.(interface{ maxMessage() int })
	if !ok {
		return c
	}
	limited := *c
	limited.MaxMessage = x.maxMessage()
	own, limit := c.maxBytes(), limited.maxBytes()
	if limit == 0 || own > 0 && own <= limit {
		return c
	}
	return &limited
}

// maxOutput returns MaxOutput, 0 for no bound.
func (c *Codec) maxOutput() int { return max(cmp.Or(c.MaxOutput, defaultMaxOutput), 0) }

func (c *Codec) maxDepth() int {
	if c.MaxDepth <= 0 {
		return defaultDepth
	}
	return min(c.MaxDepth, maxDepth)
}

// NewCodec returns a codec with a registry of the given types. It panics where [Registry.Add] returns an error.
func NewCodec(types ...Type) *Codec { return &Codec{Types: newRegistry(types...)} }

// checkRequestType refuses the types of responses and errors, which get no answer (A2E-D16).
func (c *Codec) checkRequestType(name string) error {
	t := c.registry().Lookup(name)
	if t == nil || t.Kind != KindResponse && t.Kind != KindError {
		return nil
	}
	e := SchemaViolation("type", ReasonValue)
	e.Message = name + " is not the type of a request"
	return e
}

func (c *Codec) registry() *Registry {
	if c.Types == nil {
		return baseRegistry()
	}
	return c.Types
}

// baseRegistry is the shared registry of codecs without Types. It is not exported and never
// changes.
var baseRegistry = sync.OnceValue(func() *Registry { return newRegistry() })

// Decode reads one line, without its line feed. It keeps no reference to line. Every error is an
// [*Error] whose ReqID is the id of the message, if it could be read.
func (c *Codec) Decode(line []byte) (*Message, error) {
	m, err := c.decode(line)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// A reader has the parts of a decoder that serve all lines.
type reader struct {
	cursor  strictjson.Cursor
	strings strictjson.Strings
	base    envelope
}

// stringBlock is the size of the blocks that the strings of messages are parts of.
const stringBlock = 1024

var readers = sync.Pool{New: func() any { return &reader{strings: strictjson.Strings{Block: stringBlock}} }}

func (r *reader) release() {
	r.cursor.Reset(nil, strictjson.Options{})
	r.base = envelope{}
	readers.Put(r)
}

// decode is Decode with a typed error.
func (c *Codec) decode(line []byte) (*Message, *Error) {
	if limit := c.maxBytes(); limit > 0 && len(line) > limit {
		return nil, tooLarge(ErrInvalidMessage, ReasonTooLarge, limit)
	}
	r := readers.Get().(*reader)
	defer r.release()
	m, err := c.read(r, line)
	if err != nil && err.Code == ErrParse && c.AllowNonFinite {
		m, err = c.read(r, dropNonFinite(line))
	}
	return m, err
}

// read reads one line. The message has a copy of it.
func (c *Codec) read(r *reader, line []byte) (*Message, *Error) {
	typ := c.typeOf(r, line)
	if typ == nil {
		return c.readGeneric(r, line)
	}
	m, body, line := typ.model.make(line)
	r.cursor.Reset(line, unboundedNames(c.maxDepth()))
	r.cursor.Share(&r.strings)
	fault := jsonmap.ReadRest(&r.cursor, body, (*jsonmap.Members)(&m.Extra), &r.base)
	if r.cursor.Err() != nil {
		return nil, textError(line, c.maxDepth())
	}
	if r.base.a2e == nil {
		r.base.version = m.Extra.object().Get("version")
	}
	err := r.base.check(m, typ, &r.cursor, c.Strict)
	if err == nil {
		err = c.bodyError(m, body, fault)
	}
	if err != nil {
		return nil, err.of(line)
	}
	if c.Host {
		m.text = line
	}
	m.Body, m.typ = body, typ
	return m, nil
}

// usualMembers is the number of members of an object that are found without an allocation.
const usualMembers = 24

// readGeneric reads a line of a type that is not registered.
func (c *Codec) readGeneric(r *reader, line []byte) (*Message, *Error) {
	m, _, line := makeMessage[struct{}](line)
	var few [usualMembers]strictjson.Span
	spans := few[:0]
	if len(line) > unmeasured {
		spans = nil // the memory of many members would not be counted
	}
	v, shape, spans, err := strictjson.Survey(line, unboundedNames(c.maxDepth()), spans)
	switch {
	case err != nil:
		return nil, textError(line, c.maxDepth())
	case !v.IsObject():
		return nil, reasoned(ErrInvalidMessage, reasonNotObject, "message is not an object")
	}
	if spans != nil {
		r.base.find(v, spans)
	} else {
		r.base.walk(v)
	}
	r.cursor.Reset(nil, strictjson.Options{})
	r.cursor.Share(&r.strings)
	if err := r.base.check(m, nil, &r.cursor, c.Strict); err != nil {
		return nil, err.of(line)
	}
	if c.Host {
		m.text = line
	}
	m.Extra = Members(jsonmap.NewMembers(jsonmap.SurveyedJSON(v, shape)))
	return m, nil
}

// bodyError returns the fault of a body, if it has one, as an error.
func (c *Codec) bodyError(m *Message, body any, fault *jsonmap.Fault) *Error {
	if fault == nil && c.Strict {
		fault = strictFault(reflect.ValueOf(body))
	}
	if fault == nil {
		return nil
	}
	err := faultError(fault)
	err.ReqID = m.ID
	return err
}

// typeOf returns the type of the message in a line that is not checked yet, or nil.
func (c *Codec) typeOf(r *reader, line []byte) *Type {
	name, ok := usualType(line)
	if !ok {
		r.cursor.Reset(line, strictjson.Options{})
		v, _ := r.cursor.Find("type")
		name, ok = v.TextBytes()
	}
	if !ok || len(name) > maxName {
		return nil
	}
	return c.registry().lookup(string(name), c.Host)
}

// usualType returns the type of a message that begins as most do.
func usualType(line []byte) (name []byte, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"a2e":"1.0","type":"`))
	name, _, isEnded := bytes.Cut(rest, []byte{'"'})
	return name, ok && isEnded && bytes.IndexByte(name, '\\') < 0
}

// An envelope holds the base members of an object as encoded.
type envelope struct {
	a2e, version, typ, id, ts strictjson.Value
}

// member returns where a base member is stored, or nil.
func (e *envelope) member(name []byte) *strictjson.Value {
	switch string(name) {
	case "a2e":
		return &e.a2e
	case "type":
		return &e.typ
	case "id":
		return &e.id
	case "ts":
		return &e.ts
	}
	return nil
}

// ReadOther reads a base member.
func (e *envelope) ReadOther(c *strictjson.Cursor) bool {
	v := e.member(c.Key())
	if v != nil {
		*v, _, _ = c.Raw()
	}
	return v != nil
}

// walk reads the base members of a checked object.
func (e *envelope) walk(object strictjson.Value) {
	n := 0
	for w := object.Members(); n < 4 && w.Next(); {
		if v := e.member(w.Name); v != nil {
			*v = w.Value
			n++
		}
	}
	if e.a2e == nil {
		e.version = object.Get("version")
	}
}

// find finds the base members of a checked object by the places of its members.
func (e *envelope) find(object strictjson.Value, spans []strictjson.Span) {
	for i := range spans {
		s := &spans[i]
		name := object[s.Name+1 : s.NameEnd-1]
		if s.Escaped {
			name, _ = object[s.Name:s.NameEnd].TextBytes()
		}
		if v := e.member(name); v != nil {
			*v = object[s.Value:s.ValueEnd:s.ValueEnd]
		} else if string(name) == "version" {
			e.version = object[s.Value:s.ValueEnd:s.ValueEnd]
		}
	}
}

// check validates the base members in their order and sets the fields of m. The cursor makes its
// strings. The type is that of the message if it is registered, or nil.
func (e *envelope) check(m *Message, typ *Type, c *strictjson.Cursor, strict bool) *Error {
	version := e.a2e
	if version == nil && !strict {
		version = e.version // A2E-D01
	}
	err := checkVersion(version)
	if err == nil {
		m.Type, err = readType(c, typ, e.typ)
	}
	var idErr *Error
	m.ID, idErr = readWord(c, "id", e.id)
	switch {
	case err != nil:
	case idErr != nil:
		err = idErr
	case strict && !isHexID(m.ID):
		err = violation("id", ReasonValue)
	case e.ts.Absent():
		err = violation("ts", ReasonRequired)
	case e.ts.Kind() != '0':
		err = violation("ts", ReasonType)
	default:
		m.TS = json.Number(c.String(e.ts))
		if !isNumber(m.TS) {
			err = violation("ts", ReasonValue)
		}
	}
	if err != nil && len(m.ID) <= maxName {
		err.ReqID = m.ID // A2E-D16
	}
	return err
}

func checkVersion(v strictjson.Value) *Error {
	switch text, ok := v.TextBytes(); {
	case v.Absent():
		return violation("a2e", ReasonRequired)
	case !ok:
		return violation("a2e", ReasonType)
	case string(text) != ProtocolVersion:
		return Errorf(ErrVersionMismatch, "%s", "protocol version is not "+ProtocolVersion)
	}
	return nil
}

// readType returns the text of a type, which is mostly that of the registered type.
func readType(c *strictjson.Cursor, typ *Type, v strictjson.Value) (string, *Error) {
	if typ != nil && len(v) == len(typ.Name)+2 && string(v[1:len(v)-1]) == typ.Name {
		return typ.Name, nil
	}
	return readWord(c, "type", v)
}

// readWord returns the text of a type or an id.
func readWord(c *strictjson.Cursor, name string, v strictjson.Value) (string, *Error) {
	text, ok := v.TextBytes()
	switch {
	case v.Absent():
		return "", violation(name, ReasonRequired)
	case !ok:
		return "", violation(name, ReasonType)
	case len(text) == 0 || len(text) > maxName:
		return string(text), violation(name, ReasonValue)
	}
	return c.String(text), nil
}

// isEnvelope reports whether a name is that of a base member.
func isEnvelope(name []byte) bool {
	switch string(name) {
	case "a2e", "type", "id", "ts":
		return true
	}
	return false
}

func isHexID(s string) bool {
	if len(s) != 32 {
		return false
	}
	for i := range len(s) {
		switch c := s[i] | 0x20; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f':
		default:
			return false
		}
	}
	return true
}

// Append appends the message as one line without line feed. Every error is an
// [*Error]; dst is then returned as it was.
func (c *Codec) Append(dst []byte, m *Message) ([]byte, error) {
	out, err := c.append(dst, m)
	if err == nil {
		err = (bounds{bytes: c.maxOutput()}).check(ErrInvalidMessage, out[len(dst):])
	}
	if err != nil {
		return dst, err
	}
	return out, nil
}

// append is Append without a bound.
func (c *Codec) append(dst []byte, m *Message) ([]byte, error) {
	if m == nil {
		return dst, Errorf(ErrInvalidMessage, "no message")
	}
	out, f := m.append(dst, c.WriteVersion)
	if f != nil {
		return dst, faultError(f)
	}
	return escape(out, len(dst), c.EscapeNonASCII), nil
}

// bounds are those of a line that is sent. Zero means no bound.
type bounds struct{ bytes, depth int }

// within returns the bounds for a peer that reads within the given ones (A2E-D57).
func (c *Codec) within(peer bounds) bounds {
	if own := c.maxOutput(); peer.bytes == 0 || own > 0 && own < peer.bytes {
		peer.bytes = own
	}
	return peer
}

// check returns an error with the code for a line over a bound.
func (b bounds) check(code Code, line []byte) error {
	switch {
	case b.bytes > 0 && len(line) > b.bytes:
		return tooLarge(code, ReasonTooLarge, b.bytes)
	case b.depth > 0 && bytes.Count(line, []byte{'{'})+bytes.Count(line, []byte{'['}) > b.depth:
		if deepest, _ := nesting(line); deepest > b.depth {
			return tooLarge(code, ReasonTooDeep, b.depth)
		}
	}
	return nil
}

// tooLarge returns the error of a line over a limit of bytes or depth.
func tooLarge(code Code, reason string, limit int) *Error {
	text := "message is nested deeper than " + strconv.Itoa(limit)
	if reason == ReasonTooLarge {
		text = "message is longer than " + strconv.Itoa(limit) + " bytes"
	}
	return &Error{Code: code, Reason: reason, Message: text, Details: json.RawMessage(`{"limit":` + strconv.Itoa(limit) + `}`)}
}

// isOverBound reports whether a message was not encoded because of its size or depth.
func isOverBound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Reason == ReasonTooLarge || e.Reason == ReasonTooDeep)
}

// lineBuffers hold lines between writing and sending. The receiver copies short lines.
var lineBuffers = sync.Pool{New: func() any { return new([]byte) }}

// line encodes a message with its LF into a buffer, to be given back to freeLine.
func (c *Codec) line(m *Message) (*[]byte, error) { return c.boundedLine(m, "", bounds{}) }

// boundedLine is line with bounds. An error of them has the code.
func (c *Codec) boundedLine(m *Message, code Code, limit bounds) (*[]byte, error) {
	b := lineBuffers.Get().(*[]byte)
	var err error
	if *b, err = c.append((*b)[:0], m); err == nil {
		err = limit.check(code, *b)
	}
	if err != nil {
		freeLine(b)
		return nil, err
	}
	*b = append(*b, '\n')
	return b, nil
}

// freeLine releases a buffer that no [sendq.Queue] keeps.
func freeLine(b *[]byte) {
	if b != nil && len(*b) <= largestCopy && cap(*b) <= largestSpare {
		lineBuffers.Put(b)
	}
}

func invalid(name string) *jsonmap.Fault { return (&jsonmap.Fault{Reason: jsonmap.Invalid}).In(name) }

// append appends a message. A received message keeps a name that could not be registered; a
// message made by this side must have a legal name (A2E-D14).
func (m *Message) append(b []byte, writeVersion bool) ([]byte, *jsonmap.Fault) {
	extra := m.Extra.object()
	switch isTyped := m.typ != nil || extra.Get("type") != nil; {
	case !isName(m.Type), !isTyped && !validType(m.Type):
		return b, invalid("type")
	case !isName(m.ID):
		return b, invalid("id")
	case !isNumber(m.TS):
		return b, invalid("ts")
	case m.Body == nil:
		return m.appendGeneric(b, extra, writeVersion), nil
	}
	b = append(b, `{"a2e":"1.0"`...)
	if writeVersion && extra.Get("version") == nil {
		b = append(b, `,"version":"1.0"`...)
	}
	b = strictjson.AppendString(append(b, `,"type":`...), m.Type)
	b = strictjson.AppendString(append(b, `,"id":`...), m.ID)
	b = append(append(b, `,"ts":`...), m.TS...)
	return m.appendBody(b, extra)
}

// appendBody appends the members of the body and the other ones, behind those of the envelope.
func (m *Message) appendBody(b []byte, extra strictjson.Value) ([]byte, *jsonmap.Fault) {
	body := reflect.ValueOf(m.Body)
	if body.Kind() != reflect.Pointer || body.Type().Elem().Kind() != reflect.Struct {
		return b, (&jsonmap.Fault{Reason: jsonmap.WrongType}).In("body")
	}
	start := len(b)
	b, err := jsonmap.AppendRest(b, m.Body, jsonmap.Members(m.Extra))
	if f := asFault(err); f != nil {
		return b, f
	}
	if len(b) == start+2 { // an object without members
		b = b[:start]
	} else {
		b[start] = ','
		b = b[:len(b)-1]
	}
	for w := extra.Members(); w.Next(); {
		if !isEnvelope(w.Name) && !jsonmap.Field(body, string(w.Name)).IsValid() {
			b = appendMember(b, w.Key, w.Value)
		}
	}
	return append(b, '}'), nil
}

// isName reports whether s may be the type or the id of a message.
func isName(s string) bool { return s != "" && len(s) <= maxName && utf8.ValidString(s) }

var envelopeNames = [...]string{"a2e", "type", "id", "ts"}

// appendBase appends one member of the envelope to an open object.
func (m *Message) appendBase(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(append(append(b, '"'), name...), '"', ':')
	switch name {
	case "type":
		return strictjson.AppendString(b, m.Type)
	case "id":
		return strictjson.AppendString(b, m.ID)
	case "ts":
		return append(b, m.TS...)
	}
	return append(b, `"1.0"`...)
}

// appendGeneric writes the members in received order (A2E-D18), after the missing members of the
// envelope.
func (m *Message) appendGeneric(b []byte, extra strictjson.Value, writeVersion bool) []byte {
	b = append(b, '{')
	for _, name := range envelopeNames {
		if extra.Get(name) != nil {
			continue
		}
		b = m.appendBase(b, name)
		if name == "a2e" && writeVersion && extra.Get("version") == nil {
			b = append(b, `,"version":"1.0"`...)
		}
	}
	for w := extra.Members(); w.Next(); {
		if isEnvelope(w.Name) {
			b = m.appendBase(b, string(w.Name))
		} else {
			b = appendMember(b, w.Key, w.Value)
		}
	}
	return append(b, '}')
}

// isNumber reports whether n is a JSON number that is finite as a float.
func isNumber(n json.Number) bool {
	if isPlain(n) {
		return true
	}
	v, err := strictjson.Check([]byte(n), strictjson.Options{})
	if err != nil || v.Kind() != '0' || len(v) != len(n) {
		return false
	}
	x, err := strconv.ParseFloat(string(n), 64)
	return err == nil || !math.IsInf(x, 0)
}

// isPlain recognizes the usual form of a time, such as 1716123456.789, without
// the strict reader.
func isPlain(n json.Number) bool {
	if len(n) == 0 || len(n) > 40 || n[0] < '1' || n[0] > '9' {
		return false
	}
	isWhole := true
	for i := 1; i < len(n); i++ {
		switch c := n[i]; {
		case c >= '0' && c <= '9':
		case c == '.' && isWhole && i+1 < len(n):
			isWhole = false
		default:
			return false
		}
	}
	return true
}
