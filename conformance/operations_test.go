// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

var writeOperations = flag.Bool("write-operations", false, "write testdata/ops and OPERATIONS.md")

// TestOperations holds testdata/ops equal to what the Go code reads and answers in all
// cases, and OPERATIONS.md to testdata/ops. The texts are written by hand.
func TestOperations(t *testing.T) {
	var page strings.Builder
	page.WriteString(operationsHead)
	for _, p := range Builtin() {
		seen, err := recordOperations(p)
		require.NoError(t, err)
		listed, err := OperationsOf(p.Name)
		require.NoError(t, err)
		for name, op := range seen {
			if old := listed.ops[name]; old != nil {
				op.Doc, op.Start = old.Doc, old.Start
			}
		}
		for name, op := range listed.ops {
			if op.Start != nil || p.Ops[name] == nil {
				seen[name] = op // a test of the conform command runs the former; known failures are the latter
			}
		}
		want := encodeOperations(t, p.Name, listed.doc, seen)
		file := "testdata/" + operationsFolder + "/" + p.Name + ".json"
		if *writeOperations {
			require.NoError(t, os.WriteFile(file, want, 0o644))
		}
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got), "go test ./conformance -run TestOperations -args -write-operations")
		for name, op := range seen {
			assert.NotEmpty(t, op.Doc, "%s: %s has no text", p.Name, name)
		}
		writePage(&page, p.Name, listed.doc, seen)
	}
	if *writeOperations {
		require.NoError(t, os.WriteFile("OPERATIONS.md", []byte(page.String()), 0o644))
	}
	got, err := os.ReadFile("OPERATIONS.md")
	require.NoError(t, err)
	require.Equal(t, page.String(), string(got), "go test ./conformance -run TestOperations -args -write-operations")
}

