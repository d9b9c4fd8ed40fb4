// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Contract describes a tool: its name, purpose and parameters. The Host's contracts are
// authoritative (ALT-013, ALT-133).
type Contract struct {
	// Name is 1 to 8 segments of letters, digits, "_", "-" and ".", joined
	// by "/" (ALT-D14).
	Name        string
	Description string
	Parameters  []Parameter

	// Streaming allows the tool to answer in chunks. A tool without it that
	// sends a chunk is stopped (ALT-D12, ALT-D28).
	Streaming bool

	// Idempotent permits a second run: after the loss of its Runtime, a call may be dispatched to
	// another one (ALT-D24).
	Idempotent bool

	// Timeout is the allotted time, in whole milliseconds up to a day. Zero
	// means the default of the Host (ALT-D25).
	Timeout time.Duration

	// Metadata is a JSON object for the owner of the contract, or nil.
	Metadata json.RawMessage
}

// A Parameter describes one parameter of a contract, or one property of an
// object (ALT-037 to ALT-041).
type Parameter struct {
	Name        string `json:"name"`
	Type        string `json:"type"` // string, integer, float, boolean, binary, object, or such as array[string]
	Description string `json:"description,omitzero" jsonmap:"always"`
	Required    bool   `json:"required,omitzero" jsonmap:"always"`

	// Properties describe the members of the innermost object of the type.
	// An object without properties is free-form: it takes any members (ALT-D11).
	Properties []Parameter `json:"properties,omitempty"`
}

// A Manifest is the set of contracts that a Host trusts (ALT-131).
type Manifest struct {
	Version   string // a semantic version, or empty
	Contracts []*Contract
	Metadata  json.RawMessage // a JSON object, or nil
}

// maxTimeout is the largest timeout_ms of a contract.
const maxTimeout = 24 * time.Hour

// DecodeContract reads one contract. An unknown field is an error, because a misspelt field would
// silently disable a check (ALT-D12). Every error is a [*ContractError].
func DecodeContract(data []byte) (*Contract, error) {
	c, err := decodeContract(data)
	if err != nil {
		return nil, locate(err, data, "")
	}
	return c, nil
}

func decodeContract(data []byte) (*Contract, error) {
	v, reason := check(data, 0)
	if reason != "" {
		return nil, &ContractError{Reason: reason}
	}
	p := contractParser{}
	c := p.contract(v, "")
	return c, p.err()
}

// DecodeManifest reads a manifest as strictly as [DecodeContract].
func DecodeManifest(data []byte) (*Manifest, error) {
	m, err := decodeManifest(data)
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return nil, locate(err, data, "contracts")
	}
	return m, nil
}

func decodeManifest(data []byte) (*Manifest, error) {
	v, reason := check(data, 0)
	if reason != "" {
		return nil, &ContractError{Reason: reason}
	}
	p := contractParser{}
	m := &Manifest{}
	p.Fields(v, "", "version", "contracts", "metadata")
	if version, ok := p.Text(v, "", "version", false); ok {
		if _, valid := parseSemver(version); !valid {
			p.fail(reasonInvalidValue, "/version")
		}
		m.Version = version
	}
	list := p.Array(v, "", "contracts", true)
	for i, item := range list {
		m.Contracts = append(m.Contracts, p.contract(item, form.PointerIndex("/contracts", i)))
	}
	m.Metadata = p.object(v, "", "metadata")
	return m, p.err()
}

// locate returns an error of a text with its line, its column and the name of the contract. The
// contracts are the elements of a member of the text, or the text is one contract.
func locate(err error, data []byte, list string) error {
	e, ok := errors.AsType[*ContractError](err)
	if !ok {
		return err
	}
	out := *e
	var pointer string
	out.Line, out.Column, pointer = form.Position(data, e.Path)
	out.Contract = contractName(data, list, pointer)
	return &out
}

