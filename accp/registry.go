// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A Registry holds the schemas of one side: the built-in ones, which cannot be changed, and custom
// ones. It is safe for concurrent use. Create it with [NewRegistry].
type Registry struct {
	mu  sync.Mutex // serializes changes
	tab atomic.Pointer[tables]
}

// tables is an immutable state of a registry.
type tables struct {
	byCode map[string]*compiled
	byName map[string]*compiled
	hash   string // of all schemas, in full
	bytes  int    // of the custom schemas in memory
	text   int    // bytes of their canonical texts
	custom int    // their number
}

var builtin = sync.OnceValue(func() *tables {
	t := &tables{byCode: map[string]*compiled{}, byName: map[string]*compiled{}}
	for _, s := range builtinSchemas() {
		text, _ := s.canonical()
		c := compile(s, text, false)
		t.byCode[s.Code], t.byName[s.Name] = c, c
	}
	t.hash = t.digest()
	return t
})

// NewRegistry returns a registry with the built-in schemas.
func NewRegistry() *Registry {
	r := &Registry{}
	r.tab.Store(builtin())
	return r
}

// tables returns the current state. The state of a nil registry has the built-in schemas.
func (r *Registry) tables() *tables {
	if r == nil {
		return builtin()
	}
	if t := r.tab.Load(); t != nil {
		return t
	}
	return builtin()
}

// clone returns an independent copy, for one session (ACCP-D49).
func (r *Registry) clone() *Registry {
	c := &Registry{}
	c.tab.Store(r.tables())
	return c
}

// lookup returns a schema by code or name.
func (t *tables) lookup(key string) *compiled {
	if c := t.byCode[key]; c != nil {
		return c
	}
	return t.byName[key]
}

// includes reports whether t has the schemas of o.
func (t *tables) includes(o *tables) bool {
	for code, c := range o.byCode {
		if own := t.byCode[code]; own == nil || own.text != c.text {
			return false
		}
	}
	return true
}

// digest returns the hash of the canonical text of the map of all schemas.
func (t *tables) digest() string {
	text, sep := make([]byte, 0, 4096+2*t.text), byte('{')
	for _, code := range slices.Sorted(maps.Keys(t.byCode)) {
		text = append(append(text, sep), code...)
		text = append(append(text, ':'), t.byCode[code].text...)
		sep = ','
	}
	sum := sha256.Sum256(append(text, '}'))
	return hex.EncodeToString(sum[:])
}

func (t *tables) version() int64 {
	v := int64(1)
	for _, c := range t.byCode {
		if c.custom {
			if v > math.MaxInt64-c.Version {
				return math.MaxInt64
			}
			v += c.Version
		}
	}
	return v
}

// An origin is where a schema comes from.
type origin uint8

const (
	fromHere   origin = iota
	fromPeer          // a lower version is ignored
	fromRecord        // likewise, and processes may together have added more than the bounds
)

// with returns the state after adding schemas, or t without a change.
func (t *tables) with(from origin, schemas ...*compiled) (*tables, error) {
	size := len(t.byCode) + len(schemas)
	n := &tables{byCode: make(map[string]*compiled, size), byName: make(map[string]*compiled, size),
		bytes: t.bytes, text: t.text, custom: t.custom}
	maps.Copy(n.byCode, t.byCode)
	maps.Copy(n.byName, t.byName)
	isChanged := false
	for _, s := range schemas {
		isAdded, err := n.add(s, from)
		if err != nil {
			return nil, err
		}
		isChanged = isChanged || isAdded
	}
	if !isChanged {
		return t, nil
	}
	if from != fromRecord && (n.custom > maxSchemas || n.text > maxSchemaText) {
		return nil, fail(ErrBudgetExceeded, "%d schemas of %d bytes, the limits are %d and %d", n.custom, n.text, maxSchemas, maxSchemaText)
	}
	n.hash = n.digest()
	return n, nil
}

// add adds a schema and reports whether that is a change. After an error, t is not used.
func (t *tables) add(s *compiled, from origin) (isAdded bool, err error) {
	old := t.byCode[s.Code]
	if old != nil {
		switch {
		case old.text == s.text && old.custom:
			return false, nil
		case !old.custom:
			return false, fail(ErrPolicyDenied, "schema %s is built in", s.Code)
		case s.Version == old.Version:
			return false, fail(ErrPolicyDenied, "schema %s: other content under version %d", s.Code, s.Version)
		case s.Version < old.Version && from != fromHere:
			return false, nil // the higher version stays (ACCP-D48)
		case s.Version < old.Version:
			return false, fail(ErrPolicyDenied, "schema %s: version %d after %d", s.Code, s.Version, old.Version)
		}
	}
	if o := t.byName[s.Name]; o != nil && o.Code != s.Code {
		return false, fail(ErrPolicyDenied, "schema %s: the name %s belongs to %s", s.Code, s.Name, o.Code)
	}
	if old != nil {
		delete(t.byName, old.Name)
		t.bytes -= old.size
		t.text -= len(old.text)
		t.custom--
	}
	t.bytes += s.size
	t.text += len(s.text)
	t.custom++
	t.byCode[s.Code], t.byName[s.Name] = s, s
	return true, nil
}

