// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"slices"
	"strings"
)

// This file implements the steps of the two pipelines that need no session.

// Append appends m as one frame to dst: it resolves the schema, abbreviates the keys, omits values that
// equal the defaults, and writes the canonical form (steps 1, 2, 4 and 7 of section 7.2 of the
// draft). A [Session] performs the other steps. Every error is an [*Error].
func (c *Codec) Append(dst []byte, m *Message) ([]byte, error) {
	if m == nil {
		return dst, errNoMessage()
	}
	var buf keyBuffer
	p, err := c.prepare(m, &buf)
	if err != nil {
		return dst, err
	}
	out, _, err := c.appendFrame(dst, p.m, p.keys)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// A prepared message is ready to be written. Its params have their final values.
type prepared struct {
	m      *Message
	schema *compiled // nil without a schema
	keys   []string  // of the params on the wire, empty for an omitted one
	fulls  []string  // the same in full

	hasCode   bool // a param is the code of an error
	isShorter bool // a param is omitted
}

// A keyBuffer has the keys of a message with few params.
type keyBuffer struct{ keys, fulls [16]string }

// prepare performs steps 1, 2 and 4. It does not change m.
func (c *Codec) prepare(m *Message, buf *keyBuffer) (prepared, error) {
	s, err := c.resolve(m.Params)
	if err != nil {
		return prepared{}, err
	}
	p := prepared{m: m, schema: s, keys: buf.keys[:0], fulls: buf.fulls[:0]}
	for i := range m.Params {
		full, short, err := p.param(i, m, c.KeepDefaults)
		if err != nil {
			return prepared{}, err
		}
		if c.WriteLongKeys && short != "" {
			short = full
		}
		p.keys, p.fulls = append(p.keys, short), append(p.fulls, full)
	}
	switch {
	case s != nil && s.Code == schemaError && !s.custom && !p.hasCode:
		return prepared{}, errNoCode()
	case p.isShorter: // the encoder compares the written keys
		if key := twice(p.fulls); key != "" {
			return prepared{}, fail(ErrParse, "key %s given twice", quoted(key))
		}
	}
	return p, nil
}

// param gives a param its type, and returns its key in both forms. The short one is empty for a value that equals the default.
func (p *prepared) param(i int, m *Message, keepsDefaults bool) (full, short string, err error) {
	x, s := &m.Params[i], p.schema
	f := s.form(x.Key)
	if f == nil {
		if x.Key == "" { // an empty key stands for an omitted param
			return "", "", fail(ErrParse, "param without a key")
		}
		if s != nil && x.Key == keySchema && x.Value.text != s.Code {
			p.set(i, String(s.Code), m)
		}
		return x.Key, x.Key, nil
	}
	if f.typ != anyType {
		p.hasCode = p.hasCode || f.typ == typeCode
		v, err := f.typ.fix(f.full, x.Value)
		if err != nil {
			return "", "", err
		}
		if v.kind != x.Value.kind {
			p.set(i, v, m)
		}
	}
	if f.def > 0 && !keepsDefaults && s.Defaults[f.def-1].Value.equal(&p.m.Params[i].Value) {
		p.isShorter = true
		return f.full, "", nil
	}
	return f.full, f.short, nil
}

// set replaces a value in a copy of the message.
func (p *prepared) set(i int, v Value, m *Message) {
	if p.m == m {
		changed := *m
		changed.Params = slices.Clone(m.Params)
		p.m = &changed
	}
	p.m.Params[i].Value = v
}

// resolve returns the schema that the param schema names by code or by name, or nil without that
// param.
func (c *Codec) resolve(params Params) (*compiled, error) {
	v, ok := params.Get(keySchema)
	if !ok {
		return nil, nil
	}
	name, isText := v.Text()
	if !isText {
		return nil, fail(ErrInvalidType, "schema must be a string")
	}
	s := c.Registry.tables().lookup(name)
	if s == nil {
		return nil, fail(ErrUnknownSchema, "schema %s", quoted(name))
	}
	return s, nil
}

// Decode reads a frame: grammar, schema, expanded keys, defaults, and the types that the schema
// fixes (steps 1 to 5 of section 7.3 of the draft, without references). It does not check the
// envelope; see [Codec.DecodeEnvelope]. Every error is an [*Error].
func (c *Codec) Decode(frame []byte) (*Message, error) {
	m, err := c.DecodeRaw(frame)
	if err != nil {
		return nil, err
	}
	s, err := c.expand(m)
	if err != nil {
		return nil, err
	}
	if err := c.complete(m, s); err != nil {
		return nil, err
	}
	return m, nil
}

// DecodeEnvelope is like [Codec.Decode], and rejects a frame without its envelope, or without a
// correlation id where the protocol requires one.
func (c *Codec) DecodeEnvelope(frame []byte) (*Message, error) {
	m, err := c.decodeRawEnvelope(frame)
	if err != nil {
		return nil, err
	}
	s, err := c.expand(m)
	if err == nil {
		err = c.complete(m, s)
	}
	if err == nil {
		err = checkChain(m)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// decodeRawEnvelope is DecodeRaw for a frame that must have an envelope.
func (c *Codec) decodeRawEnvelope(frame []byte) (*Message, error) {
	m, err := c.DecodeRaw(frame)
	if err == nil {
		err = c.validateEnvelope(m)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// expand resolves the schema of m and expands the keys of m.Params in place.
func (c *Codec) expand(m *Message) (*compiled, error) {
	s, err := c.resolve(m.Params)
	if err != nil {
		return nil, err
	}
	changed := false
	for i := range m.Params {
		p := &m.Params[i]
		if full := s.full(p.Key); full != p.Key {
			p.Key = full
			changed = true
		}
		if s != nil && p.Key == keySchema {
			p.Value.text = s.Code
		}
	}
	if changed {
		if key := m.Params.twice(); key != "" {
			return nil, fail(ErrParse, "key %s given twice", quoted(key))
		}
	}
	return s, nil
}

// twice returns a duplicate key of p, or "".
func (p Params) twice() string {
	var buf [16]string
	keys := buf[:0]
	for i := range p {
		keys = append(keys, p[i].Key)
	}
	return twice(keys)
}

// twice returns a duplicate of the keys, or "".
func twice(keys []string) string {
	if len(keys) <= 16 {
		for i, k := range keys {
			if slices.Contains(keys[:i], k) {
				return k
			}
		}
		return ""
	}
	seen := make(map[string]struct{}, len(keys))
	for _, k := range keys {
		if _, ok := seen[k]; ok {
			return k
		}
		seen[k] = struct{}{}
	}
	return ""
}

// complete fills in the defaults of the schema and checks the types that it fixes.
func (c *Codec) complete(m *Message, s *compiled) error {
	if s == nil {
		return nil
	}
	if !c.KeepDefaults {
		m.Params = withDefaults(m.Params, s.Defaults)
	}
	if !s.isTyped {
		return nil
	}
	isShared, hasCode := true, false
	for i := range m.Params {
		f := s.keys.find(m.Params[i].Key)
		if f == nil || f.typ == anyType {
			continue
		}
		hasCode = hasCode || f.typ == typeCode
		v, err := f.typ.fix(f.full, m.Params[i].Value)
		if err != nil {
			return err
		}
		if v.kind != m.Params[i].Value.kind {
			if isShared {
				m.Params, isShared = slices.Clone(m.Params), false
			}
			m.Params[i].Value = v
		}
	}
	if s.Code == schemaError && !hasCode {
		return errNoCode()
	}
	return nil
}

func errNoCode() error { return fail(ErrInvalidType, "an error frame needs a code") }

// withDefaults returns p with the defaults that it lacks.
func withDefaults(p, defaults Params) Params {
	n := 0
	for i := range defaults {
		if _, ok := p.Get(defaults[i].Key); !ok {
			n++
		}
	}
	if n == 0 {
		return p
	}
	all := make(Params, len(p), len(p)+n)
	copy(all, p)
	for _, d := range defaults {
		if _, ok := p.Get(d.Key); !ok {
			all = append(all, d)
		}
	}
	return all
}

// A fixedType is the type that a built-in schema demands of a value (ACCP-D34).
type fixedType uint8

const (
	anyType fixedType = iota
	typeID            // of a transaction
	typeAmount
	typeIndex
	typeFinal
	typeRetryable // it and the next one cannot be references
	typeCode
)

func fixedTypeOf(code, field string) fixedType {
	switch code + "." + field {
	case "TX.transaction_id":
		return typeID
	case "TX.amount":
		return typeAmount
	case "ST.chunk_index", "ST.total_chunks":
		return typeIndex
	case "ST.is_final":
		return typeFinal
	case "ER.retryable":
		return typeRetryable
	case "ER.code":
		return typeCode
	}
	return anyType
}

// fix returns the value under a key with its type, or an error for another one. An unresolved reference is accepted,
// except in an error frame.
func (t fixedType) fix(key string, v Value) (Value, error) {
	if t == anyType || v.kind == KindRef && t < typeRetryable {
		return v, nil
	}
	if t == typeAmount && v.kind == KindInt {
		return Value{kind: KindDecimal, text: trimDecimal(v.text)}, nil
	}
	ok, want := t.check(&v)
	if !ok {
		return v, fail(ErrInvalidType, "%s must be %s, not a %s", key, want, v.kind)
	}
	return v, nil
}

// check reports whether a value has the type, which it names.
func (t fixedType) check(v *Value) (ok bool, name string) {
	switch t {
	case typeID:
		return v.kind == KindInt || v.kind == KindString && v.text != "", "an integer or a string that is not empty"
	case typeAmount:
		return v.kind == KindDecimal && len(v.text)-dot(v.text)-1 <= decimalPlaces, "a decimal of at most six places"
	case typeIndex:
		return v.kind == KindInt && v.text[0] != '-', "an integer from 0"
	case typeFinal, typeRetryable:
		return v.kind == KindBool, "a boolean"
	}
	return v.kind == KindString && validCode(v.text), "E and four digits"
}

func dot(s string) int {
	for i := range len(s) {
		if s[i] == '.' {
			return i
		}
	}
	return len(s) - 1
}

// validateEnvelope checks that m has the required fields of the envelope: mid, seq and ts
// (ACCP-D21, ACCP-D22). A lenient codec accepts any mid, and a missing ts unless there is a time to
// live.
func (c *Codec) validateEnvelope(m *Message) error {
	meta := m.Meta
	if meta == nil {
		meta = &Meta{}
	}
	hasTime := meta.TS.Set || c.Lenient && meta.TTL.N <= 0
	switch {
	case meta.MID == "" || !meta.Seq.Set || !hasTime:
		return errNoEnvelope(meta, hasTime)
	case !c.Lenient && !isHex12(meta.MID):
		return fail(ErrInvalidType, "mid must be 12 hex digits, unless Lenient is set")
	}
	return nil
}

// errNoEnvelope names the missing fields of an envelope.
func errNoEnvelope(meta *Meta, hasTime bool) error {
	var missing []string
	if meta.MID == "" {
		missing = append(missing, "mid")
	}
	if !meta.Seq.Set {
		missing = append(missing, "seq")
	}
	if !hasTime {
		missing = append(missing, "ts")
	}
	hint := "Decode reads frames without envelope"
	if meta.MID != "" && meta.Seq.Set && meta.TTL.N <= 0 {
		hint = "Lenient accepts frames without it"
	}
	return fail(ErrParse, "metadata without %s; %s", strings.Join(missing, ", "), hint)
}

// checkChain checks that m has a correlation id where one is required: in cancel, in answers of the
// tool profile, and in chunks of a stream (ACCP-D28, ACCP-D34). The keys of m are full.
func checkChain(m *Message) error {
	if m.Meta != nil && m.Meta.CID != "" {
		return nil
	}
	if m.Intent == IntentCancel {
		return fail(ErrParse, "cancel without cid")
	}
	switch m.schema() {
	case schemaTool:
		switch m.Intent {
		case IntentDone, IntentFail, IntentStream, IntentEnd:
			return fail(ErrParse, "tool answer without cid")
		}
	case schemaStream:
		switch m.Intent {
		case IntentStream, IntentEnd:
			return fail(ErrParse, "stream chunk without cid")
		}
	}
	return nil
}

// key returns the full and the short form of a top-level key under a schema, which may be empty
// (ACCP-D30). An unknown schema is [ErrUnknownSchema].
func (r *Registry) key(key, schema string) (full, short string, err error) {
	var s *compiled
	if schema != "" {
		if s = r.tables().lookup(schema); s == nil {
			return "", "", fail(ErrUnknownSchema, "schema %s", quoted(schema))
		}
	}
	if f := s.form(key); f != nil {
		return f.full, f.short, nil
	}
	return key, key, nil
}
