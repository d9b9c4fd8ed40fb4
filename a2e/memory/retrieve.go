// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/store"
)

// An answer collects entries within its bounds.
type answer struct {
	RetrieveResponse
	limit int64
	space int
}

func newAnswer(r *RetrieveRequest) *answer { return &answer{limit: int64(r.Limit), space: maxAnswer} }

// isFull reports whether the answer takes no entry.
func (a *answer) isFull() bool { return int64(len(a.Entries)) >= a.limit || a.space < 0 }

// add adds an entry if it fits.
func (a *answer) add(text []byte) {
	if a.isFull() {
		return
	}
	if a.space -= len(text) + 1; a.space >= 0 {
		a.Entries = append(a.Entries, text)
	}
}

// A found is a row that was read.
type found struct {
	document
	text []byte
}

// byKey answers a request for keys without a query: the rows of the store.
func byKey(ctx context.Context, shelves []*shelf, r *RetrieveRequest) (*RetrieveResponse, error) {
	var list []found
	for h := range hashes(r.Keys) {
		for _, s := range shelves {
			e, err := s.kv.Get(ctx, s.rowKey(h))
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			d, text, ok := readRow(h, e)
			if ok && d.score >= r.MinScore && (len(r.Tags) == 0 || overlap(tagsOf(text), r.Tags)) {
				list = append(list, found{d, text})
			}
		}
	}
	slices.SortFunc(list, func(a, b found) int { return cmp.Compare(a.position, b.position) })
	out := newAnswer(r)
	out.Total = int64(len(list))
	for _, f := range list {
		out.add(f.text)
	}
	return &out.RetrieveResponse, nil
}

// byIndex answers a request with the indexes, and reads the rows of the answer alone.
func byIndex(ctx context.Context, shelves []*shelf, r *RetrieveRequest, words []string) (*RetrieveResponse, error) {
	for _, s := range shelves {
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
	}
	total, rows, err := matches(ctx, shelves, r, words)
	if err != nil {
		return nil, err
	}
	out := newAnswer(r)
	out.Total = int64(total)
	for _, row := range rows {
		if out.isFull() {
			break
		}
		s := shelves[row.shelf]
		e, err := s.kv.Get(ctx, s.rowKey(row.hash))
		if errors.Is(err, store.ErrNotFound) {
			out.Total--
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, text, ok := readRow(row.hash, e); ok {
			out.add(text)
		}
	}
	return &out.RetrieveResponse, nil
}

// A place is that of a row.
type place struct {
	shelf int
	hash  hash
}

// matches returns the number of the matches of a request, and the first of them: as many as its limit,
// and some in case that a row is removed.
func matches(ctx context.Context, shelves []*shelf, r *RetrieveRequest, words []string) (total int, rows []place, err error) {
	var indexes []*index
	now := time.Now().UnixMicro()
	for _, s := range shelves { // always in the order of the tiers
		s.mu.Lock()
		defer s.mu.Unlock()
		s.index.expire(now)
		indexes = append(indexes, s.index)
	}
	var list []candidate
	if r.Query == "" {
		list = all(indexes)
	} else if list, err = rank(ctx, indexes, words); err != nil {
		return 0, nil, err
	}
	if len(r.Tags) > 0 {
		tagged := make([]map[uint32]bool, len(indexes))
		for i, x := range indexes {
			tagged[i] = x.tagged(r.Tags)
		}
		list = slices.DeleteFunc(list, func(c candidate) bool { return !tagged[c.shelf][c.doc] })
	}
	if len(r.Keys) > 0 {
		keys := hashes(r.Keys)
		list = slices.DeleteFunc(list, func(c candidate) bool { return !keys[indexes[c.shelf].docs[c.doc].hash] })
	}
	list = slices.DeleteFunc(list, func(c candidate) bool { return indexes[c.shelf].docs[c.doc].score < r.MinScore })
	const spare = 16
	total = len(list)
	for _, c := range first(list, int(min(max(int64(r.Limit), 0), int64(total)))+spare) {
		rows = append(rows, place{c.shelf, indexes[c.shelf].docs[c.doc].hash})
	}
	return total, rows, nil
}

// rankedBy answers a query with the ranker of the options, which gets all entries.
func rankedBy(ctx context.Context, shelves []*shelf, r *RetrieveRequest, ranker func(context.Context, []*Entry, string) ([]int, error)) (*RetrieveResponse, error) {
	var list []found
	for _, s := range shelves {
		prefix := s.prefix + "/e/"
		for e, err := range s.kv.List(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			h, isHash := parseHash(strings.TrimPrefix(e.Key, prefix))
			if d, text, ok := readRow(h, e); ok && isHash {
				list = append(list, found{d, text})
			}
		}
	}
	slices.SortFunc(list, func(a, b found) int { return cmp.Compare(a.position, b.position) })
	entries := make([]*Entry, len(list))
	for i, f := range list {
		e, err := a2e.DecodeModel[Entry](f.text, "")
		if err != nil {
			return nil, err
		}
		entries[i] = e
	}
	order, err := ranker(ctx, entries, r.Query)
	if err != nil {
		return nil, err
	}
	keys := hashes(r.Keys)
	out := newAnswer(r)
	for _, i := range order {
		f := list[i]
		if len(r.Keys) > 0 && !keys[f.hash] || len(r.Tags) > 0 && !overlap(entries[i].Tags, r.Tags) || f.score < r.MinScore {
			continue
		}
		out.Total++
		out.add(f.text)
	}
	return &out.RetrieveResponse, nil
}
