// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tokenizer is the roof over two packages that count tokens as models do,
// exactly and offline: o200k for the vocabulary o200k_base, and cl100k for
// cl100k_base. Each carries its vocabulary in the program, so a program pays for
// those that it imports: 3.1 MB and 1.5 MB.
//
//	session, err := accp.NewSession("planner", "s1", &accp.SessionOptions{
//		Counter: o200k.Counter{},
//	})
//
// Vocabularies lie in the program in the form in which they are looked up. There is
// nothing to load before the first count, which takes well below a millisecond, and
// nothing to keep in memory; counting allocates nothing. For other vocabularies
// there is [github.com/fivewire/fivewire/accp.LoadBPE], which reads published rank files.
//
// The tests of this package compare the counts with those of two other
// implementations, on texts of all kinds and all planes of Unicode. They also
// measure the table of tokens in the README of package accp.
//
// Letters, numbers and white space are those of Unicode 15.0; what later versions
// assign counts as symbols.
package tokenizer

//go:generate go run ./internal/gen
