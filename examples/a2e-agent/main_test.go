// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
)

func Example() {
	if err := run(context.Background(), os.Stdout, nil); err != nil {
		panic(err)
	}
	// Output:
	// tool: count_words: Count the words of a text
	// event: progress {"message":"counting"}
	// result: 3 words
	// remembered: "they were small"
	// process: hello
}
