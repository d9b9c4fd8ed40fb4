// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A router selects the instance that handles a call (ARC-D47): the agent of that
// id, or, for a group, in turn a healthy instance with free capacity. A task or
// chat keeps its first instance, even an unhealthy or full one.
//
// All methods are safe for concurrent use.
type router struct {
	kv  store.KV
	ttl time.Duration

	mu        sync.Mutex
	instances map[string]*instance // guarded by mu, contents included
	groups    map[string]*group    // the same
}

type instance struct {
	id        string
	group     string
	capacity  int // zero means no bound
	busy      int
	unhealthy bool
}

type group struct {
	members []*instance
	next    int // where the next turn begins
}

// bindingTTL is how long the instance of a task or chat is recorded, longer than the
// default retention of either.
const bindingTTL = 30 * 24 * time.Hour

// newRouter returns a router without instances. It keeps in kv which instance a
// key belongs to, so that routers that share it agree; nil means a store in
// memory.
func newRouter(kv store.KV) *router {
	if kv == nil {
		kv = store.NewMemory()
	}
	return &router{kv: kv, ttl: bindingTTL, instances: map[string]*instance{}, groups: map[string]*group{}}
}

// Add adds an instance, in no group if that is empty, and with room for any
// number of calls if capacity is zero. It fails if there is an instance or group
// of that id, or an instance by the name of the group.
func (r *router) Add(id, groupName string, capacity int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.instances[id] != nil {
		return fmt.Errorf("agent %q is registered already", id)
	}
	if r.groups[id] != nil || groupName != "" && r.instances[groupName] != nil || groupName == id {
		return fmt.Errorf("agent %q: an agent and a group have the same name", id)
	}
	in := &instance{id: id, group: groupName, capacity: capacity}
	r.instances[id] = in
	if groupName != "" {
		if r.groups[groupName] == nil {
			r.groups[groupName] = &group{}
		}
		g := r.groups[groupName]
		g.members = append(g.members, in)
	}
	return nil
}

// Remove removes an instance and reports whether it existed.
func (r *router) Remove(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.instances[id]
	if in == nil {
		return false
	}
	delete(r.instances, id)
	if g := r.groups[in.group]; g != nil {
		i := slices.Index(g.members, in)
		g.members = slices.Delete(g.members, i, i+1)
		if g.next > i {
			g.next--
		}
		if len(g.members) == 0 {
			delete(r.groups, in.group)
		}
	}
	return true
}

// SetHealthy sets whether an instance accepts calls, and reports whether it exists.
func (r *router) SetHealthy(id string, healthy bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.instances[id]
	if in == nil {
		return false
	}
	in.unhealthy = !healthy
	return true
}

// Done ends a call that [router.Pick] assigned to the instance.
func (r *router) Done(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if in := r.instances[id]; in != nil && in.busy > 0 {
		in.busy--
	}
}

// Pick chooses the instance for a call to target and takes a place there until
// [router.Done]. The key names the task or chat that the call is about, empty
// meaning none; its first use binds it.
//
// The error is an [*Error] with code [ErrAgentNotFound], [ErrAgentNotAvailable]
// if no instance is healthy, or [ErrAgentCapacityExceeded] if the healthy ones
// are full, unless the store fails.
func (r *router) Pick(ctx context.Context, target, key string) (string, error) {
	bound := ""
	if key != "" && r.isGroup(target) {
		var err error
		if bound, err = r.owner(ctx, target, key); err != nil {
			return "", err
		}
	}
	id, err := r.take(target, bound, true)
	if err == nil && key != "" && bound == "" && id != target {
		bound, err = r.bind(ctx, target, key, id)
		if err == nil && bound != id { // a concurrent call bound it first
			r.Done(id)
			return r.take(target, bound, true)
		}
		if err != nil {
			r.Done(id)
			return "", err
		}
	}
	return id, err
}

func (r *router) isGroup(target string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups[target] != nil
}

// members returns the instances of a group, in the order of their adding.
func (r *router) members(target string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[target]
	if g == nil {
		return nil
	}
	ids := make([]string, len(g.members))
	for i, in := range g.members {
		ids[i] = in.id
	}
	return ids
}

