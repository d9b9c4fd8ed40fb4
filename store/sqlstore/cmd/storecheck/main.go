// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command storecheck verifies an SQLite file of package sqlstore that no process has open, and
// prints a report as JSON. It changes nothing. It runs in a module that requires package sqlstore:
//
//	go run github.com/fivewire/fivewire/store/sqlstore/cmd/storecheck FILE
//
// The exit status is 0 for a whole file, 1 for damage, and 2 if the file could not be verified.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/fivewire/fivewire/store/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("storecheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {} // is written below
	const usage = "Usage: storecheck FILE\n\nVerifies an SQLite file of package sqlstore that no process has open."
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, usage)
		return 0
	case err != nil || flags.NArg() != 1:
		fmt.Fprintln(stderr, usage)
		return 2
	}
	report, err := sqlstore.VerifyFile(ctx, flags.Arg(0))
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
