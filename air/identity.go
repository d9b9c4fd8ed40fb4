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
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Identity is the name and the key of an agent. Constructors refuse the zero value. It is safe for concurrent use.
type Identity struct {
	did    string
	airID  string
	public *PublicKey
	*private
}

// private is a part apart, because package fmt shows it as an address.
type private struct {
	signer  crypto.Signer
	box     *boxKey // nil for an external signer
	retired []*boxKey
	seed    []byte // nil for an external signer
	olds    [][]byte
}

// NewIdentity returns an identity of a DID and the 32 bytes of an Ed25519 seed. Retired seeds are
// those of earlier keys; bodies sealed to these keys can still be opened (AIR-D42).
func NewIdentity(did string, seed []byte, retired ...[]byte) (*Identity, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, ErrBadKey.err("a seed has 32 bytes")
	}
	id, err := NewIdentityFromSigner(did, ed25519.NewKeyFromSeed(seed))
	if err != nil {
		return nil, err
	}
	id.seed = append([]byte(nil), seed...)
	if id.box, err = newBoxKey(seed); err != nil {
		return nil, err
	}
	for _, s := range retired {
		k, err := newBoxKey(s)
		if err != nil {
			return nil, err
		}
		id.retired = append(id.retired, k)
		id.olds = append(id.olds, append([]byte(nil), s...))
	}
	return id, nil
}

// NewIdentityFromSigner returns an identity with an external key, for example in hardware. It
// cannot open sealed bodies, which requires the seed.
func NewIdentityFromSigner(did string, signer crypto.Signer) (*Identity, error) {
	if _, err := parseDID(did, ProfileDeployed); err != nil {
		return nil, err
	}
	if signer == nil {
		return nil, ErrBadKey.err("signer missing")
	}
	pub, ok := signer.Public().(ed25519.PublicKey)
	if !ok {
		return nil, ErrBadKey.err("not an Ed25519 key")
	}
	key, err := NewPublicKey(pub)
	if err != nil {
		return nil, err
	}
	return &Identity{did: did, airID: airIDOf(did), public: key, private: &private{signer: signer}}, nil
}

// GenerateIdentity returns an identity with a new key.
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

// Signer returns the private key as a signer, or nil for the zero Identity.
func (id *Identity) Signer() crypto.Signer {
	if id.isZero() {
		return nil
	}
	return id.signer
}

// isZero reports whether there is no identity, so that constructors refuse it.
func (id *Identity) isZero() bool { return id == nil || id.private == nil }

// Rotate returns the same agent with a new seed and the current key as a retired one.
func (id *Identity) Rotate(seed []byte) (*Identity, error) {
	if id.isZero() || id.seed == nil {
		return nil, errors.New("air: rotating the identity: no seed")
	}
	return NewIdentity(id.did, seed, append([][]byte{id.seed}, id.olds...)...)
}

// open opens a body with the current key, or else with a retired one, and reports which.
func (id *Identity) open(b Binding, body []byte) (plain []byte, retired bool, err error) {
	if id.box == nil {
		return nil, false, errSealed()
	}
	plain, err = id.box.openBody(b, body)
	if err == nil {
		return plain, false, nil
	}
	for _, k := range id.retired {
		if plain, e := k.openBody(b, body); e == nil {
			return plain, true, nil
		}
	}
	return nil, false, err
}

// SaveIdentity atomically writes an identity to a file that only its owner may read.
func SaveIdentity(path string, id *Identity) error {
	if id.isZero() || id.seed == nil {
		return errors.New("air: saving the identity: no seed")
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

// syncFolder syncs the folder of a renamed file. A failed sync is ignored, since some file systems
// cannot sync folders.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("air: saving the identity: %w", err)
	}
	_ = d.Sync()
	return d.Close()
}

// LoadIdentity reads a file of [SaveIdentity]. On Unix it refuses a file to which others have any right, or
// that its group may write; on Windows, modes mean nothing (AIR-D89).
func LoadIdentity(path string) (*Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o027 != 0 {
		return nil, fmt.Errorf("air: loading the identity: mode %#o of %s lets others in, want 0600 or 0640", mode, path)
	}
	return ReadIdentity(f)
}

// maxIdentity bounds the text of an identity.
const maxIdentity = 1 << 20

// ReadIdentity reads the text that [SaveIdentity] writes, for example of a secret manager.
func ReadIdentity(r io.Reader) (*Identity, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxIdentity+1))
	if err != nil {
		return nil, fmt.Errorf("air: loading the identity: %w", err)
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxBytes: maxIdentity})
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
