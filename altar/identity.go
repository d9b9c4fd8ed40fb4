// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"math/big"
	"slices"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// appendIdentity appends a text that is the same for equal values only.
func appendIdentity(dst []byte, v strictjson.Value) []byte {
	switch v.Kind() {
	case '"':
		text, _ := v.TextBytes()
		return strictjson.AppendString(dst, text)
	case '0':
		return appendNumberIdentity(dst, v)
	case '[':
		dst = append(dst, '[')
		for e := v.Elements(); e.Next(); {
			dst = append(appendIdentity(dst, e.Value), ',')
		}
		return append(dst, ']')
	case '{':
		type member struct {
			name  []byte
			value strictjson.Value
		}
		var few [16]member
		members := few[:0]
		for m := v.Members(); m.Next(); {
			members = append(members, member{m.Name, m.Value})
		}
		slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
		dst = append(dst, '{')
		for _, m := range members {
			dst = append(strictjson.AppendString(dst, m.name), ':')
			dst = append(appendIdentity(dst, m.value), ',')
		}
		return append(dst, '}')
	}
	return append(dst, bytes.TrimSpace(v)...) // true, false, null
}

// appendNumberIdentity appends a number as its significant digits and a power of
// ten.
func appendNumberIdentity(dst []byte, v strictjson.Value) []byte {
	text := bytes.TrimSpace(v)
	mantissa, power := text, []byte(nil)
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		mantissa, power = text[:i], text[i+1:]
	}
	if len(power) > 1024 {
		return append(dst, text...) // as for EqualNumbers
	}
	mantissa, negative := bytes.CutPrefix(mantissa, []byte{'-'})
	whole, fraction, _ := bytes.Cut(mantissa, []byte{'.'})
	digits := whole
	if len(fraction) > 0 {
		digits = append(bytes.Clone(whole), fraction...)
	}
	digits = bytes.TrimLeft(digits, "0")
	trimmed := bytes.TrimRight(digits, "0")
	if len(trimmed) == 0 {
		return append(dst, '0')
	}
	if negative {
		dst = append(dst, '-')
	}
	dst = append(append(dst, trimmed...), 'e')
	if len(power) == 0 {
		return appendInt(dst, int64(len(digits)-len(trimmed)-len(fraction)))
	}
	exponent := new(big.Int)
	exponent.SetString(string(bytes.TrimPrefix(power, []byte{'+'})), 10)
	exponent.Add(exponent, big.NewInt(int64(len(digits)-len(trimmed)-len(fraction))))
	return exponent.Append(dst, 10)
}
