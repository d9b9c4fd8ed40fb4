// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"testing"

	"filippo.io/edwards25519"
	"github.com/stretchr/testify/require"
)

// mixed returns the sum of a good key and a point of order eight.
func mixed(t *testing.T) []byte {
	_, pub := key(t, 1)
	p, err := new(edwards25519.Point).SetBytes(pub.Bytes())
	require.NoError(t, err)
	q, err := new(edwards25519.Point).SetBytes(decode(t, "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"))
	require.NoError(t, err)
	return p.Add(p, q).Bytes()
}
