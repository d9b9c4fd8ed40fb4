// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"context"
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

// A candidate is an entry that may be a result.
type candidate struct {
	shelf    int // of the request
	doc      uint32
	position int64
	score    float64
}

// order is that of results: the best match first, and equal ones in the order of insertion.
func (c candidate) order(other candidate) int {
	return cmp.Or(cmp.Compare(other.score, c.score), cmp.Compare(c.position, other.position))
}

// first returns the first n candidates in order. It changes the list.
func first(list []candidate, n int) []candidate {
	best := list[:0]
	sort := func() {
		slices.SortFunc(best, candidate.order)
		best = best[:min(len(best), n)]
	}
	isSorted := false // best had n sorted candidates
	for _, c := range list {
		if isSorted && c.order(best[n-1]) > 0 {
			continue
		}
		if best = append(best, c); len(best) == 2*n {
			sort()
			isSorted = true
		}
	}
	sort()
	return best
}

// rank returns the entries of indexes that match every word, with their scores (A2E-D65).
func rank(ctx context.Context, indexes []*index, words []string) ([]candidate, error) {
	if len(words) == 0 {
		return nil, nil
	}
	n, total := 0, int64(0)
	counts := make([][]uint64, len(indexes)) // of the matches of a word, by document
	for i, x := range indexes {
		n += x.count
		total += x.words
		counts[i] = make([]uint64, len(x.docs))
	}
	average := float64(total) / float64(n)
	var found []candidate
	for j, word := range words {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		matching := 0
		var matches []candidate
		for i, x := range indexes {
			clear(counts[i])
			x.eachMatch(word, func(doc uint32, times uint64) {
				if counts[i][doc] == 0 {
					matching++
					if j == 0 {
						matches = append(matches, candidate{shelf: i, doc: doc, position: x.docs[doc].position})
					}
				}
				counts[i][doc] += times
			})
		}
		if j == 0 {
			found = matches
		}
		idf := math.Log(1 + (float64(n-matching)+0.5)/(float64(matching)+0.5))
		if j > 0 {
			found = slices.DeleteFunc(found, func(c candidate) bool { return counts[c.shelf][c.doc] == 0 })
		}
		for k := range found {
			c := &found[k]
			tf := float64(counts[c.shelf][c.doc])
			length := float64(indexes[c.shelf].docs[c.doc].words)
			c.score += idf * tf * (saturation + 1) / (tf + saturation*(1-lengthPart+lengthPart*length/average))
		}
		if len(found) == 0 {
			return nil, nil
		}
	}
	return found, nil
}

// all returns the entries of indexes.
func all(indexes []*index) (list []candidate) {
	for i, x := range indexes {
		for doc, d := range x.docs {
			if d.revision != 0 {
				list = append(list, candidate{shelf: i, doc: uint32(doc), position: d.position})
			}
		}
	}
	return list
}

// queryWords returns the distinct words of a query.
func queryWords(query string) []string {
	return slices.Compact(slices.Sorted(slices.Values(appendWords(nil, query))))
}

// entryWords returns the words of the texts and numbers of an entry and of its tags.
func entryWords(entry strictjson.Value) []string {
	words := valueWords(nil, entry.Get("content"))
	words = valueWords(words, entry.Get("key"))
	return valueWords(words, entry.Get("tags"))
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
	return slices.AppendSeq(words, strings.FieldsSeq(strings.Map(fold, text)))
}

// fold returns the same rune for all runes that are equal under simple case folding, and a space for
// a rune outside words.
func fold(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z':
		return r - 'a' + 'A'
	case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return r
	case !unicode.In(r, unicode.L, unicode.M, unicode.Nd):
		return ' '
	}
	smallest := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		smallest = min(smallest, next)
	}
	return smallest
}
