// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// A Router selects the instance that handles a call (ARC-D47): the agent of that
// id, or, for a group, in turn a healthy instance with free capacity. A task or
// chat keeps its first instance, even an unhealthy or full one.
//
// All methods are safe for concurrent use.
type Router struct {
	kv store.KV

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

// NewRouter returns a Router without instances. It keeps in kv which instance the work of
// a caller belongs to, so that routers that share it agree.
func NewRouter(kv store.KV) *Router {
	return &Router{kv: kv, instances: map[string]*instance{}, groups: map[string]*group{}}
}

// Add adds an instance, in no group if that is empty, and with room for any
// number of calls if capacity is zero. It fails if there is an instance or group
// of that id, or an instance by the name of the group.
func (r *Router) Add(id, groupName string, capacity int) error {
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
func (r *Router) Remove(id string) bool {
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
func (r *Router) SetHealthy(id string, healthy bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.instances[id]
	if in == nil {
		return false
	}
	in.unhealthy = !healthy
	return true
}

// Done frees a place at an instance.
func (r *Router) Done(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if in := r.instances[id]; in != nil && in.busy > 0 {
		in.busy--
	}
}

// Members returns the instances of a group, in the order of their adding.
func (r *Router) Members(target string) []string {
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

// Take selects an instance, preferably the bound one, and occupies a place until
// [Router.Done] if place is set. Calls about existing work need no place, so a full
// agent can still be canceled. The error is a [*wire.Fault] with code AgentNotFound,
// AgentNotAvailable if no instance is healthy, or AgentCapacityExceeded if the healthy
// ones are full.
func (r *Router) Take(target, bound string, place bool) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := target
	if bound != "" {
		one = bound
	}
	if in := r.instances[one]; in != nil {
		if code := in.refuses(place); code != 0 {
			return "", noAgent(code, target)
		}
		in.take(place)
		return in.id, nil
	}
	g := r.groups[target]
	switch {
	case g == nil:
		return "", noAgent(wire.AgentNotFound, target)
	case bound != "":
		return "", noAgent(wire.AgentNotAvailable, target) // its instance was removed
	}
	code := int64(wire.AgentNotAvailable)
	for i := range g.members {
		at := (g.next + i) % len(g.members)
		in := g.members[at]
		switch in.refuses(place) {
		case 0:
			g.next = (at + 1) % len(g.members)
			in.take(place)
			return in.id, nil
		case wire.AgentCapacityExceeded:
			code = wire.AgentCapacityExceeded
		}
	}
	return "", noAgent(code, target)
}

// refuses returns why the instance takes no call now, or zero.
func (in *instance) refuses(place bool) int64 {
	switch {
	case in.unhealthy:
		return wire.AgentNotAvailable
	case place && in.capacity > 0 && in.busy >= in.capacity:
		return wire.AgentCapacityExceeded
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
	return "arc/bind/" + Hash(target, key)
}

// owner returns the instance that a key is bound to, or "".
func (r *Router) owner(ctx context.Context, target, key string) (string, error) {
	e, err := r.kv.Get(ctx, bindingKey(target, key))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return string(e.Value), err
}

// bind binds a key, unless it is bound, and returns the instance that has it.
func (r *Router) bind(ctx context.Context, target, key, id string) (string, error) {
	_, err := r.kv.Create(ctx, bindingKey(target, key), []byte(id), bindingTTL)
	if errors.Is(err, store.ErrExists) {
		return r.owner(ctx, target, key)
	}
	return id, err
}

func noAgent(code int64, id string) error { return wire.NewFault(code, "agentId", id) }

// Enter occupies a place at an instance, free or not.
func (r *Router) Enter(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if in := r.instances[id]; in != nil {
		in.busy++
	}
}

// workKey is the key of the binding of a task or chat of a caller.
func workKey(q *Request, kind, id string) string { return kind + ":" + Hash(q.Principal, id) }

// BindWork records which instance of a group has the work that a request began.
func (r *Router) BindWork(ctx context.Context, q *Request, kind, id string) error {
	if q.Agent == q.Target || id == "" {
		return nil
	}
	owner, err := r.bind(ctx, q.Target, workKey(q, kind, id), q.Agent)
	if err == nil && owner != q.Agent && kind == "chatId" {
		return errChatTaken // another instance was faster
	}
	return err
}

// UnbindWork removes the record of the instance that has a task or chat.
func (r *Router) UnbindWork(ctx context.Context, q *Request, kind, id string) error {
	return r.kv.Delete(ctx, bindingKey(q.Target, workKey(q, kind, id)), 0)
}

// OwnerOf returns the instance of a group that has a task or chat of a caller, or "".
func (r *Router) OwnerOf(ctx context.Context, q *Request, kind, id string) (string, error) {
	return r.owner(ctx, q.Target, workKey(q, kind, id))
}

// A Load is the state of an instance.
type Load struct {
	ID, Group      string
	IsHealthy      bool
	Busy, Capacity int // a Capacity of zero means no bound
}

// Load returns the state of an instance.
func (r *Router) Load(id string) (Load, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.instances[id]
	if in == nil {
		return Load{}, false
	}
	return Load{in.id, in.group, !in.unhealthy, in.busy, in.capacity}, true
}
