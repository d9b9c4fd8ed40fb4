// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// A schema with its references resolved is bounded, because one that refers to itself has no end.
const (
	maxDepth   = 32
	maxSchemas = 10_000   // within it
	maxContent = 16 << 20 // bytes within it; each reference to a schema repeats those of that
)

// notes are keywords that a contract cannot express, with their words in a description.
var notes = [][2]string{
	{"enum", "one of"}, {"const", "always"}, {"default", "default"}, {"format", "format"}, {"pattern", "pattern"},
	{"minimum", "at least"}, {"exclusiveMinimum", "more than"}, {"maximum", "at most"}, {"exclusiveMaximum", "less than"},
	{"multipleOf", "multiple of"}, {"minLength", "characters at least"}, {"maxLength", "characters at most"},
	{"minItems", "items at least"}, {"maxItems", "items at most"}, {"uniqueItems", "unique items"},
	{"minProperties", "properties at least"}, {"maxProperties", "properties at most"},
}

// A simplifier makes a schema one that a contract can express, with the rest as text.
type simplifier struct {
	root    map[string]any
	left    int // of maxSchemas
	content int // of maxContent
}

func simplify(schema any) any {
	root, ok := schema.(map[string]any)
	if !ok {
		return schema
	}
	s := simplifier{root, maxSchemas, maxContent}
	return s.schema(root, 0)
}

// schema resolves the references and choices of a schema, and of those within it.
func (s *simplifier) schema(from map[string]any, depth int) map[string]any {
	out := maps.Clone(from)
	for ; depth < maxDepth; depth++ {
		next := s.target(out)
		if next == nil {
			break
		}
		merged := maps.Clone(next)
		for _, name := range []string{"$ref", "anyOf", "oneOf", "allOf"} {
			delete(out, name)
		}
		maps.Copy(merged, out)
		out = merged
	}
	if depth >= maxDepth || s.exceeds(out) {
		s.left = 0              // the rest does not matter
		return map[string]any{} // without a type, which is a fault
	}
	if _, ok := out["type"]; !ok {
		if kind := impliedType(out); kind != "" {
			out["type"] = kind
		}
	}
	text, _ := out["description"].(string)
	text = join(text, remarks(out))
	if items, ok := out["items"].(map[string]any); ok {
		inner := s.schema(items, depth+1)
		out["items"] = inner
		if about, _ := inner["description"].(string); about != "" && len(about) <= s.content {
			s.content -= len(about)
			text = join(text, "Each item: "+about)
		}
	}
	if text != "" {
		out["description"] = text
	}
	if properties, ok := out["properties"].(map[string]any); ok {
		made := make(map[string]any, len(properties))
		for name, p := range properties {
			made[name] = p
			if p, ok := p.(map[string]any); ok {
				made[name] = s.schema(p, depth+1)
			}
		}
		out["properties"] = made
	}
	return out
}

// exceeds counts a schema, and reports whether it is one too many or too large.
func (s *simplifier) exceeds(schema map[string]any) bool {
	s.left--
	if s.left > 0 {
		s.content -= ownSize(schema)
	}
	return s.left <= 0 || s.content < 0
}

// ownSize returns the bytes of a schema without those within it.
func ownSize(schema map[string]any) int {
	own := maps.Clone(schema)
	delete(own, "items")
	delete(own, "properties")
	text, _ := json.Marshal(own) // that of a schema that was decoded
	return len(text)
}

// target returns the schema that a reference or the only choice besides null stands for, or nil.
func (s *simplifier) target(schema map[string]any) map[string]any {
	if ref, ok := schema["$ref"].(string); ok {
		return s.lookup(ref)
	}
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		choices, _ := schema[name].([]any)
		choices = slices.DeleteFunc(slices.Clone(choices), func(c any) bool {
			m, ok := c.(map[string]any)
			return ok && m["type"] == "null"
		})
		if len(choices) == 1 {
			m, _ := choices[0].(map[string]any)
			return m
		}
	}
	return nil
}

// lookup returns the schema of a reference within the document, or nil.
func (s *simplifier) lookup(ref string) map[string]any {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	at := any(s.root)
	for name := range strings.SplitSeq(path, "/") {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
	}
	m, _ := at.(map[string]any)
	return m
}

// impliedType returns the type that the other keywords of a schema imply, or "".
func impliedType(schema map[string]any) string {
	values, _ := schema["enum"].([]any)
	if v, ok := schema["const"]; ok {
		values = []any{v}
	}
	kind := ""
	for _, v := range values {
		this := ""
		switch v.(type) {
		case string:
			this = "string"
		case bool:
			this = "boolean"
		case float64:
			this = "number"
		}
		if this == "" || kind != "" && this != kind {
			return ""
		}
		kind = this
	}
	if _, ok := schema["properties"]; ok && kind == "" {
		return "object"
	}
	return kind
}

// remarks returns the keywords that a contract cannot express as text.
func remarks(schema map[string]any) string {
	var list []string
	for _, note := range notes {
		v, ok := schema[note[0]]
		if !ok {
			continue
		}
		text, err := json.Marshal(v)
		if err == nil {
			list = append(list, note[1]+" "+strings.Trim(string(text), "[]"))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "(" + strings.Join(list, "; ") + ")"
}

func join(a, b string) string { return strings.TrimSpace(a + " " + b) }
