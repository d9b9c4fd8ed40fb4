// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
)

func Example() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// offered: {"name":"bank__transfer","description":"Transfers an amount in cents","parameters":{"type":"object","properties":{"account":{"type":["integer","string"],"description":"number of the account","pattern":"^-?(0|[1-9][0-9]{0,18})$","format":"int64"},"cents":{"type":["integer","string"],"pattern":"^-?(0|[1-9][0-9]{0,18})$","format":"int64"},"receipt":{"type":"string","description":"a file to attach","contentEncoding":"base64"}},"required":["account","cents"],"additionalProperties":false}}
	// model calls bank/transfer with {"account":"9007199254740993","cents":"12.50","memo":"rent"}
	// answer: INVALID_PARAMETERS, /cents: wrong_type, /memo: unknown_parameter
	// model calls bank/transfer with {"account":"9007199254740993","cents":1250,"receipt":"aGVsbG8"}
	// answer: "1250 cents to 9007199254740993, receipt of 5 bytes"
	// model: Done: "1250 cents to 9007199254740993, receipt of 5 bytes"
}