// Register adds a custom schema or a higher version of one. The schema is copied. A malformed
// schema is [ErrInvalidType]. A change of a built-in schema, other content under the same version,
// a lower version, and a second code for a name are [ErrPolicyDenied] (ACCP-D47, ACCP-D49). More than
// 256 custom schemas, or 256 KiB of their canonical texts, are [ErrBudgetExceeded] (ACCP-D48).
func (r *Registry) Register(s Schema) error {
	if err := s.validate(); err != nil {
		return err
	}
	text, err := s.canonical()
	if err != nil {
		return err
	}
	return r.add(fromHere, compile(s.clone(), text, true))
}

// Schema returns the schema with this code or name and reports whether it exists.
func (r *Registry) Schema(codeOrName string) (Schema, bool) {
	c := r.tables().lookup(codeOrName)
	if c == nil {
		return Schema{}, false
	}
	return c.clone(), true
}

// Codes returns the codes of the custom schemas in ascending order.
func (r *Registry) Codes() []string {
	var codes []string
	for code, c := range r.tables().byCode {
		if c.custom {
			codes = append(codes, code)
		}
	}
	slices.Sort(codes)
	return codes
}

// version returns one plus the sum of the versions of the custom schemas.
func (r *Registry) version() int64 { return r.tables().version() }

// Hash returns the SHA-256 of the canonical text of all schemas, in hex. Frames carry its first
// twelve digits (ACCP-D47). To pin a registry, compare all digits (ACCP-D49).
func (r *Registry) Hash() string { return r.tables().hash }

// delta returns the custom schemas in the form that is sent to a peer with another hash.
func (r *Registry) delta() Value {
	var list []Param
	for code, c := range r.tables().byCode {
		if c.custom {
			list = append(list, Param{code, c.value()})
		}
	}
	slices.SortFunc(list, byKey)
	return Map(list...)
}

// merge adds the custom schemas of a peer. With the built-in schemas they must have the announced
// hash, and they must not contradict the schemas of r; otherwise nothing changes and the error is
// [ErrPolicyDenied] (ACCP-D48, ACCP-D49). A hash that is not 6 to 64 hex digits, or a malformed
// schema, is [ErrInvalidType]. More custom schemas than [Registry.Register] permits are
// [ErrBudgetExceeded].
func (r *Registry) merge(delta Value, hash string) error {
	if !validHash(hash) {
		return fail(ErrInvalidType, "hash must be 6 to 64 hex digits")
	}
	schemas, err := schemasFrom(delta, r.tables())
	if err != nil {
		return err
	}
	peer, err := builtin().with(fromPeer, schemas...)
	if err != nil {
		return err
	}
	if !sameHash(peer.hash, hash) {
		return fail(ErrPolicyDenied, "the registry delta does not have the announced hash")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if peer.includes(r.tables()) {
		r.tab.Store(peer)
		return nil
	}
	return r.addLocked(fromPeer, schemas...)
}

// add adds schemas, or none.
func (r *Registry) add(from origin, schemas ...*compiled) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addLocked(from, schemas...)
}

// addLocked is add with r.mu held.
func (r *Registry) addLocked(from origin, schemas ...*compiled) error {
	n, err := r.tables().with(from, schemas...)
	if err == nil {
		r.tab.Store(n)
	}
	return err
}

// learn adds the schemas of a record.
func (r *Registry) learn(delta Value) error {
	schemas, err := schemasFrom(delta, r.tables())
	if err != nil {
		return err
	}
	return r.add(fromRecord, schemas...)
}

// schemasFrom returns the schemas in a delta, or those of own that are equal. They do not refer to the memory of the delta.
func schemasFrom(delta Value, own *tables) ([]*compiled, error) {
	if delta.kind != KindMap {
		return nil, fail(ErrInvalidType, "delta is no map")
	}
	schemas := make([]*compiled, 0, len(delta.list))
	var text []byte
	for _, p := range delta.list {
		var err error
		text, err = appendCanonical(text[:0], p.Value)
		c := own.byCode[p.Key]
		if err != nil || c == nil || c.text != string(text) {
			c, err = compileValue(p.Key, p.Value, text, err)
		}
		if err != nil {
			return nil, err
		}
		schemas = append(schemas, c)
	}
	return schemas, nil
}

// compileValue prepares a schema with the value v in a delta, whose canonical text, or the error of it, is given.
func compileValue(code string, v Value, text []byte, textErr error) (*compiled, error) {
	s, err := schemaFromValue(code, v)
	if err != nil {
		return nil, err
	}
	canonical := string(text)
	if !hasAllMembers(v) {
		canonical, textErr = s.canonical()
	}
	if textErr != nil {
		return nil, textErr
	}
	return compile(s, canonical, true), nil
}

func validHash(s string) bool { return len(s) >= 6 && len(s) <= 64 && isHex(s) }

// sameHash compares the digits that both have.
func sameHash(a, b string) bool {
	n := min(len(a), len(b))
	return n >= 6 && strings.EqualFold(a[:n], b[:n])
}
