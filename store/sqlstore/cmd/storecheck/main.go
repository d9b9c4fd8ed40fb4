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
	if len(args) != 1 {
		fmt.Fprintln(stderr, "usage: storecheck FILE")
		return 2
	}
	report, err := sqlstore.VerifyFile(ctx, args[0])
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
