// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tokenizer contains two packages that count tokens exactly and offline: o200k for the
// vocabulary o200k_base, and cl100k for cl100k_base. Each embeds its vocabulary, which adds 3.1 MB
// and 1.5 MB to a program that imports it.
//
//	session, err := accp.NewSession("planner", "s1", &accp.SessionOptions{
//		TokenCounter: o200k.Counter{},
//	})
//
// The vocabularies are embedded as lookup tables, so they need neither loading nor memory, and
// counting does not allocate.
//
// The tests of this package compare the counts with two other implementations, and measure the
// tables in README.md.
//
// Letters, numbers and white space are those of Unicode 15.0. Characters of later versions count as
// symbols.
package tokenizer

//go:generate go run ./internal/gen
