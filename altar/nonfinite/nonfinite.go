// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package nonfinite has a type of numbers that may also be NaN or infinite, for parameters and results
// of tools of ALTAR.
package nonfinite

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// A Float is a parameter of type float where the option AllowNonFinite is set at both sides. JSON has no
// such numbers, so they are written as strings (ALT-D09).
type Float float64

// MarshalJSON writes a number, or one of the three strings.
func (f Float) MarshalJSON() ([]byte, error) {
	switch v := float64(f); {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Infinity"`), nil
	default:
		return json.Marshal(v)
	}
}

// UnmarshalJSON reads the output of MarshalJSON.
func (f *Float) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case `"NaN"`:
		*f = Float(math.NaN())
	case `"Infinity"`:
		*f = Float(math.Inf(1))
	case `"-Infinity"`:
		*f = Float(math.Inf(-1))
	case "null":
	default:
		v, err := strconv.ParseFloat(string(data), 64)
		if err != nil {
			return fmt.Errorf("nonfinite: %w", err)
		}
		*f = Float(v)
	}
	return nil
}
