// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import "github.com/fivewire/fivewire/a2e"

// CheckMember holds a correction to what the polarity and the span ask of it
// (A2E-D53).
func (f *Feedback) CheckMember(name string) (path, reason string) {
	switch {
	case name == "correction" && f.Polarity == PolarityCorrective && f.Correction == "",
		name == "correction_span" && f.CorrectionSpan != nil && len(f.CorrectionSpan) != 2:
		return "", a2e.ReasonValue
	}
	return "", ""
}

// Polarities of a [Feedback].
const (
	PolarityPositive   = "positive"
	PolarityNegative   = "negative"
	PolarityNeutral    = "neutral"
	PolarityCorrective = "corrective"
)
