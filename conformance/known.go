// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A KnownFailure is a case that is known to fail, and why.
type KnownFailure struct {
	ID     string
	Reason string
}

// KnownFailures returns the list that this package carries for the protocols
// of [Builtin].
func KnownFailures() ([]KnownFailure, error) {
	return readKnownFailures(testdata, "testdata/"+knownFailuresFile)
}

// readKnownFailures reads a list of objects with the members id and reason.
func readKnownFailures(fsys fs.FS, file string) ([]KnownFailure, error) {
	data, err := fs.ReadFile(fsys, file)
	if err != nil {
		return nil, err
	}
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return nil, positioned(file, data, err)
	}
	if !v.IsArray() {
		return nil, fmt.Errorf("%s: want a list", file)
	}
	known := []KnownFailure{}
	seen := make(map[string]bool)
	for e := v.Elements(); e.Next(); {
		r := reader{value: e.Value}
		k := KnownFailure{ID: r.text("id"), Reason: r.text("reason")}
		err := r.done()
		if err == nil && seen[k.ID] {
			err = errors.New("stands twice")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: [%d]%s: %w", file, len(known), named(e.Value), err)
		}
		seen[k.ID] = true
		known = append(known, k)
	}
	return known, nil
}
