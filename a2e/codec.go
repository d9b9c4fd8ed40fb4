// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	defaultMaxMessage = 16 << 20 // A2E-D06
	defaultDepth      = 256      // A2E-D07
)

// A Codec turns lines into messages and back. It may be used by several
// goroutines as long as none changes its fields.
type Codec struct {
	// Types are the models to decode into. Nil means the base types only.
	Types *Registry

	// Strict refuses what the default mode concedes to deployed peers: a
	// version member in place of a2e, ids that are no UUIDs, a last line
	// without line feed, answers without req_id (A2E-D02).
	Strict bool

	// Host reads as a host does: two types that deployed agents use in the wrong
	// direction are taken for what is meant (A2E-D20).
	Host bool

	// MaxMessage bounds a line. Zero means 16 MiB, negative no bound.
	MaxMessage int

	// MaxDepth bounds the nesting; the message itself is 1. Zero means 256.
	MaxDepth int

	// EscapeNonASCII writes everything above U+007E as escapes.
	EscapeNonASCII bool

	// WriteVersion writes "version":"1.0" beside a2e, for peers that look at it.
	WriteVersion bool

	// AllowNonFinite reads NaN, Infinity and -Infinity as null.
	AllowNonFinite bool
}

func (c *Codec) maxBytes() int {
	switch {
	case c.MaxMessage == 0:
		return defaultMaxMessage
	case c.MaxMessage < 0:
		return 0
	}
	return c.MaxMessage
}

func (c *Codec) maxDepth() int {
	if c.MaxDepth <= 0 {
		return defaultDepth
	}
	return min(c.MaxDepth, 10000)
}

// NewCodec returns a codec with a registry of the given types.
func NewCodec(types ...Type) *Codec { return &Codec{Types: NewRegistry(types...)} }

func (c *Codec) registry() *Registry {
	if c.Types == nil {
		return baseRegistry()
	}
	return c.Types
}

// baseRegistry is what codecs without a registry of their own share. Nobody
// else can reach it, so it never changes.
var baseRegistry = sync.OnceValue(func() *Registry { return NewRegistry() })

