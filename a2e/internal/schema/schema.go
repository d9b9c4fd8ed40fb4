// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package schema validates JSON against JSON Schemas. It is the only place that converts exact JSON
// to the types of the validator.
package schema

import (
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Parse reads a trusted schema of the program.
func Parse(text json.RawMessage) (*jsonschema.Resolved, error) {
	v, err := strictjson.Check(text, strictjson.Options{})
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(v, &s); err != nil {
		return nil, err
	}
	return s.Resolve(nil)
}

// Check checks that strict JSON is a valid instance of a schema. The error may repeat parts of the text.
func Check(s *jsonschema.Resolved, text json.RawMessage) error {
	v, err := wire.CheckJSON(text)
	if err != nil {
		return err
	}
	return s.Validate(Instance(v))
}

// Instance returns v in the types of the validator. Small numbers become integers, other numbers
// floats; only the validator reads them.
func Instance(v strictjson.Value) any {
	switch v.Kind() {
	case '{':
		o := map[string]any{}
		for m := v.Members(); m.Next(); {
			o[string(m.Name)] = Instance(m.Value)
		}
		return o
	case '[':
		a := []any{}
		for e := v.Elements(); e.Next(); {
			a = append(a, Instance(e.Value))
		}
		return a
	case '0':
		if n, ok := v.Int(); ok {
			return n
		}
		f, _ := json.Number(v).Float64()
		return f
	}
	return v.Any()
}