// contractName returns the name of the contract around a place of a text, which need not be valid,
// or "".
func contractName(data []byte, list, pointer string) string {
	c := strictjson.NewCursor(data, strictjson.Options{MaxNames: -1, MaxName: -1})
	if list != "" {
		rest, isInside := strings.CutPrefix(pointer, "/"+list+"/")
		element, _, _ := strings.Cut(rest, "/")
		index, err := strconv.Atoi(element)
		if !isInside || err != nil || !c.Object() {
			return ""
		}
		for c.Name() && string(c.Key()) != list {
			c.Skip()
		}
		if !c.Array() {
			return ""
		}
		for c.Element() && index > 0 {
			c.Skip()
			index--
		}
	}
	text, _ := c.Find("name")
	name, err := strictjson.Check(text, strictjson.Options{})
	if err != nil {
		return ""
	}
	s, _ := name.Text()
	return s
}

// Validate checks a contract that was made in Go as strictly as one that was
// read. The error is a [*ContractError].
func (c *Contract) Validate() error { return c.validate("") }

func (c *Contract) validate(path string) error {
	_, err := decodeContract(c.appendJSON(nil))
	if e, ok := errors.AsType[*ContractError](err); ok {
		return &ContractError{Reason: e.Reason, Path: path + e.Path, Contract: c.Name}
	}
	return err
}

// Validate checks a manifest and all its contracts. The error is a
// [*ContractError].
func (m *Manifest) Validate() error {
	names := make(map[string]bool, len(m.Contracts))
	for i, c := range m.Contracts {
		path := form.PointerIndex("/contracts", i)
		if c == nil {
			return &ContractError{Reason: reasonWrongType, Path: path}
		}
		if err := c.validate(path); err != nil {
			return err
		}
		if names[c.Name] {
			return &ContractError{Reason: reasonDuplicateName, Path: path + "/name", Contract: c.Name}
		}
		names[c.Name] = true
	}
	if m.Version != "" {
		if _, ok := parseSemver(m.Version); !ok {
			return &ContractError{Reason: reasonInvalidValue, Path: "/version"}
		}
	}
	return nil
}

