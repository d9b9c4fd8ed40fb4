// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
)

// published returns a file of the test data that the authors of the specification
// publish (AIR-167). They are not part of this module.
func published(t *testing.T, name string) []byte {
	t.Helper()
	dir := os.Getenv("FIVEWIRE_TESTDATA")
	if dir == "" {
		t.Skip("FIVEWIRE_TESTDATA does not name the folder with the published files")
	}
	data, err := os.ReadFile(filepath.Join(dir, "air", name))
	require.NoError(t, err)
	return data
}

// The gate of section 13: all vectors, no failure (AIR-009, AIR-062, AIR-069, AIR-078, AIR-135,
// AIR-140..142, AIR-168).
func TestPublishedSigningVectors(t *testing.T) {
	var file struct {
		Vectors []struct {
			ID        string
			Envelope  json.RawMessage `json:"input_envelope"`
			SHA256    string          `json:"expected_canonical_bytes_sha256_hex"`
			Seed      string          `json:"signing_key_seed_hex"`
			PublicKey string          `json:"signing_key_public_multibase"`
			Signature string          `json:"expected_signature_multibase"`
		}
	}
	require.NoError(t, json.Unmarshal(published(t, "test-vectors.json"), &file))
	require.Len(t, file.Vectors, 20)
	for _, v := range file.Vectors {
		t.Run(v.ID, func(t *testing.T) {
			input, err := air.SigningInput(v.Envelope, air.FormDeployed)
			require.NoError(t, err)
			sum := sha256.Sum256(input)
			require.Equal(t, v.SHA256, hex.EncodeToString(sum[:]))
			seed, err := hex.DecodeString(v.Seed)
			require.NoError(t, err)
			key := ed25519.NewKeyFromSeed(seed)
			require.Equal(t, v.PublicKey, air.EncodeKey(air.KeyEd25519, key.Public().(ed25519.PublicKey)))
			wire, err := air.Sign(v.Envelope, key, air.FormDeployed)
			require.NoError(t, err)
			var signed struct{ Signature string }
			require.NoError(t, json.Unmarshal(wire, &signed))
			require.Equal(t, v.Signature, signed.Signature)
			pub, err := air.ParsePublicKey(v.PublicKey)
			require.NoError(t, err)
			form, err := air.Verify(wire, pub, "")
			require.NoError(t, err)
			require.Equal(t, air.FormDeployed, form)
		})
	}
}

// Both published boxes are made and opened byte for byte (AIR-159).
func TestPublishedSealedVectors(t *testing.T) {
	var file struct {
		Vectors []struct {
			Seed string `json:"recipient_seed_hex"`
			Env  struct {
				ID, From, To string
				ThreadID     string `json:"thread_id"`
			}
			Eph      string `json:"eph_secret_hex"`
			Nonce    string `json:"nonce_hex"`
			Body     json.RawMessage
			Expected json.RawMessage
		}
	}
	require.NoError(t, json.Unmarshal(published(t, "e2e-interop-vectors.json"), &file))
	require.Len(t, file.Vectors, 2)
	for _, v := range file.Vectors {
		seed, err := hex.DecodeString(v.Seed)
		require.NoError(t, err)
		random, err := hex.DecodeString(v.Eph + v.Nonce)
		require.NoError(t, err)
		pub, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
		require.NoError(t, err)
		b := air.Binding{ID: v.Env.ID, From: v.Env.From, To: v.Env.To, ThreadID: v.Env.ThreadID}
		box, err := air.SealWith(bytes.NewReader(random), pub, b, v.Body)
		require.NoError(t, err)
		require.JSONEq(t, string(v.Expected), string(box))
		key, err := air.NewBoxKey(seed)
		require.NoError(t, err)
		plain, err := key.Open(b, v.Expected)
		require.NoError(t, err)
		require.JSONEq(t, string(v.Body), string(plain))
	}
}

// The 50 example envelopes are valid under the profile of the text. Their
// signatures are dummies.
func TestPublishedExamples(t *testing.T) {
	published(t, "test-vectors.json")
	files, err := filepath.Glob(filepath.Join(os.Getenv("FIVEWIRE_TESTDATA"), "air", "examples", "*.json"))
	require.NoError(t, err)
	require.Len(t, files, 50)
	for _, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		e, err := air.DecodeEnvelope(data, &air.DecodeOptions{Profile: air.ProfileSpec})
		require.NoError(t, err, name)
		want, err := air.Canonicalize(data)
		require.NoError(t, err)
		require.Equal(t, string(want), string(e.Bytes()), name)
	}
}
