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

// The vocabulary lies in the program as it is used; see package bpe.
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

// A Counter counts the tokens of a text by cl100k_base, exactly. It is an
// accp.TokenCounter; the zero value is ready for use, from several goroutines. What
// looks like a special token, such as <|endoftext|>, is counted as the text that it
// is, and a byte that is not UTF-8 as U+FFFD.
type Counter struct{}

// Count returns how many tokens text has. It takes time in proportion to the length
// of text, but for a piece without any boundary, such as a very long run of one
// letter, where it is n log n. It allocates nothing, but working memory for such a
// piece, which is kept for the next one, and a copy of a text that is not UTF-8.
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
