// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import "errors"

// CheckMember checks the ranges, and a correction against its polarity and span (A2E-D53).
func (f *Feedback) CheckMember(name string) error {
	switch {
	case name == "score" && (f.Score < -1 || f.Score > 1),
		name == "confidence" && f.Confidence != nil && (*f.Confidence < 0 || *f.Confidence > 1),
		name == "correction" && f.Polarity == PolarityCorrective && f.Correction == "",
		name == "correction_span" && f.CorrectionSpan != nil && len(f.CorrectionSpan) != 2:
		return errors.New("learn: the value is not allowed")
	}
	return nil
}

// Polarities of a [Feedback].
const (
	PolarityPositive   = "positive"
	PolarityNegative   = "negative"
	PolarityNeutral    = "neutral"
	PolarityCorrective = "corrective"
)