// Decode reads one line, without its line feed. It keeps no reference to line,
// and every error is an [*Error] whose ReqID is the id of the message, if that
// could be found out.
func (c *Codec) Decode(line []byte) (*Message, error) {
	m, err := c.decode(line)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// A kept message has room for the line that it was read from, so that the two are
// one allocation where the line is not long.
type kept struct {
	Message
	line [keptLine]byte
}

const keptLine = 416 // makes 512 bytes in all

// keep returns a new message and a copy of the line that it was read from.
func keep(line []byte) (*Message, []byte) {
	if len(line) > keptLine {
		return &Message{}, bytes.Clone(line)
	}
	k := &kept{}
	n := copy(k.line[:], line)
	return &k.Message, k.line[:n:n]
}

// decode is Decode with errors of their own type.
func (c *Codec) decode(line []byte) (*Message, *Error) {
	if most := c.maxBytes(); most > 0 && len(line) > most {
		return nil, reasoned(ErrInvalidMessage, ReasonTooLarge, "message is longer than "+strconv.Itoa(most)+" bytes")
	}
	m, line := keep(line)
	var room [usualMembers]strictjson.Span
	v, shape, spans, err := strictjson.Survey(line, strictjson.Options{MaxDepth: c.maxDepth()}, room[:0])
	if err != nil && c.AllowNonFinite {
		line = dropNonFinite(line)
		v, shape, spans, err = strictjson.Survey(line, strictjson.Options{MaxDepth: c.maxDepth()}, room[:0])
	}
	if err != nil {
		return nil, textFault(line, c.maxDepth())
	}
	if !v.IsObject() {
		return nil, reasoned(ErrInvalidMessage, ReasonNotObject, "message is not an object")
	}
	return m, c.message(m, v, spans, decoderOf(c.Strict, shape.Plain))
}

// usualMembers is how many members of an object are found without an allocation.
const usualMembers = 24

// message reads a checked object into m.
func (c *Codec) message(m *Message, v strictjson.Value, spans []strictjson.Span, d *decoder) *Error {
	var e envelope
	e.read(v, spans)
	if err := e.check(m, d); err != nil {
		err.ReqID, err.refID = e.usableID(), e.text(e.reqID)
		if err.msgType == "" {
			err.msgType = e.text(e.typ)
		}
		return err
	}
	m.typ = c.registry().lookup(m.Type, c.Host)
	if m.typ == nil {
		m.Extra = Members{text: v}
		return nil
	}
	if m.Type == m.typ.Name {
		m.Type = m.typ.Name // forget the copy in the line
	}
	body := reflect.New(m.typ.plan.typ)
	m.typ.plan.defaults(body.Elem())
	if ft := m.typ.plan.decode(d, v, spans, body.UnsafePointer(), &m.Extra); ft != nil {
		err := ft.err()
		err.ReqID, err.refID, err.msgType = m.ID, e.text(e.reqID), m.Type
		return err
	}
	m.Body = body.Interface()
	return nil
}

// An envelope are the base members as they stand in an object.
type envelope struct {
	a2e, version, typ, id, ts, reqID strictjson.Value
}

func (e *envelope) read(v strictjson.Value, spans []strictjson.Span) {
	for i := range spans {
		value := v[spans[i].Value:spans[i].ValueEnd:spans[i].ValueEnd]
		switch string(nameOf(v, &spans[i])) {
		case "a2e":
			e.a2e = value
		case "version":
			e.version = value
		case "type":
			e.typ = value
		case "id":
			e.id = value
		case "ts":
			e.ts = value
		case "req_id":
			e.reqID = value
		}
	}
}

// nameOf returns the text of the name of a member.
func nameOf(v strictjson.Value, s *strictjson.Span) []byte {
	if !s.Escaped {
		return v[s.Name+1 : s.NameEnd-1]
	}
	name, _ := v[s.Name:s.NameEnd].TextBytes()
	return name
}

func (e *envelope) text(v strictjson.Value) string {
	s, _ := v.Text()
	return s
}

// usableID returns the id if an answer can name it (A2E-D16).
func (e *envelope) usableID() string {
	if s := e.text(e.id); len(s) <= maxName {
		return s
	}
	return ""
}

// check validates the base members in their order and sets the fields of m.
func (e *envelope) check(m *Message, d *decoder) *Error {
	strict := d.strict
	version := e.a2e
	if version == nil && !strict {
		version = e.version // A2E-D01
	}
	switch text, ok := d.text(version); {
	case version == nil, version.Kind() == 'n':
		return violation("a2e", ReasonRequired)
	case !ok:
		return violation("a2e", ReasonType)
	case text != ProtocolVersion:
		return NewError(ErrVersionMismatch, "protocol version is not "+ProtocolVersion)
	}
	var reason string
	if m.Type, reason = d.shortText(e.typ); reason != "" {
		return violation("type", reason)
	}
	if m.ID, reason = d.shortText(e.id); reason != "" {
		return violation("id", reason)
	}
	if strict && !isHexID(m.ID) {
		return violation("id", ReasonValue)
	}
	switch e.ts.Kind() {
	case 0, 'n':
		return violation("ts", ReasonRequired)
	case '0':
	default:
		return violation("ts", ReasonType)
	}
	m.TS = json.Number(numberText(e.ts))
	if isPlain(m.TS) {
		return nil
	}
	if x, err := strconv.ParseFloat(string(m.TS), 64); err != nil && math.IsInf(x, 0) {
		return violation("ts", ReasonValue)
	}
	return nil
}

func (d *decoder) shortText(v strictjson.Value) (text, reason string) {
	if v.Absent() {
		return "", ReasonRequired
	}
	text, ok := d.text(v)
	switch {
	case !ok:
		return "", ReasonType
	case text == "" || len(text) > maxName:
		return text, ReasonValue
	}
	return text, ""
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
	e := encoders.Get().(*encoder)
	e.dst, e.ascii = dst, c.EscapeNonASCII
	err := c.encode(e, m)
	out := e.dst
	e.dst = nil
	encoders.Put(e)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// lineBuffers hold lines between writing and sending: whoever takes a line copies
// it.
var lineBuffers = sync.Pool{New: func() any { return new([]byte) }}

// line encodes a message into a buffer, to be given back to freeLine.
func (c *Codec) line(m *Message) (*[]byte, error) {
	b := lineBuffers.Get().(*[]byte)
	var err error
	if *b, err = c.Append((*b)[:0], m); err != nil {
		lineBuffers.Put(b)
		return nil, err
	}
	return b, nil
}

func freeLine(b *[]byte) {
	if b != nil && cap(*b) <= outboxSpare {
		lineBuffers.Put(b)
	}
}

func (c *Codec) encode(e *encoder, m *Message) error {
	start := len(e.dst)
	if ft := encodeMessage(e, m, c.WriteVersion); ft != nil {
		return ft.err()
	}
	if most := c.maxBytes(); most > 0 && len(e.dst)-start > most {
		return reasoned(ErrInvalidMessage, ReasonTooLarge, "message is longer than "+strconv.Itoa(most)+" bytes")
	}
	return nil
}

// encodeMessage appends a message. What came in under a name that could not be
// registered goes out again under it; what is made here must be legal (A2E-D14).
func encodeMessage(e *encoder, m *Message, emitVersion bool) *fault {
	if m.typ == nil && m.Extra.text.Get("type") == nil && !ValidType(m.Type) || m.Type == "" || len(m.Type) > maxName {
		return (&fault{reason: ReasonValue}).in("type")
	}
	if m.ID == "" || len(m.ID) > maxName {
		return (&fault{reason: ReasonValue}).in("id")
	}
	if m.Body == nil {
		e.dst = append(e.dst, '{')
		return encodeGeneric(e, m, emitVersion)
	}
	e.dst = append(e.dst, `{"a2e":"1.0"`...)
	if emitVersion && m.Extra.Get("version") == nil {
		e.dst = append(e.dst, `,"version":"1.0"`...)
	}
	e.dst = append(e.dst, `,"type":`...)
	if ft := e.text(m.Type); ft != nil {
		return ft.in("type")
	}
	e.dst = append(e.dst, `,"id":`...)
	if ft := e.text(m.ID); ft != nil {
		return ft.in("id")
	}
	if !isNumber(m.TS) {
		return (&fault{reason: ReasonValue}).in("ts")
	}
	e.dst = append(append(e.dst, `,"ts":`...), m.TS...)
	body := reflect.ValueOf(m.Body)
	if body.Kind() != reflect.Pointer || body.IsNil() {
		return (&fault{reason: ReasonType}).in("body")
	}
	p := planOfBody(m, body)
	if ft := p.encode(e, body.UnsafePointer()); ft != nil {
		return ft
	}
	for w := m.Extra.text.Members(); w.Next(); {
		if !isEnvelope(w.Name) && p.find(w.Name, 0) < 0 {
			e.key(append(appendCompact([]byte{','}, w.Key, e.ascii), ':'))
			e.dst = appendCompact(e.dst, w.Value, e.ascii)
		}
	}
	e.dst = append(e.dst, '}')
	return nil
}

// base appends one member of the envelope.
func (e *encoder) base(name string, m *Message) *fault {
	if e.dst[len(e.dst)-1] != '{' {
		e.dst = append(e.dst, ',')
	}
	e.dst = append(append(append(e.dst, '"'), name...), '"', ':')
	var ft *fault
	switch name {
	case "a2e":
		e.dst = append(e.dst, `"1.0"`...)
	case "type":
		ft = e.text(m.Type)
	case "id":
		ft = e.text(m.ID)
	case "ts":
		if !isNumber(m.TS) {
			return (&fault{reason: ReasonValue}).in("ts")
		}
		e.dst = append(e.dst, m.TS...)
	}
	if ft != nil {
		return ft.in(name)
	}
	return nil
}

// encodeGeneric writes the members in the order in which they came (A2E-D18), after
// those of the envelope that are not among them.
func encodeGeneric(e *encoder, m *Message, emitVersion bool) *fault {
	for _, name := range [...]string{"a2e", "type", "id", "ts"} {
		if m.Extra.text.Get(name) == nil {
			if ft := e.base(name, m); ft != nil {
				return ft
			}
			if name == "a2e" && emitVersion && m.Extra.text.Get("version") == nil {
				e.dst = append(e.dst, `,"version":"1.0"`...)
			}
		}
	}
	for w := m.Extra.text.Members(); w.Next(); {
		if isEnvelope(w.Name) {
			if ft := e.base(string(w.Name), m); ft != nil {
				return ft
			}
			continue
		}
		e.key(append(appendCompact([]byte{','}, w.Key, e.ascii), ':'))
		e.dst = appendCompact(e.dst, w.Value, e.ascii)
	}
	e.dst = append(e.dst, '}')
	return nil
}

// isNumber reports whether n is a JSON number that is finite as a float.
func isNumber(n json.Number) bool {
	if isPlain(n) {
		return true
	}
	if !isNumeric(n) {
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
	whole, fraction, dotted := strings.Cut(string(n), ".")
	return isDigits(whole) && (!dotted || fraction != "" && isDigits(fraction))
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// decodeNested reads a whole event that stands inside a result.
func decodeNested(d *decoder, v strictjson.Value, dst reflect.Value) *fault {
	if !v.IsObject() {
		return mistyped()
	}
	m := dst.Addr().Interface().(*Message)
	var e envelope
	spans := v.Spans(nil)
	e.read(v, spans)
	if err := e.check(m, d); err != nil {
		if err.Code == ErrVersionMismatch {
			return &fault{field: "a2e", reason: ReasonValue}
		}
		return &fault{field: err.Field, reason: err.Reason}
	}
	body := New[EventBody]()
	if ft := planOf(reflect.TypeFor[EventBody]()).decode(d, v, spans, unsafe.Pointer(body), &m.Extra); ft != nil {
		return ft
	}
	m.Body = body
	return nil
}

func encodeNested(e *encoder, src reflect.Value) *fault {
	return encodeMessage(e, addressable(src).Interface().(*Message), false)
}
