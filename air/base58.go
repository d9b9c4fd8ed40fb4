// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"math/bits"
)

const (
	base58Digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
	base58Group  = 430804206899405824 // 58^10, the largest power that fits into a word
)

// appendBase58 appends the base58btc text of at most 64 bytes. It divides a number of eight words
// by 58^10, so the cost is small compared with a signature.
func appendBase58(dst, in []byte) []byte {
	var n [8]uint64
	for i, b := range in {
		k := 64 - len(in) + i
		n[k/8] |= uint64(b) << (56 - k%8*8)
	}
	var d [90]byte
	p, top := len(d), 0
	for p > 0 {
		var r uint64
		for i := top; i < 8; i++ {
			n[i], r = bits.Div64(r, n[i], base58Group)
		}
		for range 10 {
			p--
			d[p] = base58Digits[r%58]
			r /= 58
		}
		for top < 8 && n[top] == 0 {
			top++
		}
	}
	st := 0
	for st < len(d) && d[st] == '1' {
		st++
	}
	for _, b := range in { // each leading zero byte is written as a 1
		if b != 0 {
			break
		}
		dst = append(dst, '1')
	}
	return append(dst, d[st:]...)
}

// decodeBase58 fills out, of at most 64 bytes, from base58btc text. It refuses every text that
// [appendBase58] does not produce.
func decodeBase58[T string | []byte](out []byte, s T) bool {
	if len(s) > 90 {
		return false
	}
	var n [8]uint64
	for i := 0; i < len(s); {
		e := i + (len(s)-i-1)%10 + 1
		var v, mul uint64 = 0, 1
		for ; i < e; i++ {
			x := base58Value(s[i])
			if x < 0 {
				return false
			}
			v = v*58 + uint64(x)
			mul *= 58
		}
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
	for k := range 64 {
		b := byte(n[k/8] >> (56 - k%8*8))
		if i := k - 64 + len(out); i >= 0 {
			out[i] = b
		} else if b != 0 {
			return false
		}
	}
	ones, zeros := 0, 0
	for ones < len(s) && s[ones] == '1' {
		ones++
	}
	for zeros < len(out) && out[zeros] == 0 {
		zeros++
	}
	return ones == zeros
}

func base58Value(c byte) int {
	switch {
	case c >= '1' && c <= '9':
		return int(c - '1')
	case c >= 'A' && c <= 'H':
		return int(c-'A') + 9
	case c >= 'J' && c <= 'N':
		return int(c-'J') + 17
	case c >= 'P' && c <= 'Z':
		return int(c-'P') + 22
	case c >= 'a' && c <= 'k':
		return int(c-'a') + 33
	case c >= 'm' && c <= 'z':
		return int(c-'m') + 44
	}
	return -1
}
