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

// A Registry holds the schemas that two sides agree on: the built-in ones, which
// cannot be changed, and custom ones. It may be used by several goroutines.
// Make one with [NewRegistry].
type Registry struct {
	mu  sync.Mutex // serializes changes
	tab atomic.Pointer[tables]
}

// tables is one state of a registry; it never changes.
type tables struct {
	byCode map[string]*compiled
	byName map[string]*compiled
	hash   string // of all schemas, in full
}

var builtin = sync.OnceValue(func() *tables {
	t := &tables{byCode: map[string]*compiled{}, byName: map[string]*compiled{}}
	for _, s := range BuiltinSchemas() {
		c := compile(s, false)
		t.byCode[s.Code], t.byName[s.Name] = c, c
	}
	t.hash = t.digest()
	return t
})

// NewRegistry returns a registry that holds the built-in schemas.
func NewRegistry() *Registry {
	r := &Registry{}
	r.tab.Store(builtin())
	return r
}

// tables returns the present state; of a nil registry, the built-in one.
func (r *Registry) tables() *tables {
	if r == nil {
		return builtin()
	}
	if t := r.tab.Load(); t != nil {
		return t
	}
	return builtin()
}

// clone returns a registry of its own in the same state, for one session (ACCP-D49).
func (r *Registry) clone() *Registry {
	c := &Registry{}
	c.tab.Store(r.tables())
	return c
}

// lookup finds a schema by code or name.
func (t *tables) lookup(key string) *compiled {
	if c := t.byCode[key]; c != nil {
		return c
	}
	return t.byName[key]
}

func (t *tables) digest() string {
	list := make([]Param, 0, len(t.byCode))
	for code, c := range t.byCode {
		list = append(list, Param{code, c.value()})
	}
	slices.SortFunc(list, byKey)
	c := Codec{FrameLimits: FrameLimits{MaxDepth: 100, MaxValues: 1 << 26, MaxFrame: 1 << 30}}
	out, err := c.AppendValue(nil, Map(list...))
	if err != nil {
		return "" // cannot be: every schema was checked when it was added
	}
	sum := sha256.Sum256(out)
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

// with returns the state after adding s, or nil if nothing changes.
func (t *tables) with(s Schema, fromPeer bool) (*tables, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	text, err := s.Canonical()
	if err != nil {
		return nil, err
	}
	old := t.byCode[s.Code]
	if old != nil {
		same, _ := old.Canonical()
		switch {
		case same == text && s.Version == old.Version && old.custom:
			return nil, nil
		case !old.custom:
			return nil, fail(ErrPolicyDenied, "schema %s is built in", s.Code)
		case s.Version == old.Version:
			return nil, fail(ErrPolicyDenied, "schema %s: other content under version %d", s.Code, s.Version)
		case s.Version < old.Version && fromPeer:
			return nil, nil // the higher version stays (ACCP-D48)
		case s.Version < old.Version:
			return nil, fail(ErrPolicyDenied, "schema %s: version %d after %d", s.Code, s.Version, old.Version)
		}
	}
	if o := t.byName[s.Name]; o != nil && o.Code != s.Code {
		return nil, fail(ErrPolicyDenied, "schema %s: the name %s belongs to %s", s.Code, s.Name, o.Code)
	}
	n := &tables{byCode: maps.Clone(t.byCode), byName: maps.Clone(t.byName)}
	if old != nil {
		delete(n.byName, old.Name)
	}
	c := compile(s, true)
	n.byCode[s.Code], n.byName[s.Name] = c, c
	return n, nil
}

// Register adds a custom schema, or a higher version of one. A malformed schema
// is [ErrInvalidType]; one that would change a built-in schema, another content
// under the same version, a lower version or a second code for a name is
// [ErrPolicyDenied] (ACCP-D47, ACCP-D49). The schema is copied.
func (r *Registry) Register(s Schema) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := r.tables().with(s, false)
	if err != nil || n == nil {
		return err
	}
	n.hash = n.digest()
	r.tab.Store(n)
	return nil
}

// Schema returns the schema with this code or name, and whether there is one.
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

// Version returns one plus the sum of the versions of the custom schemas.
func (r *Registry) Version() int64 { return r.tables().version() }

// Hash returns the SHA-256 of the canonical text of all schemas, in hex. What is
// sent are its first twelve digits (ACCP-D47). An application that must know what it
// talks about compares all of them (ACCP-D49).
func (r *Registry) Hash() string { return r.tables().hash }

// Delta returns the custom schemas as they are sent to a peer whose hash differs.
func (r *Registry) Delta() Value {
	var list []Param
	for code, c := range r.tables().byCode {
		if c.custom {
			list = append(list, Param{code, c.value()})
		}
	}
	slices.SortFunc(list, byKey)
	return Map(list...)
}

// Merge takes over the custom schemas of a peer. They must give the announced
// hash over the built-in ones, and may not contradict what is known here, else
// nothing changes and the error is [ErrPolicyDenied] (ACCP-D48, ACCP-D49). A hash that is
// not 6 to 64 hex digits and a malformed schema are [ErrInvalidType].
func (r *Registry) Merge(delta Value, hash string) error {
	if !validHash(hash) {
		return fail(ErrInvalidType, "hash must be 6 to 64 hex digits")
	}
	if delta.kind != KindMap {
		return fail(ErrInvalidType, "delta is no map")
	}
	schemas := make([]Schema, 0, delta.Len())
	for _, p := range delta.list {
		s, err := schemaFromValue(p.Key, p.Value)
		if err != nil {
			return err
		}
		schemas = append(schemas, s)
	}
	theirs := builtin()
	for _, s := range schemas {
		n, err := theirs.with(s, true)
		if err != nil {
			return err
		}
		if n != nil {
			theirs = n
		}
	}
	if !sameHash(theirs.digest(), hash) {
		return fail(ErrPolicyDenied, "the registry delta does not have the announced hash")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := r.tables()
	for _, s := range schemas {
		n, err := mine.with(s, true)
		if err != nil {
			return err
		}
		if n != nil {
			mine = n
		}
	}
	if mine == r.tables() {
		return nil
	}
	mine.hash = mine.digest()
	r.tab.Store(mine)
	return nil
}

func validHash(s string) bool { return len(s) >= 6 && len(s) <= 64 && isHex(s) }

// sameHash compares as many digits as both have.
func sameHash(a, b string) bool {
	n := min(len(a), len(b))
	return n >= 6 && strings.EqualFold(a[:n], b[:n])
}
