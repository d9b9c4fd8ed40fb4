// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"slices"
	"strings"
)

// A Schema describes the fields of a kind of message under a short code.
type Schema struct {
	Name     string            // such as task_assignment
	Code     string            // such as TA: a capital letter and 1 to 7 capitals or digits
	Version  int64             // 1 or more
	Fields   []string          // the keys of the structure, in full
	Defaults Params            // values of omitted fields
	Abbr     map[string]string // short key to full key
}

const keySchema = "schema"

// Codes of the built-in schemas.
const (
	schemaChat        = "CH"
	schemaTool        = "TC"
	schemaTransaction = "TX"
	schemaStream      = "ST"
	schemaTask        = "TA"
	schemaError       = "ER"
)

// builtinSchemas returns copies of the schemas that every registry contains and that cannot be
// changed (ACCP-D32, ACCP-D49).
func builtinSchemas() []Schema {
	return []Schema{
		{Name: "chat", Code: schemaChat, Version: 1,
			Fields:   []string{"role", "content", "turn", "lang", "reply_to"},
			Defaults: Params{{"role", String("assistant")}, {"lang", String("en")}}},
		{Name: "tool_call", Code: schemaTool, Version: 1,
			Fields:   []string{"tool_name", "arguments", "result", "status", "error_code"},
			Defaults: Params{{"status", String("ok")}},
			Abbr:     map[string]string{"tool": "tool_name", "args": "arguments", "res": "result", "stat": "status"}},
		{Name: "transaction", Code: schemaTransaction, Version: 1,
			Fields:   []string{"transaction_id", "amount", "currency", "account", "reference", "status", "retryable"},
			Defaults: Params{{"currency", String("USD")}, {"status", String("pending")}, {"retryable", Bool(false)}},
			Abbr:     map[string]string{"txn": "transaction_id", "amt": "amount", "acc": "account", "stat": "status"}},
		{Name: "stream_chunk", Code: schemaStream, Version: 1,
			Fields:   []string{"chunk_index", "total_chunks", "data", "is_final"},
			Defaults: Params{{"is_final", Bool(false)}},
			Abbr:     map[string]string{"idx": "chunk_index", "tot": "total_chunks", "done": "is_final"}},
		{Name: "task_assignment", Code: schemaTask, Version: 2,
			Fields:   []string{"assignee", "task", "priority", "deadline", "deps"},
			Defaults: Params{{"priority", String("medium")}, {"deps", Array()}},
			Abbr:     map[string]string{"asgn": "assignee", "dead": "deadline", "stat": "status", "prog": "progress"}},
		{Name: "error", Code: schemaError, Version: 1,
			Fields: []string{"code", "message", "retryable"},
			Abbr:   map[string]string{"msg": "message", "retry": "retryable"}},
		{Name: "sales_report", Code: "SR", Version: 1,
			Fields:   []string{"period", "revenue", "growth_pct", "segments", "notes"},
			Defaults: Params{{"period", String("quarterly")}, {"segments", Array()}}},
	}
}

