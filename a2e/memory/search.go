// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Parameters of the order of results (A2E-D65).
const (
	saturation = 1.2
	lengthPart = 0.75
)

// rank returns the indexes of the entries that match every word of a query, the best match first
// (A2E-D65).
func rank(entries []*Entry, query string) []int {
	words := slices.Compact(slices.Sorted(slices.Values(appendWords(nil, query))))
	if len(words) == 0 {
		return nil
	}
	lengths := make([]float64, len(entries))
	counts := make([][]float64, len(entries)) // by word of the query
	matching := make([]float64, len(words))   // entries by word
	total := 0.0
	for i, e := range entries {
		text := entryWords(e)
		lengths[i] = float64(len(text))
		total += lengths[i]
		counts[i] = make([]float64, len(words))
		for j, word := range words {
			for _, w := range text {
				if strings.HasPrefix(w, word) {
					counts[i][j]++
				}
			}
			if counts[i][j] > 0 {
				matching[j]++
			}
		}
	}
	n := float64(len(entries))
	scores := make([]float64, len(entries))
	var found []int
	for i := range entries {
		if slices.Contains(counts[i], 0) {
			continue
		}
		for j, tf := range counts[i] {
			idf := math.Log(1 + (n-matching[j]+0.5)/(matching[j]+0.5))
			scores[i] += idf * tf * (saturation + 1) / (tf + saturation*(1-lengthPart+lengthPart*lengths[i]*n/total))
		}
		found = append(found, i)
	}
	slices.SortStableFunc(found, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return found
}

// entryWords returns the words of the texts and numbers of an entry and of its tags.
func entryWords(e *Entry) []string {
	var words []string
	for _, raw := range []json.RawMessage{e.Content, e.Key} {
		v, err := strictjson.Check(raw, strictjson.Options{MaxDepth: 10000})
		if err == nil {
			words = valueWords(words, v)
		}
	}
	for _, tag := range e.Tags {
		words = appendWords(words, tag)
	}
	return words
}

// valueWords appends the words of the strings and numbers in a value, without the names of members.
func valueWords(words []string, v strictjson.Value) []string {
	switch v.Kind() {
	case '"':
		text, _ := v.Text()
		return appendWords(words, text)
	case '0':
		return appendWords(words, string(v))
	}
	for w := v.Members(); w.Next(); {
		words = valueWords(words, w.Value)
	}
	for e := v.Elements(); e.Next(); {
		words = valueWords(words, e.Value)
	}
	return words
}

// appendWords appends the maximal runs of letters, marks and digits of a text, with folded case.
func appendWords(words []string, text string) []string {
	isOutside := func(r rune) bool { return !unicode.In(r, unicode.L, unicode.M, unicode.Nd) }
	for word := range strings.FieldsFuncSeq(text, isOutside) {
		words = append(words, strings.Map(fold, word))
	}
	return words
}

// fold returns the same rune for all runes that are equal under simple case folding.
func fold(r rune) rune {
	smallest := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		smallest = min(smallest, next)
	}
	return smallest
}
