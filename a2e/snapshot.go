// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Snapshots keep what plugins want to find again after a restart: one JSON object
// under the name of a plugin and a key (A2E-148). Any engine of package store
// holds them. All methods may be called from several goroutines.
type Snapshots struct {
	kv store.KV
}

// NewSnapshots returns snapshots in kv.
func NewSnapshots(kv store.KV) *Snapshots { return &Snapshots{kv: kv} }

// key spells plugin and key so that no key can get out of its plugin, whatever
// engine stands behind.
func (s *Snapshots) key(plugin, key string) string {
	return "a2e/snapshot/" + hex.EncodeToString([]byte(plugin)) + ":" + hex.EncodeToString([]byte(key))
}

// Save keeps an object in place of the one before.
func (s *Snapshots) Save(ctx context.Context, plugin, key string, object json.RawMessage) error {
	v, err := strictjson.Check(object, strictjson.Options{MaxDepth: 10000})
	if err != nil || !v.IsObject() {
		return fmt.Errorf("a2e: snapshot %s: not a JSON object", clip(key, 100))
	}
	name := s.key(plugin, key)
	for {
		e, err := s.kv.Get(ctx, name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			_, err = s.kv.Create(ctx, name, v, 0)
		case err == nil:
			_, err = s.kv.Update(ctx, name, v, e.Revision, 0)
		}
		if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		return err
	}
}

// Load returns an object, or [store.ErrNotFound].
func (s *Snapshots) Load(ctx context.Context, plugin, key string) (json.RawMessage, error) {
	e, err := s.kv.Get(ctx, s.key(plugin, key))
	if err != nil {
		return nil, err
	}
	v, err := strictjson.Check(e.Value, strictjson.Options{MaxDepth: 10000})
	if err != nil {
		return nil, fmt.Errorf("a2e: snapshot %s: %w", clip(key, 100), err)
	}
	return json.RawMessage(v), nil
}

// Delete removes an object. Removing what is not there succeeds.
func (s *Snapshots) Delete(ctx context.Context, plugin, key string) error {
	return s.kv.Delete(ctx, s.key(plugin, key), 0)
}