// validSchemaCode reports whether s is a capital letter and 1 to 7 capitals or
// digits.
func validSchemaCode(s string) bool {
	if len(s) < 2 || len(s) > 8 || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// validate returns an [ErrInvalidType] error if the schema is malformed (ACCP-D47).
func (s *Schema) validate() error {
	switch {
	case !validSchemaCode(s.Code):
		return fail(ErrInvalidType, "schema code %.20q", s.Code)
	case !validName(s.Name):
		return fail(ErrInvalidType, "schema %s: invalid name", s.Code)
	case s.Version < 1:
		return fail(ErrInvalidType, "schema %s: version below 1", s.Code)
	case len(s.Fields) == 0:
		return fail(ErrInvalidType, "schema %s: no fields", s.Code)
	}
	fields := make(map[string]bool, len(s.Fields))
	for _, f := range s.Fields {
		if !validName(f) || f == keySchema || fields[f] {
			return fail(ErrInvalidType, "schema %s: invalid or repeated field %.80q", s.Code, f)
		}
		fields[f] = true
	}
	seen := make(map[string]bool, len(s.Defaults))
	for _, d := range s.Defaults {
		if !fields[d.Key] || seen[d.Key] {
			return fail(ErrInvalidType, "schema %s: default for %.80q, which is no field, or repeated", s.Code, d.Key)
		}
		seen[d.Key] = true
	}
	return s.checkAbbr(fields)
}

// checkAbbr checks the short forms of a schema.
func (s *Schema) checkAbbr(fields map[string]bool) error {
	full := make(map[string]bool, len(s.Abbr))
	for short, long := range s.Abbr {
		if !validName(short) || !validName(long) || fields[short] || short == keySchema || long == keySchema || full[long] {
			return fail(ErrInvalidType, "schema %s: invalid abbreviation %.80q", s.Code, short)
		}
		full[long] = true
	}
	for short := range s.Abbr {
		if full[short] { // a name that is the short form of one key and the full form of another
			return fail(ErrInvalidType, "schema %s: %.80q is both short and full", s.Code, short)
		}
	}
	return nil
}

// value returns the canonical value of the schema, which the hash of a registry covers and a delta
// contains (ACCP-D47).
func (s *Schema) value() Value {
	abbr := make([]Param, 0, len(s.Abbr))
	for short, long := range s.Abbr {
		abbr = append(abbr, Param{short, String(long)})
	}
	slices.SortFunc(abbr, byKey)
	fields := make([]Value, len(s.Fields))
	for i, f := range s.Fields {
		fields[i] = String(f)
	}
	return Map(
		Param{"abbr", Map(abbr...)},
		Param{"defaults", Map(s.Defaults.sorted()...)},
		Param{"fields", Array(fields...)},
		Param{"name", String(s.Name)},
		Param{"version", Int(s.Version)},
	)
}

// canonical returns the canonical text of the schema, without its code (ACCP-D47).
func (s *Schema) canonical() (string, error) { return canonicalValue(s.value()) }

func canonicalValue(v Value) (string, error) {
	out, err := appendCanonical(nil, v)
	return string(out), err
}

func appendCanonical(dst []byte, v Value) ([]byte, error) {
	c := Codec{FrameLimits: FrameLimits{MaxDepth: 100, MaxValues: 1 << 20, MaxFrame: 1 << 24}}
	return c.AppendValue(dst, v)
}

// hasAllMembers reports whether the value of a schema in a delta has each member, and no other. Its canonical text then is
// that of the schema.
func hasAllMembers(v Value) bool {
	for _, key := range []string{"abbr", "defaults", "fields", "name", "version"} {
		if _, ok := Params(v.list).Get(key); !ok || len(v.list) != 5 {
			return false
		}
	}
	return true
}

// schemaFromValue returns a schema of a registry delta. It does not refer to the memory of the delta.
func schemaFromValue(code string, v Value) (Schema, error) {
	s := Schema{Code: strings.Clone(code)}
	bad := func(what string) (Schema, error) {
		return Schema{}, fail(ErrInvalidType, "schema %.20q: %s", code, what)
	}
	if v.kind != KindMap {
		return bad("not a map")
	}
	for _, p := range v.list {
		switch p.Key {
		case "name":
			name, _ := p.Value.Text()
			s.Name = strings.Clone(name)
		case "version":
			n, ok := p.Value.Int()
			if !ok {
				return bad("version is no integer")
			}
			s.Version = n
		case "fields":
			if p.Value.kind != KindArray {
				return bad("fields is no array")
			}
			var ok bool
			if s.Fields, ok = texts(p.Value); !ok {
				return bad("a field is no string")
			}
		case "defaults":
			if p.Value.kind != KindMap {
				return bad("defaults is no map")
			}
			s.Defaults = p.Value.detached().Entries()
		case "abbr":
			if p.Value.kind != KindMap {
				return bad("abbr is no map")
			}
			s.Abbr = make(map[string]string, len(p.Value.list))
			for _, a := range p.Value.Entries() {
				long, ok := a.Value.Text()
				if !ok {
					return bad("an abbreviation is no string")
				}
				s.Abbr[strings.Clone(a.Key)] = strings.Clone(long)
			}
		}
	}
	return s, s.validate()
}

// texts returns copies of the elements of an array, and whether all are strings.
func texts(array Value) (list []string, ok bool) {
	list = make([]string, 0, len(array.list))
	for _, v := range array.Elements() {
		text, ok := v.Text()
		if !ok {
			return nil, false
		}
		list = append(list, strings.Clone(text))
	}
	return list, true
}

// clone returns a deep copy of s.
func (s *Schema) clone() Schema {
	c := *s
	c.Fields = slices.Clone(s.Fields)
	c.Defaults = slices.Clone(s.Defaults)
	if s.Abbr != nil {
		c.Abbr = make(map[string]string, len(s.Abbr))
		for k, v := range s.Abbr {
			c.Abbr[strings.Clone(k)] = v
		}
	}
	return c
}

// A keyForm has both forms of a key.
type keyForm struct {
	full, short string
	def         int // index of its default plus one
	typ         fixedType
}

// A keyTable has the forms of keys, each in its full and its short form.
type keyTable struct {
	list  []keyEntry
	slots [tableSlots]uint8 // index in a short list plus one, by hash
	at    map[string]int    // index in a long list
}

type keyEntry struct {
	key string
	keyForm
}

const (
	tableSlots = 64
	longTable  = 32 // entries; more need a hash that a peer cannot predict
)

func slotOf(key string) int { return (len(key) + 7*int(key[0]) + 13*int(key[len(key)-1])) % tableSlots }

func (t *keyTable) find(key string) *keyForm {
	switch {
	case t.at != nil:
		if i, ok := t.at[key]; ok {
			return &t.list[i].keyForm
		}
	case key != "":
		for h := slotOf(key); t.slots[h] != 0; h = (h + 1) % tableSlots {
			if e := &t.list[t.slots[h]-1]; e.key == key {
				return &e.keyForm
			}
		}
	}
	return nil
}

// add adds the form of a key unless the table has one.
func (t *keyTable) add(key string, f keyForm) {
	if t.find(key) != nil {
		return
	}
	t.list = append(t.list, keyEntry{key, f})
	switch n := len(t.list); {
	case t.at != nil:
		t.at[key] = n - 1
	case n > longTable:
		t.at = make(map[string]int, 2*n)
		for i, e := range t.list {
			t.at[e.key] = i
		}
	default:
		h := slotOf(key)
		for t.slots[h] != 0 {
			h = (h + 1) % tableSlots
		}
		t.slots[h] = uint8(n)
	}
}

// globals are the abbreviations of the draft (ACCP-083).
var globals = func() (t keyTable) {
	for _, f := range []keyForm{{full: "data", short: "d"}, {full: "findings", short: "f"}, {full: "next_action", short: "nx"},
		{full: "source", short: "src"}, {full: "destination", short: "dst"}, {full: "query", short: "q"}, {full: "format", short: "fmt"},
		{full: "priority", short: "pri"}, {full: "error", short: "err"}, {full: "version", short: "v"}, {full: "timestamp", short: "ts"},
		{full: "time_to_live", short: "ttl"}, {full: "context_reference", short: "ctx"}, {full: "target", short: "who"},
		{full: "temporal_constraint", short: "when"}, {full: "rationale_code", short: "why"}} {
		t.add(f.full, f)
		t.add(f.short, f)
	}
	return t
}()

// A compiled schema has tables to look up keys.
type compiled struct {
	Schema
	abbr    []abbreviation
	custom  bool
	isTyped bool     // values have fixed types
	keys    keyTable // of the fields and abbreviations
	text    string   // canonical
	size    int      // bytes in memory
}

type abbreviation struct{ short, full string }

// compile prepares a valid schema with this canonical text. It must not change afterwards.
func compile(s Schema, text string, custom bool) *compiled {
	c := &compiled{Schema: s, text: text, custom: custom}
	c.keys.list = make([]keyEntry, 0, len(c.Fields)+2*len(c.Abbr))
	c.abbr = make([]abbreviation, 0, len(c.Abbr))
	for short, full := range c.Abbr {
		c.abbr = append(c.abbr, abbreviation{short, full})
	}
	slices.SortFunc(c.abbr, func(a, b abbreviation) int { return strings.Compare(a.short, b.short) })
	for _, a := range c.abbr {
		f := keyForm{full: a.full, short: a.short}
		c.keys.add(a.short, f)
		c.keys.add(a.full, f)
	}
	for _, f := range c.Fields {
		c.keys.add(f, keyForm{full: f, short: f})
	}
	for i := range c.keys.list {
		f := &c.keys.list[i].keyForm
		if g := globals.find(f.full); g != nil && g.full == f.full && f.short == f.full && c.keys.find(g.short) == nil {
			f.short = g.short
		}
		f.def = 1 + c.Defaults.index(f.full)
		if !custom {
			f.typ = fixedTypeOf(c.Code, f.full)
			c.isTyped = c.isTyped || f.typ != anyType
		}
	}
	for i := 0; i < len(globals.list); i += 2 {
		c.keys.addGlobal(globals.list[i].full, globals.list[i].short)
	}
	c.size = messageBytes + len(c.Code) + len(c.Name) + (&Value{list: c.Defaults}).size()
	for i := range c.keys.list {
		c.size += 3*itemBytes + len(c.keys.list[i].key)
	}
	return c
}

// addGlobal adds a global abbreviation that means something else with the schema: a name that the schema uses is no
// abbreviation, and a field has its own short form (ACCP-D30).
func (t *keyTable) addGlobal(full, short string) {
	own, other := t.find(full), t.find(short)
	switch {
	case own != nil && own.full == full && other == nil && own.short != short:
		t.add(short, *own)
	case own == nil && other != nil:
		t.add(full, keyForm{full: full, short: full})
	}
}

// form returns the forms of a key given in either form, or nil if it has only one. The schema may be nil.
func (s *compiled) form(key string) *keyForm {
	if key == keySchema {
		return nil
	}
	if s != nil {
		if f := s.keys.find(key); f != nil {
			return f
		}
	}
	return globals.find(key)
}

// full returns the full form of a key.
func (s *compiled) full(key string) string {
	if f := s.form(key); f != nil {
		return f.full
	}
	return key
}
