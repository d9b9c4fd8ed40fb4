// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package vector runs operations of the conformance vectors on parts of a package that are not
// exported.
package vector

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// An Op runs one operation on a JSON text.
type Op func(in json.RawMessage) (any, error)

// Ops are the operations of a package by name.
type Ops map[string]Op

// New returns an operation whose input is decoded into an In. An unknown member is an error.
func New[In any](f func(In) (any, error)) Op {
	return func(text json.RawMessage) (any, error) {
		var in In
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil {
			return nil, fmt.Errorf("vector: %w", err)
		}
		return f(in)
	}
}

// Run runs an operation and returns its result as JSON. An unknown operation is an error.
func (o Ops) Run(op string, in json.RawMessage) (json.RawMessage, error) {
	run := o[op]
	if run == nil {
		return nil, fmt.Errorf("vector: unknown operation %q", op)
	}
	out, err := run(in)
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// Call runs an operation on the JSON form of in and decodes its result.
func Call[Out any](run func(string, json.RawMessage) (json.RawMessage, error), op string, in any) (out Out, err error) {
	text, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	text, err = run(op, text)
	if err != nil {
		return out, err
	}
	return out, json.Unmarshal(text, &out)
}
