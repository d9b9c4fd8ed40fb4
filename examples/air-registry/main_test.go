// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log"
	"os"
)

func Example() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1 agent is called weather, trusted with 500
	// the courier says: I know who runs it.
	// weather has a new key
	// weather got {"text":"Rain?","type":"question"}
}