// take selects an instance, preferably the bound one, and occupies a place if place
// is set. Calls about existing work need no place, so a full agent can still be
// canceled.
func (r *router) take(target, bound string, place bool) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := target
	if bound != "" {
		one = bound
	}
	if in := r.instances[one]; in != nil {
		if code := in.refuses(place); code != 0 {
			return "", agentFault(code, target)
		}
		in.take(place)
		return in.id, nil
	}
	g := r.groups[target]
	switch {
	case g == nil:
		return "", agentFault(ErrAgentNotFound, target)
	case bound != "":
		return "", agentFault(ErrAgentNotAvailable, target) // its instance was removed
	}
	code := ErrAgentNotAvailable
	for i := range g.members {
		at := (g.next + i) % len(g.members)
		in := g.members[at]
		switch in.refuses(place) {
		case 0:
			g.next = (at + 1) % len(g.members)
			in.take(place)
			return in.id, nil
		case ErrAgentCapacityExceeded:
			code = ErrAgentCapacityExceeded
		}
	}
	return "", agentFault(code, target)
}

// refuses returns why the instance takes no call now, or zero.
func (in *instance) refuses(place bool) Code {
	switch {
	case in.unhealthy:
		return ErrAgentNotAvailable
	case place && in.capacity > 0 && in.busy >= in.capacity:
		return ErrAgentCapacityExceeded
	}
	return 0
}

func (in *instance) take(place bool) {
	if place {
		in.busy++
	}
}

// bindingKey hashes, because both names are foreign text of any content.
func bindingKey(target, key string) string {
	return "arc/bind/" + hashOf(target, key)
}

// hashOf names a list of foreign texts by a short text of known form.
func hashOf(texts ...string) string {
	var array [512]byte
	b := array[:0]
	for _, s := range texts {
		b = appendInt(b, int64(len(s)))
		b = append(b, ':')
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// owner returns the instance that a key is bound to, or "".
func (r *router) owner(ctx context.Context, target, key string) (string, error) {
	e, err := r.kv.Get(ctx, bindingKey(target, key))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return string(e.Value), err
}

// bind binds a key, unless it is bound, and returns the instance that has it.
func (r *router) bind(ctx context.Context, target, key, id string) (string, error) {
	_, err := r.kv.Create(ctx, bindingKey(target, key), []byte(id), r.ttl)
	if errors.Is(err, store.ErrExists) {
		return r.owner(ctx, target, key)
	}
	return id, err
}

// agentFault is an error about an agent, with the details of ARC-D55.
func agentFault(code Code, id string) *Error { return idFault(code, "agentId", id) }

func idFault(code Code, name, id string) *Error {
	d, _ := encode(func(w *writer) { // texts can always be written
		w.open()
		w.text(name, id)
		w.close()
	})
	return &Error{Code: code, Message: code.Message(), Details: d}
}

// A registry holds the agents of a server.
type registry struct {
	router *router

	mu     sync.RWMutex
	agents map[string]*agentEntry // guarded by mu
	order  []string               // as they were registered; guarded by mu
}

func (r *registry) add(e *agentEntry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.router.Add(e.AgentID, e.Group, e.MaxConcurrent); err != nil {
		return err
	}
	r.agents[e.AgentID] = e
	r.order = append(r.order, e.AgentID)
	return nil
}

func (r *registry) lookup(id string) *agentEntry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.agents[id]
}

func (r *registry) change(id string, f func(e *agentEntry) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.agents[id]
	if e == nil {
		return fmt.Errorf("there is no agent %q", id)
	}
	return f(e)
}

func (r *registry) remove(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agents[id] == nil {
		return false
	}
	delete(r.agents, id)
	r.order = slices.DeleteFunc(r.order, func(o string) bool { return o == id })
	return r.router.Remove(id)
}

// all returns the agents in the order of their registration.
func (r *registry) all() []*agentEntry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*agentEntry, len(r.order))
	for i, id := range r.order {
		list[i] = r.agents[id]
	}
	return list
}

// methodsOf reports whether a target exists, and which of its agents handle the
// method: the agent itself, or those instances of the group that do.
func (r *registry) method(target, method string) (isKnown bool, entry *agentEntry, m *methodEntry) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.agents[target]; e != nil {
		return true, e, (*e.methods.Load())[method]
	}
	for _, id := range r.router.members(target) {
		isKnown = true
		if e := r.agents[id]; e != nil {
			if m := (*e.methods.Load())[method]; m != nil {
				return true, e, m
			}
		}
	}
	return isKnown, nil, nil
}
