// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command storecheck verifies the folder of an embedded server that no process uses, and
// prints a report as JSON. It changes nothing.
//
//	go run github.com/fivewire/fivewire/store/natsstore/cmd/storecheck DIR
//
// The exit status is 0 for a whole folder, 1 for damage, and 2 if the folder could not be verified.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("storecheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {} // is written below
	const usage = "Usage: storecheck DIR\n\nVerifies the folder of an embedded server that no process uses."
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, usage)
		return 0
	case err != nil || flags.NArg() != 1:
		fmt.Fprintln(stderr, usage)
		return 2
	}
	report, err := embedded.Verify(flags.Arg(0))
	if err != nil {
		fmt.Fprintln(stderr, "storecheck:", err)
		return 2
	}
	out := json.NewEncoder(stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(report); err != nil {
		fmt.Fprintln(stderr, "storecheck:", err)
		return 2
	}
	if report.Err() != nil {
		return 1
	}
	return 0
}
