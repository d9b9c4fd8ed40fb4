// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// ErrMoved reports the state of a session that has a later owner.
var ErrMoved = errors.New("plugin: session has a later owner")

// A Place is where the state of a plugin is kept. The zero Place keeps nothing.
type Place struct {
	KV        store.KV
	Key       string
	IsSession bool          // the state ends with its durable session
	Term      int           // of the owner of that session: each owner has a higher term than all earlier owners
	TTL       time.Duration // of that state since its last Save or Renew
}

// A termHead precedes the object of a durable session.
type termHead struct{ Term int }

// maxDepth bounds the nesting of a snapshot.
const maxDepth = 10000

// name encodes plugin and key so that no key can refer to another plugin, for any engine.
func (p Place) name(plugin string) string {
	return "a2e/snapshot/" + hex.EncodeToString([]byte(plugin)) + ":" + hex.EncodeToString([]byte(p.Key))
}

// Save stores an object and replaces an earlier one, or removes that if the object is nil. A state with a later owner
// stays as it is: Save returns ErrMoved.
func (p Place) Save(ctx context.Context, plugin string, object json.RawMessage) error {
	name := p.name(plugin)
	if object == nil && !p.IsSession {
		return p.KV.Delete(ctx, name, 0)
	}
	var v strictjson.Value
	var err error
	if object != nil {
		v, err = strictjson.Check(object, strictjson.Options{MaxDepth: maxDepth})
		if err != nil || !v.IsObject() {
			return fmt.Errorf("a2e: snapshot of %s: not a JSON object", plugin)
		}
	}
	if p.IsSession {
		return p.change(ctx, name, func(int, []byte) ([]byte, error) { return v, nil })
	}
	for {
		e, err := p.KV.Get(ctx, name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			_, err = p.KV.Create(ctx, name, v, 0)
		case err == nil:
			_, err = p.KV.Update(ctx, name, v, e.Revision, 0)
		}
		isRaced := errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound)
		if !isRaced || ctx.Err() != nil {
			return err
		}
	}
}

// change replaces the object of a durable session, unless that has a later owner. A nil object removes it.
func (p Place) change(ctx context.Context, name string, f func(term int, object []byte) ([]byte, error)) error {
	_, err := store.Modify(ctx, p.KV, name, p.TTL, func(old store.Entry, found bool) ([]byte, error) {
		var head termHead
		var object []byte
		var err error
		if found {
			object, err = state.DecodeWith(old.Value, &head)
		}
		if err == nil && head.Term > p.Term {
			err = ErrMoved
		}
		if err == nil {
			object, err = f(head.Term, object)
		}
		if err != nil || object == nil {
			return nil, err
		}
		return state.EncodeWith(termHead{p.Term}, object), nil
	})
	return err
}

// Renew extends the life of the object of a durable session, if there is one.
func (p Place) Renew(ctx context.Context, plugin string) error {
	return p.change(ctx, p.name(plugin), func(_ int, object []byte) ([]byte, error) { return object, nil })
}

// load returns the stored object. No earlier owner of a durable session can write it from then on, also if it is absent.
func (p Place) load(ctx context.Context, name string) (object json.RawMessage, err error) {
	if !p.IsSession {
		e, err := p.KV.Get(ctx, name)
		return e.Value, err
	}
	err = p.change(ctx, name, func(term int, old []byte) ([]byte, error) {
		object = append(json.RawMessage{}, old...) // not nil: an absent object is stored as an empty one
		if term == p.Term {
			return nil, store.ErrUnchanged
		}
		return object, nil
	})
	if err == nil && len(object) == 0 {
		err = store.ErrNotFound
	}
	return object, err
}

// Load returns an object, or [store.ErrNotFound].
func (p Place) Load(ctx context.Context, plugin string) (json.RawMessage, error) {
	object, err := p.load(ctx, p.name(plugin))
	if err != nil {
		return nil, err
	}
	v, err := strictjson.Check(object, strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		return nil, fmt.Errorf("a2e: snapshot of %s: %w", plugin, err)
	}
	return json.RawMessage(v), nil
}

// Gates count the ending sessions of each key, so that the next session waits for their snapshots. The zero value is
// empty.
type Gates struct {
	mu    sync.Mutex
	gates map[string]*gate
}

type gate struct {
	n    int
	free chan struct{}
}

func (g *Gates) begin(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates == nil {
		g.gates = map[string]*gate{}
	}
	if g.gates[key] == nil {
		g.gates[key] = &gate{free: make(chan struct{})}
	}
	g.gates[key].n++
}

func (g *Gates) end(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[key].n--; g.gates[key].n == 0 {
		close(g.gates[key].free)
		delete(g.gates, key)
	}
}

func (g *Gates) wait(ctx context.Context, key string) error {
	g.mu.Lock()
	gate := g.gates[key]
	g.mu.Unlock()
	if gate == nil {
		return nil
	}
	select {
	case <-gate.free:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
