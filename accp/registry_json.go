// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// MarshalJSON returns the registry document of the draft, including the built-in schemas:
// {"schemas":{name:{code,version,fields,defaults,abbr}}}. Defaults are in the JSON form of [Value].
// The member abbr is an extension and absent if empty.
func (r *Registry) MarshalJSON() ([]byte, error) {
	t := r.tables()
	dst := []byte(`{"schemas":{`)
	for i, name := range slices.Sorted(maps.Keys(t.byName)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		s := t.byName[name]
		dst = strictjson.AppendString(dst, name)
		dst = append(dst, `:{"code":`...)
		dst = strictjson.AppendString(dst, s.Code)
		dst = fmt.Appendf(dst, `,"version":%d,"fields":[`, s.Version)
		for j, f := range s.Fields {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strictjson.AppendString(dst, f)
		}
		dst = append(dst, `],"defaults":`...)
		dst = appendObject(dst, s.Defaults)
		for j, a := range s.abbr {
			if j == 0 {
				dst = append(dst, `,"abbr":{`...)
			} else {
				dst = append(dst, ',')
			}
			dst = strictjson.AppendString(dst, a.short)
			dst = append(dst, ':')
			dst = strictjson.AppendString(dst, a.full)
			if j == len(s.abbr)-1 {
				dst = append(dst, '}')
			}
		}
		dst = append(dst, '}')
	}
	return append(dst, "}}"...), nil
}

// DecodeSchemas reads a registry document and returns its custom schemas, validated and by
// ascending code. A schema that differs from the built-in one of its code is [ErrPolicyDenied].
func DecodeSchemas(document []byte) ([]Schema, error) {
	v, err := strictjson.Check(document, strictjson.Options{MaxDepth: 64})
	if err != nil {
		return nil, fmt.Errorf("accp: registry document: %w", err)
	}
	list := v.Get("schemas")
	if !list.IsObject() {
		return nil, fail(ErrInvalidType, "registry document without schemas")
	}
	var out []Schema
	for m := list.Members(); m.Next(); {
		code, ok := m.Value.Get("code").Text()
		if !ok {
			return nil, fail(ErrInvalidType, "schema %.80q without code", m.Name)
		}
		body, err := valueFromAST(m.Value)
		if err != nil {
			return nil, err
		}
		s, err := schemaFromValue(code, Map(Params(body.list).Set("name", String(string(m.Name)))...))
		if err != nil {
			return nil, err
		}
		if old := builtin().byCode[code]; old != nil {
			// The document in the draft has no abbreviations.
			if len(s.Abbr) == 0 {
				s.Abbr = old.Abbr
			}
			a, _ := s.canonical()
			if b, _ := old.canonical(); a != b {
				return nil, fail(ErrPolicyDenied, "schema %s is built in", code)
			}
			continue
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Schema) int {
		if a.Code < b.Code {
			return -1
		}
		return 1
	})
	return out, nil
}
