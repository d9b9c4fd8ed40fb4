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
	SchemaChat        = "CH"
	SchemaTool        = "TC"
	SchemaTransaction = "TX"
	SchemaStream      = "ST"
	SchemaTask        = "TA"
	SchemaError       = "ER"
)

const schemaTable = "TB"

// TableSchema returns the schema of [TableOf]. Register it on the side that sends the first table; the
// other side learns it when the client greets (ACCP-D77).
func TableSchema() Schema {
	return Schema{Name: "table", Code: schemaTable, Version: 1, Fields: []string{"columns", "rows"},
		Abbr: map[string]string{"cols": "columns"}}
}

// BuiltinSchemas returns copies of the schemas that every registry contains and that cannot be
// changed (ACCP-D32, ACCP-D49).
func BuiltinSchemas() []Schema {
	return []Schema{
		{Name: "chat", Code: SchemaChat, Version: 1,
			Fields:   []string{"role", "content", "turn", "lang", "reply_to"},
			Defaults: Params{{"role", String("assistant")}, {"lang", String("en")}}},
		{Name: "tool_call", Code: SchemaTool, Version: 1,
			Fields:   []string{"tool_name", "arguments", "result", "status", "error_code"},
			Defaults: Params{{"status", String("ok")}},
			Abbr:     map[string]string{"tool": "tool_name", "args": "arguments", "res": "result", "stat": "status"}},
		{Name: "transaction", Code: SchemaTransaction, Version: 1,
			Fields:   []string{"transaction_id", "amount", "currency", "account", "reference", "status", "retryable"},
			Defaults: Params{{"currency", String("USD")}, {"status", String("pending")}, {"retryable", Bool(false)}},
			Abbr:     map[string]string{"txn": "transaction_id", "amt": "amount", "acc": "account", "stat": "status"}},
		{Name: "stream_chunk", Code: SchemaStream, Version: 1,
			Fields:   []string{"chunk_index", "total_chunks", "data", "is_final"},
			Defaults: Params{{"is_final", Bool(false)}},
			Abbr:     map[string]string{"idx": "chunk_index", "tot": "total_chunks", "done": "is_final"}},
		{Name: "task_assignment", Code: SchemaTask, Version: 2,
			Fields:   []string{"assignee", "task", "priority", "deadline", "deps"},
			Defaults: Params{{"priority", String("medium")}, {"deps", Array()}},
			Abbr:     map[string]string{"asgn": "assignee", "dead": "deadline", "stat": "status", "prog": "progress"}},
		{Name: "error", Code: SchemaError, Version: 1,
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

// Validate returns an [ErrInvalidType] error if the schema is malformed (ACCP-D47).
func (s *Schema) Validate() error {
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

// Canonical returns the canonical text of the schema, without its code (ACCP-D47).
func (s *Schema) Canonical() (string, error) { return canonicalValue(s.value()) }

func canonicalValue(v Value) (string, error) {
	c := Codec{FrameLimits: FrameLimits{MaxDepth: 100, MaxValues: 1 << 20, MaxFrame: 1 << 24}}
	out, err := c.AppendValue(nil, v)
	return string(out), err
}

// canonicalText returns [Schema.Canonical] of the schema with the value v in a delta. If v has each member, and no other,
// the text is that of v.
func canonicalText(s *Schema, v Value) (string, error) {
	for _, key := range []string{"abbr", "defaults", "fields", "name", "version"} {
		if _, ok := Params(v.list).Get(key); !ok || v.Len() != 5 {
			return s.Canonical()
		}
	}
	return canonicalValue(v)
}

// schemaFromValue returns a schema of a registry delta.
func schemaFromValue(code string, v Value) (Schema, error) {
	s := Schema{Code: code}
	bad := func(what string) (Schema, error) {
		return Schema{}, fail(ErrInvalidType, "schema %.20q: %s", code, what)
	}
	if v.kind != KindMap {
		return bad("not a map")
	}
	for _, p := range v.list {
		switch p.Key {
		case "name":
			s.Name, _ = p.Value.Text()
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
			s.Defaults = p.Value.Entries()
		case "abbr":
			if p.Value.kind != KindMap {
				return bad("abbr is no map")
			}
			s.Abbr = make(map[string]string, p.Value.Len())
			for _, a := range p.Value.Entries() {
				long, ok := a.Value.Text()
				if !ok {
					return bad("an abbreviation is no string")
				}
				s.Abbr[a.Key] = long
			}
		}
	}
	return s, s.Validate()
}

// texts returns the elements of an array, and whether all are strings.
func texts(array Value) (list []string, ok bool) {
	for _, v := range array.Elements() {
		text, ok := v.Text()
		if !ok {
			return nil, false
		}
		list = append(list, text)
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

// globalFull returns the full name of a global abbreviation, or "".
func globalFull(short string) string {
	if len(short) == 1 {
		return globalLetter(short)
	}
	switch short {
	case "nx":
		return "next_action"
	case "src":
		return "source"
	case "dst":
		return "destination"
	case "fmt":
		return "format"
	case "pri":
		return "priority"
	case "err":
		return "error"
	case "ts":
		return "timestamp"
	case "ttl":
		return "time_to_live"
	case "ctx":
		return "context_reference"
	case "who":
		return "target"
	case "when":
		return "temporal_constraint"
	case "why":
		return "rationale_code"
	}
	return ""
}

// globalLetter is globalFull for one letter.
func globalLetter(short string) string {
	switch short {
	case "d":
		return "data"
	case "f":
		return "findings"
	case "q":
		return "query"
	case "v":
		return "version"
	}
	return ""
}

// globalShort is the inverse of globalFull.
func globalShort(full string) string {
	if len(full) > len("findings") {
		return globalShortOfLong(full)
	}
	switch full {
	case "data":
		return "d"
	case "findings":
		return "f"
	case "source":
		return "src"
	case "query":
		return "q"
	case "format":
		return "fmt"
	case "priority":
		return "pri"
	case "error":
		return "err"
	case "version":
		return "v"
	case "target":
		return "who"
	}
	return ""
}

// globalShortOfLong is globalShort for names of more than 8 bytes.
func globalShortOfLong(full string) string {
	switch full {
	case "next_action":
		return "nx"
	case "destination":
		return "dst"
	case "timestamp":
		return "ts"
	case "time_to_live":
		return "ttl"
	case "context_reference":
		return "ctx"
	case "temporal_constraint":
		return "when"
	case "rationale_code":
		return "why"
	}
	return ""
}

// A compiled schema has tables to look up keys.
type compiled struct {
	Schema
	abbr   []abbreviation
	custom bool
	keys   map[string]keyForm // of the fields and abbreviations
	text   string             // canonical
	size   int                // bytes in memory
}

// A keyForm has both forms of a key, and the index of its default plus one.
type keyForm struct {
	full, short string
	def         int
}

type abbreviation struct{ short, full string }

// compile prepares a valid schema with this canonical text. It must not change afterwards.
func compile(s Schema, text string, custom bool) *compiled {
	c := &compiled{Schema: s, text: text, custom: custom}
	for short, full := range c.Abbr {
		c.abbr = append(c.abbr, abbreviation{short, full})
	}
	slices.SortFunc(c.abbr, func(a, b abbreviation) int { return strings.Compare(a.short, b.short) })
	c.keys = make(map[string]keyForm, len(c.Fields)+2*len(c.abbr))
	learn := func(key string) {
		f := keyForm{full: c.fullOf(key)}
		f.short = c.shortOf(f.full)
		f.def = 1 + c.Defaults.index(f.full)
		c.keys[key] = f
	}
	for _, f := range c.Fields {
		learn(f)
	}
	for _, a := range c.abbr {
		learn(a.short)
		learn(a.full)
	}
	c.size = messageBytes + len(c.Code) + len(c.Name) + (&Value{list: c.Defaults}).size()
	for key := range c.keys {
		c.size += 3*itemBytes + len(key)
	}
	return c
}

// form returns the forms of a key given in either form. The schema may be nil.
func (s *compiled) form(key string) keyForm {
	if key == keySchema {
		return keyForm{full: key, short: key}
	}
	if s != nil {
		if f, ok := s.keys[key]; ok {
			return f
		}
	}
	f := keyForm{full: s.fullOf(key)}
	f.short = s.shortOf(f.full)
	if s != nil {
		f.def = 1 + s.Defaults.index(f.full)
	}
	return f
}

// full returns the full form of a key; the schema may be nil.
func (s *compiled) full(key string) string { return s.form(key).full }

// short returns the form of a full key to be sent.
func (s *compiled) short(full string) string { return s.form(full).short }

// owns reports whether key is a field of the schema or the full name of one of its abbreviations.
// Such a key is never an abbreviation (ACCP-D30).
func (s *compiled) owns(key string) bool {
	if slices.Contains(s.Fields, key) {
		return true
	}
	for _, a := range s.abbr {
		if a.full == key {
			return true
		}
	}
	return false
}

// fullOf computes the full form of a key.
func (s *compiled) fullOf(key string) string {
	if key == keySchema {
		return key
	}
	if s != nil {
		for _, a := range s.abbr {
			if a.short == key {
				return a.full
			}
		}
		if s.owns(key) {
			return key
		}
	}
	if g := globalFull(key); g != "" {
		return g
	}
	return key
}

// shortOf computes the short form of a key.
func (s *compiled) shortOf(full string) string {
	if full == keySchema {
		return full
	}
	if s != nil {
		for _, a := range s.abbr {
			if a.full == full {
				return a.short
			}
		}
	}
	g := globalShort(full)
	if g == "" || s != nil && s.takes(g) {
		return full
	}
	return g
}

// takes reports whether the schema uses a name, so that the name is not a global abbreviation.
func (s *compiled) takes(name string) bool {
	if s.owns(name) {
		return true
	}
	for _, a := range s.abbr {
		if a.short == name {
			return true
		}
	}
	return false
}
