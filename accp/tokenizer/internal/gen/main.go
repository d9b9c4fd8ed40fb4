// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command gen generates the embedded tables of the tokenizers: the published vocabularies, read
// from a Go module that contains the rank files unchanged, and the classes of characters. Run it in
// the folder of the module:
//
//	go generate ./...
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go-loader/assets"

	"github.com/fivewire/fivewire/accp/tokenizer/internal/bpe"
)

// The digests of the rank files as published.
var vocabularies = []struct{ name, sha256, folder string }{
	{"o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", "o200k"},
	{"cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", "cl100k"},
}

func main() {
	for _, v := range vocabularies {
		if err := vocabulary(v.name, v.sha256, v.folder); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
	if err := classes(filepath.Join("internal", "bpe", "classes.bin")); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func vocabulary(name, digest, folder string) error {
	file, err := assets.Assets.ReadFile(name + ".tiktoken")
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != digest {
		return fmt.Errorf("%s is not the published file", name)
	}
	tokens, err := read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	pilots, slots, err := place(tokens)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var blob, offsets []byte
	for _, t := range tokens {
		if len(t) > 0xFF || len(blob) >= 1<<24 {
			return fmt.Errorf("%s: token of %d bytes at %d", name, len(t), len(blob))
		}
		offsets = binary.LittleEndian.AppendUint32(offsets, uint32(len(blob))<<8|uint32(len(t)))
		blob = append(blob, t...)
	}
	for part, data := range map[string][]byte{"tokens": blob, "offsets": offsets, "slots": slots, "pilots": pilots} {
		if err := os.WriteFile(filepath.Join(folder, part+".bin"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// read returns the tokens by rank.
func read(file []byte) ([]string, error) {
	var tokens []string
	for line := range bytes.Lines(file) {
		coded, rank, ok := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if !ok {
			continue
		}
		token, err := base64.StdEncoding.DecodeString(string(coded))
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(string(rank))
		if err != nil {
			return nil, err
		}
		for n >= len(tokens) {
			tokens = append(tokens, "")
		}
		tokens[n] = string(token)
	}
	return tokens, nil
}

// place finds a pilot for each bucket so that no two tokens share a slot. It starts with the
// largest buckets.
func place(tokens []string) (pilots, slots []byte, err error) {
	const perBucket, load = 4, 0.98
	nb := (len(tokens) + perBucket - 1) / perBucket
	ns := int(float64(len(tokens)) / load)
	buckets := make([][]int, nb)
	hashes := make([]uint64, len(tokens))
	for rank, t := range tokens {
		if t == "" {
			continue // a rank without a token
		}
		hashes[rank] = bpe.Hash(t)
		b := bpe.Reduce(hashes[rank], nb)
		buckets[b] = append(buckets[b], rank)
	}
	order := make([]int, nb)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(buckets[b]) - len(buckets[a]) })

	occupied := make([]bool, ns)
	pilots, slots = make([]byte, 2*nb), make([]byte, 4*ns) // an empty slot refers to token 0, which is compared
	var used []int
	for _, b := range order {
		found := false
		for pilot := uint64(0); pilot < 1<<16 && !found; pilot++ {
			used = used[:0]
			found = true
			for _, rank := range buckets[b] {
				slot := bpe.Slot(hashes[rank], pilot, ns)
				if occupied[slot] || slices.Contains(used, slot) {
					found = false
					break
				}
				used = append(used, slot)
			}
			if !found {
				continue
			}
			binary.LittleEndian.PutUint16(pilots[2*b:], uint16(pilot))
			for i, rank := range buckets[b] {
				occupied[used[i]] = true
				binary.LittleEndian.PutUint32(slots[4*used[i]:], uint32(rank)|bpe.Mark(hashes[rank])<<18)
			}
		}
		if !found {
			return nil, nil, fmt.Errorf("no pilot for a bucket of %d", len(buckets[b]))
		}
	}
	return pilots, slots, nil
}

// classes writes a table of two levels: the block number of each 256 characters, and the blocks.
func classes(path string) error {
	if unicode.Version != bpe.UnicodeVersion {
		return fmt.Errorf("the classes are to be of Unicode %s, this Go has %s", bpe.UnicodeVersion, unicode.Version)
	}
	var index, blocks []byte
	seen := map[string]int{}
	for block := range rune((utf8.MaxRune + 1) >> 8) {
		var classes [256]byte
		for i := range classes {
			classes[i] = byte(bpe.Classify(block<<8 | rune(i)))
		}
		n, ok := seen[string(classes[:])]
		if !ok {
			n = len(seen)
			seen[string(classes[:])] = n
			blocks = append(blocks, classes[:]...)
		}
		index = binary.LittleEndian.AppendUint16(index, uint16(n))
	}
	return os.WriteFile(path, append(index, blocks...), 0o644)
}
