// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"fmt"
	"maps"
	"reflect"
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

	plan *plan
}

// TypeOf binds a type string to the model T, a struct whose fields have a2e
// tags. Kind, response and capability are those that the name tells; change
// them in the result where it does not.
func TypeOf[T any](name string) Type {
	return Type{
		Name:       name,
		Kind:       KindOf(name),
		Response:   responseType(name),
		Capability: capabilityOf(name),
		plan:       planOf(reflect.TypeFor[T]()),
	}
}

// New returns a pointer to a new model with the defaults of the catalogue.
func (t *Type) New() any {
	v := reflect.New(t.plan.typ)
	t.plan.defaults(v.Elem())
	return v.Interface()
}

// baseTypes are always registered and cannot be replaced (A2E-026, A2E-027).
func baseTypes() []Type {
	return []Type{
		TypeOf[HandshakeRequest](TypeHandshakeRequest),
		TypeOf[HandshakeResponse](TypeHandshakeResponse),
		TypeOf[EventBody](TypeEvent),
		TypeOf[Ping](TypePing),
		TypeOf[Pong](TypePong),
		TypeOf[Shutdown](TypeShutdown),
		TypeOf[ErrorBody](TypeError),
	}
}

func isBase(name string) bool {
	switch name {
	case TypeHandshakeRequest, TypeHandshakeResponse, TypeEvent, TypePing, TypePong, TypeShutdown, TypeError:
		return true
	}
	return false
}

// A Registry knows the model of each type. It may be used and extended by
// several goroutines.
type Registry struct {
	mu    sync.Mutex // held while changing
	types atomic.Pointer[map[string]*Type]
}

// NewRegistry returns a registry of the base types and the given ones. It panics
// where [Registry.Add] returns an error.
func NewRegistry(types ...Type) *Registry {
	r := &Registry{}
	m := make(map[string]*Type)
	for _, t := range baseTypes() {
		m[t.Name] = &t
	}
	r.types.Store(&m)
	if err := r.Add(types...); err != nil {
		panic(err)
	}
	return r
}

// Add registers types, all or none. A type that is known already is replaced if
// it has the same model, else an error, as are base types and names that
// [ValidType] refuses.
func (r *Registry) Add(types ...Type) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := maps.Clone(*r.types.Load())
	for _, t := range types {
		old := m[t.Name]
		switch {
		case isBase(t.Name):
			return fmt.Errorf("a2e: base type %q cannot be replaced", t.Name)
		case !ValidType(t.Name):
			return fmt.Errorf("a2e: %q is not a legal type", clip(t.Name, maxName))
		case CanonicalType(t.Name) != t.Name:
			return fmt.Errorf("a2e: %q is another spelling of %q", t.Name, CanonicalType(t.Name))
		case t.plan == nil:
			return fmt.Errorf("a2e: type %q has no model; make it with TypeOf", t.Name)
		case old != nil && old.plan.typ != t.plan.typ:
			return fmt.Errorf("a2e: type %q has the model %v already", t.Name, old.plan.typ)
		}
		m[t.Name] = &t
	}
	r.types.Store(&m)
	return nil
}

// Lookup returns the type of that name, or nil. Other spellings of published
// types are found too.
func (r *Registry) Lookup(name string) *Type {
	return (*r.types.Load())[CanonicalType(name)]
}

// Types returns all registered types in the order of their names.
func (r *Registry) Types() []Type {
	m := *r.types.Load()
	list := make([]Type, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, *m[name])
	}
	return list
}

// lookup finds by the raw bytes of a name, as read by a host or an agent.
func (r *Registry) lookup(name string, host bool) *Type {
	m := *r.types.Load()
	if host {
		if other := hostReading(CanonicalType(name)); other != name {
			return m[other]
		}
	}
	if t, ok := m[name]; ok {
		return t
	}
	return m[CanonicalType(name)]
}
