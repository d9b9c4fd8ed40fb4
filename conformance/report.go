// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"time"
)

// A Status is what came of a case.
type Status string

// The states of a case that has run.
const (
	Passed Status = "passed"
	Failed Status = "failed"
	Known  Status = "known failure" // failed, as its entry in the list of known failures says
)

// A Result is what came of one case.
type Result struct {
	ID       string  `json:"id"`
	Protocol string  `json:"protocol"`
	Suite    string  `json:"suite"`
	Doc      string  `json:"doc"`
	Ref      string  `json:"ref"`
	Op       string  `json:"op"`
	Source   string  `json:"source"`
	Status   Status  `json:"status"`
	Seconds  float64 `json:"seconds"`

	// The rest is there only if the case did not pass.

	Reason      string            `json:"reason,omitempty"`  // of a known failure
	Message     string            `json:"message,omitempty"` // what went wrong
	Differences []Difference      `json:"differences,omitempty"`
	In          json.RawMessage   `json:"in,omitempty"`
	Want        json.RawMessage   `json:"want,omitempty"`
	WantErr     json.RawMessage   `json:"wantErr,omitempty"`
	Got         []json.RawMessage `json:"got,omitempty"` // one, or those of the steps that ran
}

// A Report is what came of a run.
type Report struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Faults  []string  `json:"faults,omitempty"` // of the folders
	Results []Result  `json:"results"`
}