// recordOperations runs every case without a script, and returns the members that each
// operation reads and answers.
func recordOperations(p Protocol) (map[string]*operation, error) {
	seen := make(map[string]*operation)
	present := make(map[string]int) // number of cases by operation and answer member
	answers := make(map[string]int)
	failures, err := KnownFailures()
	if err != nil {
		return nil, err
	}
	for _, c := range Embedded().Cases() {
		op := p.Ops[c.Op]
		if c.Protocol != p.Name || strings.HasSuffix(c.Op, "script") || op == nil {
			continue
		}
		if seen[c.Op] == nil {
			seen[c.Op] = &operation{In: map[string]*inputMember{}, Answer: map[string]*answerMember{}}
		}
		o := seen[c.Op]
		run := &caseRun{want: c.want, memory: memory{}, notes: map[string]*inputNote{}}
		in := newInput("in", c.in, run)
		in.notes = run.notes
		answer, err := call(nil, op, in)
		mergeInput(o.In, run.notes, c.in)
		var failure *Failure
		switch {
		case errors.As(err, &failure):
			if err := o.refused(failure); err != nil {
				return nil, fmt.Errorf("%s: %w", c.ID, err)
			}
		case slices.ContainsFunc(failures, func(k KnownFailure) bool { return k.ID == c.ID }):
		case err != nil:
			return nil, fmt.Errorf("%s: %w", c.ID, err)
		default:
			answers[c.Op]++
			for name, v := range answer {
				present[c.Op+" "+name]++
				if err := o.answered(name, v); err != nil {
					return nil, fmt.Errorf("%s: %w", c.ID, err)
				}
			}
		}
		o.wanted(c.wantErr)
	}
	for name, o := range seen {
		for member, m := range o.Answer {
			m.Optional = present[name+" "+member] < answers[name]
		}
		if o.Refusal != nil {
			slices.SortFunc(o.Refusal.Codes, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
			slices.Sort(o.Refusal.Members)
		}
	}
	return seen, nil
}

// mergeInput adds what one case showed. A member is required if every case has it, and
// the code requires it.
func mergeInput(into map[string]*inputMember, notes map[string]*inputNote, v strictjson.Value) {
	for name, n := range notes {
		m := into[name]
		if m == nil {
			m = &inputMember{Required: true}
			into[name] = m
		}
		m.Type = n.kind
		present := v.Get(name) != nil || v.Get(name+"B64") != nil
		m.Required = m.Required && n.required && present
		if text, err := json.Marshal(n.def); n.def != nil && err == nil && string(text) != `""` {
			m.Default = text
		}
		if len(n.members) > 0 {
			if m.Members == nil {
				m.Members = make(map[string]*inputMember)
			}
			mergeInput(m.Members, n.members, v.Get(name))
		}
	}
	for name, m := range into {
		if notes[name] == nil {
			m.Required = false
		}
	}
}

func (o *operation) answered(name string, v any) error {
	m := o.Answer[name]
	if m == nil {
		m = &answerMember{}
		o.Answer[name] = m
	}
	if w, ok := v.(optional); ok {
		v, m.Compare = w.value, "named"
		if w.hasDef {
			def, err := normal("default", w.def)
			if err != nil {
				return err
			}
			m.Compare, m.Default = "", json.RawMessage(def.text())
		}
	}
	g, err := normal(name, v)
	if err != nil {
		return err
	}
	kind := answerKind(g)
	if name == "json" {
		kind = "JSON"
	}
	if m.Type != "" && m.Type != kind {
		kind = "JSON"
	}
	m.Type = kind
	return nil
}

func answerKind(g got) string {
	switch {
	case g.headers != nil:
		return "header fields"
	case g.object != nil:
		return "object"
	case g.json == nil:
		return "list"
	}
	return map[byte]string{'"': "string", '0': "integer", 't': "boolean", 'f': "boolean", '{': "object", '[': "list"}[byte(g.json.Kind())]
}

func (o *operation) refused(f *Failure) error {
	if o.Refusal == nil {
		o.Refusal = &refusal{}
	}
	g, err := normal("refusal", f.fields())
	if err != nil {
		return err
	}
	for name, m := range g.object {
		if name == "code" {
			o.code(m.text())
		} else if !slices.Contains(o.Refusal.Members, name) {
			o.Refusal.Members = append(o.Refusal.Members, name)
		}
	}
	return nil
}

// wanted adds the code that a case wants.
func (o *operation) wanted(v strictjson.Value) {
	if v == nil {
		return
	}
	if o.Refusal == nil {
		o.Refusal = &refusal{}
	}
	if v.IsObject() {
		v = v.Get("code")
	}
	if v != nil {
		o.code(v)
	}
}

func (o *operation) code(v strictjson.Value) {
	for _, have := range o.Refusal.Codes {
		if strictjson.Equal(strictjson.Value(have), v) {
			return
		}
	}
	o.Refusal.Codes = append(o.Refusal.Codes, slices.Clone(json.RawMessage(v)))
}

func encodeOperations(t *testing.T, protocol, doc string, ops map[string]*operation) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(struct {
		Protocol   string                `json:"protocol"`
		Doc        string                `json:"doc"`
		Operations map[string]*operation `json:"operations"`
	}{protocol, doc, ops}))
	return b.Bytes()
}

