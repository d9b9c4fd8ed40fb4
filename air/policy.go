// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/store"
)

// A KeyPolicy decides whether a key from the registry is trusted. The registry is the trust anchor
// of the protocol; a policy can detect changed keys.
type KeyPolicy interface {
	// AuthorizeKey returns an error that is [ErrKeyRefused] to refuse the key of an agent. It is called concurrently.
	AuthorizeKey(ctx context.Context, did string, key *PublicKey) error
}

// KeyPolicyFunc makes a function a [KeyPolicy].
type KeyPolicyFunc func(ctx context.Context, did string, key *PublicKey) error

// AuthorizeKey calls f.
func (f KeyPolicyFunc) AuthorizeKey(ctx context.Context, did string, key *PublicKey) error {
	return f(ctx, did, key)
}

// ErrKeyRefused reports a key that a policy refuses. Any other error of a policy is a temporary failure.
var ErrKeyRefused = errors.New("air: key refused")

// PinKeys returns a policy that records the first key of each agent and refuses other keys with
// [ErrKeyRefused] until [UnpinKey] removes the record.
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
				continue // unpinned concurrently
			case err == nil && string(e.Value) != string(key.ed):
				return fmt.Errorf("%w: the key of %s has changed", ErrKeyRefused, did)
			}
			return err
		}
	})
}

// UnpinKey removes the pinned key of an agent, so that [PinKeys] accepts the next one.
func UnpinKey(ctx context.Context, kv store.KV, did string) error {
	return kv.Delete(ctx, pinPrefix+did, 0)
}

const pinPrefix = "air/pin/"
