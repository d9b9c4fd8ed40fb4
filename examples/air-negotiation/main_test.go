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
	// seller got an Offer of 200 USD (sealed)
	// buyer did not take an envelope: bad_signature
	// buyer did not take an envelope: bad_signature
	// buyer got a Counter of 300 USD
	// seller got an Accept of 300 USD (sealed)
	// seller crashed before acknowledging
	// seller did not take an envelope: replay
	// closed_accepted at 300 USD
	// closed_accepted at 300 USD
}
