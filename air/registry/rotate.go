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
)

// Reasons why a key was not rotated.
var (
	// ErrKeyImmutable reports a registry that does not change the keys of agents. The
	// identity is what it was.
	ErrKeyImmutable = errors.New("air: the registry does not change the keys of agents")

	// ErrKeyUnconfirmed reports that nobody knows yet which key the registry has.
	// Both are kept, and calling RotateKey again goes on with the same new one.
	ErrKeyUnconfirmed = errors.New("air: the registry has not confirmed the new key")
)

// nextSuffix names the file of a key that the registry may have already.
const nextSuffix = ".next"

// RotateKey gives an agent a new key: it asks the registry to replace the public
// key, with the agent's secret as for any update, and then replaces the file that
// [air.SaveIdentity] wrote at path. The old key becomes a retired one of the new
// identity, so that what was sealed to it can still be opened.
//
// The new key is on the disk, in a file beside path, before the registry hears
// of it, and takes its place only when the registry's DID document names it. So
// whenever the process dies, no key is lost that others were told to use; calling
// RotateKey again finishes what was begun. Where the system knows advisory locks,
// calls for files in one folder wait for each other, also those of other processes;
// elsewhere there must be one at a time.
//
// On success clients and inboxes have to be made anew with the identity that is
// returned. Peers may have a document with the old key for up to 70 seconds: their
// inboxes look once more when a signature does not verify (AIR-D41), and their
// clients when the inbox answers Stale Key (AIR-059).
//
// The published registry answers [ErrKeyImmutable]: see the package documentation.
func (c *Client) RotateKey(ctx context.Context, path, secret string) (*air.Identity, error) {
	unlock, err := lockFolder(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := air.LoadIdentity(path)
	if err != nil {
		return nil, err
	}
	if err := air.ValidateAIRID(old.AIRID()); err != nil {
		return nil, err
	}
	next, made, err := nextIdentity(path, old)
	if err != nil {
		return nil, err
	}
	switch has, err := c.keyOf(ctx, old.DID()); {
	case err != nil:
		return nil, err
	case has.Equal(next.PublicKey()): // an earlier call got so far
		return c.replace(path, next)
	case !has.Equal(old.PublicKey()):
		return nil, &air.Error{Code: air.ErrBadKey, Message: "the registry has another key for this agent than the file"}
	}
	f := fields{}
	f.text("public_key", keyText(next.PublicKey()))
	u, refused := c.update(ctx, old.AIRID(), secret, f.json(), once)
	// Only the document tells: an answer may be lost on its way, and a registry that
	// knows no such field may ignore it.
	has, err := c.keyOf(ctx, old.DID())
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrKeyUnconfirmed, errors.Join(err, refused))
	case has.Equal(next.PublicKey()):
		return c.replace(path, next)
	case refused != nil && !final(refused), refused == nil && u.Fields != 0:
		return nil, errors.Join(ErrKeyUnconfirmed, refused)
	}
	// The registry has refused and still has the old key. The new one is of no use,
	// unless it is from an earlier call of which nobody knows how it ended.
	if made {
		if err := os.Remove(path + nextSuffix); err != nil {
			return nil, fmt.Errorf("air: removing a key that is not used: %w", errors.Join(err, refused))
		}
	}
	if refused != nil && !errors.Is(refused, air.ErrBadRequest) {
		return nil, refused
	}
	return nil, errors.Join(ErrKeyImmutable, refused)
}

// final reports whether a refusal means that nothing was changed.
func final(err error) bool {
	var e *air.Error
	return errors.As(err, &e) && e.RemoteStatus >= 400 && e.RemoteStatus < 500
}

// nextIdentity returns the identity with the new key, which is in a file, and
// whether it made it.
func nextIdentity(path string, old *air.Identity) (next *air.Identity, made bool, err error) {
	next, err = air.LoadIdentity(path + nextSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, false, err
	case next.DID() != old.DID():
		return nil, false, fmt.Errorf("air: %s is the key of another agent", path+nextSuffix)
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
	d, err := air.ParseDID(did, air.ProfileDeployed)
	if err != nil {
		return nil, err
	}
	doc, err := c.GetDocument(ctx, d.AIRID)
	if err != nil {
		return nil, err
	}
	return doc.SigningKey(did)
}

// replace puts the new key where the old one was.
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
