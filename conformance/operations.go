// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

const operationsFolder = "ops"

// Operations describe what the operations of a protocol read and answer, so that an
// implementation in any language can be bound to them.
type Operations struct {
	Protocol string

	// Doc is the text above the operations.
	doc string
	ops map[string]*operation
}

// An operation is one entry of a file of testdata/ops.
type operation struct {
	Doc     string                   `json:"doc"`
	In      map[string]*inputMember  `json:"in,omitempty"`
	Answer  map[string]*answerMember `json:"answer,omitempty"`
	Refusal *refusal                 `json:"refusal,omitempty"`

	// Start is the time of the first step in Unix milliseconds, of an operation that runs
	// step by step.
	Start *int64 `json:"start,omitempty"`
}

// An inputMember describes a member of in. A member that is not required has a default
// value, or none.
type inputMember struct {
	Type     string                  `json:"type"`
	Required bool                    `json:"required,omitempty"`
	Default  json.RawMessage         `json:"default,omitempty"`
	Members  map[string]*inputMember `json:"members,omitempty"`
}

// An answerMember describes a member of an answer.
type answerMember struct {
	Type string `json:"type"`

	// Compare is "named" for a member that is compared only if want names it.
	Compare string `json:"compare,omitempty"`

	// Optional means that some answers do not have the member.
	Optional bool `json:"optional,omitempty"`

	// Default is the value that want may omit.
	Default json.RawMessage `json:"default,omitempty"`
}

type refusal struct {
	Codes   []json.RawMessage `json:"codes,omitempty"`
	Members []string          `json:"members,omitempty"`
}

// OperationsOf returns the operations of one of the five protocols.
func OperationsOf(protocol string) (*Operations, error) {
	file := "testdata/" + operationsFolder + "/" + protocol + ".json"
	data, err := fs.ReadFile(testdata, file)
	if err != nil {
		return nil, err
	}
	var content struct {
		Protocol   string                `json:"protocol"`
		Doc        string                `json:"doc"`
		Operations map[string]*operation `json:"operations"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&content); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if content.Protocol != protocol {
		return nil, fmt.Errorf("%s: the protocol is %q", file, content.Protocol)
	}
	return &Operations{Protocol: protocol, doc: content.Doc, ops: content.Operations}, nil
}

// Names returns the names of the operations.
func (o *Operations) Names() []string { return slices.Sorted(maps.Keys(o.ops)) }

// Has reports whether there is an operation of that name.
func (o *Operations) Has(op string) bool { return o.ops[op] != nil }

// Start returns the time of the first step, in Unix milliseconds, and true for an
// operation that runs step by step.
func (o *Operations) Start(op string) (ms int64, ok bool) {
	if p := o.ops[op]; p != nil && p.Start != nil {
		return *p.Start, true
	}
	return 0, false
}

// Answer returns the answer of an implementation in another process, with the rules
// for the comparison of its members.
func (o *Operations) Answer(op string, members map[string]json.RawMessage) (Answer, error) {
	a := make(Answer, len(members))
	for name, v := range members {
		a[name] = v
		p := o.ops[op]
		if p == nil || p.Answer[name] == nil {
			continue
		}
		switch m := p.Answer[name]; {
		case m.Type == "header fields":
			fields := map[string]string{}
			if err := json.Unmarshal(v, &fields); err != nil {
				return nil, fmt.Errorf("answer.%s: %w", name, err)
			}
			h := Headers{}
			for field, value := range fields {
				h[field] = []string{value}
			}
			a[name] = h
			if m.Compare != "" {
				a[name] = Optional(h)
			}
		case m.Default != nil:
			a[name] = Default(v, m.Default)
		case m.Compare != "":
			a[name] = Optional(v)
		}
	}
	return a, nil
}