// contract returns the contract of that name, or nil.
func (m *Manifest) contract(name string) *Contract {
	for _, c := range m.Contracts {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// A contractParser keeps the first failure.
type contractParser struct{ form.Reader }

func (p *contractParser) fail(reason Reason, path string) { p.Fail(string(reason), path) }

func (p *contractParser) err() error {
	if !p.Failed() {
		return nil
	}
	return &ContractError{Reason: Reason(p.Reason), Path: p.Path}
}

func (p *contractParser) object(v strictjson.Value, path, name string) json.RawMessage {
	if m := p.Object(v, path, name); m != nil {
		return appendText(nil, m)
	}
	return nil
}

func (p *contractParser) contract(v strictjson.Value, path string) *Contract {
	c := &Contract{}
	if !v.IsObject() {
		p.fail(reasonWrongType, path)
		return c
	}
	p.Fields(v, path, "name", "description", "parameters", "streaming", "idempotent", "timeout_ms", "metadata")
	name, ok := p.Text(v, path, "name", true)
	if ok && !validContractName(name) {
		p.fail(reasonInvalidName, path+"/name")
	}
	c.Name = name
	c.Description, _ = p.Text(v, path, "description", false)
	c.Parameters = p.parameters(v, path, "parameters", 1)
	c.Streaming = p.Flag(v, path, "streaming")
	c.Idempotent = p.Flag(v, path, "idempotent")
	if t := p.Get(v, path, "timeout_ms", false); t != nil {
		ms, ok := t.Int()
		switch {
		case t.Kind() != '0':
			p.fail(reasonWrongType, path+"/timeout_ms")
		case !ok || ms < 1 || ms > maxTimeout.Milliseconds():
			p.fail(reasonInvalidValue, path+"/timeout_ms")
		}
		c.Timeout = time.Duration(ms) * time.Millisecond
	}
	c.Metadata = p.object(v, path, "metadata")
	return c
}

// parameters reads one level of parameters, which begins at a depth.
func (p *contractParser) parameters(v strictjson.Value, path, name string, depth int) []Parameter {
	list := p.Array(v, path, name, false)
	if len(list) == 0 {
		return nil
	}
	out := make([]Parameter, len(list))
	names := make(map[string]bool, len(list))
	for i, item := range list {
		at := form.PointerIndex(path+"/"+name, i)
		if !item.IsObject() {
			p.fail(reasonWrongType, at)
			continue
		}
		out[i] = p.parameter(item, at, depth)
		if names[out[i].Name] {
			p.fail(reasonDuplicateName, at+"/name")
		}
		names[out[i].Name] = true
		if p.Failed() {
			return nil
		}
	}
	return out
}

func (p *contractParser) parameter(v strictjson.Value, path string, depth int) Parameter {
	var out Parameter
	p.Fields(v, path, "name", "type", "description", "required", "properties")
	name, ok := p.Text(v, path, "name", true)
	if ok && !validText(name, 128) {
		p.fail(reasonInvalidName, path+"/name")
	}
	out.Name = name
	text, ok := p.Text(v, path, "type", true)
	if !ok {
		return out
	}
	out.Type = text
	t, reason := form.ParseType(text)
	if reason != "" {
		p.Fail(reason, path+"/type")
		return out
	}
	if depth+t.Dims > form.MaxTypeDepth {
		p.fail(reasonTooDeep, path+"/type")
	}
	out.Description, _ = p.Text(v, path, "description", false)
	out.Required = p.Flag(v, path, "required")
	if !p.Failed() {
		out.Properties = p.parameters(v, path, "properties", depth+t.Dims+1)
	}
	if len(out.Properties) > 0 && t.Base != form.KindObject {
		p.fail(reasonPropertiesNotAllowed, path+"/properties")
	}
	return out
}

// MarshalJSON returns the contract as section d of the protocol reference
// emits it. It does not check it; see [Contract.Validate].
func (c *Contract) MarshalJSON() ([]byte, error) { return c.appendJSON(nil), nil }

func (c *Contract) appendJSON(dst []byte) []byte {
	dst = c.appendCore(dst, true)
	if c.Timeout != 0 {
		dst = appendInt(append(dst, `,"timeout_ms":`...), c.Timeout.Milliseconds())
	}
	if len(c.Metadata) > 0 {
		dst = append(append(dst, `,"metadata":`...), c.Metadata...)
	}
	return append(dst, '}')
}

// appendCore appends the members of a contract that the Host enforces, without the closing brace.
func (c *Contract) appendCore(dst []byte, descriptions bool) []byte {
	dst = appendString(append(dst, `{"name":`...), c.Name)
	if descriptions {
		dst = appendString(append(dst, `,"description":`...), c.Description)
	}
	dst = appendParameters(append(dst, `,"parameters":`...), c.Parameters, descriptions)
	dst = appendBool(append(dst, `,"streaming":`...), c.Streaming)
	return appendBool(append(dst, `,"idempotent":`...), c.Idempotent)
}

// digest returns the lower-case hex SHA-256 of name, parameters and flags. Hosts with equal digests
// check the calls of a contract alike (ALT-D39).
func (c *Contract) digest() string {
	sum := sha256.Sum256(append(c.appendCore(nil, false), '}'))
	return hex.EncodeToString(sum[:])
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

func appendParameters(dst []byte, list []Parameter, descriptions bool) []byte {
	dst = append(dst, '[')
	for i := range list {
		p := &list[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(append(dst, `{"name":`...), p.Name)
		dst = appendString(append(dst, `,"type":`...), p.Type)
		if descriptions {
			dst = appendString(append(dst, `,"description":`...), p.Description)
		}
		dst = appendBool(append(dst, `,"required":`...), p.Required)
		if len(p.Properties) > 0 {
			dst = appendParameters(append(dst, `,"properties":`...), p.Properties, descriptions)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// MarshalJSON returns the manifest in its JSON form. It does not check it.
func (m *Manifest) MarshalJSON() ([]byte, error) {
	dst := []byte{'{'}
	if m.Version != "" {
		dst = appendString(append(dst, `"version":`...), m.Version)
		dst = append(dst, ',')
	}
	dst = append(dst, `"contracts":[`...)
	for i, c := range m.Contracts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = c.appendJSON(dst)
	}
	dst = append(dst, ']')
	if len(m.Metadata) > 0 {
		dst = append(append(dst, `,"metadata":`...), m.Metadata...)
	}
	return append(dst, '}'), nil
}
