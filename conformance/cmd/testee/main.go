// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command testee answers the conform command with the packages of this module. It is
// bound to them as the tests of package conformance are.
package main

import (
	"os"
	"testing"

	"github.com/fivewire/fivewire/conformance"
)

func main() {
	out := os.Stdout
	os.Stdout = os.Stderr // of the test, in which state machines have virtual time
	testee := &conformance.Testee{Name: "fivewire", Version: "1", Protocols: conformance.Builtin(),
		Clients: conformance.BuiltinClients()}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "testee",
		F: func(t *testing.T) {
			if err := testee.Serve(t, os.Stdin, out); err != nil {
				t.Fatal(err)
			}
		},
	}}, nil, nil)
}
