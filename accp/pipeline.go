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
	var buf [24]string
	p, err := c.prepare(m, buf[:0])
	if err != nil {
		return dst, err
	}
	out, _, err := c.appendFrame(dst, p.m, p.keys)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// A prepared message is ready to be written. Its params have their final values, and keys has the
// key of each param on the wire, empty for an omitted one.
type prepared struct {
	m      *Message
	schema *compiled // nil without a schema
	keys   []string
}

// prepare performs steps 1, 2 and 4. It does not change m.
func (c *Codec) prepare(m *Message, keys []string) (prepared, error) {
	s, err := c.resolve(m.Params)
	if err != nil {
		return prepared{}, err
	}
	out := prepared{m: m, schema: s}
	if s != nil {
		params, err := checkTypes(s, m.Params, true)
		if err != nil {
			return prepared{}, err
		}
		if params != nil {
			changed := *m
			changed.Params = params
			out.m = &changed
		}
	}
	for i := range out.m.Params {
		f := s.form(out.m.Params[i].Key)
		k := f.short
		if c.WriteLongKeys {
			k = f.full
		}
		if f.def > 0 && !c.KeepDefaults && s.Defaults[f.def-1].Value.Equal(out.m.Params[i].Value) {
			if c.repeated(s, out.m.Params, i, f) {
				return prepared{}, fail(ErrParse, "key %s given twice", f.full)
			}
			k = ""
		}
		keys = append(keys, k)
	}
	out.keys = keys
	return out, nil
}

// repeated reports whether the key of an omitted param occurs in another spelling (ACCP-D13). The
// encoder compares the written keys.
func (c *Codec) repeated(s *compiled, params Params, i int, f keyForm) bool {
	global := globalShort(f.full)
	for j := range params {
		if k := params[j].Key; j != i && (k == f.full || k == f.short || k == global) && s.full(k) == f.full {
			return true
		}
	}
	return false
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
		return nil, fail(ErrUnknownSchema, "schema %.80q", name)
	}
	return s, nil
}

// Decode reads a frame: grammar, schema, expanded keys, defaults, and the types that the schema
// fixes (steps 1 to 5 of section 7.3 of the draft, without references). It does not check the
// envelope; see [Codec.ValidateEnvelope]. Every error is an [*Error].
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
		err = c.ValidateEnvelope(m)
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
			return nil, fail(ErrParse, "key %s given twice", key)
		}
	}
	return s, nil
}

// twice returns a duplicate key of p, or "".
func (p Params) twice() string {
	if len(p) <= 16 {
		for i := range p {
			for j := range i {
				if p[i].Key == p[j].Key {
					return p[i].Key
				}
			}
		}
		return ""
	}
	seen := make(map[string]struct{}, len(p))
	for i := range p {
		if _, ok := seen[p[i].Key]; ok {
			return p[i].Key
		}
		seen[p[i].Key] = struct{}{}
	}
	return ""
}

// complete fills in the defaults of the schema and checks the types that it fixes.
func (c *Codec) complete(m *Message, s *compiled) error {
	if s == nil {
		return nil
	}
	if !c.KeepDefaults {
		n := 0
		for i := range s.Defaults {
			if _, ok := m.Params.Get(s.Defaults[i].Key); !ok {
				n++
			}
		}
		if n > 0 {
			all := make(Params, len(m.Params), len(m.Params)+n)
			copy(all, m.Params)
			for _, d := range s.Defaults {
				if _, ok := m.Params.Get(d.Key); !ok {
					all = append(all, d)
				}
			}
			m.Params = all
		}
	}
	params, err := checkTypes(s, m.Params, false)
	if params != nil {
		m.Params = params
	}
	return err
}

// checkTransaction checks the value of a key of schema TX.
func checkTransaction(key string, v Value) error {
	switch {
	case v.kind == KindRef:
	case key == "transaction_id" && v.kind != KindInt && (v.kind != KindString || v.text == ""):
		return fail(ErrInvalidType, "transaction_id must be an integer or a string that is not empty")
	case key == "amount" && v.kind == KindDecimal && len(v.text)-dot(v.text)-1 > decimalPlaces:
		return fail(ErrInvalidType, "amount has more than six places")
	case key == "amount" && v.kind != KindInt && v.kind != KindDecimal:
		return fail(ErrInvalidType, "amount must be a decimal, not a %s", v.kind)
	}
	return nil
}

