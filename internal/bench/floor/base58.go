// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import "math/bits"

// b58 is the alphabet of Bitcoin.
const b58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

const p58x10 = 430804206899405824 // 58^10

// unb58 holds the value of each digit, 0xff for all else.
var unb58 = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range len(b58) {
		t[b58[i]] = byte(i)
	}
	return
}()

// Enc58 appends the base58btc text of 64 bytes to dst, by nine divisions of the
// number by 58^10.
func Enc58(dst []byte, in *[64]byte) []byte {
	var n [8]uint64
	for i := range n {
		for _, b := range in[i*8 : i*8+8] {
			n[i] = n[i]<<8 | uint64(b)
		}
	}
	var d [90]byte
	p, top := len(d), 0
	for p > 0 {
		var r uint64
		for i := top; i < 8; i++ {
			n[i], r = bits.Div64(r, n[i], p58x10)
		}
		for range 10 {
			p--
			d[p] = b58[r%58]
			r /= 58
		}
		for top < 8 && n[top] == 0 {
			top++
		}
	}
	zeros := 0
	for zeros < 64 && in[zeros] == 0 {
		zeros++
	}
	st := 0
	for st < len(d) && d[st] == '1' {
		st++
	}
	for range zeros {
		dst = append(dst, '1')
	}
	return append(dst, d[st:]...)
}

// Dec58 decodes the base58btc text of exactly 64 bytes; it reports false if s is invalid.
func Dec58(out *[64]byte, s []byte) bool {
	var n [8]uint64
	if len(s) > 90 {
		return false
	}
	for i := 0; i < len(s); {
		k := (len(s)-i-1)%10 + 1
		var v, mul uint64 = 0, 1
		for _, c := range s[i : i+k] {
			x := unb58[c]
			if x == 0xff {
				return false
			}
			v = v*58 + uint64(x)
			mul *= 58
		}
		i += k
		carry := v
		for j := 7; j >= 0; j-- {
			h, l := bits.Mul64(n[j], mul)
			var c uint64
			n[j], c = bits.Add64(l, carry, 0)
			carry = h + c
		}
		if carry != 0 {
			return false
		}
	}
	for i, v := range n {
		for j := 7; j >= 0; j-- {
			out[i*8+j] = byte(v)
			v >>= 8
		}
	}
	ones, zeros := 0, 0
	for ones < len(s) && s[ones] == '1' {
		ones++
	}
	for zeros < 64 && out[zeros] == 0 {
		zeros++
	}
	return ones == zeros
}
