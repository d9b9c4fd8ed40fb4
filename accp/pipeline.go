// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

// This file holds the steps of the two pipelines that need no session (ACCP-121,
// ACCP-124). Each works on a message alone and can be used alone.

// Encode writes m as one frame: it finds the schema, shortens the keys, leaves
// out values that equal the defaults and writes the canonical form (steps 1, 2,
// 4 and 7 of section 7.2 of the draft). A [Session] does the other steps. Every
// error is an [*Error].
func (c *Codec) Encode(m *Message) ([]byte, error) { return c.Append(nil, m) }

// Append is like [Codec.Encode] and appends to dst.
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

// A prepared message is ready to be written: its params have the values to be
// sent, and keys are what to write them under, empty for those left out.
type prepared struct {
	m      *Message
	schema *compiled // nil if the message names none
	keys   []string
}

// prepare does the steps 1, 2 and 4. It does not change m.
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
		f := s.look(out.m.Params[i].Key)
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

// repeated reports whether a key that is about to be left out stands there under
// another spelling too (ACCP-D13). Keys that are written are compared by the encoder.
func (c *Codec) repeated(s *compiled, params Params, i int, f keyForm) bool {
	global := globalShort(f.full)
	for j := range params {
		if k := params[j].Key; j != i && (k == f.full || k == f.short || k == global) && s.full(k) == f.full {
			return true
		}
	}
	return false
}

// resolve finds the schema that the param schema names, by code or by name; nil
// if there is no such param.
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

// Decode reads a frame: grammar, schema, expanded keys, defaults and the types
// that the schema fixes (steps 1 to 5 of section 7.3 of the draft, without
// references). It does not look at the envelope; see [CheckEnvelope]. Every error
// is an [*Error].
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

// DecodeEnvelope is like [Codec.Decode] for a frame that must have its envelope,
// and must name its chain where that is required.
func (c *Codec) DecodeEnvelope(frame []byte) (*Message, error) {
	m, err := c.DecodeRaw(frame)
	if err != nil {
		return nil, err
	}
	if err := c.ValidateEnvelope(m); err != nil {
		return nil, err
	}
	s, err := c.expand(m)
	if err != nil {
		return nil, err
	}
	if err := c.complete(m, s); err != nil {
		return nil, err
	}
	if err := checkChain(m); err != nil {
		return nil, err
	}
	return m, nil
}

// Canonical reads a frame and writes it in canonical form, keys shortened and
// defaults left out.
func (c *Codec) Canonical(frame []byte) ([]byte, error) {
	m, err := c.Decode(frame)
	if err != nil {
		return nil, err
	}
	return c.Encode(m)
}

// expand finds the schema of m, whose params it owns, and writes its keys in full.
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

// twice returns a key that stands twice in p, or "".
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

// complete fills in the defaults of the schema and checks the types that it
// fixes.
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

// checkTypes checks the values whose type a built-in schema fixes (ACCP-D34) and
// returns the params with what has to change changed, or nil. A reference whose
// value is not known here passes.
func checkTypes(s *compiled, params Params, sending bool) (Params, error) {
	var out Params
	set := func(i int, v Value) {
		if out == nil {
			out = append(Params(nil), params...)
		}
		out[i].Value = v
	}
	if sending {
		for i := range params {
			if params[i].Key == keySchema && params[i].Value.text != s.Code {
				set(i, String(s.Code))
			}
		}
	}
	if s.custom || s.Code != SchemaTransaction && s.Code != SchemaStream && s.Code != SchemaError {
		return out, nil
	}
	code := false
	for i := range params {
		v := params[i].Value
		key := params[i].Key
		if sending {
			key = typedKey(s.Code, key)
		}
		switch s.Code {
		case SchemaTransaction:
			if key != "amount" || v.kind == KindRef {
				continue
			}
			switch v.kind {
			case KindInt:
				set(i, Value{kind: KindDecimal, text: trimDecimal(v.text)})
			case KindDecimal:
				if len(v.text)-dot(v.text)-1 > decimalPlaces {
					return nil, fail(ErrInvalidType, "amount has more than six places")
				}
			default:
				return nil, fail(ErrInvalidType, "amount must be a decimal, not a %s", v.kind)
			}
		case SchemaStream:
			switch key {
			case "chunk_index", "total_chunks":
				if v.kind != KindRef && (v.kind != KindInt || v.text[0] == '-') {
					return nil, fail(ErrInvalidType, "%s must be an integer from 0", key)
				}
			case "is_final":
				if v.kind != KindRef && v.kind != KindBool {
					return nil, fail(ErrInvalidType, "is_final must be a boolean")
				}
			}
		case SchemaError:
			switch key {
			case "code":
				if v.kind != KindString || !validCode(v.text) {
					return nil, fail(ErrInvalidType, "code must be E and four digits")
				}
				code = true
			case "retryable":
				if v.kind != KindBool {
					return nil, fail(ErrInvalidType, "retryable must be a boolean")
				}
			}
		}
	}
	if s.Code == SchemaError && !code {
		return nil, fail(ErrInvalidType, "an error frame needs a code")
	}
	return out, nil
}

// typedKey returns the full form of the keys that checkTypes looks at.
func typedKey(code, key string) string {
	switch {
	case code == SchemaTransaction && key == "amt":
		return "amount"
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

// ValidateEnvelope checks that m has the envelope that every frame sent needs: mid,
// seq and ts (ACCP-D21, ACCP-D22). The lenient reader accepts any mid, and a missing ts
// unless there is a time to live.
func (c *Codec) ValidateEnvelope(m *Message) error {
	meta := m.Meta
	switch {
	case meta == nil:
		return fail(ErrParse, "no metadata")
	case meta.MID == "":
		return fail(ErrParse, "no mid")
	case !meta.Seq.Set:
		return fail(ErrParse, "no seq")
	case !meta.TS.Set && (!c.Lenient || meta.TTL.N > 0):
		return fail(ErrParse, "no ts")
	case !c.Lenient && !isHex12(meta.MID):
		return fail(ErrInvalidType, "mid must be 12 hex digits")
	}
	return nil
}

// checkChain checks that a message that must name its chain does: cancel, the
// answers of the tool profile and the chunks of a stream (ACCP-D28, ACCP-D34). The keys of
// m are full.
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

// Key returns the full and the short form of a top-level key under a schema,
// which may be empty (ACCP-D30). An unknown schema is [ErrUnknownSchema].
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
