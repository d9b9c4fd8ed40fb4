// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Identity is an agent's own name and key. It may be used by several
// goroutines.
type Identity struct {
	did     string
	airID   string
	signer  crypto.Signer
	public  *PublicKey
	box     *BoxKey // nil for a signer that does not give its seed away
	retired []*BoxKey
	seed    []byte // nil likewise
	olds    [][]byte
}

// NewIdentity makes an identity from a DID and the 32 bytes of an Ed25519 seed.
// The retired seeds are those of earlier keys: what was sealed to one of them is
// still opened (AIR-D42).
func NewIdentity(did string, seed []byte, retired ...[]byte) (*Identity, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, ErrBadKey.err("a seed has 32 bytes")
	}
	id, err := NewIdentityFromSigner(did, ed25519.NewKeyFromSeed(seed))
	if err != nil {
		return nil, err
	}
	id.seed = append([]byte(nil), seed...)
	if id.box, err = NewBoxKey(seed); err != nil {
		return nil, err
	}
	for _, s := range retired {
		k, err := NewBoxKey(s)
		if err != nil {
			return nil, err
		}
		id.retired = append(id.retired, k)
		id.olds = append(id.olds, append([]byte(nil), s...))
	}
	return id, nil
}

// NewIdentityFromSigner makes an identity whose key stays where it is, in hardware
// for example. It cannot open sealed bodies, because that takes the seed.
func NewIdentityFromSigner(did string, signer crypto.Signer) (*Identity, error) {
	if _, err := ParseDID(did, ProfileDeployed); err != nil {
		return nil, err
	}
	pub, ok := signer.Public().(ed25519.PublicKey)
	if !ok {
		return nil, ErrBadKey.err("not an Ed25519 key")
	}
	key, err := NewPublicKey(pub)
	if err != nil {
		return nil, err
	}
	return &Identity{did: did, airID: airIDOf(did), signer: signer, public: key}, nil
}

// GenerateIdentity makes an identity with a fresh key.
func GenerateIdentity(did string) (*Identity, error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	return NewIdentity(did, seed)
}

// DID returns the full DID.
func (id *Identity) DID() string { return id.did }

// AIRID returns the AIR ID, "" if the DID has none.
func (id *Identity) AIRID() string { return id.airID }

// PublicKey returns the public key.
func (id *Identity) PublicKey() *PublicKey { return id.public }

// Signer returns the private key as a signer.
func (id *Identity) Signer() crypto.Signer { return id.signer }

// Rotate returns the same agent with a new seed. The key until now is retired.
func (id *Identity) Rotate(seed []byte) (*Identity, error) {
	if id.seed == nil {
		return nil, errors.New("air: an identity without a seed cannot be rotated")
	}
	return NewIdentity(id.did, seed, append([][]byte{id.seed}, id.olds...)...)
}

// open opens a body with the current key, else with a retired one, and tells
// which.
func (id *Identity) open(b Binding, body []byte) (plain []byte, retired bool, err error) {
	if id.box == nil {
		return nil, false, errSealed()
	}
	plain, err = id.box.Open(b, body)
	if err == nil {
		return plain, false, nil
	}
	for _, k := range id.retired {
		if plain, e := k.Open(b, body); e == nil {
			return plain, true, nil
		}
	}
	return nil, false, err
}

// SaveIdentity writes an identity to a file that only its owner may read. The
// file is there completely or not at all.
func SaveIdentity(path string, id *Identity) error {
	if id.seed == nil {
		return errors.New("air: an identity without a seed cannot be saved")
	}
	text := strictjson.AppendString([]byte(`{"did":`), id.did)
	text = append(text, `,"seed":"`+hex.EncodeToString(id.seed)+`","retired":[`...)
	for i, s := range id.olds {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `"`+hex.EncodeToString(s)+`"`...)
	}
	text = append(text, "]}\n"...)
	f, err := os.CreateTemp(filepath.Dir(path), ".air-identity-*") // mode 0600
	if err != nil {
		return fmt.Errorf("air: saving the identity: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("air: saving the identity: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes sure that a renamed file is found after a loss of power, where
// the system can: some file systems cannot sync folders, which is no reason to
// fail.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("air: saving the identity: %w", err)
	}
	_ = d.Sync()
	return d.Close()
}

// LoadIdentity reads what [SaveIdentity] wrote. A file that others may read is
// refused.
func LoadIdentity(path string) (*Identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("air: loading the identity: others may read %s: want mode 0600", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", err)
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxBytes: 1 << 20})
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", err)
	}
	did, _ := v.Get("did").Text()
	var seeds [][]byte
	add := func(s strictjson.Value) error {
		text, _ := s.Text()
		seed, err := hex.DecodeString(text)
		seeds = append(seeds, seed)
		return err
	}
	err = add(v.Get("seed"))
	for r := v.Get("retired").Elements(); r.Next(); {
		err = errors.Join(err, add(r.Value))
	}
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", ErrBadKey.err("a seed is not hexadecimal"))
	}
	return NewIdentity(did, seeds[0], seeds[1:]...)
}