const operationsHead = `# Operations

This page is enough to bind an implementation in any language to the conform command. It is generated from
` + "`testdata/ops`" + `; the cases themselves are in ` + "`testdata/<protocol>`" + `.

## Lines

The command starts the implementation (the testee) as a child process. Both write JSON objects, one a line, in UTF-8: the
command to the standard input of the testee, the testee to its standard output. Standard error is free: its last
4 KiB are printed when a case fails. A line has at most 64 MiB.

| line of the command | meaning |
|---|---|
| ` + "`" + `{"conform":1,"hello":{"protocols":[...],"ops":{"air":[...]}}}` + "`" + ` | the first line: what can be tested |
| ` + "`" + `{"id":ID,"protocol":P,"op":OP,"in":{...}}` + "`" + ` | run an operation |
| ` + "`" + `{"id":ID,"protocol":P,"op":OP,"open":{...},"now":MS}` + "`" + ` | start a state machine, with the time of its clock in Unix milliseconds |
| ` + "`" + `{"id":ID,"step":{...},"now":MS}` + "`" + ` | run one step; first everything that is due by then |
| ` + "`" + `{"id":ID,"end":true}` + "`" + ` | the state machine has ended; no answer |

| line of the testee | meaning |
|---|---|
| ` + "`" + `{"conform":1,"hello":{"name":N,"version":V,"protocols":[...],"ops":{"air":["sign"]}}}` + "`" + ` | the answer to the hello, with the operations that it has |
| ` + "`" + `{"id":ID,"answer":{...}}` + "`" + ` | the answer of an operation or a step; an empty object after ` + "`open`" + ` |
| ` + "`" + `{"id":ID,"refusal":{"code":C,...}}` + "`" + ` | the operation refuses the input in the terms of the protocol |
| ` + "`" + `{"id":ID,"unsupported":"why"}` + "`" + ` | the implementation does not have this |
| ` + "`" + `{"id":ID,"broken":"why"}` + "`" + ` | anything else went wrong; the case fails |

Answers may come in any order; at most 64 cases are open at a time. A testee that answers nothing for 10 s (flag
` + "`-timeout`" + `) hangs: it is killed and started again, like one that crashes, three times at most. At the end its input is
closed, and after 2 s what is left of its process group is killed.

## Types

Input of the type "bytes" is a string under its name, taken as UTF-8, or base64 under the name with ` + "`B64`" + ` after it.
"JSON" is any value. A member that is not required may be absent; then its default counts. A testee may ignore the
wanted answer of a case: it does not receive it.

All members of an answer that a case does not name must be absent, unless the table says otherwise. Strings are compared
byte for byte, numbers exactly. A member ` + "`json`" + ` is compared as JSON. Of a refusal only the named members are
compared.
`

// writePage writes the section of a protocol.
func writePage(w *strings.Builder, protocol, doc string, ops map[string]*operation) {
	fmt.Fprintf(w, "\n## %s\n", protocol)
	if doc != "" {
		fmt.Fprintf(w, "\n%s\n", doc)
	}
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		o := ops[name]
		fmt.Fprintf(w, "\n### %s `%s`\n\n%s\n", protocol, name, o.Doc)
		if len(o.In) > 0 {
			fmt.Fprintf(w, "\n| in | type | |\n|---|---|---|\n")
			writeInputs(w, "", o.In)
		}
		if len(o.Answer) > 0 {
			fmt.Fprintf(w, "\n| answer | type | |\n|---|---|---|\n")
			for _, name := range slices.Sorted(maps.Keys(o.Answer)) {
				m := o.Answer[name]
				fmt.Fprintf(w, "| `%s` | %s | %s |\n", name, m.Type, m.remark())
			}
		}
		if o.Refusal != nil {
			writeRefusal(w, o.Refusal)
		}
	}
}

func writeInputs(w *strings.Builder, prefix string, in map[string]*inputMember) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		m := in[name]
		remark := "optional"
		if m.Required {
			remark = "required"
		} else if m.Default != nil {
			remark = "default `" + string(m.Default) + "`"
		}
		fmt.Fprintf(w, "| `%s%s` | %s | %s |\n", prefix, name, m.Type, remark)
		writeInputs(w, prefix+name+".", m.Members)
	}
}

func (m *answerMember) remark() string {
	switch {
	case m.Default != nil:
		return "may be omitted if it is `" + string(m.Default) + "`"
	case m.Compare != "":
		return "compared only if a case names it"
	case m.Optional:
		return "absent if it has no value"
	}
	return "required"
}

func writeRefusal(w *strings.Builder, r *refusal) {
	codes := make([]string, len(r.Codes))
	for i, c := range r.Codes {
		codes[i] = "`" + strings.Trim(string(c), `"`) + "`"
	}
	members := make([]string, len(r.Members))
	for i, m := range r.Members {
		members[i] = "`" + m + "`"
	}
	switch {
	case len(codes) > 0 && len(members) > 0:
		fmt.Fprintf(w, "\nRefusals: `code` %s; further members %s.\n", strings.Join(codes, ", "), strings.Join(members, ", "))
	case len(codes) > 0:
		fmt.Fprintf(w, "\nRefusals: `code` %s.\n", strings.Join(codes, ", "))
	case len(members) > 0:
		fmt.Fprintf(w, "\nRefusals: members %s.\n", strings.Join(members, ", "))
	}
}

func TestOperationsOfUnknownProtocol(t *testing.T) {
	_, err := OperationsOf("nobody")
	require.ErrorIs(t, err, fs.ErrNotExist)
}
