// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/name"
)

// Reasons of a failed rotation.
var (
	// ErrKeyImmutable reports a registry that does not change the keys of agents. The identity is
	// unchanged.
	ErrKeyImmutable = errors.New("air: the registry does not change the keys of agents")

	// ErrKeyUnconfirmed reports that the key in the registry is unknown. Both keys are kept;
	// another call of RotateKey continues with the same new one.
	ErrKeyUnconfirmed = errors.New("air: the registry has not confirmed the new key")
)

// nextSuffix is the suffix of the file with a key that the registry may already have.
const nextSuffix = ".next"

// RotateKey replaces the key of an agent: it updates the public key in the registry with the
// agent's secret, and then the file of [air.SaveIdentity] at path. The old key becomes a retired
// one of the new identity, which still opens bodies sealed to it.
//
// The new key is stored in a file next to path before the update, and replaces the old one only
// when the registry's DID document has it. So a crash loses no published key; another call of
// RotateKey completes the rotation. On systems with advisory locks, calls for files in one folder
// run one after the other, also across processes. On other systems, the caller must serialize them.
//
// After success, create new clients and inboxes with the returned identity. Peers may have a
// document with the old key for up to 70 seconds: their inboxes fetch it again when a signature
// does not verify (AIR-D41), and their clients when the inbox answers Stale Key (AIR-059).
//
// The published registry answers [ErrKeyImmutable]: see the package documentation.
func (c *Client) RotateKey(ctx context.Context, path, secret string) (*air.Identity, error) {
	if secret == "" {
		return nil, errNoSecret()
	}
	unlock, err := lockFolder(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := air.LoadIdentity(path)
	if err != nil {
		return nil, err
	}
	if err := checkAIRID(old.AIRID()); err != nil {
		return nil, err
	}
	next, made, err := nextIdentity(path, old)
	if err != nil {
		return nil, err
	}
	switch has, err := c.keyOf(ctx, old.DID()); {
	case err != nil:
		return nil, err
	case has.Equal(next.PublicKey()): // an earlier call sent the update
		return c.replace(path, next)
	case !has.Equal(old.PublicKey()):
		return nil, &air.Error{Code: air.ErrBadKey, Message: "the registry has another key for this agent than the file"}
	}
	f := fields{}
	f.text("public_key", keyText(next.PublicKey()))
	u, refused := c.update(ctx, old.AIRID(), secret, f.json(), once)
	// Only the document is authoritative: a response may be lost, and a registry may ignore the
	// field.
	has, err := c.keyOf(ctx, old.DID())
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrKeyUnconfirmed, errors.Join(err, refused))
	case has.Equal(next.PublicKey()):
		return c.replace(path, next)
	case refused != nil && !final(refused), refused == nil && u.Fields != 0:
		return nil, errors.Join(ErrKeyUnconfirmed, refused)
	}
	return nil, unrotated(path, made, refused)
}

// unrotated returns the error of a rotation that the registry refused, which has the old key. A new key
// of this call is useless; a new key of an earlier call with an unknown outcome is kept.
func unrotated(path string, made bool, refused error) error {
	if made {
		if err := os.Remove(path + nextSuffix); err != nil {
			return fmt.Errorf("air: removing the unused key: %w", errors.Join(err, refused))
		}
	}
	if refused != nil && !errors.Is(refused, air.ErrBadRequest) {
		return refused
	}
	return errors.Join(ErrKeyImmutable, refused)
}

// final reports whether a refusal means that nothing changed.
func final(err error) bool {
	var e *air.Error
	return errors.As(err, &e) && e.RemoteStatus >= 400 && e.RemoteStatus < 500
}

// nextIdentity returns the identity with the new key, which is stored in a file, and whether the
// key is new.
func nextIdentity(path string, old *air.Identity) (next *air.Identity, made bool, err error) {
	next, err = air.LoadIdentity(path + nextSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, false, err
	case next.DID() != old.DID():
		return nil, false, fmt.Errorf("air: rotating the key: %s belongs to another agent", path+nextSuffix)
	default:
		return next, false, nil
	}
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	if next, err = old.Rotate(seed); err != nil {
		return nil, false, err
	}
	return next, true, air.SaveIdentity(path+nextSuffix, next)
}

func (c *Client) keyOf(ctx context.Context, did string) (*air.PublicKey, error) {
	doc, err := c.GetDocument(ctx, name.AIRIDOf(did))
	if err != nil {
		return nil, err
	}
	return doc.SigningKey(did)
}

// replace stores the new key in place of the old one.
func (c *Client) replace(path string, next *air.Identity) (*air.Identity, error) {
	if err := air.SaveIdentity(path, next); err != nil {
		return nil, err
	}
	c.forget(next.AIRID())
	if err := os.Remove(path + nextSuffix); err != nil {
		return nil, fmt.Errorf("air: removing a copy of the new key: %w", err)
	}
	return next, nil
}
