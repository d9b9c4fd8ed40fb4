// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// A Type binds a type string to the model of its messages.
type Type struct {
	Name       string
	Kind       Kind
	Response   string // the type that answers it, if it is a request
	Capability string // what an agent must have negotiated to send it

	model *model
}

// TypeOf binds a type string to the model T, a struct whose fields have json tags. Kind, response
// and capability are derived from the name; change them in the result if they differ.
func TypeOf[T any](name string) Type {
	return Type{
		Name:       name,
		Kind:       kindOf(name),
		Response:   responseType(name),
		Capability: capabilityOf(name),
		model:      modelOf[T](),
	}
}

// baseTypes are always registered and cannot be replaced (A2E-026, A2E-027).
func baseTypes() []Type {
	return []Type{
		TypeOf[HandshakeRequest](typeHandshakeRequest),
		TypeOf[HandshakeResponse](typeHandshakeResponse),
		TypeOf[EventBody](typeEvent),
		TypeOf[pingBody](typePing),
		TypeOf[Pong](typePong),
		TypeOf[shutdownBody](typeShutdown),
		TypeOf[ErrorBody](typeError),
	}
}

func isBase(name string) bool {
	switch name {
	case typeHandshakeRequest, typeHandshakeResponse, typeEvent, typePing, typePong, typeShutdown, typeError:
		return true
	}
	return false
}

// A Registry knows the model of each type. The zero value has the base types. It may
// be used and extended by several goroutines.
type Registry struct {
	mu    sync.Mutex // held while changing
	types atomic.Pointer[map[string]*Type]
}

// newRegistry returns a registry of the base types and the given ones. It panics
// where [Registry.Add] returns an error.
func newRegistry(types ...Type) *Registry {
	r := &Registry{}
	if err := r.Add(types...); err != nil {
		panic(err)
	}
	return r
}

// Add registers types, all or none. A type that is known already is replaced if
// it has the same model, else an error, as are base types and names that
// the grammar of types refuses.
func (r *Registry) Add(types ...Type) error {
	if r == nil {
		return errors.New("a2e: add types: no client")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := maps.Clone(r.load())
	for _, t := range types {
		old := m[t.Name]
		switch {
		case isBase(t.Name):
			return fmt.Errorf("a2e: base type %q cannot be replaced", t.Name)
		case !validType(t.Name):
			return fmt.Errorf("a2e: %q is not a legal type", clip(t.Name, maxName))
		case canonicalType(t.Name) != t.Name:
			return fmt.Errorf("a2e: %q is another spelling of %q", t.Name, canonicalType(t.Name))
		case t.model == nil:
			return fmt.Errorf("a2e: type %q has no model; make it with TypeOf", t.Name)
		case old != nil && old.model.typ != t.model.typ:
			return fmt.Errorf("a2e: type %q has the model %v already", t.Name, old.model.typ)
		}
		m[t.Name] = &t
	}
	r.types.Store(&m)
	return nil
}

// Lookup returns the type of that name, in any published spelling, or nil.
func (r *Registry) Lookup(name string) *Type {
	return r.load()[canonicalType(name)]
}

// Types returns all registered types in the order of their names.
func (r *Registry) Types() []Type {
	m := r.load()
	list := make([]Type, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, *m[name])
	}
	return list
}

// baseModels returns the base types by their names.
var baseModels = sync.OnceValue(func() map[string]*Type {
	m := make(map[string]*Type)
	for _, t := range baseTypes() {
		m[t.Name] = &t
	}
	return m
})

// load returns the types, which must not be changed.
func (r *Registry) load() map[string]*Type {
	if m := r.types.Load(); m != nil {
		return *m
	}
	return baseModels()
}

// lookup returns the type of a name as read by a host or an agent.
func (r *Registry) lookup(name string, host bool) *Type {
	m := r.load()
	if host {
		if other := hostReading(canonicalType(name)); other != name {
			return m[other]
		}
	}
	if t, ok := m[name]; ok {
		return t
	}
	return m[canonicalType(name)]
}
