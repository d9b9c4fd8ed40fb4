// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import "strconv"

// decimalPlaces is the maximum number of digits after the point on the wire.
const decimalPlaces = 6

// splitDecimal splits [-]digits[.digits].
func splitDecimal(s string) (neg bool, whole, frac string, ok bool) {
	k := numberForm(s)
	if k == KindString {
		return false, "", "", false
	}
	if s[0] == '-' {
		neg, s = true, s[1:]
	}
	for i := 0; i < len(s); i++ {
		if s[i] == '.' {
			return neg, s[:i], s[i+1:], true
		}
	}
	return neg, s, "", true
}

// joinDecimal returns a decimal without redundant zeros and negative zero. One digit after the
// point remains, so that the type survives (ACCP-D08).
func joinDecimal(neg bool, whole, frac string) string {
	for len(whole) > 1 && whole[0] == '0' {
		whole = whole[1:]
	}
	for len(frac) > 1 && frac[len(frac)-1] == '0' {
		frac = frac[:len(frac)-1]
	}
	if frac == "" {
		frac = "0"
	}
	if neg && !(whole == "0" && frac == "0") {
		return "-" + whole + "." + frac
	}
	return whole + "." + frac
}

// trimDecimal removes the redundant zeros of a decimal or an integer. It keeps all places.
func trimDecimal(s string) string {
	if canonicalDecimal(s) {
		return s
	}
	neg, whole, frac, _ := splitDecimal(s)
	return joinDecimal(neg, whole, frac)
}

// canonicalDecimal reports whether a decimal is canonical except for rounding.
func canonicalDecimal(s string) bool {
	neg, whole, frac, ok := splitDecimal(s)
	return ok && frac != "" && (len(whole) == 1 || whole[0] != '0') &&
		(len(frac) == 1 || frac[len(frac)-1] != '0') &&
		!(neg && whole == "0" && frac == "0")
}

// roundDecimal rounds a decimal to six places, half to even, on its exact value
// (ACCP-D08). Lost reports whether that changed the value.
func roundDecimal(s string) (text string, lost bool) {
	neg, whole, frac, _ := splitDecimal(s)
	if len(frac) <= decimalPlaces {
		return joinDecimal(neg, whole, frac), false
	}
	digits := []byte(whole + frac[:decimalPlaces])
	rest := frac[decimalPlaces:]
	zero := true // the digits after the first one of rest
	for i := 1; i < len(rest); i++ {
		zero = zero && rest[i] == '0'
	}
	up := rest[0] > '5' || rest[0] == '5' && (!zero || (digits[len(digits)-1]-'0')%2 == 1)
	lost = rest[0] != '0' || !zero
	if up {
		i := len(digits) - 1
		for ; i >= 0; i-- {
			if digits[i] != '9' {
				digits[i]++
				break
			}
			digits[i] = '0'
		}
		if i < 0 {
			digits = append([]byte{'1'}, digits...)
		}
	}
	n := len(digits) - decimalPlaces
	return joinDecimal(neg, string(digits[:n]), string(digits[n:])), lost
}

// floatText returns the shortest decimal text of f without exponent (ACCP-D09).
func floatText(f float64) (string, error) {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if numberForm(s) == KindString {
		return "", fail(ErrInvalidType, "not a finite number")
	}
	return s, nil
}
