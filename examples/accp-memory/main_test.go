// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log"
	"os"
	"slices"
	"testing"
)

// The agents are processes of the test.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-agent") {
		main()
		return
	}
	os.Exit(m.Run())
}

func Example() {
	if err := run(context.Background(), nil, os.Stdout, os.Stderr); err != nil {
		log.Fatal(err)
	}
	// Output:
	// eve: killed
	// ada: knows 9 findings
	// bob: knows 9 findings
	// eve: knows 9 findings
}

func TestUsage(t *testing.T) {
	if run(t.Context(), []string{"-nonsense"}, io.Discard, io.Discard) == nil {
		t.Error("an unknown flag is accepted")
	}
	if run(t.Context(), []string{"-agent", "a", "-dir", t.TempDir(), "-url", "nowhere"}, io.Discard, io.Discard) == nil {
		t.Error("an invalid URL is accepted")
	}
}
