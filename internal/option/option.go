// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package option has the one rule for zero and negative values of options.
package option

import (
	"math"
	"time"
)

// Values that stand for no bound, and the largest bounds: twice such a value does not overflow.
const (
	None    int           = math.MaxInt / 2
	NoBytes int64         = math.MaxInt64 / 2
	Off     time.Duration = math.MaxInt64 / 2
)

// Or returns the value of an option: zero stands for the default, and a negative value
// for off. A larger value than [NoBytes] becomes that.
func Or[T int | int64 | time.Duration](v, standard, off T) T {
	switch {
	case v < 0:
		return off
	case v == 0:
		return standard
	}
	return T(min(int64(v), NoBytes))
}

// Count returns the bound of an option: zero stands for the default, and a negative
// value for [None].
func Count(v, standard int) int { return min(Or(v, standard, None), None) }

// Bytes returns the bound of an option that may exceed 32 bits: zero stands for the
// default, and a negative value for [NoBytes].
func Bytes(v, standard int64) int64 { return Or(v, standard, NoBytes) }

// Duration returns the duration of an option: zero stands for the default, and a
// negative value for [Off].
func Duration(v, standard time.Duration) time.Duration { return Or(v, standard, Off) }
