// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import "crypto/sha256"

// HKDF32 is HKDF-SHA256 with an empty salt and 32 bytes of output, for an info of up
// to 63 bytes: four hashes and no allocation. A longer info panics.
func HKDF32(ikm *[32]byte, info []byte) [32]byte {
	if len(info) > 63 {
		panic("floor: HKDF32: info too long")
	}
	prk := hmac256(&[32]byte{}, ikm[:])
	var b [64]byte
	t := append(b[:0], info...)
	return hmac256(&prk, append(t, 1))
}

// hmac256 is HMAC-SHA256 of a message of up to 64 bytes.
func hmac256(key *[32]byte, msg []byte) [32]byte {
	var in [128]byte
	var out [96]byte
	for i := range 64 {
		var k byte
		if i < 32 {
			k = key[i]
		}
		in[i], out[i] = k^0x36, k^0x5c
	}
	n := copy(in[64:], msg)
	h := sha256.Sum256(in[:64+n])
	copy(out[64:], h[:])
	return sha256.Sum256(out[:])
}
