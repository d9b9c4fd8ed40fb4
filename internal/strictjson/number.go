// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// decimal is a number as digits times ten to the exp. The digits have no zero at
// either end; those of zero are empty.
type decimal struct {
	neg    bool
	digits string
	exp    int64
}

// parseDecimal takes a number apart without ever writing it out. It gives up on
// exponents of more than 18 digits.
func parseDecimal(v []byte) (d decimal, ok bool) {
	d.neg = v[0] == '-'
	if d.neg {
		v = v[1:]
	}
	mantissa := v
	ok = true
	if i := bytes.IndexAny(v, "eE"); i >= 0 {
		mantissa = v[:i]
		exp, neg := strings.CutPrefix(string(v[i+1:]), "-")
		exp = strings.TrimLeft(strings.TrimPrefix(exp, "+"), "0")
		if ok = len(exp) <= 18; ok && exp != "" {
			d.exp, _ = strconv.ParseInt(exp, 10, 64)
		}
		if neg {
			d.exp = -d.exp
		}
	}
	whole, fraction, _ := bytes.Cut(mantissa, []byte{'.'})
	d.exp -= int64(len(fraction))
	digits := strings.TrimLeft(string(whole)+string(fraction), "0")
	trimmed := strings.TrimRight(digits, "0")
	d.exp += int64(len(digits) - len(trimmed))
	d.digits = trimmed
	if trimmed == "" {
		return decimal{}, true // zero, whatever its sign and exponent
	}
	return d, ok
}

// maxExponent bounds the digits of exponents that are compared by value.
const maxExponent = 1024

// EqualNumbers reports whether two numbers have the same decimal value. Its cost
// depends on the length of their texts only, however large their exponents are.
// Numbers with exponents of more than 1024 digits are equal if they are written
// alike.
func EqualNumbers(a, b Value) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, ok1 := parseDecimal(a)
	y, ok2 := parseDecimal(b)
	if ok1 && ok2 {
		return x == y
	}
	if x.neg != y.neg || x.digits != y.digits {
		return false
	}
	m, ok1 := x.exponent(a, ok1)
	n, ok2 := y.exponent(b, ok2)
	return ok1 && ok2 && m.Cmp(n) == 0
}

// IsIntegral reports whether a number has no fraction, however it is written and however large it
// is: 3, 3.0 and 3e1 have none.
func IsIntegral(v Value) bool {
	d, ok := parseDecimal(v)
	if ok {
		return d.exp >= 0
	}
	return v[bytes.IndexAny(v, "eE")+1] != '-' // the sign of an exponent of this size decides
}

// Rounded reports whether a number of a value that encoding/json has decoded into an any is at least 1<<53: other
// integers become the same float64, so the text may have had another one.
func Rounded(x any) bool {
	switch x := x.(type) {
	case float64:
		return math.Abs(x) >= 1<<53
	case []any:
		return slices.ContainsFunc(x, Rounded)
	case map[string]any:
		for _, e := range x {
			if Rounded(e) {
				return true
			}
		}
	}
	return false
}

// exponent is the exponent of d, which was parsed from v. If that gave up on the
// one in the text, exp holds the share of the decimal point.
func (d decimal) exponent(v []byte, parsed bool) (*big.Int, bool) {
	e := big.NewInt(d.exp)
	if parsed {
		return e, true
	}
	text := v[bytes.IndexAny(v, "eE")+1:]
	if len(text) > maxExponent {
		return nil, false
	}
	n, ok := new(big.Int).SetString(string(text), 10)
	if ok {
		e.Add(e, n)
	}
	return e, ok
}

// AppendFloat appends a finite number of 32 or 64 bits in the shortest form that reads back
// to the same number, as ECMAScript prints it. Minus zero loses its sign.
func AppendFloat(dst []byte, x float64, bits int) []byte {
	if x == 0 {
		return append(dst, '0')
	}
	if abs := math.Abs(x); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(dst, x, 'f', -1, bits)
	}
	dst = strconv.AppendFloat(dst, x, 'e', -1, bits)
	if n := len(dst); dst[n-2] == '0' && dst[n-3] == '-' { // e-07 is written e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}
