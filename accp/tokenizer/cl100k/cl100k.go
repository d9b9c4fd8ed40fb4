// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package cl100k counts tokens by cl100k_base, the vocabulary of the models of the
// GPT-4 generation.
package cl100k

import (
	_ "embed"
	"unicode/utf8"

	"github.com/fivewire/fivewire/accp/tokenizer/internal/bpe"
)

// The vocabulary as lookup tables; see package bpe.
var (
	//go:embed tokens.bin
	tokens string
	//go:embed offsets.bin
	offsets string
	//go:embed slots.bin
	slots string
	//go:embed pilots.bin
	pilots string
)

// A Counter counts the tokens of a text in cl100k_base. It is an accp.TokenCounter. The zero value
// is ready for use and safe for concurrent use. The text of a special token, such as <|endoftext|>,
// is counted as ordinary text, and an invalid byte as U+FFFD.
type Counter struct{}

// Count returns the number of tokens of text, in linear time; a piece of n bytes without a boundary
// takes O(n log n). It allocates only working memory for such a piece, which is reused, and a copy
// of a text that is not UTF-8.
func (Counter) Count(text string) int {
	v := bpe.Vocabulary{Tokens: tokens, Offsets: offsets, Slots: slots, Pilots: pilots}
	if !utf8.ValidString(text) {
		text = string([]rune(text)) // the vocabularies are of text: each stray byte is U+FFFD
	}
	n := 0
	for len(text) > 0 {
		end := bpe.CL100k(text)
		n += v.Piece(text[:end])
		text = text[end:]
	}
	return n
}
