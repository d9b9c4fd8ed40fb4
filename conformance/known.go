// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A KnownFailure is a case that fails for a documented reason.
type KnownFailure struct {
	ID      string // of the case
	Package string // whose work ends the failure, such as "arc" or "air/relay"
	Ref     string // decisions (ARC-D73) and sections ("section 7.2") that the case rests on
	Reason  string // one line: what is missing
}

// String returns the reason with the package and the reference in front of it,
// as reports show it.
func (k KnownFailure) String() string {
	if k.Package == "" && k.Ref == "" {
		return k.Reason
	}
	return k.Package + ", " + k.Ref + ": " + k.Reason
}

// KnownFailures returns the list that this package carries for the protocols
// of [Builtin].
func KnownFailures() ([]KnownFailure, error) {
	file := "testdata/" + knownFailuresFile
	data, err := testdata.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return readKnownFailures(file, data)
}

// ReadKnownFailures reads a list of the same form from a file, for [Options].
func ReadKnownFailures(file string) ([]KnownFailure, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return readKnownFailures(file, data)
}

var (
	isPackage = regexp.MustCompile(`^[a-z][a-z0-9]*(?:/[a-z][a-z0-9]*)*$`)

	// knownRef matches a list of decisions, requirements and sections. A decision
	// names its protocol, because the list is shared by all of them.
	knownRef = regexp.MustCompile(`^` + oneRef + `(?:, ` + oneRef + `)*$`)
)

const oneRef = `(?:(?:ARC|A2E|ALT|ACCP|AIR)-D?[0-9]{2,3}|section [0-9a-z]+(?:\.[0-9]+)*)`

// readKnownFailures reads a list of objects with the members id, package, ref
// and reason, in ascending order of the ids.
func readKnownFailures(file string, data []byte) ([]KnownFailure, error) {
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return nil, positioned(file, data, err)
	}
	if !v.IsArray() {
		return nil, fmt.Errorf("%s: want a list", file)
	}
	failures := []KnownFailure{}
	last := ""
	for e := v.Elements(); e.Next(); {
		k, err := readKnownFailure(e.Value)
		if err == nil && k.ID <= last {
			err = fmt.Errorf("the ids are not in ascending order: %s follows %s", k.ID, last)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: [%d]%s: %w", file, len(failures), named(e.Value), err)
		}
		last = k.ID
		failures = append(failures, k)
	}
	return failures, nil
}

func readKnownFailure(v strictjson.Value) (KnownFailure, error) {
	r := reader{value: v}
	k := KnownFailure{ID: r.text("id"), Package: r.text("package"), Ref: r.text("ref"), Reason: r.text("reason")}
	if err := r.done(); err != nil {
		return k, err
	}
	if !isPackage.MatchString(k.Package) {
		return k, fmt.Errorf("package: want a path such as arc or air/relay, not %q", k.Package)
	}
	if !knownRef.MatchString(k.Ref) {
		return k, errors.New(
			"ref: want decisions such as ARC-D73 and sections such as section 7.2, separated by a comma and a space")
	}
	if strings.ContainsAny(k.Reason, "\r\n") {
		return k, errors.New("reason: want one line")
	}
	return k, nil
}
