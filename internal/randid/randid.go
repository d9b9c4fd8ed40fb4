// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package randid makes random identifiers. Their randomness comes from
// crypto/rand, so that knowing some tells nothing about the next: an identifier
// may serve as a weak capability. All functions may be called from several
// goroutines.
package randid

import (
	crand "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// alphabet is Crockford's base 32 in lower case: no i, l, o or u, and in the
// order of ASCII.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// textLen is the length of 128 bits in base 32.
const textLen = 26

// maxStack is the longest prefix for which New makes a single allocation.
const maxStack = 64 - textLen

// New returns prefix and 26 characters of [0-9a-z] that hold 128 random bits. It
// costs one allocation for a prefix of up to 38 bytes.
func New(prefix string) string {
	var s [maxStack + textLen]byte
	return string(Append(append(s[:0], prefix...)))
}

// Append appends the 26 characters of [New] to dst.
func Append(dst []byte) []byte {
	var b [16]byte
	crand.Read(b[:]) // never fails and always fills
	return append32(dst, b)
}

// append32 appends the number b in base 32, the first digit holding 3 bits.
func append32(dst []byte, b [16]byte) []byte {
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	var s [textLen]byte
	for i := textLen - 1; i >= 0; i-- {
		s[i] = alphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return append(dst, s[:]...)
}

// UUID4 returns a random UUID, version 4, in lower case with hyphens.
func UUID4() string {
	b := uuid4()
	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:36], b[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// UUID4Hex returns a random UUID, version 4, as 32 hexadecimal digits.
func UUID4Hex() string {
	b := uuid4()
	var s [32]byte
	hex.Encode(s[:], b[:])
	return string(s[:])
}

// uuid4 returns random bytes with version 4 and the variant of RFC 9562.
func uuid4() (b [16]byte) {
	crand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return b
}

// random is the source of Rand. It has no state.
var random = rand.New(source{})

type source struct{}

// Uint64 implements the interface of a source.
func (source) Uint64() uint64 {
	var b [8]byte
	crand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Rand returns random numbers for jitter and order. They come from crypto/rand, which a test can
// make repeatable. Its methods may be called from several goroutines.
func Rand() *rand.Rand { return random }