// checkTypes checks the values whose type a built-in schema fixes (ACCP-D34). It returns a changed
// copy of the params, or nil if nothing changes. An unresolved reference is accepted.
func checkTypes(s *compiled, params Params, sending bool) (Params, error) {
	out := Params(nil)
	if sending {
		out = withCode(s, params)
	}
	if !s.hasFixedTypes() {
		return out, nil
	}
	hasCode := false
	for i := range params {
		v, key := params[i].Value, params[i].Key
		if sending {
			key = typedKey(s.Code, key)
		}
		if err := checkType(s.Code, key, v); err != nil {
			return nil, err
		}
		hasCode = hasCode || key == "code"
		if s.Code == SchemaTransaction && key == "amount" && v.kind == KindInt {
			if out == nil {
				out = slices.Clone(params)
			}
			out[i].Value = Value{kind: KindDecimal, text: trimDecimal(v.text)}
		}
	}
	if s.Code == SchemaError && !hasCode {
		return nil, fail(ErrInvalidType, "an error frame needs a code")
	}
	return out, nil
}

// hasFixedTypes reports whether the values of the schema have fixed types.
func (s *compiled) hasFixedTypes() bool {
	return !s.custom && (s.Code == SchemaTransaction || s.Code == SchemaStream || s.Code == SchemaError)
}

// withCode returns a copy of the params with the code of their schema, or nil if they have it.
func withCode(s *compiled, params Params) (out Params) {
	for i := range params {
		if params[i].Key == keySchema && params[i].Value.text != s.Code {
			out = slices.Clone(params)
			out[i].Value = String(s.Code)
		}
	}
	return out
}

// checkType checks a value of a built-in schema with fixed types.
func checkType(code, key string, v Value) error {
	switch code {
	case SchemaTransaction:
		return checkTransaction(key, v)
	case SchemaStream:
		return checkChunk(key, v)
	}
	return checkErrorParam(key, v)
}

// checkChunk checks the value of a key of schema ST.
func checkChunk(key string, v Value) error {
	switch {
	case v.kind == KindRef:
	case (key == "chunk_index" || key == "total_chunks") && (v.kind != KindInt || v.text[0] == '-'):
		return fail(ErrInvalidType, "%s must be an integer from 0", key)
	case key == "is_final" && v.kind != KindBool:
		return fail(ErrInvalidType, "is_final must be a boolean")
	}
	return nil
}

// checkErrorParam checks the value of a key of schema ER.
func checkErrorParam(key string, v Value) error {
	switch {
	case key == "code" && (v.kind != KindString || !validCode(v.text)):
		return fail(ErrInvalidType, "code must be E and four digits")
	case key == "retryable" && v.kind != KindBool:
		return fail(ErrInvalidType, "retryable must be a boolean")
	}
	return nil
}

// typedKey returns the full form of the keys that checkTypes checks.
func typedKey(code, key string) string {
	switch {
	case code == SchemaTransaction && key == "amt":
		return "amount"
	case code == SchemaTransaction && key == "txn":
		return "transaction_id"
	case code == SchemaStream && key == "idx":
		return "chunk_index"
	case code == SchemaStream && key == "tot":
		return "total_chunks"
	case code == SchemaStream && key == "done":
		return "is_final"
	case code == SchemaError && key == "retry":
		return "retryable"
	}
	return key
}

func dot(s string) int {
	for i := range len(s) {
		if s[i] == '.' {
			return i
		}
	}
	return len(s) - 1
}

// ValidateEnvelope checks that m has the required fields of the envelope: mid, seq and ts
// (ACCP-D21, ACCP-D22). A lenient codec accepts any mid, and a missing ts unless there is a time to
// live.
func (c *Codec) ValidateEnvelope(m *Message) error {
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
	switch m.Schema() {
	case SchemaTool:
		switch m.Intent {
		case IntentDone, IntentFail, IntentStream, IntentEnd:
			return fail(ErrParse, "tool answer without cid")
		}
	case SchemaStream:
		switch m.Intent {
		case IntentStream, IntentEnd:
			return fail(ErrParse, "stream chunk without cid")
		}
	}
	return nil
}

// Key returns the full and the short form of a top-level key under a schema, which may be empty
// (ACCP-D30). An unknown schema is [ErrUnknownSchema].
func (r *Registry) Key(key, schema string) (full, short string, err error) {
	var s *compiled
	if schema != "" {
		if s = r.tables().lookup(schema); s == nil {
			return "", "", fail(ErrUnknownSchema, "schema %.80q", schema)
		}
	}
	full = s.full(key)
	return full, s.short(full), nil
}
