// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/store"
)

// A KeyPolicy decides whether a key that the registry names is trusted. The
// registry is the trust anchor of the protocol; a policy serves those who want to
// notice when it changes its mind.
type KeyPolicy interface {
	// AuthorizeKey returns an error to refuse the key of an agent. It may be called
	// from several goroutines.
	AuthorizeKey(ctx context.Context, did string, key *PublicKey) error
}

// KeyPolicyFunc makes a function a [KeyPolicy].
type KeyPolicyFunc func(ctx context.Context, did string, key *PublicKey) error

// AuthorizeKey calls f.
func (f KeyPolicyFunc) AuthorizeKey(ctx context.Context, did string, key *PublicKey) error {
	return f(ctx, did, key)
}

// ErrKeyChanged reports a key other than the pinned one.
var ErrKeyChanged = errors.New("air: the key of the agent has changed")

// PinKeys returns a policy that remembers the first key of each agent and refuses
// every other one with [ErrKeyChanged], until [UnpinKey] forgets it.
func PinKeys(kv store.KV) KeyPolicy {
	return KeyPolicyFunc(func(ctx context.Context, did string, key *PublicKey) error {
		for {
			_, err := kv.Create(ctx, pinPrefix+did, key.ed, 0)
			if !errors.Is(err, store.ErrExists) {
				return err
			}
			e, err := kv.Get(ctx, pinPrefix+did)
			switch {
			case errors.Is(err, store.ErrNotFound):
				continue // unpinned in between
			case err == nil && string(e.Value) != string(key.ed):
				return fmt.Errorf("%w: %s", ErrKeyChanged, did)
			}
			return err
		}
	})
}

// UnpinKey forgets the key of an agent, so that [PinKeys] takes its next one.
func UnpinKey(ctx context.Context, kv store.KV, did string) error {
	return kv.Delete(ctx, pinPrefix+did, 0)
}

const pinPrefix = "air/pin/"
