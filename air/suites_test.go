// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
)

// suite reads a file of a test suite that others publish.
func suite(t *testing.T, dst any, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{os.Getenv("FIVEWIRE_TESTDATA")}, path...)...))
	if os.Getenv("FIVEWIRE_TESTDATA") == "" || os.IsNotExist(err) {
		t.Skip("FIVEWIRE_TESTDATA has no folder " + path[0])
	}
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, dst))
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	return b
}

// Keys of CCTV for Ed25519 with a component of low order, or another encoding, are refused. How signatures of such keys
// are verified does not matter then (AIR-D31).
func TestKeysOfCCTV(t *testing.T) {
	var cases []struct {
		Key   string
		Flags []string
	}
	suite(t, &cases, "CCTV", "ed25519", "ed25519vectors.json")
	total, refused := 0, 0
	for _, c := range cases {
		_, err := air.NewPublicKey(unhex(t, c.Key))
		total++
		if slices.ContainsFunc(c.Flags, func(flag string) bool { return strings.HasSuffix(flag, "_A") }) {
			require.ErrorIs(t, err, air.ErrBadKey, c.Key)
			refused++
			continue
		}
		require.NoError(t, err, c.Key)
	}
	require.Equal(t, []int{914, 886}, []int{total, refused})
}

// The keys of Wycheproof for Ed25519 are keys of agents.
func TestEd25519KeysOfWycheproof(t *testing.T) {
	var file struct {
		TestGroups []struct {
			PublicKey struct{ PK string }
		}
	}
	suite(t, &file, "wycheproof", "testvectors_v1", "ed25519_test.json")
	require.Len(t, file.TestGroups, 78)
	for _, g := range file.TestGroups {
		_, err := air.NewPublicKey(unhex(t, g.PublicKey.PK))
		require.NoError(t, err, g.PublicKey.PK)
	}
}

// Of the keys of Wycheproof for X25519 those that are not reduced are refused (AIR-D36).
func TestX25519KeysOfWycheproof(t *testing.T) {
	var file struct {
		TestGroups []struct {
			Tests []struct {
				Public string
			}
		}
	}
	suite(t, &file, "wycheproof", "testvectors_v1", "x25519_test.json")
	prime := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	total, refused := 0, 0
	for _, g := range file.TestGroups {
		for _, c := range g.Tests {
			key := unhex(t, c.Public)
			_, err := air.DecodeKey(air.KeyX25519, air.EncodeKey(air.KeyX25519, key))
			total++
			if slices.Reverse(key); new(big.Int).SetBytes(key).Cmp(prime) >= 0 {
				require.ErrorIs(t, err, air.ErrBadKey, c.Public)
				refused++
				continue
			}
			require.NoError(t, err, c.Public)
		}
	}
	require.Equal(t, []int{518, 29}, []int{total, refused})
}
